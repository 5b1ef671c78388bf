"""Markers of decided transactions that a power cut took: the broker writes again what is proven, the tools show the
rest and write what the coordinator's record shows, and nobody ends half of a committed transaction otherwise."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.lost_tail import lose_markers
from support.server import TwofoldServer
from support.txn_session import Session
from support.txn_tools import Cli, make_cli, make_topic, read_committed, session
from twofold.types import TopicPartition

pytestmark = pytest.mark.interop

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
