"""The commands other than `serve`, on typer."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from twofold.cli.cluster import cluster_app
from twofold.cli.common import EXIT_CODES, USAGE, OutputFormat, complain, print_json
from twofold.cli.group.commands import group_app
from twofold.cli.log.commands import log_app
from twofold.cli.metadata.commands import metadata_app
from twofold.cli.pipeline.commands import pipeline_app
from twofold.cli.pipeline.prune import prune_writes
from twofold.cli.pipeline.run import init_project, run_pipeline
from twofold.cli.records.consume import consume
from twofold.cli.records.produce import produce
from twofold.cli.topic import topic_app
from twofold.cli.txn.commands import txn_app
from twofold.cli.txn.words import normalize
from twofold.version import VERSION

app = typer.Typer(
    name="twofold",
    help="An event log that speaks the Kafka protocol and is built around transactions.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(cluster_app, name="cluster")
app.add_typer(log_app, name="log")
app.add_typer(metadata_app, name="metadata")
app.add_typer(txn_app, name="txn")
app.add_typer(pipeline_app, name="pipeline")
pipeline_app.command("prune", epilog=EXIT_CODES)(prune_writes)
pipeline_app.command("run", epilog=EXIT_CODES)(run_pipeline)
pipeline_app.command("init", epilog=EXIT_CODES)(init_project)
app.command("produce", epilog=EXIT_CODES)(produce)
app.command("consume", epilog=EXIT_CODES)(consume)


def run_app(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    if arguments and arguments[0] == "txn":
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


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("serve", add_help_option=False, context_settings={"ignore_unknown_options": True})
def serve(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Run a broker in this process (see `twofold serve --help`)."""
    # `twofold.cli.main` takes every command line that begins with "serve"; this entry is for the list of commands.
    raise typer.Exit(complain(f"write it first: twofold serve {' '.join(arguments or ())}", USAGE))


@app.command()
def version(
    output: Annotated[OutputFormat, typer.Option("--format", help="How to print.")] = OutputFormat.TABLE,
) -> None:
    """Print the version."""
    python = sys.version.split()[0]
    if output is OutputFormat.JSON:
        print_json({"twofold": VERSION, "python": python})
    else:
        print(f"twofold {VERSION} (Python {python})")
