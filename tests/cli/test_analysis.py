"""prune, uncertainty, calibration and report, as a user types them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from bayesrnn.cli import main
from bayesrnn.compact import read_state
from bayesrnn.tasks.language.models.word_lm import WordLM
from tests.cli.test_language_model import fail as fail


def _json(capsys, *words: object) -> dict:
    capsys.readouterr()
    main([str(word) for word in (*words, "--json")])
    return json.loads(capsys.readouterr().out.splitlines()[0])


@pytest.mark.parametrize("storage", ["sparse", "int8"])
def test_a_point_of_the_curve_is_what_evaluate_says_of_the_export(
    storage, trained, tmp_path, capsys
):
    run, file = trained("bbb"), tmp_path / "small.safetensors"
    options = ("--drop", 0.7, "--export", file, "--storage", storage, "--streams", 3)
    found = _json(capsys, "prune", run, "--baseline", trained("lstm"), *options)
    curves = {
        name: {point["drop"]: point["perplexity"] for point in points}
        for name, points in found["curves"].items()
    }
    assert list(curves) == ["signal to noise", "magnitude", "magnitude, lstm"]
    assert min(curves["magnitude"]) == 0
    assert max(curves["magnitude"]) == 0.995
    evaluate = ("--split", "valid", "--streams", 3)
    unpruned = _json(capsys, "evaluate", run, *evaluate)["perplexity"]
    assert curves["signal to noise"][0.0] == unpruned == curves["magnitude"][0.0]
    plain = _json(capsys, "evaluate", trained("lstm"), *evaluate)["perplexity"]
    assert curves["magnitude, lstm"][0.0] == plain
    exported = _json(capsys, "evaluate", file, *evaluate)["perplexity"]
    exact = {"sparse": 1e-6, "int8": 5e-3}[storage]
    assert exported == pytest.approx(curves["signal to noise"][0.7], rel=exact)
    assert found["export"]["sizes"][-1]["perplexity"] == exported
    assert found["export"]["sizes"][-1]["bytes"] == file.stat().st_size
    if storage == "int8":
        assert exported != curves["signal to noise"][0.7]


def test_commands_accept_an_exported_file_in_place_of_a_run(trained, tmp_path, capsys):
    file, text = tmp_path / "small.safetensors", tmp_path / "text.txt"
    text.write_text("w1 w10 w13\n")
    main(["prune", str(trained("sharpened")), "--drop", "0.5", "--export", str(file)])
    assert f"wrote {file}" in capsys.readouterr().out
    main(["score", str(file), str(text), "--json"])
    assert len(capsys.readouterr().out.splitlines()) == 4
    main(["generate", str(file), "--words", "5"])
    assert capsys.readouterr().out
    main(["uncertainty", str(file), "--noise", "0.1", "--samples", "2", "--json"])
    assert capsys.readouterr().out
    # A plain module loads it.
    state = read_state(file)
    size, width = state["embedding.weight"].shape
    model = WordLM(size, state["lstm.weight_hh_l0"].shape[1], 2, embedding=width)
    model.load_state_dict(state)
    weights = sum(int((t == 0).sum()) for name, t in state.items() if name != "out.bias")
    assert weights > 0.4 * sum(t.numel() for t in state.values())
    assert torch.isfinite(model(torch.zeros(2, 1, dtype=torch.long))[0]).all()


def test_a_tied_model_is_exported_with_one_embedding(text_folder, tmp_path, capsys):
    run, file = tmp_path / "tied", tmp_path / "tied.safetensors"
    options = "--hidden 12 --epochs 1 --batch-size 8 --unroll 10 --tied --no-tensorboard --json"
    main(f"train --method bbb --data {text_folder} --run {run} {options}".split())
    found = _json(capsys, "prune", run, "--drop", 0.3, "--export", file, "--streams", 1)
    assert _json(capsys, "evaluate", file, "--split", "valid")["perplexity"] == pytest.approx(
        found["perplexity"], rel=1e-6
    )


def test_every_baseline_loses_when_it_is_pruned(trained, capsys):
    for method in ("dropout", "variational-dropout", "sharpened"):
        found = _json(capsys, "prune", trained("bbb"), "--baseline", trained(method))
        points = found["curves"][f"magnitude, {method}"]
        assert points[-1]["perplexity"] > 1.2 * points[0]["perplexity"]


def test_a_report_of_weights_that_are_tied_by_their_prior(text_folder, tmp_path, capsys):
    run, page = tmp_path / "_odd $x^{$ <name>", tmp_path / "page.html"
    options = "--hidden 12 --epochs 1 --batch-size 8 --unroll 10 --no-tensorboard --json"
    prior = "--prior row-mixture --kl-gradient sampled"
    words = f"train --method bbb --data {text_folder} {options} {prior} --run".split()
    main([*words, str(run)])
    main(["report", str(run), "--out", str(page), "--samples", "2", "--words", "100"])
    text = page.read_text()
    assert "is not defined" in text
    assert "_odd $x^{$ &lt;name&gt;" in text
    assert "<name>" not in text


def test_max_loss_finds_a_share(trained, capsys):
    found = _json(capsys, "prune", trained("bbb"), "--max-loss", "2%")
    whole = found["curves"]["signal to noise"][0]["perplexity"]
    assert found["perplexity"] <= 1.02 * whole
    assert found["drop"] > 0
    assert _json(capsys, "prune", trained("bbb"), "--max-loss", "0.02") == found


def test_per_layer_prunes_differently(trained, capsys):
    together = _json(capsys, "prune", trained("bbb"))
    apart = _json(capsys, "prune", trained("bbb"), "--per-layer")
    assert together["curves"] != apart["curves"]


def test_figures_are_written(trained, tmp_path, capsys):
    run, out = str(trained("bbb")), tmp_path / "new" / "figures"
    main(["prune", run, "--out", str(out)])
    main(["uncertainty", run, str(trained("lstm")), "--samples", "1", "2", "--out", str(out)])
    main(["calibration", run, str(trained("lstm")), "--samples", "2", "--out", str(out)])
    written = capsys.readouterr().out
    names = "pruning-curve pruning-patterns entropy-gap told-apart told-apart-entropy told-apart-mi"
    for name in [*names.split(), "reliability", "nats-by-confidence"]:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"wrote {out / name}.png" in written


def test_uncertainty_of_every_kind_of_run(trained, capsys):
    runs = [str(trained(m)) for m in ("lstm", "dropout", "variational-dropout", "sgld", "bbb")]
    main(["uncertainty", *runs, "--samples", "1", "3", "20", "--noise", "0.2", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    counts = {row["model"]: [] for row in rows}
    for row in rows:
        if row["text"] == "reversed":
            counts[row["model"]].append(row["samples"])
    assert counts == {
        "lstm": [0],
        "dropout": [0, 1, 3, 20],
        "variational-dropout": [0, 1, 3, 20],
        "sgld": [0, 1, 3],  # as many as it kept
        "bbb": [0, 1, 3, 20],
    }
    assert {row["text"] for row in rows} == {"reversed", "shuffled", "noise 20%"}


def test_calibration_agrees_with_evaluate(trained, capsys):
    found = _json(capsys, "calibration", trained("bbb"), "--samples", 0, "--streams", 1)
    assert found["nats"] * found["words"] == pytest.approx(
        _json(capsys, "evaluate", trained("bbb"))["nats"], rel=1e-5
    )


def test_runs_of_the_same_name_get_different_labels(trained, tmp_path, capsys):
    copy = shutil.copytree(trained("bbb"), tmp_path / "bbb")
    main(["calibration", str(trained("bbb")), str(copy), "--samples", "0", "--json"])
    names = [json.loads(line)["run"] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(trained("bbb")), str(copy)]


def test_bad_input(fail, trained, tmp_path):
    bbb, lstm = trained("bbb"), trained("lstm")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("keins davon bekannt\n" * 100)
    cases = [
        (("prune", lstm), "no posterior"),
        (("prune", bbb, "--drop", 1.5), "drop = 1.5"),
        (("prune", bbb, "--drop", -0.5), "drop = -0.5"),
        (("prune", bbb, "--drop", 0.5, "--max-loss", "1%"), "not both"),
        (("prune", bbb, "--max-loss", "much"), "max-loss = 'much'"),
        (("prune", bbb, "--export", tmp_path / "no" / "file"), "no such folder"),
        (("prune", bbb, "--export", tmp_path), "is a folder"),
        (("prune", bbb, "--data", empty), "no words"),
        (("prune", bbb, "--streams", 0), "streams = 0"),
        (("prune", tmp_path / "nothing"), "no such run folder"),
        (("prune", foreign), "not a safetensors file"),
        (("prune", bbb, "--data", foreign), "no word of"),
        (("prune", bbb, "--baseline", trained("sgld")), "cannot be pruned as one"),
        (("uncertainty", bbb, "--words", 5), "longer than a text of 5 words"),
        (("uncertainty", bbb, "--other", "nosuch"), "--other nosuch: no such"),
        (("calibration", bbb, "--streams", 0), "streams = 0"),
        (("report", foreign), "is a file"),
        (("uncertainty", bbb, "--samples", 0), "samples = 0"),
        (("uncertainty", bbb, "--data", empty), "no words"),
        (("uncertainty", bbb, "--data", foreign), "no word of"),
        (("uncertainty", bbb, "--other", foreign), "no word of"),
        (("uncertainty", bbb, "--noise", 1.5), "noise = 1.5"),
        (("uncertainty", bbb, "--window", 0), "window = 0"),
        (("uncertainty", bbb, "--words", -1), "words = -1"),
        (("uncertainty",), "at least one run"),
        (("calibration", bbb, "--samples", -1), "samples = -1"),
        (("calibration", bbb, "--data", foreign), "no word of"),
        (("report", bbb, "--drop", 1.5), "drop = 1.5"),
        (("report", bbb, "--out", tmp_path / "no" / "page.html"), "no such folder"),
        (("report", tmp_path), "not a run"),
        (("report",), "at least one run"),
        (("evaluate", foreign), "not a safetensors file"),
    ]
    for arguments, message in cases:
        assert message in fail(*arguments), arguments
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before == ["empty.txt", "foreign.txt"]  # nothing half-written
