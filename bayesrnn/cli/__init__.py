"""The command `bayesrnn`: one file per subcommand; each parses, calls and prints."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from difflib import get_close_matches
from typing import TextIO

from bayesrnn import __version__
from bayesrnn.cli import arguments as options_of
from bayesrnn.cli import train
from bayesrnn.cli.calibration import Calibration
from bayesrnn.cli.captions.describe import Describe
from bayesrnn.cli.captions.evaluate import Evaluate as EvaluateCaptions
from bayesrnn.cli.captions.features import Features
from bayesrnn.cli.compare import Compare
from bayesrnn.cli.completion import Completion
from bayesrnn.cli.console import one_line
from bayesrnn.cli.evaluate import Evaluate
from bayesrnn.cli.generate import Generate
from bayesrnn.cli.inspect import Inspect
from bayesrnn.cli.launch import Failed, begin, launch, wait_for_the_first
from bayesrnn.cli.list_runs import ListRuns
from bayesrnn.cli.parsing import parse
from bayesrnn.cli.prune import Prune
from bayesrnn.cli.report import Report
from bayesrnn.cli.score import Score
from bayesrnn.cli.sweep import Sweep
from bayesrnn.cli.uncertainty import Uncertainty
from bayesrnn.cli.verify import Verify
from bayesrnn.files import printable
from bayesrnn.tasks import experiments
from bayesrnn.training import Diverged

COMMANDS = {
    "sweep": Sweep,
    "evaluate": Evaluate,
    "compare": Compare,
    "generate": Generate,
    "score": Score,
    "prune": Prune,
    "uncertainty": Uncertainty,
    "calibration": Calibration,
    "report": Report,
    "list": ListRuns,
    "inspect": Inspect,
    "verify": Verify,
    "completion": Completion,
    "captions features": Features,
    "captions evaluate": EvaluateCaptions,
    "captions describe": Describe,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; report invalid input in one line, with exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    begin()
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _escaping(arguments):
            _run_and_flush(arguments)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output, such as `head`, has exited
    except (ValueError, OSError) as error:
        if debug:
            raise
        _fail(str(error), 2)
    except Diverged as error:
        _fail(str(error), 1)
    except Failed as error:
        _fail(str(error), error.code)
    except (MemoryError, RuntimeError) as error:
        if debug or not _out_of_memory(error):
            raise
        _fail("this machine has too little memory for that; use smaller sizes.", 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _run_and_flush(arguments: list[str]) -> None:
    """Run the command; what it printed is written here, not when Python ends, so that errors are seen."""
    try:
        _run(arguments)
    finally:
        sys.stdout.flush()


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return print(_usage())
    if arguments[0] in ("-V", "--version"):
        return print(f"bayesrnn {__version__}")
    trained = {experiment.command: experiment for experiment in experiments()}
    names = [*trained, *COMMANDS]
    for words in (2, 1):  # a command may have two words, such as `captions train`
        name, options = " ".join(arguments[:words]), arguments[words:]
        if name in trained:
            options_of.check_places(options)
            return train.run(trained[name], options)
        if name in COMMANDS:
            command = parse(COMMANDS[name], f"bayesrnn {name}", options)
            options_of.check(command)
            return launch(command, command.run)
    group = [name for name in names if name.startswith(f"{arguments[0]} ")]
    if group and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        return print(_usage(group))
    given = " ".join(arguments[:2]) if group else arguments[0]
    near = ["--version"] if given == "version" else get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}."
    raise ValueError(f"unknown command {given!r}; {hint}")


def _usage(only: Sequence[str] | None = None) -> str:
    summaries = {experiment.command: experiment.summary for experiment in experiments()}
    summaries |= {name: _summary(command) for name, command in COMMANDS.items()}
    summaries = {name: text for name, text in summaries.items() if only is None or name in only}
    width = max(map(len, summaries))
    lines = [
        "usage: bayesrnn COMMAND ...   (bayesrnn COMMAND --help for its options)",
        "",
        "Bayesian recurrent neural networks.",
        "",
        *(f"  {name:{width}}  {summary}" for name, summary in summaries.items()),
        "",
        "  --version  print the version",
        "  --debug    show the traceback of an error (works with any command)",
    ]
    return "\n".join(lines)


def _summary(command: type) -> str:
    return (command.__doc__ or "").split("\n")[0]


@contextmanager
def _escaping(arguments: Sequence[str]) -> Iterator[None]:
    """Inside the block, no control character of an argument reaches the terminal through a message."""
    if all(printable(argument) == argument for argument in arguments):
        yield
        return
    with redirect_stdout(_Escaped(sys.stdout)), redirect_stderr(_Escaped(sys.stderr)):
        yield


class _Escaped(io.TextIOBase):
    """A stream that escapes control characters on their way to another."""

    def __init__(self, to: TextIO) -> None:
        self.to = to

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return getattr(self.to, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self.to.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self.to.flush()


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, in Python or in torch, which has no type of its own for that."""
    said = ("allocate memory", "not enough memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(text in str(error) for text in said)


def _fail(message: str, code: int) -> None:
    line = one_line(message)
    short = line if len(line) <= 2000 else f"{line[:1000]} ... {line[-500:]}"
    print(f"bayesrnn: {short}", file=sys.stderr)
    wait_for_the_first()
    sys.exit(code)
