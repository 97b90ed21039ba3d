"""Learning rates of their own for the weights of rare words."""

from __future__ import annotations

import pytest
import torch

from bayesrnn.cli import main
from bayesrnn.tasks.language.experiment import EXPERIMENT
from bayesrnn.tasks.language.task import rates_of_words
from bayesrnn.tasks.language.trained import open_language_run
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run
from bayesrnn.training.update import Update


def test_a_word_learns_faster_by_a_power_of_its_rarity():
    tokens = torch.tensor([0] * 16 + [1] * 4 + [2])  # and 3 is never seen
    rates = rates_of_words(tokens, 4, power=0.5)
    for name in ("embedding.weight", "out.weight"):
        torch.testing.assert_close(rates[name], torch.tensor([[1.0], [2.0], [4.0], [4.0]]))
    assert rates_of_words(tokens, 4, power=0.0) == {}


def _first_step(trainer: Trainer) -> dict[str, torch.Tensor]:
    """How far the first step moves each weight."""
    before = {name: w.detach().clone() for name, w in trainer.method.weights().items()}
    for _ in trainer.run():
        trainer.stop = True
    return {name: w.detach() - before[name] for name, w in trainer.method.weights().items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", ["lstm", "dropout", "variational-dropout", "bbb", "sharpened"])
def test_a_step_moves_the_rows_of_words_by_their_rates(new_trainer, method, tied):
    even = _first_step(new_trainer("even", method, tied=tied))
    trainer = new_trainer("uneven", method, tied=tied, rare_words=0.5)
    uneven, rates = _first_step(trainer), trainer.task.rates()
    assert len(rates["out.weight"].unique()) > 10
    for name, moved in even.items():
        # Weights are stored in float32, so a small step from a large weight is rounded.
        torch.testing.assert_close(
            uneven[name], moved * rates.get(name, torch.ones(())), rtol=1e-4, atol=1e-6
        )


def test_rates_that_would_have_no_effect_are_refused(new_trainer):
    lstm, adam = new_trainer("lstm", "lstm"), new_trainer("adam", "lstm", optimizer="adam")
    with pytest.raises(ValueError, match="no weight is called embedding"):
        Update(lstm.method, lstm.config, {"embedding": torch.ones(1)})
    with pytest.raises(ValueError, match="lstm with --optimizer adam has one learning rate"):
        Update(adam.method, adam.config, {"embedding.weight": torch.ones(1)})


def test_a_run_with_rates_resumes_bit_for_bit_and_only_with_them(text_folder, tmp_path, capsys):
    options = ["--hidden", "8", "--batch-size", "8", "--unroll", "10", "--no-tensorboard", "--json"]
    train = ["train", *options, "--data", str(text_folder), "--rare-words", "0.25", "--epochs", "1"]
    main([*train, "--run", str(tmp_path / "whole")])
    trainer = _stopped(tmp_path / "whole", tmp_path / "parts")
    assert 0 < trainer.position[1] < len(trainer.task)
    for command in (
        ["train", "--resume", "--rare-words", "0.5", "--run", str(tmp_path / "parts")],
        [*train, "--run", str(tmp_path / "new"), "--rare-words", "1.5"],
        [*train, "--run", str(tmp_path / "new"), "--method", "sgld", "--average", "0"],
        [*train, "--run", str(tmp_path / "new"), "--optimizer", "adam"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "--rare-words 0.5 cannot be changed with --resume (the run began with 0.25)" in said
    assert "rare_words = 1.5 must lie between 0 and 1." in said
    assert "rare_words = 0.25 must be 0 for sgld, whose weights all have one learning rate." in said
    assert "rare_words = 0.25 must be 0 for --optimizer adam." in said
    assert not (tmp_path / "new").exists()
    main(["train", "--resume", "--no-tensorboard", "--json", "--run", str(tmp_path / "parts")])
    for name in ("metrics.jsonl", "weights.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def _stopped(whole, folder) -> Trainer:
    """A run with the settings of another, stopped after 20 steps."""
    config = open_language_run(whole).config
    ready = EXPERIMENT.prepare(config, None)
    trainer = Trainer(Run.create(folder, config, ready.files), ready.task, ready.method)
    for step, _ in enumerate(trainer.run(), start=1):
        trainer.stop = step == 20
    return trainer
