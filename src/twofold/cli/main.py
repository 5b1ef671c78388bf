"""The entry point of the command line.

`serve` does not pass through click: importing it costs a part of the 0.3 s that a server has until its first
acknowledged produce. Everything else does (`twofold.cli.app`), and nothing is imported that the command has no use for.
"""

import sys
from collections.abc import Sequence

HELP_OPTIONS = {"-h", "--help"}
MISSING = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] == "serve" and HELP_OPTIONS.isdisjoint(arguments):
            from twofold.cli.serve import serve_command

            return serve_command(arguments[1:])
        if list(arguments) in (["version"], ["--version"], ["-V"]):
            return _print_version(short=arguments[0] != "version")
        return _run_app(arguments)
    except KeyboardInterrupt:
        return 130  # while it was imported


def _print_version(*, short: bool) -> int:
    """Here as well: it works without the extra that brings the command line, and costs no imports."""
    from twofold.version import VERSION

    print(f"twofold {VERSION}" if short else f"twofold {VERSION} (Python {sys.version.split()[0]})")
    return 0


def _run_app(arguments: Sequence[str]) -> int:
    from twofold.extras import MissingExtra, require

    try:
        require("server", "the command line")
    except MissingExtra as error:
        print(f"twofold: {error}", file=sys.stderr)
        return MISSING
    from twofold.cli.app import run_app

    try:
        return run_app(arguments)
    except BrokenPipeError:  # `twofold --help | head -1`
        from twofold.cli.common import BROKEN_PIPE, silence_stdout

        silence_stdout()
        return BROKEN_PIPE
