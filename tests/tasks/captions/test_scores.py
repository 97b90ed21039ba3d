"""Scores of captions, against pycocoevalcap called by hand."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bayesrnn.tasks.captions.evaluation import scores
from bayesrnn.tasks.captions.evaluation.scores import Scores, available, score

FLICKR8K = Path(__file__).parents[4] / "shared" / "data" / "flickr8k"

REFERENCES = {
    "one": ["A dog (brown) runs, fast.", "The dog's running on grass!", "a brown dog ||| runs"],
    "two": ["Two men don't play\nfootball in the U.S.", "Men playing."],
    "three": ["A café at 5 p.m."],
    "four": ["A girl in a red dress is smiling.", "..."],
}
CANDIDATES = {
    "four": "a girl in a\nred dress smiles ||| at me",
    "one": "A brown dog runs on the grass .",
    "three": "",
    "two": "two men do n't play football",
}


@pytest.fixture(autouse=True)
def _needs_pycocoevalcap():
    if not available():
        pytest.skip("needs pycocoevalcap")


@pytest.fixture
def no_java(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_equal_to_the_scorers_called_by_hand(monkeypatch, capfd):
    need_java()
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer import ptbtokenizer

    if not os.access(Path(ptbtokenizer.__file__).parent, os.W_OK):
        pytest.skip("pycocoevalcap's tokeniser writes into its folder, which is read-only here")
    started = record_processes(monkeypatch)
    got = score(CANDIDATES, REFERENCES)
    gc.collect()  # a pipe left open would warn here, and warnings are errors
    assert len(started) == 3  # the words of the captions and of the references, and METEOR
    assert all(process.returncode is not None for process in started)
    assert capfd.readouterr() == ("", "")

    tokenize = ptbtokenizer.PTBTokenizer().tokenize
    gts = tokenize({k: [{"caption": c} for c in REFERENCES[k]] for k in CANDIDATES})
    res = tokenize({k: [{"caption": c}] for k, c in CANDIDATES.items()})
    assert list(got.bleu) == Bleu(4).compute_score(gts, res)[0]
    cider, each = Cider().compute_score(gts, res)
    assert got.cider == cider
    assert got.per_image == dict(zip(gts, each, strict=True))
    assert got.rouge == Rouge().compute_score(gts, res)[0]
    # Meteor().compute_score(gts, res)[0], called once by hand: METEOR takes 10 seconds to start.
    assert got.meteor == pytest.approx(0.3259672032775012, abs=1e-12)
    assert got.note is None


def test_a_perfect_caption(no_java):
    said = {"a": "A dog runs on the grass.", "b": "Two men are playing football."}
    got = score(said, {image: [caption, "Something else"] for image, caption in said.items()})
    assert got.bleu == pytest.approx((1, 1, 1, 1), abs=1e-6)
    assert got.rouge == 1
    assert got.cider == pytest.approx(sum(got.per_image.values()) / 2)


def test_an_empty_caption_scores_nothing(no_java):
    got = score({"a": "", "b": " . "}, {"a": ["A dog runs"], "b": ["A cat"]})
    assert got.bleu == pytest.approx((0, 0, 0, 0), abs=1e-6)
    assert (got.cider, got.rouge, got.per_image) == (0, 0, {"a": 0, "b": 0})


def test_a_person_against_four_others(monkeypatch):
    """Flickr8k's test split: the first caption of an image against its other four.

    With each of the five left out in turn, the averages are BLEU-4 of 0.214, CIDEr of 0.820,
    ROUGE-L of 0.495 and METEOR of 0.255; the first caption is one of the two that score least.
    """
    captions = flickr8k_test()
    said = {image: sentences[0] for image, sentences in captions.items()}
    known = {image: sentences[1:] for image, sentences in captions.items()}
    own = score(said, known, java=False)
    assert own.bleu == pytest.approx((0.636, 0.446, 0.305, 0.209), abs=0.001)
    assert own.cider == pytest.approx(0.789, abs=0.001)
    assert own.rouge == pytest.approx(0.488, abs=0.001)

    need_java()
    # METEOR, 0.250 here, takes 15 seconds; the words, and so the other scores, do not depend on it.
    monkeypatch.setattr(scores, "_meteor", lambda said, known: 0.25)
    java = score(said, known)
    assert java.note is None
    assert (java.bleu, java.cider, java.rouge) == (own.bleu, own.cider, own.rouge)
    assert java.per_image == own.per_image


def test_without_java(no_java, capfd):
    got = score(CANDIDATES, REFERENCES)
    assert got.meteor is None
    assert got.note == (
        "Java was not found, so the words were split by bayesrnn's own tokeniser "
        "and METEOR is left out."
    )
    assert list(got.per_image) == list(CANDIDATES)
    assert got.per_image["three"] == 0 < got.per_image["two"]
    assert capfd.readouterr() == ("", "")


def test_java_not_wanted(monkeypatch):
    started = record_processes(monkeypatch)
    got = score(CANDIDATES, REFERENCES, java=False)
    assert got.note is not None
    assert got.note.startswith("Java was not used, so")
    assert started == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'Error: no VM here.' >&2\nexit 1\n", "(Error: no VM here)"),
        ("#!/bin/sh\nexit 3\n", "(exit code 3)"),
        ("#!/bin/sh\nexit 0\n", "(its tokeniser did not answer every sentence)"),
        ("#!/bin/sh\nread line\necho $line\n", "(its tokeniser did not answer every sentence)"),
        ("\x00\x01\x02 no program\n", "Exec format error"),
    ],
)
def test_a_broken_java(script, reason, tmp_path, monkeypatch, capfd):
    on_path(tmp_path, script, monkeypatch)
    got = score(CANDIDATES, REFERENCES)
    gc.collect()
    assert got.note is not None
    assert got.note.startswith("Java was found but failed (")
    assert reason in got.note
    assert got.note.endswith("own tokeniser and METEOR is left out.")
    assert without_note(got) == without_note(score(CANDIDATES, REFERENCES, java=False))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "meteor", ["exit 1", "while read line; do echo nonsense; done", "read line"]
)
def test_a_java_that_fails_at_meteor(meteor, tmp_path, monkeypatch):
    need_java()
    java = shutil.which("java")
    script = f'#!/bin/sh\nif [ "$1" = -jar ]; then {meteor}; else exec {java} "$@"; fi\n'
    on_path(tmp_path, script, monkeypatch)
    started = record_processes(monkeypatch)
    got = score(CANDIDATES, REFERENCES)
    gc.collect()
    assert got.meteor is None
    assert got.note == (
        "Java was found but failed at METEOR (it stopped without an answer), which is left out."
    )
    assert len(started) == 3
    assert all(process.returncode is not None for process in started)


def test_a_java_that_never_answers(tmp_path, monkeypatch):
    on_path(tmp_path, "#!/bin/sh\nexec /bin/sleep 60\n", monkeypatch)
    monkeypatch.setattr(scores, "_PATIENCE", 0.2)
    note = score(CANDIDATES, REFERENCES).note
    assert note is not None
    assert "(no answer in 0.2 seconds)" in note
    with pytest.raises(scores._JavaFailedError, match="stopped without an answer"):
        scores._meteor([["a dog"]], [["a dog"]])


def test_json(no_java):
    got = score(CANDIDATES, REFERENCES)
    read = json.loads(json.dumps(got.as_json()))
    assert Scores(**{**read, "bleu": tuple(read["bleu"])}) == got


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match="same images; 2 have only one of the two, such as 'a'"):
        score({"a": "x", "c": "z"}, {"b": ["y"], "c": ["z"]})
    with pytest.raises(ValueError, match="image 'a' has no reference caption"):
        score({"a": "x"}, {"a": []})
    with pytest.raises(ValueError, match="references of image 'a' must be a list"):
        score({"a": "x"}, {"a": "a dog"})
    with pytest.raises(ValueError, match="no captions to score"):
        score({}, {})
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    assert not available()
    with pytest.raises(ValueError, match=r"pip install 'bayesrnn\[captions\]'\.$"):
        score({"a": "x"}, {"a": ["x"]})


def without_note(got: Scores) -> dict:
    return {**got.as_json(), "note": None}


def on_path(folder: Path, script: str, monkeypatch) -> None:
    """Make a script the only Java that is found."""
    (folder / "java").write_text(script)
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def record_processes(monkeypatch) -> list[subprocess.Popen]:
    """The list that every process started from now on is added to."""
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return started


def flickr8k_test() -> dict[str, list[str]]:
    if not FLICKR8K.is_dir():
        pytest.skip("needs Flickr8k in shared/data/flickr8k beside the project")
    captions: dict[str, list[str]] = {}
    for annotation in json.loads((FLICKR8K / "captions_test.json").read_text("utf-8"))[
        "annotations"
    ]:
        captions.setdefault(str(annotation["image_id"]), []).append(annotation["caption"])
    return captions


def need_java() -> None:
    if shutil.which("java") is None:
        pytest.skip("needs Java")
