"""The entry point of the command line.

`serve` does not pass through typer: importing it costs a third of the 0.3 s that a server has until its first
acknowledged produce. Everything else does (`twofold.cli.app`).
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments and arguments[0] == "serve":
        from twofold.cli.serve import serve_command

        return serve_command(arguments[1:])
    try:
        from twofold.cli.app import run_app

        return run_app(arguments)
    except KeyboardInterrupt:
        return 130  # while it was imported
