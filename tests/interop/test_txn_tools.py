"""Transactions that hang are found and ended, those that do not are left alone, and whoever comes back is told."""

import asyncio
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import twofold
from kits.processes.server import TwofoldServer
from kits.wire.session import OLD, TV1, TV2
from kits.wire.tools import (
    LONG,
    SETTINGS,
    Cli,
    Server,
    fresh,
    hang,
    make_cli,
    make_topic,
    not_verifying,
    open_many,
    read_committed,
    session,
    stable_offset,
)
from kits.wire.two_phase import TwoPhaseDriver, two_phase_driver
from oracle.processes import spawn, stop
from twofold.client import TopicPartition
from twofold.client.admin.transaction_model import AbortTransactionSpec, TransactionState
from twofold.client.errors import Fenced, TransactionFailed
from twofold.runtime.real import real_runtime
from twofold.wire.errors import InvalidTxnState, TransactionAbortable, TransactionalIdNotFound

pytestmark = pytest.mark.interop

PATIENCE_S = 60.0
APP = Path(__file__).parent.parent / "kits" / "processes" / "two_phase_app.py"
HEALTHY = 1000
LOAD_S = 15.0 if LONG else 3.0
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, FENCED, ABORTABLE = 47, 48, 90, 120


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("txn-tools"), SETTINGS) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    node: Server = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    with not_verifying(node):
        yield node


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return make_cli(capsys, monkeypatch)


def ask_json(cli: Cli, server: Server, *words: str, code: int = 0) -> Any:
    return cli(server, *words, "--format", "json", code=code).json


def settled(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.05)


# Found and ended


def test_what_hangs_is_found_among_a_thousand_healthy_ones_and_its_end_frees_the_readers(
    cli: Cli, server: Server
) -> None:
    healthy, topic = make_topic(server, 4), make_topic(server, 3)
    open_many(server, healthy, 4, HEALTHY, prefix=fresh("healthy"))
    copying = session(server)
    copying.write(healthy, 1, "x")
    copying.write_offsets(fresh("g"), healthy, {1: 1})
    committing = session(server)

    def commit(value: str) -> None:
        for index in range(3):
            committing.write(topic, index, value)
        assert committing.until_ready(lambda: committing.end(True)) == 0

    commit("before")
    settled(lambda: stable_offset(server, topic, 2) == 2)
    # No coordinator has this producer.
    unknown = hang(server, topic, 0)
    # This one wrote without telling its coordinator; the next instance has the partition in its own transaction.
    earlier = session(server, versions=OLD)
    hang(server, topic, 1, earlier.producer_id, earlier.epoch)
    later = session(server, earlier.id, versions=OLD)
    assert later.producer_id == earlier.producer_id and later.epoch == earlier.epoch + 1
    assert later.until_ready(lambda: later.add(topic, 1)[0]) == 0
    # And this one has another partition in it, not this.
    elsewhere = session(server, versions=OLD)
    elsewhere.write(healthy, 0, "x")
    hang(server, topic, 2, elsewhere.producer_id, elsewhere.epoch)
    commit("after")

    places = ("--topic", topic) if server.name == "oracle" else ()  # an oracle may have what other tests left
    found = ask_json(cli, server, "hanging", *places)
    assert {(row["tp"], row["producer_id"], row["reason"], row["transactional_id"]) for row in found} == {
        (f"{topic}-0", unknown, "unknown to the coordinator", None),
        (f"{topic}-1", earlier.producer_id, "epoch differs", earlier.id),
        (f"{topic}-2", elsewhere.producer_id, "partition not in the transaction", elsewhere.id),
    }
    assert ask_json(cli, server, "hanging", "--topic", healthy) == []
    assert [read_committed(server, topic, index) for index in range(3)] == [[b"before"]] * 3
    for row in found:
        name, _, partition = row["tp"].rpartition("-")
        words = ("--topic", name, "--partition", partition, "--start-offset", str(row["start_offset"]))
        assert ask_json(cli, server, "abort", *words, "--yes")["how"] == "marker"
        assert "no open transaction" in cli(server, "abort", *words, "--yes", code=1).stderr
    assert ask_json(cli, server, "hanging", *places) == []
    for index in range(3):
        assert stable_offset(server, topic, index) > 2
        assert read_committed(server, topic, index) == [b"before", b"after"]
    # Whoever was healthy has lost nothing.
    assert later.produce(topic, 1, "mine") == 0
    assert later.until_ready(lambda: later.end(True)) == 0
    settled(lambda: read_committed(server, topic, 1) == [b"before", b"after", b"mine"])
    assert elsewhere.until_ready(lambda: elsewhere.end(True)) == 0


def test_transactions_that_end_while_it_looks_are_not_taken_for_hanging(cli: Cli, server: Server) -> None:
    topic = make_topic(server, 4)
    stopping = threading.Event()
    counts = [0] * 4
    problems: list[str] = []

    def work(number: int) -> None:
        versions = (TV2, TV1, OLD, TV2)[number]
        writer = session(server, versions=versions)
        turn = 0
        while not stopping.is_set():
            turn += 1
            writer.write(topic, number, "x")
            writer.write(topic, (number + turn) % 4, "y")
            code = writer.until_ready(partial(writer.end, turn % 3 > 0))
            if code:
                problems.append(f"EndTxn of {versions.name}: {code}")
                return
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    looks = 0
    try:
        until = time.monotonic() + LOAD_S
        while not problems and (time.monotonic() < until or looks < 3 or min(counts) <= 3):
            assert ask_json(cli, server, "hanging", "--topic", topic) == []
            looks += 1
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)
    assert not problems
    assert looks >= 3 and min(counts) > 3, (looks, counts)


def test_by_its_numbers_a_transaction_is_ended_without_its_offset(cli: Cli, server: Server) -> None:
    topic = make_topic(server)
    hung = hang(server, topic, 0)
    numbers = ("--producer-id", str(hung), "--producer-epoch", "0")
    told = cli(server, "abort", "--topic", topic, "--partition", "0", *numbers, "--yes").stdout
    assert told == f"aborted what producer {hung} (epoch 0) had open in {topic}-0 since offset 0\n"
    assert stable_offset(server, topic, 0) == 2


# What the coordinator has is ended by it


def test_what_a_coordinator_has_open_is_ended_as_a_whole(cli: Cli, server: Server) -> None:
    topic = make_topic(server, 2)
    writer = session(server)
    for index in range(2):
        writer.write(topic, index, "a")
    told = cli(server, "abort", "--topic", topic, "--partition", "1", "--start-offset", "0", "--yes").stdout
    who = rf"producer id {writer.producer_id}, epoch {writer.epoch}, open since 20\S+Z"
    where = rf"in 2 partitions \({topic}-0, {topic}-1\)"
    assert re.fullmatch(rf"aborted the transaction of {writer.id} \({who}\) {where} and fenced its producer\n", told)
    settled(lambda: [stable_offset(server, topic, index) for index in range(2)] == [2, 2])
    assert writer.end(True) in (FENCED, INVALID_PRODUCER_EPOCH)
    if isinstance(server, TwofoldServer):
        line = rf"InitProducerId by User:ANONYMOUS \(127.0.0.1, client \S+\): abort the transaction of '{writer.id}'"
        assert re.search(line, server.log_text())


def test_of_one_partition_alone_the_rest_stays_open(cli: Cli, twofold_server: TwofoldServer) -> None:
    topic = make_topic(twofold_server, 2)
    writer = session(twofold_server)
    for index in range(2):
        writer.write(topic, index, "a")
    words = ("--topic", topic, "--partition", "1", "--start-offset", "0", "--partition-only", "--yes")
    assert ask_json(cli, twofold_server, "abort", *words)["how"] == "marker"
    assert [stable_offset(twofold_server, topic, index) for index in range(2)] == [0, 2]
    assert writer.end(True) == ABORTABLE
    assert writer.end(False) == 0
    settled(lambda: stable_offset(twofold_server, topic, 0) == 2)
    assert re.search(rf"WriteTxnMarkers by User:ANONYMOUS .* in {topic}-1", twofold_server.log_text())


# Who comes back is told


def test_our_producer_is_told_of_a_part_that_was_aborted_and_goes_on_after_an_abort(
    cli: Cli, twofold_server: TwofoldServer
) -> None:
    topic, name = make_topic(twofold_server, 2), fresh("x")
    address = twofold_server.bootstrap_servers
    with twofold.Producer(bootstrap_servers=address, transactional_id=name) as producer:
        producer.init_transactions()
        told = {
            "commit": "an administrator has aborted a part of the open transaction",
            "send": "the producer's transaction was aborted there by hand|an administrator has aborted a part",
        }
        for when in told:
            start = stable_offset(twofold_server, topic, 0)
            producer.begin_transaction()
            for index in range(2):
                producer.send(topic, b"lost", partition=index)
            producer.flush()
            words = ("--topic", topic, "--partition", "0", "--start-offset", str(start), "--partition-only", "--yes")
            cli(twofold_server, "abort", *words)
            if when == "send":
                delivery = producer.send(topic, b"more", partition=0)
                with pytest.raises(TransactionAbortable, match="was aborted there by hand"):
                    delivery.result(30)
            with pytest.raises(TransactionFailed, match=told[when]):
                producer.commit_transaction()
            producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"kept", partition=0)
        producer.commit_transaction()
    settled(lambda: read_committed(twofold_server, topic, 0) == [b"kept"])
    assert read_committed(twofold_server, topic, 1) == []


def test_our_producer_is_told_that_its_whole_transaction_was_aborted(cli: Cli, twofold_server: TwofoldServer) -> None:
    topic, name = make_topic(twofold_server), fresh("x")
    with twofold.Producer(bootstrap_servers=twofold_server.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"lost", partition=0)
        producer.flush()
        cli(twofold_server, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0", "--yes")
        with pytest.raises(Fenced) as told:
            producer.commit_transaction()
    assert "an administrator took the id over, and what was open was aborted" in str(told.value)
    assert read_committed(twofold_server, topic, 0) == []


def test_a_stock_producer_is_told_that_its_transaction_was_aborted(cli: Cli, server: Server) -> None:
    topic, name = make_topic(server), fresh("x")
    config = {"bootstrap.servers": server.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
    for when in ("commit", "produce"):
        producer = confluent_kafka.Producer(config)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"lost", partition=0)
        assert producer.flush(30) == 0
        cli(server, "terminate", "--transactional-id", name, "--yes")
        if when == "produce":
            producer.produce(topic, b"more", partition=0)
            with suppress(confluent_kafka.KafkaException):
                producer.flush(30)
        with pytest.raises(confluent_kafka.KafkaException) as told:
            producer.commit_transaction(30)
        assert told.value.args[0].fatal() or told.value.args[0].txn_requires_abort(), told.value
    assert read_committed(server, topic, 0) == []


# Prepared ones


def prepared(server: TwofoldServer, topic: str, name: str) -> str:
    """A client that is killed with what it has prepared; returns the state that it wrote down."""

    async def story() -> str:
        driver = driver_of(server, name)
        await driver.init()
        await driver.send({TopicPartition(topic, 0): [b"prepared"]})
        state = await driver.prepare()
        await driver.close()
        return state

    return run(story)


def driver_of(server: TwofoldServer, name: str) -> TwoPhaseDriver:
    return two_phase_driver(real_runtime(), server.bootstrap_servers, name, timeout_ms=1)


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_what_a_killed_client_has_prepared_is_completed_as_decided(
    cli: Cli, twofold_server: TwofoldServer, tmp_path: Path, decision: str
) -> None:
    topic, name = make_topic(twofold_server, 2), fresh("app")
    output = tmp_path / "app.log"
    words = ["producer", "prepare", twofold_server.bootstrap_servers, name, topic, fresh("g")]
    process = spawn([sys.executable, str(APP), *words], output=output)
    try:
        settled(lambda: "said:" in output.read_text(errors="replace"))
    finally:
        stop(process)
    state = output.read_text().split("said:")[1].split()[0]
    told = cli(
        twofold_server, "complete", "--transactional-id", name, "--state", state, f"--{decision}", "--yes"
    ).stdout
    assert told.startswith(
        f"{'committed' if decision == 'commit' else 'aborted'} the transaction of {name} (producer id "
    )
    assert told.endswith(f", which was prepared as {state}\n")
    settled(lambda: stable_offset(twofold_server, topic, 0) == 2)
    assert read_committed(twofold_server, topic, 0) == ([b"left"] if decision == "commit" else [])
    line = rf"EndTxn by User:ANONYMOUS .*: {decision} the two-phase transaction of '{name}' \(producer id {state[:-2]}"
    assert re.search(line, twofold_server.log_text())
    again = cli(twofold_server, "complete", "--transactional-id", name, "--state", state, "--commit", "--yes", code=1)
    assert "nothing was changed" in again.stderr


def test_what_another_has_taken_over_is_completed_too_and_a_mismatch_changes_nothing(
    cli: Cli, twofold_server: TwofoldServer
) -> None:
    topic, name = make_topic(twofold_server), fresh("app")
    state = prepared(twofold_server, topic, name)

    async def recover() -> str:
        recovered = driver_of(twofold_server, name)
        found = await recovered.recover()
        await recovered.close()
        return f"{found.producer_id}:{found.producer_epoch}"

    assert run(recover) == state
    producer_id, epoch = map(int, state.split(":"))
    for wrong in (f"{producer_id}:{epoch + 1}", f"{producer_id + 1}:{epoch}"):
        words = ("complete", "--transactional-id", name, "--state", wrong, "--abort", "--yes")
        assert "nothing was changed" in cli(twofold_server, *words, code=1).stderr
    assert cli(twofold_server, "hanging").stdout.startswith("no hanging transaction")
    assert stable_offset(twofold_server, topic, 0) == 0
    cli(twofold_server, "complete", "--transactional-id", name, "--state", state, "--commit", "--yes")
    settled(lambda: read_committed(twofold_server, topic, 0) == [b"prepared"])


def test_force_ends_what_is_prepared_and_says_so_in_the_log(cli: Cli, twofold_server: TwofoldServer) -> None:
    topic, name = make_topic(twofold_server), fresh("app")
    prepared(twofold_server, topic, name)
    told = cli(twofold_server, "terminate", "--transactional-id", name, "--yes").stdout
    assert told.startswith(f"terminated {name}, which was Ongoing: aborted the transaction of {name} (producer id ")
    settled(lambda: stable_offset(twofold_server, topic, 0) == 2)
    assert read_committed(twofold_server, topic, 0) == []
    (row,) = ask_json(cli, twofold_server, "describe", name)
    assert row["state"] == "Empty" and row["timeout_ms"] == 60_000, "it is no two-phase id any more"
    line = rf"WARNING .*InitProducerId by User:ANONYMOUS .* abort the two-phase transaction of '{name}'"
    assert re.search(line, twofold_server.log_text())


def test_open_two_phase_transactions_are_listed_with_their_states_the_oldest_first(
    cli: Cli, twofold_server: TwofoldServer
) -> None:
    topic, prefix = make_topic(twofold_server), fresh("app")
    mine = ("--transactional-id-pattern", f"{prefix}.*")
    plain = session(twofold_server, f"{prefix}-plain")
    plain.write(topic, 0, "a")
    assert cli(twofold_server, "list", "--two-phase", *mine).stdout == "no open two-phase transaction\n"
    names = [f"{prefix}-z", f"{prefix}-a"]
    states = [prepared(twofold_server, topic, name) for name in names]
    rows = ask_json(cli, twofold_server, "list", "--two-phase", *mine)
    assert [row["transactional_id"] for row in rows] == names, "the oldest first, and not the other kind"
    assert [f"{row['producer_id']}:{row['producer_epoch']}" for row in rows] == states
    assert all(row["duration_ms"] >= 0 and row["partitions"] == [f"{topic}-0"] for row in rows)
    lines = cli(twofold_server, "list", "--two-phase", *mine).stdout.splitlines()
    expected = [[name, "Ongoing", state] for name, state in zip(names, states, strict=True)]
    assert [line.split()[:3] for line in lines[1:]] == expected
    assert ask_json(cli, twofold_server, "list", "--two-phase", *mine, "--duration-filter", "600000") == []
    # What it shows is what `complete` takes.
    for name, state in zip(names, states, strict=True):
        cli(twofold_server, "complete", "--transactional-id", name, "--state", state, "--commit", "--yes")
    # What is decided is listed until its markers are written.
    deadline = time.monotonic() + PATIENCE_S
    while ask_json(cli, twofold_server, "list", "--two-phase", *mine):
        assert time.monotonic() < deadline, "a committed transaction is listed for ever"
    assert len(ask_json(cli, twofold_server, "list", *mine)) == 3


# Who waits


def test_blocked_counts_from_the_start_and_names_the_groups_that_wait(cli: Cli, server: Server) -> None:
    topic, name, group = make_topic(server, 2), fresh("x"), fresh("g")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    now_ms = int(time.time() * 1000)
    for age_ms in (3_600_000, 60_000, 0):
        producer.produce(topic, b"x", partition=0, timestamp=now_ms - age_ms)
        assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    (row,) = ask_json(cli, server, "blocked", "--topic", topic)
    assert (row["partition"], row["stable_offset"], row["hidden"]) == (f"{topic}-0", 0, 3)
    assert (row["transactional_id"], row["groups"]) == (name, [group])
    assert (row["first_timestamp"], row["last_timestamp"]) == (now_ms - 3_600_000, now_ms)
    assert row["duration_ms"] < 600_000 and row["duration_told_by"] == "coordinator", "whatever the records say"
    text = cli(server, "blocked", "--topic", topic).stdout.splitlines()
    cells = dict(zip(text[0].split("\t"), text[1].split("\t"), strict=True))
    told = {key.strip(): cell.strip() for key, cell in cells.items()}
    assert (told["Topic"], told["Partition"], told["LastStableOffset"], told["HighWatermark"]) == (topic, "0", "0", "3")
    assert (told["TransactionalId"], told["Groups"], told["DurationToldBy"]) == (name, group, "coordinator")
    assert int(told["TransactionDurationMs"]) < 600_000
    producer.abort_transaction(30)
    settled(lambda: ask_json(cli, server, "blocked", "--topic", topic) == [])


# From Python


def test_the_administrators_client_does_the_same_from_python(server: Server) -> None:
    topic = make_topic(server, 2)
    tp = TopicPartition(topic, 0)
    hung = hang(server, topic, 0)
    one, two = session(server), session(server)
    one.write(topic, 1, "a")
    with twofold.Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        listed = admin.list_transactions(states=[TransactionState.ONGOING], broker_id=1).get()[1]
        assert one.id in {row.transactional_id for row in listed} and two.id not in {
            row.transactional_id for row in listed
        }
        assert admin.list_transactions(producer_ids=[two.producer_id]).get()[1][0].state is TransactionState.EMPTY
        described = admin.describe_transactions([one.id, "nobody-has-this"])
        assert described.values[one.id].partitions == (TopicPartition(topic, 1),)
        assert isinstance(described.errors["nobody-has-this"], TransactionalIdNotFound)
        for _ in range(2):  # the first one must not have made it
            with pytest.raises(TransactionalIdNotFound):
                admin.force_terminate_transaction("nobody-has-this")
        (row,) = admin.describe_producers([tp], broker_id=1).get()[tp]
        assert (row.producer_id, row.current_txn_start_offset) == (hung, 0)
        for start_offset, epoch in ((1, 0), (0, 1)):
            with pytest.raises(InvalidTxnState, match="has no transaction"):
                admin.abort_transaction(
                    AbortTransactionSpec(tp=tp, producer_id=hung, producer_epoch=epoch, start_offset=start_offset)
                )
        admin.abort_transaction(AbortTransactionSpec(tp=tp, producer_id=hung, producer_epoch=0, start_offset=0))
        assert stable_offset(server, topic, 0) == 2
        fenced = admin.fence_producers([one.id, two.id]).get()
        assert fenced[two.id].producer_epoch > two.epoch
    settled(lambda: stable_offset(server, topic, 1) == 2)
    assert one.end(True) in (FENCED, INVALID_PRODUCER_EPOCH)
