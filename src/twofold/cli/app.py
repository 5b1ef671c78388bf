"""The commands of the command line, and where each is.

A command line imports the modules of its own noun only: the others would cost more than the command itself. The list of
commands in `twofold --help` imports none of them, so what each is for stands here, too. `serve` is run by
`twofold.cli.main`; here it is for help and completion.
"""

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from typing import Annotated, NamedTuple

import click

from twofold.cli import declare
from twofold.cli.common import EXIT_CODES, USAGE, CliError, OutputFormat, complain, print_json
from twofold.cli.profile.chosen import chosen
from twofold.version import VERSION

PROGRAM = "twofold"
HELP = "An event log that speaks the Kafka protocol and is built around transactions."


class Place(NamedTuple):
    """Where a noun's app is, or the function of a verb without a noun, and the first sentence of its help."""

    module: str
    attribute: str
    help: str


# In the order of the help.
NOUNS = {
    "topic": Place(
        "twofold.cli.topic.commands",
        "topic_app",
        "Create, list, describe, alter and delete topics, delete their records, and move their replicas",
    ),
    "group": Place(
        "twofold.cli.group.commands", "group_app", "List, describe and delete consumer groups, and set their offsets"
    ),
    "cluster": Place(
        "twofold.cli.cluster",
        "cluster_app",
        "Show the cluster, its controllers, disks and features, and change their levels",
    ),
    "acl": Place(
        "twofold.cli.acl", "acl_app", "Add, list and remove access control entries: what each principal may do"
    ),
    "user": Place("twofold.cli.user", "user_app", "Add, list and remove the users of SCRAM"),
    "quota": Place(
        "twofold.cli.quota",
        "quota_app",
        "Set, list and remove quotas: what users, client ids and addresses may take",
    ),
    "log": Place(
        "twofold.cli.log.commands", "log_app", "Look into the files of a data folder, Twofold's or Apache Kafka's"
    ),
    "metadata": Place(
        "twofold.cli.metadata.commands",
        "metadata_app",
        "Look into the metadata log and its snapshots, Twofold's or Apache Kafka's",
    ),
    "config": Place(
        "twofold.cli.config.commands",
        "config_app",
        "Check the settings of a broker before it starts, and show them",
    ),
    "profile": Place(
        "twofold.cli.profile.commands",
        "profile_app",
        "Give clusters names: their addresses, and which of them commands ask",
    ),
    "txn": Place("twofold.cli.txn.commands", "txn_app", "See, find and end transactions"),
    "pipeline": Place(
        "twofold.cli.pipeline.app",
        "pipeline_app",
        "Run Spark pipelines exactly once; show what their sinks have decided, and end what a dead one left open",
    ),
}
VERBS = {
    "produce": Place("twofold.cli.records.produce", "produce", "Send standard input to a topic, one record per line"),
    "consume": Place(
        "twofold.cli.records.consume", "consume", "Print the records of a topic, and wait for more unless told to stop"
    ),
    "recover": Place(
        "twofold.cli.recover.commands",
        "recover",
        "End the two-phase transactions that a database has decided and no writer has completed",
    ),
    "doctor": Place(
        "twofold.cli.doctor.commands",
        "doctor",
        "Check settings, data folder, clock, limits, disk, ports and versions, and what a client sees",
    ),
    "version": Place("twofold.cli.app", "version", "Print the version"),
    "completion": Place("twofold.cli.app", "completion", "Print a script that completes commands in your shell"),
}
SERVE = "serve"
SERVE_HELP = "Run a broker in this process"


class Root(declare.Group):
    """`twofold`: click asks `get_command` for a noun or a verb, which imports it, and help asks the tables above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*NOUNS, *VERBS, SERVE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = self.commands.get(cmd_name)
        if known is None:
            known = _find(cmd_name)
            if known is not None:
                self.add_command(known, cmd_name)
        return known

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        told = {name: place.help for name, place in (NOUNS | VERBS).items()} | {SERVE: SERVE_HELP}
        with formatter.section("Commands"):
            formatter.write_dl([(name, told[name]) for name in self.list_commands(ctx)])


def _find(name: str) -> click.Command | None:
    if name == SERVE:
        from twofold.cli.serve import make_help

        return make_help()
    place = NOUNS.get(name) or VERBS.get(name)
    if place is None:
        return None
    found = getattr(import_module(place.module), place.attribute)
    if name in VERBS:
        return declare.make_command(name, found, epilog=EXIT_CODES)
    group: click.Group = found.group
    group.name, group.epilog = name, EXIT_CODES
    return group


def make_root() -> Root:
    version = click.Option(
        ["--version", "-V"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    )
    # `chosen` takes it out of the command line; here it is for help and completion.
    profile = click.Option(
        ["--profile"], metavar="NAME", expose_value=False, help="Ask the cluster of this profile; may stand anywhere."
    )
    return Root(
        PROGRAM,
        help=HELP,
        epilog=EXIT_CODES,
        no_args_is_help=True,
        params=[version, profile],
        context_settings=dict(declare.SETTINGS),
    )


def run_app(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        with chosen(arguments) as rest:
            if rest and rest[0] == "txn":
                from twofold.cli.txn.words import normalize

                rest = ["txn", *normalize(rest[1:])]
            return declare.run(make_root(), rest, PROGRAM)
    except CliError as error:
        return complain(str(error), error.code)


def _print_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"twofold {VERSION}")
        raise declare.Exit


def version(
    output: Annotated[OutputFormat, declare.Option("--format", help="How to print.")] = OutputFormat.TABLE,
) -> None:
    """Print the version."""
    python = sys.version.split()[0]
    if output is OutputFormat.JSON:
        print_json({"twofold": VERSION, "python": python})
    else:
        print(f"twofold {VERSION} (Python {python})")


class ShellName(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[ShellName, declare.Argument(help="The shell that is to complete.")]) -> None:
    """Print a script that completes commands in your shell.

    bash: put `eval "$(twofold completion bash)"` into ~/.bashrc. zsh: the same with zsh, into ~/.zshrc. fish: write the
    script to ~/.config/fish/completions/twofold.fish.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell.value)
    if made is None:
        raise declare.Exit(complain(f"click knows no completion for {shell.value}", USAGE))
    print(made(make_root(), {}, PROGRAM, declare.completion_variable(PROGRAM)).source())
