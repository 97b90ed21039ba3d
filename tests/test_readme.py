"""The README's loop runs as it stands, before and after the diff."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import bayesrnn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(9, 8), nn.LSTM(8, 16), nn.Linear(16, 9)

    def forward(self, x, state=None):
        output, state = self.lstm(self.embedding(x), state)
        return self.out(output), state

    def loss(self, x, y, state=None):
        logits, state = self(x, state)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()), state


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_quick_start_runs_as_pasted(capsys):
    torch.manual_seed(0)
    exec(_block("python"), {})
    pairs = re.compile(r"tensor\(\[(\d\.\d+), (\d\.\d+)\]\)")
    shown, printed = pairs.findall(README), pairs.findall(capsys.readouterr().out)
    for ours, theirs in zip(printed, shown, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert float(one) == pytest.approx(float(other), abs=0.15)
    (sure, border), (little, much) = printed
    assert float(sure) > 0.97
    assert 0.1 < float(border) < 0.9
    assert float(much) > 10 * float(little)


def test_the_quick_start_is_short():
    lines = [line for line in _block("python").splitlines() if line and "import" not in line]
    assert len(lines) <= 11


@pytest.mark.parametrize("drop", ["+", "-"], ids=["before", "after"])
def test_the_loop_learns(drop):
    torch.manual_seed(0)
    tokens = torch.arange(9).repeat(600)
    cuts = bayesrnn.Cuts(tokens, num_streams=4, unroll=10)
    model = Model()
    names = {"bayesrnn": bayesrnn, "torch": torch, "model": model, "cuts": cuts}
    lines = [line[1:] for line in _block("diff").splitlines() if not line.startswith(drop)]
    with torch.no_grad():
        before = model.loss(tokens[:-1, None], tokens[1:, None])[0]
    exec("\n".join(lines), names)
    with torch.no_grad():
        after = model.loss(tokens[:-1, None], tokens[1:, None])[0]
    assert after < 0.5 * before


def test_the_change_is_as_small_as_it_says():
    added = [line for line in _block("diff").splitlines() if line.startswith("+")]
    indented_only = {line[1:].split("#")[0].strip() for line in added} & {
        line[1:].split("#")[0].strip()
        for line in _block("diff").splitlines()
        if line.startswith("-")
    }
    assert len(added) - len(indented_only) == 3


def test_every_link_of_the_documents_leads_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
