"""A new experiment and a new method from outside the package, added through the registries."""

from __future__ import annotations

import json

import pytest

from bayesrnn import methods
from bayesrnn.cli import main
from bayesrnn.methods import MethodSpec
from bayesrnn.tasks import experiments
from bayesrnn.training import experiment as registry
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run
from tests.cli.test_language_model import fail as fail

FILES = ("config.toml", "metrics.jsonl", "weights.safetensors", "checkpoint.safetensors")
QUIET = ["--json", "--no-tensorboard"]


@pytest.fixture
def toy_experiment(monkeypatch):
    monkeypatch.setattr(registry, "_MODULES", dict(registry._MODULES))
    registry.register("toy", "tests.tasks.toy_experiment")
    return registry.experiment("toy")


@pytest.fixture
def toy_method(monkeypatch):
    monkeypatch.setattr(methods, "_SPECS", dict(methods._SPECS))
    methods.register(MethodSpec("toy", "tests.methods.toy_method"))


def _stop_after(experiment, config, folder, steps: int) -> None:
    ready = experiment.prepare(config, None)
    trainer = Trainer(Run.create(folder, config, ready.files), ready.task, ready.method)
    for step, _ in enumerate(trainer.run(), start=1):
        trainer.stop = step == steps


def _same_files(one, other) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)


def test_a_new_experiment(toy_experiment, tmp_path, capsys, fail, trained):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main(["toy", "--epochs", "4", "--run", str(whole), *QUIET])
    assert json.loads(capsys.readouterr().out)["valid_r2"] > 0.5
    assert 'task = "toy"' in (whole / "config.toml").read_text()
    assert (whole / "note.txt").read_text() == "a line\n"

    config = registry.open_run(whole).config
    _stop_after(toy_experiment, config, parts, 7)
    main(["toy", "--resume", "--run", str(parts), *QUIET])
    assert _same_files(whole, parts)

    capsys.readouterr()
    main(["compare", str(whole), str(parts), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["slope"] == rows[1]["slope"] == pytest.approx(2, abs=1)
    main(["compare", str(whole)])
    assert capsys.readouterr().out.split()[:2] == ["run", "slope"]

    main(["report", str(whole), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert "The line" in page
    assert "slope = 2.0" in page  # the settings, which every report has

    main(["--help"])
    assert "Fit a line." in capsys.readouterr().out
    assert "give runs of one experiment" in fail("compare", whole, trained("lstm"))
    assert "is a run of `bayesrnn toy`; this needs one of `bayesrnn train`" in fail(
        "evaluate", whole
    )


def test_the_best_epoch_is_the_highest_where_higher_is_better(toy_experiment, tmp_path):
    """A line is fitted better and better."""
    folder = tmp_path / "run"
    config = toy_experiment.defaults({"method": "dropout"})
    ready = toy_experiment.prepare(config, None)
    trainer = Trainer(Run.create(folder, config, ready.files), ready.task, ready.method)
    for _ in trainer.run():
        pass
    values = [line["valid_r2"] for line in trainer.run_folder.read_metrics("epoch")]
    assert values[-1] > values[0]
    assert trainer.best == (max(values), values.index(max(values)) + 1)


def test_a_new_method(toy_method, text_folder, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    small = [
        "--method",
        "toy",
        "--epochs",
        "2",
        "--hidden",
        "8",
        "--batch-size",
        "8",
        "--unroll",
        "10",
        "--init-scale",
        "0.3",
    ]
    main(["train", *small, "--data", str(text_folder), "--run", str(whole), *QUIET])
    last = json.loads(capsys.readouterr().out)
    assert last["valid_perplexity"] < 32  # a uniform guess
    assert last["noise_per_word"] > 0  # what the method reported, summed by the loop
    assert last["kl_theta_per_word"] == 0

    (language,) = [e for e in experiments() if e.name == "language"]
    _stop_after(language, registry.open_run(whole).config, parts, 70)
    main(["train", "--resume", "--run", str(parts), *QUIET])
    assert _same_files(whole, parts)

    capsys.readouterr()
    main(["compare", str(whole), "--samples", "2", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["method"] == "toy"
    assert "test_samples" not in row
    page = tmp_path / "page.html"
    main(["report", str(whole), "--out", str(page), "--samples", "2", "--words", "200"])
    assert "Learning curves" in page.read_text()


def test_a_report_reads_each_text_and_each_run_once(trained, tmp_path, monkeypatch):
    from bayesrnn.tasks.language import trained as module

    read, loaded = [], []
    load_split, load_weights = module.load_split, Run.load_weights

    def reading(source, split, *rest):
        read.append((source.name, split))
        return load_split(source, split, *rest)

    def loading(run, method):
        loaded.append(run.name)
        return load_weights(run, method)

    monkeypatch.setattr(module, "load_split", reading)
    monkeypatch.setattr(Run, "load_weights", loading)
    runs = [str(trained(method)) for method in ("lstm", "bbb")]
    out = str(tmp_path / "page.html")
    main(["report", *runs, "--out", out, "--samples", "1", "--words", "200"])
    assert sorted(loaded) == ["bbb", "lstm"]
    assert len(read) == len(set(read))


def test_a_name_can_be_registered_once(toy_method, toy_experiment, fail, tmp_path):
    with pytest.raises(ValueError, match="already a method 'toy'"):
        methods.register(MethodSpec("toy", "elsewhere"))
    with pytest.raises(ValueError, match="already an experiment 'toy'"):
        registry.register("toy", "elsewhere")
    with pytest.raises(ValueError, match="did you mean bbb"):
        methods.method("bb")
    (tmp_path / "config.toml").write_text('format = 1\ntask = "poems"\n')
    assert "does not know the task 'poems'" in fail("compare", tmp_path)
