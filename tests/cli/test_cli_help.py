"""What every command has in common: its help, the words for numbers, and what an empty list says."""

import json
import re
from collections.abc import Iterator

import click
import pytest

from kits.processes import commands
from twofold import Producer
from twofold.cli.app import make_root
from twofold.cli.common import plural
from twofold.embedded import Broker


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


def test_no_flag_of_any_command_is_followed_by_a_type() -> None:
    found = dict(all_commands(make_root()))
    assert len(found) > 40
    for path, command in found.items():
        text = command.get_help(click.Context(command, info_name=" ".join(path)))
        assert not re.search(r"<bool>|BOOLEAN", text), f"{path}: {text}"


def test_the_help_of_serve_is_like_that_of_the_other_commands() -> None:
    shown = [commands.run(*words, "--help").stdout for words in (["serve"], ["topic", "create"])]
    for text, usage in zip(shown, ("twofold serve", "twofold topic create"), strict=True):
        assert text.startswith(f"Usage: {usage} [OPTIONS]"), text
        assert re.search(r"\n\s*Options:\n", text) and re.search(r"-h, --help +Show this message and exit", text)
        assert "exit codes: 0" in text.lower()
    for option in ("--listen", "--advertise", "--data", "--config", "-o", "--metrics", "--log-level"):
        assert option in shown[0]


def test_one_is_singular() -> None:
    assert [plural(count, "topic") for count in (0, 1, 2, 1000)] == ["0 topics", "1 topic", "2 topics", "1,000 topics"]


def test_messages_count_one_in_the_singular(empty: str) -> None:
    with Broker() as broker:
        server = broker.bootstrap_servers
        made = commands.run("topic", "create", "one", "--partitions", "1", server=server)
        assert made.stdout == "created one (1 partition, replication factor 1)\n"
        with Producer(bootstrap_servers=server) as producer:
            producer.send("one", b"x").result()
        reset = ["group", "reset-offsets", "g", "--topic", "one", "--to-earliest", "--execute"]
        assert "reset 1 offset of g" in commands.run(*reset, server=server).stdout
        assert "no members: 1 record waits for one" in commands.run("group", "describe", "g", server=server).stdout
        blocked = ["txn", "blocked", "--topic", "one"]
        assert commands.run(*blocked, server=server).stdout == "no reader waits in 1 partition\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topic", "list"], "no topic at {}; `twofold topic create NAME` makes one"),
        (["topic", "describe"], "no topic at {}; `twofold topic create NAME` makes one"),
        (["group", "list"], "no group at {}"),
        (["group", "list", "--state", "Stable"], "no group at {} that matches"),
        (["group", "describe"], "no group at {}"),
    ],
)
def test_an_empty_list_says_that_it_is_empty_and_prints_no_line(empty: str, words: list[str], said: str) -> None:
    done = commands.run(*words, server=empty)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said.format(empty) + "\n")
    done = commands.run(*words, "--format", "json", server=empty)
    assert (json.loads(done.stdout), done.stderr) == ([], "")
