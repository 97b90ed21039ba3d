"""The commands around a language model, as a user types them."""

from __future__ import annotations

import json
import shutil

import pytest

from bayesrnn.cli import main


def _lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_evaluate(trained, capsys):
    main(
        [
            "evaluate",
            str(trained("sharpened")),
            "--samples",
            "2",
            "--sharpened",
            "--dynamic",
            "--json",
        ]
    )
    results = _lines(capsys)
    names = ["mean", "2 samples", "sharpened"]
    assert [r["way"] for r in results] == names + [f"{name}, dynamic" for name in names]
    assert [r["upper_bound"] for r in results] == [False, False, True] * 2
    assert {r["words"] for r in results} == {600}
    main(["evaluate", str(trained("sgld")), "--json"])
    assert [r["way"] for r in _lines(capsys)] == ["3 kept samples"]
    main(["evaluate", str(trained("sharpened")), "--sharpened"])
    assert "an upper bound" in capsys.readouterr().out
    main(["evaluate", str(trained("sharpened")), "--sharpened", "--centre", "--json"])
    ways = {r["way"]: r["upper_bound"] for r in _lines(capsys)}
    assert ways == {"mean": False, "sharpened": True, "sharpened, no noise": False}


def test_rare_words_learn_faster_in_dynamic_evaluation(trained, capsys, fail):
    run = str(trained("bbb"))

    def found(*options):
        main(["evaluate", run, "--dynamic", "--json", *options])
        return {record["way"]: record["perplexity"] for record in _lines(capsys)}

    one_rate, faster = found(), found("--rare-words", "0.25")
    assert one_rate["mean"] == faster["mean"]
    assert one_rate["mean, dynamic"] != faster["mean, dynamic"]
    assert found("--rare-words", "0") == one_rate
    how = ("--rare-words", "0.25", "--decay", "0.01")
    forgetting = found(*how)
    assert forgetting["mean, dynamic"] != faster["mean, dynamic"]
    main(["compare", run, "--dynamic", *how, "--json"])
    ((row,),) = _lines(capsys)
    assert row["test_dynamic"] == pytest.approx(forgetting["mean, dynamic"])
    for command in ("evaluate", "compare"):
        assert "--rare-words needs --dynamic." in fail(command, run, "--rare-words", "0.25")
        assert "--decay needs --dynamic." in fail(command, run, "--decay", "0.1")
    said = fail("evaluate", run, "--dynamic", "--rare-words", "2")
    assert "rare-words = 2.0 must be at most 1" in said


def test_compare_draws_learning_curves(trained, tmp_path, capsys, fail):
    runs, out = [str(trained(method)) for method in ("lstm", "bbb")], tmp_path / "figures"
    main(["compare", *runs, "--out", str(out)])
    assert f"wrote {out / 'learning-curves.png'}" in capsys.readouterr().out
    assert (out / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").touch()
    assert "is a file; name a folder" in fail("compare", *runs, "--out", tmp_path / "file")


def test_compare(trained, capsys):
    runs = [str(trained(method)) for method in ("lstm", "bbb", "sharpened")]
    main(["compare", *runs, "--json", "--samples", "2"])
    (rows,) = _lines(capsys)
    assert ["valid_samples" in row for row in rows] == [False, True, True]
    main(["evaluate", runs[0], "--json"])
    assert _lines(capsys)[0]["perplexity"] == rows[0]["test"]
    assert [row["method"] for row in rows] == ["lstm", "bbb", "sharpened"]
    assert rows[1]["trained"] > 1.9 * rows[0]["trained"] > 0
    assert rows[0]["weights"] == rows[1]["weights"]
    assert rows[2]["valid_bound"] is not None
    assert rows[0]["words_per_second"] > 0
    main(["compare", *runs, "--dynamic"])
    text = capsys.readouterr().out
    assert "val DE" in text
    assert "test sharpened DE" in text
    assert f"{rows[0]['test']:.1f}" in text
    main(["compare", *runs, "--markdown"])
    assert capsys.readouterr().out.startswith("| run | method |")


def test_generate(trained, capsys):
    run = str(trained("bbb"))
    for weights in ("mean", "sample"):
        arguments = ["generate", run, "--prompt", "w1 w10", "--words", "30", "--weights", weights]
        main([*arguments, "--json"])
        main([*arguments, "--json"])
        first, second = _lines(capsys)
        assert first == second
        assert len(first["words"]) == 30
        assert "<unk>" not in first["words"]
    main(["generate", run, "--words", "5", "--top-k", "1", "--seed", "1"])
    main(["generate", run, "--words", "5", "--top-k", "1", "--seed", "2"])
    greedy = capsys.readouterr().out
    assert greedy[: len(greedy) // 2] == greedy[len(greedy) // 2 :]


def test_score(trained, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("w1 w10 w13\nnever seen\n")
    main(["score", str(trained("bbb")), str(text), "--json"])
    words = _lines(capsys)
    assert [word["word"] for word in words][:4] == ["w1", "w10", "w13", "<eos>"]
    assert words[4]["unknown"]
    assert all(0 < word["probability"] < 1 for word in words)
    main(["score", str(trained("lstm")), str(text)])
    assert "7 words: perplexity" in capsys.readouterr().out


def test_a_run_folder_can_be_moved(trained, text_folder, tmp_path, capsys):
    moved = shutil.copytree(trained("bbb"), tmp_path / "elsewhere")
    main(["evaluate", str(moved), "--json"])
    main(["evaluate", str(trained("bbb")), "--json", "--data", str(text_folder)])
    here, there = _lines(capsys)
    assert here == there


@pytest.fixture
def fail(capsys):
    """Run a command that must fail: one line, exit code 2; returns the line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert exit_.value.code == 2
        assert captured.err.startswith("bayesrnn: ")
        assert captured.err.count("\n") == 1
        return captured.err

    return run


def test_bad_training_input(fail, tmp_path, trained, text_folder):
    run = tmp_path / "run"
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "one.txt").write_text("word\n")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9\n" * 50)
    cases = [
        (["--data", tmp_path / "none"], "no such file or folder"),
        (["--data", empty], "has no text"),
        (["--data", tmp_path / "one.txt"], "has no words"),
        (["--data", tmp_path / "bad.txt"], "line 1: not UTF-8"),
        (["--preset", "smal"], "unknown preset 'smal'; did you mean small?"),
        (["--method", "bayes"], "unknown method 'bayes'"),
        (["--pi", "1.5"], "pi = 1.5 must lie strictly between 0 and 1"),
        (["--prior", "row-mixture"], "has no expected score: add --kl-gradient sampled"),
        (["--kl-gradient", "exact"], "unknown kl_gradient 'exact'"),
        (["--dropout", "1"], "dropout = 1.0 must be at least 0 and below 1"),
        (["--epochs", "0"], "epochs = 0 must be at least 1"),
        (["--vocabulary", "1"], "vocabulary = 1 must be 0, for all words, or at least 3"),
        (["--init", "magic"], "unknown init 'magic'"),
        (["--data", text_folder, "--batch-size", "100000"], "lower --batch-size"),
    ]
    for arguments, message in cases:
        assert message in fail("train", "--run", run, *arguments)
        assert not run.exists()
    assert "exists already; continue it with --resume" in fail(
        "train", "--data", text_folder, "--run", trained("bbb")
    )
    assert "no such run folder" in fail("train", "--resume", "--run", run)
    assert "cannot make" in fail("train", "--data", text_folder, "--run", "/proc/run")


def test_bad_runs(fail, trained, tmp_path):
    run = shutil.copytree(trained("bbb"), tmp_path / "run")
    config = run / "config.toml"
    good = config.read_text()
    for text, message in [
        (
            good.replace("format = 1", "format = 2"),
            "has format 2; this version of bayesrnn reads format 1",
        ),
        (good.replace("hidden", "hiden"), "unknown setting 'hiden'; did you mean 'hidden'?"),
        (good.replace("hidden = 12", "hidden = 13"), "was written with hidden = 12"),
        (good.replace("hidden = 12", 'hidden = "many"'), "must be of type int"),
        ("not toml at all", "not valid TOML"),
    ]:
        config.write_text(text)
        assert message in fail("evaluate", run)
    config.write_text(good)
    weights = run / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "is damaged" in fail("evaluate", run)
    weights.unlink()
    assert "has no weights yet" in fail("generate", run)
    assert "not a run" in fail("compare", tmp_path)
    assert "no such run folder" in fail("score", tmp_path / "none", tmp_path / "text")


def test_bad_evaluation_input(fail, trained, tmp_path):
    lstm, bbb = trained("lstm"), trained("bbb")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "other.txt").write_text("bonjour tout le monde\n")
    assert "nothing to sample" in fail("evaluate", lstm, "--samples", "5")
    assert "not trained with sharpening" in fail("evaluate", bbb, "--sharpened")
    assert "--centre needs --sharpened" in fail("evaluate", bbb, "--centre")
    assert "samples = -1" in fail("evaluate", bbb, "--samples", "-1")
    assert "lr = -0.1 must be above 0" in fail("evaluate", bbb, "--dynamic", "--lr", "-0.1")
    assert "nothing to sample" in fail("generate", lstm, "--weights", "sample")
    assert "lr = -1.0 must be above 0" in fail("compare", bbb, "--lr", "-1")
    assert "temperature = 0.0 must be above 0" in fail("generate", bbb, "--temperature", "0")
    assert "no such file" in fail("score", bbb, tmp_path / "none.txt")
    assert "has no words" in fail("score", bbb, tmp_path / "empty.txt")
    assert "no word of the text" in fail("score", bbb, tmp_path / "other.txt")
    assert "give at least one run" in fail("compare")
    assert "did you mean train?" in fail("trian")
