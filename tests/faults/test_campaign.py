"""A small, seeded part of the campaign: every kind of fault, against this checkout."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.campaign import corrupt, report
from tests.faults.campaign.campaign import KINDS, Campaign

PACKAGE = Path(__file__).resolve().parents[2]
SEED = 18
FAULTS = {"crash": 24, "disk": 18, "corrupt": 48, "interrupt": 10, "pair": 6}

pytestmark = pytest.mark.skipif(
    not (Path("/proc/self/fd").is_dir() and shutil.which("cc")),
    reason="the campaign needs Linux and a C compiler",
)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with Campaign(PACKAGE, tmp_path_factory.mktemp("campaign")) as made:
        yield made


def test_every_kind_has_a_number_of_faults():
    assert set(FAULTS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_faults_are_survived(campaign: Campaign, kind: str):
    results = campaign.run(FAULTS[kind], SEED, [kind])
    failed = "\n".join(report.failures(results, SEED, PACKAGE))
    assert not failed, f"\n{failed}\n\n{report.table(results)}"
    assert len(results) > FAULTS[kind] / 2  # the others disturbed nothing


def test_a_choice_is_the_same_each_time(campaign: Campaign):
    names = list(KINDS)
    first, second = (campaign.choose(200, SEED, names) for _ in range(2))
    assert first == second
    assert len(first) == 200
    assert set(first) != set(campaign.choose(200, SEED + 1, names))


@pytest.mark.parametrize("damage", [d for d in corrupt.DAMAGES if d not in ("deleted", "swapped")])
def test_damages_change_a_file(damage: str):
    data = b'{"b": 12}\n{"a": 34}\n' * 3
    assert corrupt.damaged(data, damage, Random(0)) != data
