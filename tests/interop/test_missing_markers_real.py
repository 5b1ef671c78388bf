"""Markers of decided transactions that a power cut took: the broker writes again what is proven, the tools show the
rest and write what the coordinator's record shows, and half of a committed transaction is never aborted."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import twofold
from kits.folders.lost_tail import lose_markers, lose_markers_unnoticed
from kits.processes.server import TwofoldServer
from kits.wire.session import TV1, Session
from kits.wire.tools import Cli, make_cli, make_topic, read_committed, session
from oracle.driver import Connection
from twofold.client.admin.transaction_model import RepairTransactionSpec
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidProducerEpoch, InvalidTxnState

pytestmark = pytest.mark.interop

INVALID_TXN_STATE = 48
SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path, SETTINGS) as running:
        yield running


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return make_cli(capsys, monkeypatch)


def settled(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.05)


def transact(
    producer: Session, topic: str, value: str, *, commit: bool = True, partitions: tuple[int, ...] = (0, 1)
) -> None:
    """A whole transaction, with all of its markers."""
    for index in partitions:
        producer.write(topic, index, value)
    assert producer.until_ready(lambda: producer.end(commit)) == 0
    settled(lambda: state_of(producer) in ("CompleteCommit", "CompleteAbort"))


def state_of(producer: Session) -> str:
    (row,) = producer.ask("DescribeTransactions", 0, {"transactional_ids": [producer.id]})["transaction_states"]
    return str(row["transaction_state"])


@pytest.mark.parametrize(("lost", "commit"), [((0,), True), ((0, 1), True), ((1,), False)])
def test_a_marker_that_a_power_cut_took_is_written_again_by_the_broker(
    server: TwofoldServer, cli: Cli, lost: tuple[int, ...], commit: bool
) -> None:
    topic = make_topic(server, 2)
    producer = session(server)
    transact(producer, topic, "before")
    transact(producer, topic, "decided", commit=commit)
    lose_markers(server, *(TopicPartition(topic, index) for index in lost))
    server.start()
    expected = [b"before", b"decided"] if commit else [b"before"]
    assert [read_committed(server, topic, index) for index in (0, 1)] == [expected] * 2
    assert cli(server, "hanging", "--format", "json").json == []
    word = "commit" if commit else "abort"
    assert f"lost the {word} marker of the transaction of '{producer.id}'" in server.log_text()
    # It goes on as if nothing had happened, and another start finds nothing to do.
    producer.reconnect()
    transact(producer, topic, "after")
    server.kill()
    told = server.log_text().count("lost the")
    server.start()
    assert [read_committed(server, topic, index) for index in (0, 1)] == [[*expected, b"after"]] * 2
    assert server.log_text().count("lost the") == told


# With the tools


def lost(server: TwofoldServer, producer: Session, topic: str, *, commit: bool = True) -> None:
    """The folder says that it was closed cleanly, so the broker looks for nothing by itself."""
    transact(producer, topic, "before")
    transact(producer, topic, "decided", commit=commit)
    lose_markers_unnoticed(server, TopicPartition(topic, 0))
    server.start()
    producer.reconnect()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_missing_marker_is_shown_not_aborted_and_repaired_by_hand(
    server: TwofoldServer, cli: Cli, commit: bool
) -> None:
    topic = make_topic(server, 2)
    producer = session(server)
    lost(server, producer, topic, commit=commit)
    word = "commit" if commit else "abort"
    (row,) = cli(server, "hanging", "--format", "json").json
    assert (row["tp"], row["start_offset"], row["transactional_id"]) == (f"{topic}-0", 2, producer.id)
    assert row["reason"] == f"decided: {word}, marker missing here"
    place = ("--topic", topic, "--partition", "0", "--start-offset", "2")
    shown = cli(server, "hanging").stdout
    assert f"twofold txn repair {' '.join(place)}" in shown and "twofold txn abort" not in shown
    # It is not aborted by hand, however that is asked for.
    for words in (place, (*place, "--partition-only")):
        refused = cli(server, "abort", *words, "--yes", code=1).stderr
        assert f"decided: {word}, marker missing here" in refused and f"twofold txn repair {' '.join(place)}" in refused
    assert read_committed(server, topic, 0) == [b"before"]
    assert "this needs an answer" in cli(server, "repair", *place, code=2).stderr
    (written,) = cli(server, "repair", *place, "--yes", "--format", "json").json
    assert (written["partition"], written["marker"]) == (f"{topic}-0", word)
    expected = [b"before", b"decided"] if commit else [b"before"]
    assert [read_committed(server, topic, index) for index in (0, 1)] == [expected] * 2
    assert cli(server, "hanging", "--format", "json").json == []
    assert "has ended" in cli(server, "repair", *place, "--yes", code=1).stderr
    assert "no decided transaction lacks a marker" in cli(server, "repair", "--all", "--yes").stdout
    transact(producer, topic, "after")
    assert read_committed(server, topic, 0) == [*expected, b"after"]


def test_the_broker_compares_at_the_write_in_whatever_form_it_is_asked(server: TwofoldServer) -> None:
    topic = make_topic(server, 2)
    producer = session(server)
    transact(producer, topic, "first")
    epoch = producer.epoch
    transact(producer, topic, "decided")
    lose_markers_unnoticed(server, TopicPartition(topic, 0))
    server.start()
    spec = RepairTransactionSpec(
        tp=TopicPartition(topic, 0),
        producer_id=producer.producer_id,
        producer_epoch=epoch,
        start_offset=2,
        commit=True,
    )
    with twofold.Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        for wrong in (replace(spec, commit=False), replace(spec, start_offset=1)):
            with pytest.raises(InvalidTxnState):
                admin.repair_transaction(wrong)
        with pytest.raises(InvalidProducerEpoch):
            admin.repair_transaction(replace(spec, producer_epoch=epoch - 1))
        # An abort in Apache Kafka's own form, which has no place for a start offset.
        assert plain_abort(server, topic, producer.producer_id, epoch) == INVALID_TXN_STATE
        assert read_committed(server, topic, 0) == [b"first"]
        admin.repair_transaction(spec)
    assert read_committed(server, topic, 0) == [b"first", b"decided"]


def test_what_is_open_and_undecided_is_never_committed_by_a_repair(server: TwofoldServer) -> None:
    topic = make_topic(server, 2)
    producer = session(server)
    transact(producer, topic, "before")
    producer.write(topic, 0, "open")
    spec = RepairTransactionSpec(
        tp=TopicPartition(topic, 0),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        start_offset=2,
        commit=True,
    )
    with twofold.Admin(bootstrap_servers=server.bootstrap_servers) as admin, pytest.raises(InvalidTxnState):
        admin.repair_transaction(spec)
    assert read_committed(server, topic, 0) == [b"before"]
    assert producer.end(False) == 0


def test_before_transaction_version_2_a_missing_marker_is_listed_and_may_be_aborted(
    server: TwofoldServer, cli: Cli
) -> None:
    topic = make_topic(server, 2)
    producer = session(server, versions=TV1)
    transact(producer, topic, "before")
    transact(producer, topic, "decided")
    lose_markers(server, TopicPartition(topic, 0))
    server.start()
    assert read_committed(server, topic, 0) == [b"before"]
    told = server.log_text()
    assert "cannot be proven: before transaction.version 2 many transactions share one epoch" in told
    (row,) = cli(server, "hanging", "--format", "json").json
    assert (row["tp"], row["start_offset"]) == (f"{topic}-0", 2) and "decided" not in row["reason"]
    place = ("--topic", topic, "--partition", "0", "--start-offset", "2")
    assert "is not known" in cli(server, "repair", *place, "--yes", code=1).stderr
    assert cli(server, "repair", "--all", "--yes", "--format", "json").json == []
    cli(server, "abort", *place, "--yes")
    assert read_committed(server, topic, 0) == [b"before"]


def plain_abort(server: TwofoldServer, topic: str, producer_id: int, epoch: int) -> int:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("WriteTxnMarkers", 1, markers=[marker])
    return int(answer["markers"][0]["topics"][0]["partitions"][0]["error_code"])
