"""`bayesrnn score`: the probability and uncertainty of each word of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tyro.conf import Positional

from bayesrnn.cli.arguments import Samples, Seed, check_input
from bayesrnn.cli.console import one_line, show, show_json, working
from bayesrnn.cli.launch import OnRanks
from bayesrnn.files import is_run
from bayesrnn.training.experiment import is_pretrained

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bayesrnn.tasks.language.evaluation.words import Outstanding, ScoredWord
    from bayesrnn.tasks.language.trained import TrainedModel

SHORT = 50
"""The number of words of a text of which all are in the table."""
ROWS = 10
"""The number of unlikely and of uncertain words in the table of a longer text."""
CONTEXT = 4
"""The number of words before a word that the table of a longer text shows."""
UNLIKELY, UNCERTAIN, UNKNOWN = "!", "~", "?"
LEFT = ("word", "mark", "after")
"""The columns of text; the others have numbers, aligned to the right."""


@dataclass(frozen=True)
class Score(OnRanks):
    """Show each word of a text with its probability, the model's entropy and mutual information."""

    STRAY: ClassVar = "to score a sentence, give --text"

    run_folder: Positional[Path]
    """Run folder of `bayesrnn train`, a file written by `bayesrnn prune --export`, or pretrained."""
    file: Positional[Path | None] = None
    """Text file with words separated by white space; - for standard input."""
    text: str | None = None
    """Text to score, instead of a file."""
    all: bool = False
    """Print the numbers of every word. By default those of a text of more than 50 words are printed for the
    words that stand out."""
    samples: Samples | None = None
    """Number of weight samples to average over; 0 for the mean weights, without mutual information.
    By default 10 if the run can be sampled."""
    seed: Seed = 0
    """Random seed."""
    json: bool = False
    """Print one line of JSON for each word."""

    def run(self) -> None:
        from bayesrnn.kernels.one_pass import uncompiled

        with uncompiled():  # which would take longer than to score a page
            self._score()

    def _score(self) -> None:
        from bayesrnn.tasks.language.evaluation.words import outstanding, score_words
        from bayesrnn.tasks.language.trained import open_trained

        if self.file is not None and self.text is not None:
            raise ValueError("give a file or --text, not both.")
        if self.file is not None:
            self._check_file(self.file)
        (model,) = open_trained(self.run_folder)
        method, lines = model.method, self._lines(model)
        samples = self.samples
        if samples is None:
            samples = max(method.available([10]), default=0)
        sampled = (samples or len(method.resting())) > 1
        scored = score_words(method, model.vocabulary, lines, samples=samples, seed=self.seed)
        if self.json:
            for word in scored:
                none = {} if sampled else {"mutual_information": None}
                show_json({**word.as_json(), **none})
            return
        with working("scoring the text"):
            words = list(scored)
        _Page(words, outstanding(words, sampled=sampled), sampled).show(every_word=self.all)
        if not sampled:
            show(_why_no_information(bool(method.available([2]))))

    def _check_file(self, file: Path) -> None:
        if self.run_folder.is_file() and (is_run(file) or is_pretrained(file)):
            raise ValueError(f"{self.run_folder} is not a run; the run comes first.")
        check_input(file)

    def _lines(self, model: TrainedModel) -> list[list[str]]:
        from bayesrnn.tasks.language.data.sources import tokenizer
        from bayesrnn.tasks.language.evaluation.words import read_words, words_of

        tokenize = tokenizer(model.config.data)
        if self.text is not None:
            return words_of(self.text, tokenize, "--text")
        if self.file is None:
            raise ValueError("give a text file, - for standard input, or --text 'a sentence'.")
        if str(self.file) != "-" and not self.file.exists():
            raise ValueError(f"{self.file}: no such file; to score a sentence, give --text.")
        return read_words(self.file, tokenize)


class _Page:
    """What is printed of a text: its words with their marks, a table, a summary and what the marks mean."""

    def __init__(
        self, words: Sequence[ScoredWord], standing_out: Outstanding, sampled: bool
    ) -> None:
        from rich.console import Console

        self.words, self.standing_out, self.sampled = words, standing_out, sampled
        self.unlikely, self.uncertain = set(standing_out.unlikely), set(standing_out.uncertain)
        self.console: Console = Console(highlight=False)

    def show(self, *, every_word: bool) -> None:
        short = len(self.words) <= SHORT
        if not short:
            self._print(self._running_text())
            self._print()
        if short or every_word:
            self._print_table(range(len(self.words)), context=False)
        else:
            self._print_table(self._most_outstanding(), context=True)
        self._print()
        self._print(self._summary())
        for line in self._legend(listed=None if short or every_word else ROWS):
            self._print(line)

    # ------------------------------------------------------------------ marks

    def _marks(self, place: int) -> str:
        marks = UNLIKELY if place in self.unlikely else ""
        marks += UNCERTAIN if place in self.uncertain else ""
        return marks + (UNKNOWN if self.words[place].unknown else "")

    def _style(self, place: int) -> str:
        styles = ["bold red"] if place in self.unlikely else []
        styles += ["underline"] if place in self.uncertain else []
        styles += ["italic"] if self.words[place].unknown else []
        return " ".join(styles)

    def _word(self, place: int) -> str:
        """A word as this terminal can show it."""
        encoding = self.console.encoding
        return (
            one_line(self.words[place].word).encode(encoding, "backslashreplace").decode(encoding)
        )

    # ------------------------------------------------------------------ the parts

    def _running_text(self) -> Text:
        """The text, with outstanding words in brackets, so that they stand out without colours too."""
        from rich.text import Text

        from bayesrnn.data.vocabulary import END

        text, begins = Text(), True
        for place, word in enumerate(self.words):
            if word.word == END:
                text.append("\n")
                begins = True
                continue
            marks = self._marks(place)
            shown = f"[{self._word(place)} {marks}]" if marks else self._word(place)
            text.append("" if begins else " ")
            text.append(shown, style=self._style(place))
            begins = False
        text.rstrip()
        return text

    def _most_outstanding(self) -> list[int]:
        """The first few positions of each kind, the least likely words first."""
        found = {*self.standing_out.unlikely[:ROWS], *self.standing_out.uncertain[:ROWS]}
        return sorted(found, key=lambda place: -self.words[place].surprise)

    def _print_table(self, places: Sequence[int], *, context: bool) -> None:
        from rich.text import Text

        headings = ["word", "probability", "surprise", "entropy"]
        headings += ["mutual information"] if self.sampled else []
        headings += ["mark", "line", "after"] if context else ["mark"]
        rows = [self._cells(place, context) for place in places]
        widths = [max(map(_width, column)) for column in zip(headings, *rows, strict=True)]
        for place, row in zip([None, *places], [headings, *rows], strict=True):
            line = Text(style="bold" if place is None else "")
            for heading, cell, width in zip(headings, row, widths, strict=True):
                style = self._style(place) if place is not None and heading == "word" else ""
                gap = " " * (width - _width(cell))
                line.append("" if heading in LEFT else gap)
                line.append(cell, style=style)
                line.append(gap + "  " if heading in LEFT else "  ")
            line.rstrip()
            self._print(line)

    def _cells(self, place: int, context: bool) -> list[str]:
        word = self.words[place]
        cells = [self._word(place), f"{word.probability:.2g}", f"{word.surprise:.2f}"]
        cells.append(f"{word.entropy:.2f}")
        if self.sampled:
            cells.append(f"{word.mutual_information:.3f}")
        cells.append(self._marks(place))
        return [*cells, *self._where(place)] if context else cells

    def _where(self, place: int) -> list[str]:
        """The number of a word's line, of those with words, and the words before it on that line."""
        from bayesrnn.data.vocabulary import END

        ends = [p for p in range(place) if self.words[p].word == END]
        begin = ends[-1] + 1 if ends else 0
        before = range(max(begin, place - CONTEXT), place)
        return [str(len(ends) + 1), " ".join(self._word(p) for p in before)]

    def _summary(self) -> str:
        count = len(self.words)
        nats = sum(word.surprise for word in self.words) / count
        entropy = sum(word.entropy for word in self.words) / count
        line = f"{count:,} words: perplexity {_exp(nats):.1f}, entropy {entropy:.2f} nats/word"
        if self.sampled:
            information = sum(word.mutual_information for word in self.words) / count
            line += f", mutual information {information:.3f} nats/word"
        return line

    def _legend(self, listed: int | None) -> list[str]:
        """What the marks mean, one line each."""
        from bayesrnn.tasks.language.evaluation.words import OUTSTANDING

        count = len(self.standing_out.unlikely)
        many = "the word" if count == 1 else f"the {count:,} words ({OUTSTANDING:.0%})"
        some = f"; {listed} are listed" if listed is not None and count > listed else ""
        lines = [f"{UNLIKELY}  {many} with the lowest probability, line ends aside{some}"]
        if self.sampled:
            lines.append(
                f"{UNCERTAIN}  {many} with the highest mutual information: the weight samples disagree most"
                f"{some}"
            )
        if any(word.unknown for word in self.words):
            lines.append(f"{UNKNOWN}  not in the vocabulary; scored as <unk>")
        return lines

    def _print(self, text: Text | str = "") -> None:
        """Print, without breaking lines for a pipe."""
        self.console.print(text, markup=False, soft_wrap=not self.console.is_terminal)


def _why_no_information(can_be_sampled: bool) -> str:
    if can_be_sampled:
        return "no mutual information: it needs two weight samples or more; see --samples."
    return "no mutual information: this model has a single set of weights."


def _width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def _exp(nats: float) -> float:
    """e^nats, infinite where a float ends."""
    return math.exp(nats) if nats < 700 else math.inf
