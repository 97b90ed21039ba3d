"""The command `bayesrnn`: one file per subcommand; each parses, calls and prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from bayesrnn import __version__
from bayesrnn.cli.inspect import Inspect

Command = Inspect


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, run, and turn a wrong input into one line and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if "--version" in arguments:
        print(f"bayesrnn {__version__}")
        return
    command = tyro.extras.subcommand_cli_from_dict(
        {"inspect": Inspect},
        prog="bayesrnn",
        description=(
            "Bayesian recurrent neural networks. --version prints the version; --debug after any "
            "command shows where an error came from."
        ),
        args=arguments or ["--help"],
    )
    try:
        command.run()
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"bayesrnn: {error}", file=sys.stderr)
        sys.exit(2)
