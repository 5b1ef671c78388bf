"""The commands other than `serve`, on typer.

A command line imports the modules of its own noun only: the others would cost more than the command itself. Help and a
noun that is not there need all of them.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from twofold.cli.common import EXIT_CODES, USAGE, OutputFormat, complain, print_json
from twofold.version import VERSION

# noun -> where its app is, in the order of the help
NOUNS = {
    "topic": ("twofold.cli.topic", "topic_app"),
    "group": ("twofold.cli.group.commands", "group_app"),
    "cluster": ("twofold.cli.cluster", "cluster_app"),
    "log": ("twofold.cli.log.commands", "log_app"),
    "metadata": ("twofold.cli.metadata.commands", "metadata_app"),
    "txn": ("twofold.cli.txn.commands", "txn_app"),
    "pipeline": ("twofold.cli.pipeline.app", "pipeline_app"),
}
# verb without a noun -> where its function is
VERBS = {
    "produce": ("twofold.cli.records.produce", "produce"),
    "consume": ("twofold.cli.records.consume", "consume"),
}


def make_app(wanted: Iterable[str] = (*NOUNS, *VERBS)) -> typer.Typer:
    """The command line with these nouns and verbs, and with what costs nothing."""
    app = typer.Typer(
        name="twofold",
        help="An event log that speaks the Kafka protocol and is built around transactions.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in wanted:
        module, attribute = NOUNS.get(name) or VERBS[name]
        found = getattr(import_module(module), attribute)
        if name in NOUNS:
            app.add_typer(found, name=name)
        else:
            app.command(name, epilog=EXIT_CODES)(found)
    app.callback()(main_options)
    app.command("serve", add_help_option=False, context_settings={"ignore_unknown_options": True})(serve)
    app.command()(version)
    return app


def run_app(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    first = arguments[0] if arguments else ""
    app = make_app([first]) if first in NOUNS or first in VERBS else make_app()
    if first == "txn":
        from twofold.cli.txn.words import normalize

        arguments = ["txn", *normalize(arguments[1:])]
    try:
        app(args=list(arguments), prog_name="twofold")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"twofold {VERSION}")
        raise typer.Exit


def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def serve(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Run a broker in this process (see `twofold serve --help`)."""
    # `twofold.cli.main` takes every command line that begins with "serve"; this entry is for the list of commands.
    raise typer.Exit(complain(f"write it first: twofold serve {' '.join(arguments or ())}", USAGE))


def version(
    output: Annotated[OutputFormat, typer.Option("--format", help="How to print.")] = OutputFormat.TABLE,
) -> None:
    """Print the version."""
    python = sys.version.split()[0]
    if output is OutputFormat.JSON:
        print_json({"twofold": VERSION, "python": python})
    else:
        print(f"twofold {VERSION} (Python {python})")
