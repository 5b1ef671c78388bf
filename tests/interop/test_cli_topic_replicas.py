"""`twofold topic reassign`, `reassignments`, `elect-leaders` and what `describe` says of replicas, against one node of
Twofold and one of Apache Kafka: both answer alike."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from kits.processes import commands
from kits.processes.commands import Done
from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop

numbers = count()


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("replicas")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> str:
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


@pytest.fixture
def topic(server: str) -> str:
    name = f"replicas-{next(numbers)}"
    twofold(server, "create", name, "--partitions", "2")
    return name


def twofold(server: str, *args: str, code: int = 0) -> Done:
    done = commands.run("topic", *args, server=server)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def test_replicas_that_are_where_they_are_wanted_do_not_move(server: str, topic: str) -> None:
    done = twofold(server, "reassign", topic, "--to", "1", "--yes")
    assert done.stdout == "nothing to move: all replicas are there already\n"
    told = json.loads(twofold(server, "reassign", topic, "--to", "1", "--yes", "--format", "json").stdout)
    assert told == {"dry_run": False, "moves": []}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "7"), "--to 7: there is no such broker, or it is not running; there are 1"),
        (("--to", "one"), "--to one: give the ids of brokers, each once, as in --to 4,5,6"),
        (("--to", "1,1"), "--to 1,1: give the ids of brokers, each once, as in --to 4,5,6"),
        (("--to", "1", "-r", "2"), "is to have 2 replicas, and --to names 1 broker: name more, or give --replication-"),
        (("--to", "1", "--partition", "5"), "--partition 5: replicas-"),
        ((), "where to: give --to ID,ID,..., or --cancel alone to end the moves that go on"),
        (("--to", "1", "--cancel"), "where to: give --to ID,ID,..., or --cancel alone to end the moves that go on"),
    ],
)
def test_a_wrong_target_is_named(server: str, topic: str, arguments: tuple[str, ...], said: str) -> None:
    done = twofold(server, "reassign", topic, *arguments, "--yes", code=2)
    assert done.stdout == "" and said in done.stderr, done.stderr


def test_no_move_goes_on(server: str, topic: str) -> None:
    done = twofold(server, "reassignments")
    assert (done.stdout, done.stderr) == ("", "no partition is being moved\n")
    assert json.loads(twofold(server, "reassignments", topic, "--format", "json").stdout) == []
    assert twofold(server, "reassign", topic, "--cancel", "--yes").stdout == "no move goes on\n"


def test_a_topic_that_is_not_there_is_named(server: str) -> None:
    for arguments in (("reassign", "ghost", "--to", "1"), ("reassignments", "ghost"), ("elect-leaders", "ghost")):
        done = commands.run("topic", *arguments, server=server)
        assert done.returncode == 1 and "ghost" in done.stderr and "Traceback" not in done.stderr, done


def test_leaders_that_lead_need_no_election(server: str, topic: str) -> None:
    for arguments in ((), (topic,), (topic, "--partition", "1"), (topic, "--unclean", "--yes")):
        done = twofold(server, "elect-leaders", *arguments)
        assert (done.stdout, done.stderr) == ("", "no partition needed an election\n")


def test_an_unclean_election_names_its_topics(server: str) -> None:
    assert "--unclean needs the topics" in twofold(server, "elect-leaders", "--unclean", "--yes", code=2).stderr


def test_describe_tells_that_every_replica_is_in_sync(server: str, topic: str) -> None:
    assert "health      every replica is in sync" in twofold(server, "describe", topic).stdout
    done = twofold(server, "describe", topic, "--under-replicated")
    assert (done.stdout, done.stderr) == ("", "every replica is in sync\n")
