"""The transactional driver of the tests, checked where the truth is: against Apache Kafka.

The same stories run against `twofold serve`, so a difference between the two is seen here first.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kits.processes.server import TwofoldServer
from kits.wire.driver import TV1, TV2, Abortable, Fatal, Fenced, Identity, TxnDriver, Versions, judge
from kits.wire.reader import Seen, TxnReader
from kits.wire.requests import GROUP_KEY
from twofold.client import Admin, NewTopic
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotCoordinator,
    NotLeaderOrFollower,
    ProducerFenced,
    TransactionAbortable,
    UnknownServerError,
    UnstableOffsetCommit,
)

SWEEP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
numbers = count()


@pytest.fixture(
    scope="module", params=[pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow]), "twofold"]
)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "oracle":
        from oracle.kafka import running_oracle

        with running_oracle(SWEEP) as node:
            yield node.bootstrap_servers
    else:
        with TwofoldServer(Path(tmp_path_factory.mktemp("txn")), SWEEP) as server:
            yield server.bootstrap_servers


@pytest.fixture(params=[TV1, TV2], ids=["tv1", "tv2"])
def versions(request: pytest.FixtureRequest) -> Versions:
    chosen: Versions = request.param
    return chosen


class Stage:
    """A topic with two partitions, a transactional id and a group, all new."""

    def __init__(self, runtime: Runtime, address: str, versions: Versions) -> None:
        number = next(numbers)
        self.runtime = runtime
        self.address = address
        self.versions = versions
        self.id = f"driver-{number}"
        self.group = f"driver-group-{number}"
        self.a, self.b = (TopicPartition(f"driver-{number}", index) for index in range(2))
        self._open: list[TxnDriver | TxnReader] = []

    async def create(self) -> None:
        async with Admin(runtime=self.runtime, bootstrap_servers=self.address) as admin:
            (await admin.create_topics([NewTopic(name=self.a.topic, num_partitions=2)])).get()

    def driver(self, **options: Any) -> TxnDriver:
        driver = TxnDriver(self.runtime, self.address, self.id, **{"versions": self.versions, **options})
        self._open.append(driver)
        return driver

    def reader(self, *, committed: bool = True) -> TxnReader:
        reader = TxnReader(self.runtime, self.address, [self.a, self.b], committed=committed)
        self._open.append(reader)
        return reader

    async def values(self, *, committed: bool = True) -> list[tuple[int, bytes]]:
        return [(row.topic_partition.partition, row.value or b"") for row in await self.rows(committed=committed)]

    async def rows(self, *, committed: bool = True) -> list[Seen]:
        reader = self.reader(committed=committed)
        return sorted(await reader.read_to_end(100), key=lambda row: (row.topic_partition, row.offset))

    async def settled(self) -> None:
        """Until the markers of what was decided are written: the LSO is the high watermark."""
        committed, all_of_it = self.reader(), self.reader(committed=False)
        while await committed.ends() != await all_of_it.ends():
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for client in self._open:
            await client.close()


def play(address: str, versions: Versions, story: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage(real_runtime(), address, versions)
        await stage.create()
        try:
            await asyncio.wait_for(story(stage), 60)
        finally:
            await stage.close()

    asyncio.run(main())


def test_committed_data_is_read_and_aborted_data_only_when_uncommitted(address: str, versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        driver = stage.driver()
        await driver.init()
        sent = await driver.run_transaction({stage.a: [b"a1", b"a2"], stage.b: [b"b1"]})
        assert sent == {stage.a: 0, stage.b: 0}
        await driver.run_transaction({stage.a: [b"no"]}, commit=False)
        await driver.run_transaction({stage.a: [b"a3"]})
        await stage.settled()
        assert await stage.values() == [(0, b"a1"), (0, b"a2"), (0, b"a3"), (1, b"b1")]
        assert (0, b"no") in await stage.values(committed=False)

    play(address, versions, story)


def test_the_epoch_moves_with_every_transaction_of_a_tv2_client_only(address: str, versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        driver = stage.driver()
        first = await driver.init()
        assert first.producer_epoch == 0
        for _ in range(3):
            await driver.run_transaction({stage.a: [b"x"]})
        assert driver.identity == Identity(first.producer_id, 3 if versions is TV2 else 0)
        await stage.settled()
        epochs = [row.producer_epoch for row in await stage.rows()]
        assert epochs == ([0, 1, 2] if versions is TV2 else [0, 0, 0])

    play(address, versions, story)


def test_offsets_of_a_transaction_are_seen_when_it_commits_and_never_when_it_aborts(
    address: str, versions: Versions
) -> None:
    async def story(stage: Stage) -> None:
        driver, reader = stage.driver(), stage.reader()
        await driver.init()
        await driver.send({stage.a: [b"x"]})
        await driver.send_offsets(stage.group, {stage.b: 5})
        with pytest.raises(UnstableOffsetCommit):
            await reader.committed(stage.group, [stage.b])
        assert await reader.committed(stage.group, [stage.b], stable=False) == {stage.b: -1}
        await driver.commit()
        await stage.settled()
        while (found := await reader.committed(stage.group, [stage.b], stable=False)) != {stage.b: 5}:
            assert found == {stage.b: -1}
        await driver.run_transaction({}, (stage.group, {stage.b: 9}), commit=False)
        await driver.run_transaction({stage.a: [b"y"]})
        assert await reader.committed(stage.group, [stage.b]) == {stage.b: 5}

    play(address, versions, story)


def test_a_second_instance_fences_the_first(address: str, versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.driver(), stage.driver()
        await first.init()
        await first.send({stage.a: [b"lost"]})
        await second.init()
        assert second.identity == Identity(first.identity.producer_id, first.identity.producer_epoch + 2)
        with pytest.raises(Fenced) as refused:
            await first.commit()
        assert isinstance(refused.value.error, ProducerFenced | InvalidProducerEpoch)
        await second.run_transaction({stage.b: [b"kept"]})
        await stage.settled()
        assert await stage.values() == [(1, b"kept")]

    play(address, versions, story)


def test_after_a_timeout_a_tv2_client_aborts_and_goes_on_and_a_tv1_client_is_fenced(
    address: str, versions: Versions
) -> None:
    async def story(stage: Stage) -> None:
        driver = stage.driver(timeout_ms=1000)  # long enough for the send on a busy machine
        await driver.init()
        await driver.send({stage.a: [b"late"]})
        await asyncio.sleep(1.05)
        await stage.settled()
        if versions is TV1:
            with pytest.raises(Abortable):
                await driver.send({stage.a: [b"too late"]})
            with pytest.raises(Fenced):
                await driver.abort()
            return
        with pytest.raises(Abortable) as refused:
            await driver.send({stage.a: [b"too late"]})
        assert isinstance(refused.value.error, InvalidProducerEpoch)
        await driver.abort()
        driver.timeout_ms = 60_000
        await driver.init(driver.identity)
        await driver.run_transaction({stage.a: [b"in time"]})
        await stage.settled()
        assert await stage.values() == [(0, b"in time")]

    play(address, versions, story)


async def until_coordinated(driver: TxnDriver, group: str) -> None:
    """Where nobody has asked before, the topic of the groups is created on demand."""
    for _ in range(300):
        try:
            await driver.coordinator(group, GROUP_KEY)
            return
        except CoordinatorNotAvailable:
            await asyncio.sleep(0.1)
    raise AssertionError(f"{group} has no coordinator")


def test_raw_calls_answer_as_they_are_and_change_nothing(address: str) -> None:
    async def story(stage: Stage) -> None:
        driver = stage.driver()
        found = await driver.find_coordinator()
        assert found.coordinators[0].key == stage.id
        await driver.init()
        before = driver.identity
        stale = Identity(before.producer_id, before.producer_epoch + 7)
        assert (await driver.end_txn(True, identity=stale)).error_code == ProducerFenced.code
        assert (await driver.end_txn(True)).error_code == InvalidTxnState.code
        answer = await driver.add_partitions([stage.a, stage.b])
        rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
        assert [row.partition_error_code for row in rows] == [0, 0]
        await until_coordinated(driver, stage.group)
        assert (await driver.add_offsets(stage.group)).error_code == 0
        code = NotCoordinator.code
        while code in (NotCoordinator.code, CoordinatorLoadInProgress.code):  # a group's first word
            answer = await driver.txn_offset_commit(stage.group, {stage.a: 3}, version=4)
            code = answer.topics[0].partitions[0].error_code
        assert code == 0
        code = NotLeaderOrFollower.code
        while code == NotLeaderOrFollower.code:  # of a new topic, whose broker has not heard of it yet
            answer = await driver.produce({stage.a: driver.batch([b"x"], 0)}, version=13)
            code = answer.responses[0].partition_responses[0].error_code
        assert code == 0
        answer = await driver.end_txn(True, version=4)
        assert (answer.error_code, answer.producer_id) == (0, -1)
        assert driver.identity == before

    play(address, TV2, story)


@pytest.mark.parametrize(
    ("api", "error", "kind"),
    [
        ("EndTxn(commit)", ProducerFenced(), Fenced),
        ("TxnOffsetCommit", InvalidProducerEpoch(), Fenced),
        ("Produce", InvalidProducerEpoch(), Abortable),
        ("EndTxn(commit)", TransactionAbortable(), Abortable),
        ("EndTxn", TransactionAbortable(), Fatal),
        ("EndTxn(commit)", InvalidTxnState(), Fatal),
        ("AddPartitionsToTxn", UnknownServerError(), Abortable),
        ("TxnOffsetCommit", GroupIdNotFound(), Abortable),
        ("TxnOffsetCommit", UnknownServerError(), Fatal),
    ],
)
def test_errors_are_judged_as_the_stock_producer_does(api: str, error: Any, kind: type) -> None:
    assert type(judge(api, error)) is kind
