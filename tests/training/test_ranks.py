"""Ranks of torch.distributed train as one process does; parts of a minibatch add up to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import Tensor, distributed

from bayesrnn import ranks, shared_sum
from bayesrnn.tasks.language.config import LanguageModelConfig, preset
from bayesrnn.tasks.language.experiment import EXPERIMENT
from bayesrnn.training.experiment import Part
from bayesrnn.training.loop import Trainer, own_parts
from bayesrnn.training.run import Run

STEPS = 20
DRAWS = 300
METHODS = ("lstm", "bbb", "sharpened", "exact", "sgld")

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch has no torch.distributed"
)


def _config(text: str, method: str = "bbb", **changes: Any) -> LanguageModelConfig:
    settings = {"data": text, "hidden": 6, "unroll": 7, "batch_size": 5, "sigma_init": 0.1}
    settings |= {"average": 0.0, "shared_noise": True, "exact": method == "exact", **changes}
    config = preset("tiny", "sharpened" if method == "exact" else method)
    return replace(config, **settings)


def _trainer(config: LanguageModelConfig, folder: str = "unused") -> Trainer:
    ready = EXPERIMENT.prepare(config, None)
    ready.method.model.double()
    return Trainer(Run(Path(folder), config), ready.task, ready.method)


def _gradients(trainer: Trainer) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in trainer.update.gradients()])


def _trained(config: LanguageModelConfig) -> dict[str, Tensor]:
    """The gradients of the first step and of step 20, and the weights and state after it."""
    trainer, found = _trainer(config), {}
    for step in range(1, STEPS + 1):
        trainer._step()
        if step in (1, STEPS):
            found[f"gradients of step {step}"] = _gradients(trainer)
    found["weights"] = torch.cat([p.detach().flatten() for p in trainer.update.parameters])
    carried = trainer.task.carried().items()
    found |= {f"state {name}": ranks.gather(tensor, dim=1) for name, tensor in carried}
    found["nats"] = torch.tensor([trainer._at.nats, trainer._at.steps])
    found["sharpening"] = torch.tensor(trainer._at.sums["kl_theta"])
    return found


def _noisy_gradients(config: LanguageModelConfig, split: bool = False) -> Tensor:
    """The gradients of one minibatch for many draws of the weights (draws, weights).

    With `split` those of its two halves, each with its own draw (2, draws, weights).
    """
    trainer = _trainer(config)
    parts = [Part(0, 2), Part(1, 2)] if split else [None]
    found = []
    for part in parts:
        own = []
        for _ in range(DRAWS):
            trainer.task.begin_epoch(0)
            trainer.update.zero_grad()
            if part is None:
                trainer._gradients()
                ranks.sum_(*trainer.update.gradients())
            else:
                trainer.task.step(trainer.method, 0, part, trainer.random.noise)
            own.append(_gradients(trainer))
        found.append(torch.stack(own))
    return torch.stack(found) if split else found[0]


def _rank(rank: int, world: int, port: int, text: str, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "BAYESRNN_CACHE": f"{folder}/cache-{rank}",
    }
    with ranks.joined(60):
        found: dict[str, Any] = {method: _trained(_config(text, method)) for method in METHODS}
        found["accumulate"] = _trained(_config(text, "bbb", accumulate=2, rare_words=0.5))
        # The same through shared memory.
        ranks._group.on_one_machine, ranks.LEAST_SHARED = True, 1  # type: ignore[union-attr]
        found["shared"] = _trained(_config(text, "bbb"))
        assert ranks._group.shared is not None  # type: ignore[union-attr]
        found["sums"] = _sums(rank)
        ranks._group.on_one_machine = False  # type: ignore[union-attr]
        found["own noise"] = _noisy_gradients(_config(text, shared_noise=False))
        found["gathered"] = ranks.gather(torch.full((2, rank + 1), float(rank)), dim=1)
        found["texts"] = ranks.gather_text("né" * rank)
        sent = {"a": torch.arange(3), "b": torch.ones(0)} if rank == 0 else None
        found["broadcast"] = ranks.broadcast(sent, "header" if rank == 0 else "")
        found["agreed"] = _error(lambda: ranks.agree(lambda: _fail_on(1)))
        found["different"] = _error(lambda: ranks.check_same({"a": 1, "lr": rank}, "settings"))
        found["too many"] = _error(lambda: own_parts(3, 2))
        found["first"] = ranks.first_to_fail()
    torch.save(found, f"{folder}/{rank}.pt")


def _sums(rank: int) -> list[Tensor]:
    """Sums of vectors of several lengths and types, shorter and longer than the ones before."""
    sizes = (1, 7, 1000, 3, 5000, 2)
    vectors = [torch.arange(size).double().add(rank) for size in sizes]
    vectors += [vector.float() for vector in vectors]
    for vector in vectors:
        ranks.sum_(vector)
    return vectors


def _fail_on(rank: int) -> None:
    if ranks.rank() == rank:
        raise ValueError("only here")


def _error(work: Callable[[], object]) -> str:
    try:
        work()
    except (ValueError, ranks.Elsewhere) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for split, lines in (("train", 130), ("valid", 8), ("test", 8)):
        rows = [" ".join(f"w{(n * n + k) % 11}" for k in range(6)) for n in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def found(text, tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (2, port, text, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_with_one_noise_train_as_one_process(found, text, method):
    """Two and three of five streams: the gradients of one process with all of them, step after step."""
    alone = _trained(_config(text, method))
    for rank in found:
        assert list(rank[method]) == list(alone)
        for name, expected in alone.items():
            torch.testing.assert_close(rank[method][name], expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(found[0][method]["weights"], found[1][method]["weights"])


def test_ranks_may_accumulate_and_rare_words_learn_faster_there_too(found, text):
    alone = _trained(_config(text, "bbb", rare_words=0.5))
    for name, expected in alone.items():
        torch.testing.assert_close(found[0]["accumulate"][name], expected, rtol=1e-10, atol=1e-12)


def test_sums_through_shared_memory_are_those_of_the_network(found):
    for rank in found:
        for name, expected in found[0]["bbb"].items():
            assert torch.equal(rank["shared"][name], expected), name
        for vector in rank["sums"]:
            assert torch.equal(vector, 2 * torch.arange(len(vector)).to(vector.dtype) + 1)
    assert not list(shared_sum.FOLDER.glob("bayesrnn-*"))


def test_without_room_nothing_is_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_sum, "FOLDER", tmp_path)
    assert shared_sum.make_file(2**62) is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shared_sum, "FOLDER", tmp_path / "none")
    assert shared_sum.make_file(1) is None


@pytest.mark.parametrize("method", ["lstm", "bbb", "sgld"])
@pytest.mark.parametrize("accumulate", [2, 5])
def test_a_minibatch_in_parts_is_the_minibatch(text, method, accumulate):
    whole, parts = (_trained(_config(text, method, accumulate=n)) for n in (1, accumulate))
    for name, expected in whole.items():
        torch.testing.assert_close(parts[name], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_parts_have_each_row_and_the_kl_once(world):
    for rows in (world, 20, 23):
        parts = [Part(number, world) for number in range(world)]
        covered = [row for part in parts for row in range(rows)[part.rows(rows)]]
        assert covered == list(range(rows))
        assert sum(part.kl_share for part in parts) == pytest.approx(1, abs=1e-15)


def test_own_noise_lowers_the_variance_as_expected(found, text):
    """One draw for all streams: Var[g1 + g2]. One for each half: Var[g1] + Var[g2]."""
    assert torch.equal(found[0]["own noise"], found[1]["own noise"])
    halves = _noisy_gradients(_config(text, shared_noise=False), split=True)
    weights = halves.shape[-1] // 2  # mu, rho and the softmax's bias
    alone = _noisy_gradients(_config(text))
    for name, span in (("mu", slice(0, weights - 6)), ("rho", slice(weights, 2 * weights - 12))):
        expected, error = _variance(halves[0, :, span], halves[1, :, span])
        two, its_error = _variance(found[0]["own noise"][:, span])
        assert abs(two - expected) < 4 * (error**2 + its_error**2) ** 0.5, name
        one, ones_error = _variance(alone[:, span])
        assert one - two > 4 * (ones_error**2 + its_error**2) ** 0.5, name


def _variance(*samples: Tensor) -> tuple[float, float]:
    """The variance over draws, summed over weights and over independent samples, and its standard error."""
    total, square = 0.0, 0.0
    for sample in samples:
        deviations = (sample - sample.mean(0)).square().sum(1) * DRAWS / (DRAWS - 1)
        total += deviations.mean().item()
        square += deviations.var().item() / DRAWS
    return total, square**0.5


def test_what_ranks_send_arrives(found):
    for rank in found:
        assert rank["gathered"].tolist() == [[0.0, 1.0, 1.0]] * 2
        assert rank["texts"] == ["", "né"]
        tensors, said = rank["broadcast"]
        assert said == "header"
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
            "a": [0, 1, 2],
            "b": [],
        }


def test_a_failure_on_one_rank_ends_all(found):
    assert [rank["agreed"] for rank in found] == ["Elsewhere: ", "ValueError: only here"]
    said = "ValueError: the ranks have different settings: lr = 0 on rank 0, lr = 1 on rank 1."
    assert [rank["different"] for rank in found] == [said, said]
    assert (
        "a minibatch of 3 cannot be divided into 4 parts (2 ranks x 2 parts)"
        in found[0]["too many"]
    )
    assert sorted(rank["first"] for rank in found) == [False, True]


@pytest.mark.parametrize(
    "said",
    [
        "[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer",
        "Timed out waiting 3000ms for recv operation to complete",
        "Application timeout caused pair closure",
    ],
)
def test_what_gloo_says_of_a_lost_rank_is_understood(said):
    assert ranks._is_of_the_network(RuntimeError(said))
    assert not ranks._is_of_the_network(RuntimeError("shape '[2]' is invalid for input of size 3"))
