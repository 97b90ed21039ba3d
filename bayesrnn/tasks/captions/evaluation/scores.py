"""Captions against references: BLEU, CIDEr, ROUGE-L and METEOR, by pycocoevalcap's own scorers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bayesrnn.tasks.captions.data.tokens import ptb_tokens


@dataclass(frozen=True)
class Scores:
    """The scores of one caption per image, on pycocoevalcap's scale: BLEU-4 of 0.21, CIDEr of 0.79."""

    bleu: tuple[float, float, float, float]
    """BLEU-1 to BLEU-4."""
    cider: float
    rouge: float
    """ROUGE-L."""
    meteor: float | None
    per_image: Mapping[str, float]
    """CIDEr by image; their mean is `cider`."""
    note: str | None
    """What is different from the usual scores, in one sentence."""

    def as_json(self) -> dict:
        return {**asdict(self), "bleu": list(self.bleu), "per_image": dict(self.per_image)}


def available() -> bool:
    """Whether pycocoevalcap is installed."""
    return importlib.util.find_spec("pycocoevalcap") is not None


def score(
    candidates: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    java: bool | None = None,
    meteor: bool = True,
) -> Scores:
    """Score a sentence per image against the image's references; `java=None` uses Java if found.

    METEOR takes ten seconds to start; `meteor=False` leaves it out.
    """
    _check(candidates, references)
    said = [[candidates[image]] for image in candidates]
    known = [list(references[image]) for image in candidates]
    words, by_meteor, note = None, None, None
    without = "so the words were split by bayesrnn's own tokeniser and METEOR is left out."
    if java is False:
        note = f"Java was not used, {without}"
    elif shutil.which("java") is None:
        note = f"Java was not found, {without}"
    else:
        try:
            words = _words_by_java(said), _words_by_java(known)
            by_meteor = _meteor(*words) if meteor else None
        except _JavaFailedError as error:
            note = f"Java was found but failed ({error}), {without}"
            if words is not None:
                note = f"Java was found but failed at METEOR ({error}), which is left out."
    bleu, cider, rouge, each = _by_words(*(words or (_words(said), _words(known))))
    return Scores(bleu, cider, rouge, by_meteor, dict(zip(candidates, each, strict=True)), note)


_PATIENCE = 900  # seconds; Java takes some 10 to start METEOR, and a broken one may never answer
_LAST = "end of the captions"  # comes back unchanged, as the last line, if Java worked

_Groups = list[list[str]]
"""Sentences of each image, in the order of the images."""


class _JavaFailedError(Exception):
    """Java cannot be started, stops with an error, or answers nonsense."""


def _check(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> None:
    if not available():
        raise ValueError("scores need pycocoevalcap: pip install 'bayesrnn[captions]'.")
    if differ := sorted(candidates.keys() ^ references.keys()):
        raise ValueError(
            "captions and references must be of the same images; "
            f"{len(differ)} have only one of the two, such as {differ[0]!r}."
        )
    if not candidates:
        raise ValueError("there are no captions to score.")
    for image, sentences in references.items():
        if isinstance(sentences, str):
            raise ValueError(f"the references of image {image!r} must be a list of sentences.")
        if not sentences:
            raise ValueError(f"image {image!r} has no reference caption.")


def _words(groups: _Groups) -> _Groups:
    """The groups with each sentence as words between spaces, by our tokeniser."""
    return [[" ".join(ptb_tokens(sentence)) for sentence in group] for group in groups]


def _words_by_java(groups: _Groups) -> _Groups:
    """The groups with each sentence as words between spaces, by pycocoevalcap's tokeniser."""
    # We start its program ourselves: its Python wrapper writes into the folder of the package, does
    # not see that Java failed, and gives sentences to wrong images if fewer lines come back.
    from pycocoevalcap.tokenizer import ptbtokenizer

    jar = Path(ptbtokenizer.__file__).resolve().parent / ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR
    program = "edu.stanford.nlp.process.PTBTokenizer"
    command = ["java", "-cp", str(jar), program, "-preserveLines", "-lowerCase"]
    # One line per sentence, whatever a sentence holds.
    lines = [" ".join(sentence.split()) for group in groups for sentence in group]
    try:
        done = subprocess.run(
            [*command, "-encoding", "utf-8"],
            input="\n".join([*lines, _LAST]).encode(errors="replace"),
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _JavaFailedError(f"no answer in {_PATIENCE} seconds") from None
    except OSError as error:
        raise _JavaFailedError(_one_line(str(error))) from None
    if done.returncode != 0:
        said = _one_line(done.stderr.decode(errors="replace"))
        raise _JavaFailedError(said or f"exit code {done.returncode}")
    split = done.stdout.decode(errors="replace").replace("\r\n", "\n").rstrip("\n").split("\n")
    if len(split) != len(lines) + 1 or split[-1] != _LAST:
        raise _JavaFailedError("its tokeniser did not answer every sentence")
    drop = set(ptbtokenizer.PUNCTUATIONS)
    words = iter(" ".join(w for w in line.rstrip().split(" ") if w not in drop) for line in split)
    return [[next(words) for _ in group] for group in groups]


def _by_words(
    said: _Groups, known: _Groups
) -> tuple[tuple[float, float, float, float], float, float, list[float]]:
    """BLEU-1 to 4, CIDEr, ROUGE-L, and CIDEr of each image."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    res, gts = dict(enumerate(said)), dict(enumerate(known))
    with contextlib.redirect_stdout(io.StringIO()):  # they print their counts
        bleu, _ = Bleu(4).compute_score(gts, res)
        cider, each = Cider().compute_score(gts, res)
        rouge, _ = Rouge().compute_score(gts, res)
    one, two, three, four = (float(value) for value in bleu)
    return (one, two, three, four), float(cider), float(rouge), [float(value) for value in each]


def _meteor(said: _Groups, known: _Groups) -> float:
    """METEOR, by a Java process that ends with this function, whatever happens."""
    from pycocoevalcap.meteor.meteor import Meteor

    class Closed(Meteor):
        def __del__(self) -> None:
            """Not theirs, which waits for ever on the lock that an error leaves locked."""

    # " ||| " separates sentences in METEOR's protocol.
    res, gts = (
        dict(enumerate([[s.replace("|||", " ") for s in group] for group in groups]))
        for groups in (said, known)
    )
    try:
        scorer = Closed()
    except OSError as error:
        raise _JavaFailedError(_one_line(str(error))) from None
    process = scorer.meteor_p
    watchdog = threading.Timer(_PATIENCE, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        value, _ = scorer.compute_score(gts, res)
    except (OSError, ValueError):  # it stopped, or its answer is not a number
        raise _JavaFailedError("it stopped without an answer") from None
    finally:
        watchdog.cancel()
        process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it did not read is of no use now
                    pipe.close()
        process.wait()
    if not math.isfinite(value):
        raise _JavaFailedError(f"it answered {value}")
    return value


def _one_line(text: str) -> str:
    """The first line of a message, shortened to be quoted in a sentence."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")
    return line if len(line) <= 100 else f"{line[:97]}..."
