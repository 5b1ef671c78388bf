"""`twofold group` against real servers, with groups of a stock client making state. The command runs in this process,
so that a story of many commands stays quick; that it runs as a process too is what the last test is for."""

import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import pytest

from kits.processes.server import TwofoldServer
from oracle.batches import batch
from oracle.driver import Connection
from twofold.cli.app import run_app

pytestmark = pytest.mark.interop

START = 1_700_000_000_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    # A transaction may be opened by hand, without a coordinator.
    "transaction.partition.verification.enable": "false",
}


class Server(Protocol):
    name: str
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str: ...


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("cli-group"), SETTINGS) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> Server:
    node: Server = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return node


class Done(NamedTuple):
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command and check its exit code."""
    monkeypatch.setattr("twofold.logging.configure_logging", lambda **_: None)
    monkeypatch.setenv("COLUMNS", "80")

    def run(server: Server | str, *args: str, code: int = 0) -> Done:
        address = server if isinstance(server, str) else server.bootstrap_servers
        monkeypatch.setenv("TWOFOLD_BOOTSTRAP_SERVER", address)
        capsys.readouterr()
        exit_code = run_app(args)
        done = Done(*capsys.readouterr())
        assert exit_code == code, f"{exit_code}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def make_topic(cli: Cli, server: Server, counts: list[int]) -> str:
    """A topic with so many records in its partitions; record n of each is n seconds after START."""
    topic = fresh("t")
    cli(server, "topic", "create", topic, "-p", str(len(counts)))
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 50})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition, timestamp=START + number * 1000)
    assert producer.flush(30) == 0
    return topic


@contextmanager
def member(server: Server, group: str, topic: str, **options: Any) -> Iterator[confluent_kafka.Consumer]:
    """A member that has its assignment."""
    consumer = new_member(server, group, **options)
    try:
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        yield consumer
    finally:
        consumer.close()


def new_member(server: Server, group: str, **options: Any) -> confluent_kafka.Consumer:
    config = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": group,
        "client.id": "reader",
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
    }
    return confluent_kafka.Consumer(config | {key.replace("_", "."): value for key, value in options.items()})


def until(condition: Callable[[], bool], patience_s: float = 30) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.05)


def commit(server: Server, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Offsets of a group without members."""
    consumer = new_member(server, group)
    rows = [confluent_kafka.TopicPartition(topic, index, offset) for index, offset in offsets.items()]
    try:
        for row in consumer.commit(offsets=rows, asynchronous=False):
            assert row.error is None
    finally:
        consumer.close()


def committed(cli: Cli, server: Server, group: str) -> dict[int, int]:
    rows = cli(server, "group", "offsets", group, "--format", "json").json["offsets"]
    return {row["partition"]: row["offset"] for row in rows}


# Looking


def test_a_group_shows_its_members_offsets_and_lag(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [10, 20, 5]), fresh("g")
    with member(server, group, topic, group_instance_id="desk-1") as consumer:
        rows = [confluent_kafka.TopicPartition(topic, index, offset) for index, offset in ((0, 10), (1, 8))]
        consumer.commit(offsets=rows, asynchronous=False)

        listed = words(cli(server, "group", "list").stdout)
        assert listed[0] == ["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"]
        assert [group, "Stable", "classic", "consumer", "1"] in listed

        (shown,) = cli(server, "group", "describe", group, "--format", "json").json
        assert (shown["state"], shown["type"], shown["protocol"]) == ("Stable", "classic", "range")
        assert (shown["coordinator"]["host"], shown["coordinator"]["port"]) == (server.host, server.port)
        (row,) = shown["members"]
        assert (row["client_id"], row["group_instance_id"], row["host"]) == ("reader", "desk-1", "127.0.0.1")
        assert row["assignment"] == {topic: [0, 1, 2]} and shown["stuck"] == []
        assert [(it["offset"], it["end_offset"], it["lag"], it["stable_lag"]) for it in shown["offsets"]] == [
            (10, 10, 0, 0),
            (8, 20, 12, 12),
            (None, 5, None, None),
        ]
        assert {it["member_id"] for it in shown["offsets"]} == {row["member_id"]} and shown["lag"] == 12

        text = cli(server, "group", "describe", group).stdout
        assert f"group        {group}\nstate        Stable\n" in text
        assert "lag          12 to the end of the log, 12 to the last stable offset, not known of 1 partition\n" in text
        assert [row["member_id"], "desk-1", "reader", "127.0.0.1", f"{topic}:0-2"] in words(text)
        assert [topic, "1", "8", "20", "20", "12", "12", "desk-1", "at", "127.0.0.1"] in words(text)
        assert [topic, "2", "-", "5", "5", "-", "-", "desk-1", "at", "127.0.0.1"] in words(text)

        offsets = cli(server, "group", "offsets", group).stdout
        assert offsets == text[text.index("TOPIC ") :]


def test_groups_are_listed_by_state_and_type(cli: Cli, server: Server) -> None:
    topic, busy, idle = make_topic(cli, server, [1]), fresh("busy"), fresh("idle")
    commit(server, idle, topic, {0: 1})

    def listed(*args: str) -> set[str]:
        rows = cli(server, "group", "list", *args, "--format", "json").json
        return {row["group"] for row in rows} & {busy, idle}

    with member(server, busy, topic):
        assert listed() == {busy, idle} == listed("--state", "Stable", "--state", "Empty")
        assert listed("--state", "stable") == {busy} and listed("--state", "EMPTY") == {idle}
        assert listed("--type", "classic") == {busy, idle} and listed("--type", "share") == set()


def test_all_groups_are_described_when_none_is_named(cli: Cli, server: Server) -> None:
    topic, groups = make_topic(cli, server, [3]), {fresh("a"), fresh("b")}
    for group in groups:
        commit(server, group, topic, {0: 1})
    shown = {row["group"]: row["lag"] for row in cli(server, "group", "describe", "--format", "json").json}
    assert {group: shown.get(group) for group in groups} == dict.fromkeys(groups, 2)


# Why it does not get on


def stuck(cli: Cli, server: Server, group: str) -> list[dict[str, Any]]:
    (shown,) = cli(server, "group", "describe", group, "--format", "json").json
    problems: list[dict[str, Any]] = shown["stuck"]
    text = cli(server, "group", "describe", group).stdout
    assert [line.removeprefix("stuck        ") for line in text.splitlines() if line.startswith("stuck")] == [
        problem["text"] for problem in problems
    ]
    return problems


def test_a_group_without_members_says_what_waits_for_them(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [10]), fresh("g")
    commit(server, group, topic, {0: 4})
    assert [problem["text"] for problem in stuck(cli, server, group)] == ["no members: 6 records wait for one"]
    commit(server, group, topic, {0: 10})
    assert stuck(cli, server, group) == []


def test_a_rebalance_that_waits_names_the_members_it_may_wait_for(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [1, 1]), fresh("g")
    with member(server, group, topic, client_id="sleeper", max_poll_interval_ms=60_000):
        newcomer = new_member(server, group, client_id="newcomer")
        try:
            newcomer.subscribe([topic])

            def rebalancing() -> bool:
                newcomer.poll(0.1)
                (shown,) = cli(server, "group", "describe", group, "--format", "json").json
                return bool(shown["state"] == "PreparingRebalance" and len(shown["members"]) == 2)

            # The first member does not poll, so it does not join again.
            until(rebalancing)
            (problem,) = stuck(cli, server, group)
            assert problem["reason"] == "rebalancing"
            assert "sleeper at 127.0.0.1" in problem["text"] and "newcomer" not in problem["text"]
        finally:
            newcomer.close()


@contextmanager
def open_transaction(server: Server, topic: str, group: str | None = None, offset: int = 0) -> Iterator[int | None]:
    """Two records in partition 0 (and an offset for the group) in a transaction that stays open; the producer's id
    where it is known."""
    if server.name == "oracle":
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": server.bootstrap_servers, "transactional.id": topic, "linger.ms": 0}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(topic, b"open", partition=0)
        producer.flush(30)
        if group is not None:
            consumer = new_member(server, group)
            rows = [confluent_kafka.TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(rows, consumer.consumer_group_metadata(), 30)
            consumer.close()
        yield None
        producer.abort_transaction(30)
        return
    with Connection(server.host, server.port) as connection:
        producer_id = connection.ask("InitProducerId", 0, transactional_id=None, transaction_timeout=60000)[
            "producer_id"
        ]
        owner = {"producer_id": producer_id, "producer_epoch": 0}
        records = batch(2, attributes=0x10, base_sequence=0, base_timestamp=START, **owner)
        body = {"transactional_id": "by-hand", "acks": -1, "timeout": 5000}
        answer = connection.ask(
            "Produce", 9, topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": records}]}], **body
        )
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        if group is not None:
            entry = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
            body = {"transactional_id": "by-hand", "group_id": group, **owner}
            body |= {"generation_id": -1, "member_id": "", "group_instance_id": None}
            topics = [{"name": topic, "partitions": [entry | {"committed_metadata": ""}]}]
            answer = connection.ask("TxnOffsetCommit", 3, topics=topics, **body)
            assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    yield producer_id


def test_an_open_transaction_that_holds_readers_back_is_named_with_its_producer(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [5, 5]), fresh("g")
    commit(server, group, topic, {0: 5, 1: 5})
    with open_transaction(server, topic) as producer_id:
        (problem,) = [it for it in stuck(cli, server, group) if it["reason"] != "no-members"]
        assert (problem["reason"], problem["topic"], problem["partition"]) == ("open-transaction", topic, 0)
        assert f"readers of {topic}-0 with read_committed wait at offset 5 for producer id" in problem["text"]
        assert producer_id in (None, problem["producer_id"])
        rows = cli(server, "group", "offsets", group, "--format", "json").json["offsets"]
        assert [(it["end_offset"], it["last_stable_offset"], it["lag"], it["stable_lag"]) for it in rows] == [
            (7, 5, 2, 0),
            (5, 5, 0, 0),
        ]
        # Who has records left to read before the transaction is not held back by it.
        commit(server, group, topic, {0: 4})
        assert [it["reason"] for it in stuck(cli, server, group)] == ["no-members"]
        # Neither is who reads what is not committed.
        commit(server, group, topic, {0: 6})
        assert [it["reason"] for it in stuck(cli, server, group)] == ["no-members"]


def test_an_offset_in_an_open_transaction_holds_back_the_next_owner(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [5]), fresh("g")
    commit(server, group, topic, {0: 1})
    with open_transaction(server, topic, group, 3):
        problem = next(it for it in stuck(cli, server, group) if it["reason"] == "pending-offsets")
        assert f"it holds an offset for {topic}-0" in problem["text"]
        assert committed(cli, server, group) == {0: 1}


@pytest.mark.oracle
@pytest.mark.slow
def test_exact_lag_counts_records_and_not_the_markers_of_transactions(cli: Cli, oracle: Any) -> None:
    topic, group = make_topic(cli, oracle, [0]), fresh("g")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": oracle.bootstrap_servers, "transactional.id": topic, "linger.ms": 0}
    )
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"x")
        producer.flush(30)
        producer.abort_transaction(30) if number == 2 else producer.commit_transaction(30)
    commit(oracle, group, topic, {0: 3})

    def lags(*args: str) -> tuple[int, int]:
        (row,) = cli(oracle, "group", "offsets", group, "--format", "json", *args).json["offsets"]
        return row["lag"], row["stable_lag"]

    # From offset 3 on there are four markers, two committed transactions of three records and an aborted one.
    assert lags() == (13, 13) and lags("--exact") == (9, 6)
    with open_transaction(oracle, topic):
        assert lags("--exact") == (11, 6)
        # The last marker is all that is left before the open transaction: nothing to read.
        commit(oracle, group, topic, {0: 15})
        assert lags() == (3, 1) and lags("--exact") == (2, 0)
        assert "open-transaction" in [it["reason"] for it in stuck(cli, oracle, group)]


@pytest.mark.oracle
@pytest.mark.slow
def test_an_offset_that_was_deleted_is_a_reason(cli: Cli, oracle: Any) -> None:
    from confluent_kafka.admin import AdminClient

    topic, group = make_topic(cli, oracle, [10]), fresh("g")
    commit(oracle, group, topic, {0: 2})
    admin = AdminClient({"bootstrap.servers": oracle.bootstrap_servers})
    admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 6)])[
        confluent_kafka.TopicPartition(topic, 0)
    ].result(30)
    texts = [problem["text"] for problem in stuck(cli, oracle, group)]
    assert texts[0] == "no members: 4 records wait for one"
    assert texts[1].startswith(f"offset 2 of {topic}-0 is gone, the log starts at 6")


@pytest.mark.oracle
@pytest.mark.slow
def test_groups_of_the_consumer_protocol_are_described_too(cli: Cli, oracle: Any) -> None:
    topic, group = make_topic(cli, oracle, [3, 3]), fresh("g")
    config = {
        "bootstrap.servers": oracle.bootstrap_servers,
        "group.id": group,
        "client.id": "modern",
        "group.protocol": "consumer",
    }
    consumer = confluent_kafka.Consumer(config)
    try:
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        (shown,) = cli(oracle, "group", "describe", group, "--format", "json").json
        assert (shown["type"], shown["state"], shown["protocol"]) == ("consumer", "Stable", "uniform")
        (row,) = shown["members"]
        assert row["assignment"] == row["target_assignment"] == {topic: [0, 1]} and row["client_id"] == "modern"
        refused = cli(oracle, "group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute", code=1)
        assert "modern at 127.0.0.1" in refused.stderr
    finally:
        consumer.close()
    cli(oracle, "group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
    assert committed(cli, oracle, group) == {0: 3, 1: 3}


# Resetting


def reset(cli: Cli, server: Server, group: str, *args: str) -> list[tuple[int, int | None, int]]:
    shown = cli(server, "group", "reset-offsets", group, *args, "--format", "json").json
    assert shown["group"] == group and shown["executed"] == ("--execute" in args)
    return [(row["partition"], row["old_offset"], row["offset"]) for row in shown["offsets"]]


def test_every_way_to_reset_finds_its_offsets_and_changes_nothing_until_told(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [10, 20, 0]), fresh("g")
    commit(server, group, topic, {0: 4, 1: 15})

    def to(*args: str) -> list[tuple[int, int | None, int]]:
        return reset(cli, server, group, *args)

    assert to("--all-topics", "--to-earliest") == [(0, 4, 0), (1, 15, 0)]
    assert to("--all-topics", "--to-latest") == [(0, 4, 10), (1, 15, 20)]
    assert to("--topic", topic, "--to-latest") == [(0, 4, 10), (1, 15, 20), (2, None, 0)]
    assert to("--topic", f"{topic}:1", "--to-offset", "7") == [(1, 15, 7)]
    assert to("--all-topics", "--shift-by", "-5") == [(0, 4, 0), (1, 15, 10)]
    assert to("--all-topics", "--shift-by", "6") == [(0, 4, 10), (1, 15, 20)]
    # 2023-11-14T22:13:20Z is START; partition 0 ends before the twelfth second.
    assert to("--all-topics", "--to-datetime", "2023-11-14T22:13:32Z") == [(0, 4, 10), (1, 15, 12)]
    assert to("--all-topics", "--to-datetime", "2023-11-14T23:13:21+01:00") == [(0, 4, 1), (1, 15, 1)]
    assert to("--all-topics", "--to-datetime", str(START + 1500)) == [(0, 4, 2), (1, 15, 2)]
    assert to("--all-topics", "--by-duration", "PT1H") == [(0, 4, 10), (1, 15, 20)]
    assert (
        to("--all-topics", "--by-duration", "P36500D")
        == to("--all-topics", "--to-datetime", "1960-01-01")
        == [(0, 4, 0), (1, 15, 0)]
    )
    assert committed(cli, server, group) == {0: 4, 1: 15}

    assert to("--all-topics", "--shift-by", "2", "--execute") == [(0, 4, 6), (1, 15, 17)]
    assert committed(cli, server, group) == {0: 6, 1: 17}


def test_the_table_says_what_changes_and_what_was_out_of_bounds(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [10, 20]), fresh("g")
    commit(server, group, topic, {0: 4})
    args = ("group", "reset-offsets", group, "--topic", topic, "--to-offset", "12")
    dry = cli(server, *args).stdout
    (note,) = words("12 is after the end of the log")
    assert [topic, "0", "4", "10", "+6", *note] in words(dry) and [topic, "1", "-", "12", "-"] in words(dry)
    assert dry.endswith(f"dry run: nothing was changed in {group}; --execute does it\n")
    done = cli(server, *args, "--execute").stdout
    assert done.endswith(f"reset 2 offsets of {group}\n") and words(done)[:3] == words(dry)[:3]
    assert committed(cli, server, group) == {0: 10, 1: 12}


def test_a_reader_goes_on_where_it_was_told(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [10]), fresh("g")
    reset(cli, server, group, "--topic", topic, "--to-offset", "7", "--execute")
    consumer = new_member(server, group)
    try:
        consumer.subscribe([topic])
        assert [message.value() for message in consumer.consume(3, 30)] == [b"7", b"8", b"9"]
    finally:
        consumer.close()


def test_offsets_go_to_a_file_and_come_back(cli: Cli, server: Server, tmp_path: Path) -> None:
    topic, group, other = make_topic(cli, server, [10, 20]), fresh("g"), fresh("g")
    commit(server, group, topic, {0: 4, 1: 15})
    saved = tmp_path / "saved.json"
    saved.write_text(cli(server, "group", "offsets", group, "--format", "json").stdout)
    commit(server, group, topic, {0: 9, 1: 19})
    assert reset(cli, server, group, "--from-file", str(saved)) == [(0, 9, 4), (1, 19, 15)]
    plan = tmp_path / "plan.json"
    planned = cli(server, "group", "reset-offsets", group, "--from-file", str(saved), "--format", "json")
    plan.write_text(planned.stdout)
    reset(cli, server, other, "--from-file", str(plan), "--execute")
    assert committed(cli, server, other) == {0: 4, 1: 15}
    table = tmp_path / "plan.csv"
    table.write_text(f"{topic},0,1\n{topic},1,2\n")
    reset(cli, server, group, "--from-file", str(table), "--execute")
    assert committed(cli, server, group) == {0: 1, 1: 2}


def test_a_group_with_members_is_neither_reset_nor_deleted_and_they_are_named(cli: Cli, server: Server) -> None:
    topic, group = make_topic(cli, server, [3]), fresh("g")
    commit(server, group, topic, {0: 1})
    with member(server, group, topic, client_id="busy-1"):
        args = ("group", "reset-offsets", group, "--all-topics", "--to-latest")
        planned = cli(server, *args)
        assert [topic, "0", "1", "3", "+2"] in words(planned.stdout)
        reason = "it has members, stop them first: busy-1 at 127.0.0.1"
        assert planned.stderr == f"twofold: --execute will be refused for {group}: {reason}\n"
        refused = cli(server, *args, "--execute", code=1)
        assert refused == ("", f"twofold: cannot reset offsets of {group}: {reason}\n")
        assert cli(server, "group", "delete", group, "--yes", code=1).stderr == (
            f"twofold: cannot delete {group}: {reason}\n"
        )
    assert committed(cli, server, group) == {0: 1}


# Deleting, and what goes wrong


def test_groups_are_deleted_one_by_one_and_what_fails_does_not_hide_what_works(cli: Cli, server: Server) -> None:
    topic, group, missing = make_topic(cli, server, [1]), fresh("g"), fresh("missing")
    commit(server, group, topic, {0: 1})
    assert "add --yes" in cli(server, "group", "delete", group, code=2).stderr
    done = cli(server, "group", "delete", missing, group, "--yes", code=1)
    assert done.stdout == f"deleted {group}\n"
    assert done.stderr.startswith(f"twofold: cannot delete {missing}: no such group at {server.bootstrap_servers}")
    cli(server, "group", "delete", missing, "--yes", "--if-exists")
    assert group not in cli(server, "group", "list").stdout


def test_a_group_that_does_not_exist_is_said_in_a_line(cli: Cli, server: Server) -> None:
    missing = fresh("missing")
    for verb in ("describe", "offsets"):
        done = cli(server, "group", verb, missing, code=1)
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1
        assert missing in done.stderr and "twofold group list" in done.stderr


def test_partitions_that_do_not_exist_are_refused_before_any_is_changed(
    cli: Cli, server: Server, tmp_path: Path
) -> None:
    topic, group, missing = make_topic(cli, server, [5]), fresh("g"), fresh("missing")

    def refused(code: int, *args: str) -> str:
        done = cli(server, "group", "reset-offsets", group, *args, "--execute", code=code)
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1
        return done.stderr

    assert f"no topic {missing} at" in refused(1, "--topic", topic, "--topic", missing, "--to-earliest")
    assert f"topic {topic} has partitions 0 to 0, there is no 3" in refused(2, "--topic", f"{topic}:0,3", "--to-latest")
    file = tmp_path / "f"
    file.write_text(f"{topic},0,1\n{missing},0,1\n")
    assert f"no topic {missing} at" in refused(1, "--from-file", str(file))
    assert f"group {group} has no offsets at" in refused(1, "--all-topics", "--to-latest")
    assert f"cannot shift {topic}-0: nothing is committed there" in refused(1, "--topic", topic, "--shift-by", "1")
    cli(server, "group", "describe", group, code=1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["list", "--state", "Stabel"], "--state 'Stabel' is none of: Stable, Empty, "),
        (["list", "--type", "old"], "--type 'old' is none of: classic, consumer, "),
        (["reset-offsets", "g", "--topic", "t"], "where to? Give --to-earliest, "),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-offset", "1"], "exclude each other"),
        (["reset-offsets", "g", "--to-latest"], "which partitions?"),
        (["reset-offsets", "g", "--topic", "t:x", "--to-latest"], "--topic 't:x' is not of the form"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "soon"], "--to-datetime soon is neither"),
        (["reset-offsets", "g", "--topic", "t", "--by-duration", "1h"], "--by-duration '1h' is not a duration"),
        (["reset-offsets", "g", "--from-file", "/no/file"], "cannot read --from-file /no/file: No such file"),
    ],
)
def test_wrong_values_are_named(cli: Cli, args: list[str], message: str) -> None:
    # Before anybody is asked: nobody is there.
    done = cli("127.0.0.1:1", "group", *args, code=2)
    assert done.stderr.startswith("twofold: ") and len(done.stderr.splitlines()) == 1
    assert message in done.stderr


@pytest.mark.parametrize("args", [["list"], ["describe", "g"], ["delete", "g", "-y"]])
def test_a_missing_broker_is_said_with_what_to_change(cli: Cli, args: list[str]) -> None:
    done = cli("127.0.0.1:1", "group", *args, "--timeout", "0.5", code=3)
    assert re.match(r"twofold: cannot connect to 127\.0\.0\.1:1: .*\n.*--bootstrap-server", done.stderr)


def test_the_command_runs_as_a_process_and_documents_its_exit_codes(twofold_server: TwofoldServer) -> None:
    def process(*args: str) -> str:
        command = [sys.executable, "-m", "twofold", "group", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    listed = process("list", "--format", "json", "-b", twofold_server.bootstrap_servers)
    assert isinstance(json.loads(listed), list)
    assert "Exit codes:" in " ".join(process("reset-offsets", "--help").split())
