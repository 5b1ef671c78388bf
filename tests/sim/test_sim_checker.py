"""The simulator's own test: brokers and clients that are broken on purpose are found out, each within a few seeds."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sim.broker.plan import Plan, make_plan
from sim.broker.run import simulate
from sim.broker.watch import Violation
from twofold.broker.coordinators.transactions.producer_ids import Block, ProducerIdBlocks
from twofold.broker.partitions.partition import Partition
from twofold.client.producer.sequences import PartitionSequences
from twofold.connections.waiting import Backoff
from twofold.log.api import AppendResult
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.log.producers.table import ProducerTable
from twofold.metadata_log.metadata_log import METADATA_PARTITION
from twofold.records.batch import parse_framed, read_header

pytestmark = pytest.mark.slow

SEEDS = range(5000, 5020)


def found(change: Callable[[Plan], Plan]) -> str:
    """What the first seed says that notices."""
    for seed in SEEDS:
        try:
            simulate(seed, change(make_plan(seed)))
        except Violation as violation:
            if not any(f"TWOFOLD_SEED={seed} " in note for note in violation.__notes__):
                raise  # nobody is told how to see it again
            return str(violation)
    raise AssertionError(f"nothing was noticed in {len(SEEDS)} seeds")


def with_faults(*faults: str, **changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, faults=faults, **changes)


def durable(plan: Plan) -> Plan:
    """All topics synced before they are acknowledged, on a disk that takes its time, in a room with bad power."""
    topics = tuple(replace(t, configs=t.configs | {"flush.messages": "1"}, durable=True) for t in plan.topics)
    return replace(plan, topics=topics, faults=("power", "slow disk"))


def test_a_broker_without_a_duplicate_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerTable, "find_duplicate", lambda *args: None)
    monkeypatch.setattr("twofold.log.producers.table.check_sequence", lambda *args: None)
    assert "more than once" in found(with_faults("reset", "loss"))


def test_a_broker_that_acknowledges_before_it_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Partition.append

    def append(self: Partition, records: Any, *args: Any, **options: Any) -> AppendResult:
        data, log = bytearray(records), self.log
        if log.failure is None:
            asyncio.get_running_loop().call_later(0.2, lambda: log.failure or original(self, data, *args, **options))
        count = read_header(data).count
        return AppendResult(log.log_end_offset, log.log_end_offset + count - 1, -1, 0, True)

    monkeypatch.setattr(Partition, "append", append)
    assert "was acknowledged and is not there" in found(with_faults())


def test_a_broker_that_loses_its_last_batch_when_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogManager.load_step_by_step

    def load(self: LogManager) -> Iterator[None]:
        yield from original(self)
        for log in self.logs():
            if log.is_open and log.log_end_offset:
                log.truncate_to(log.log_end_offset - 1)

    monkeypatch.setattr(LogManager, "load_step_by_step", load)
    assert "ends after" in found(with_faults("kill"))


def test_a_broker_that_does_not_wait_for_its_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: Partition) -> None:
        self._spawn(self.log.sync(), name="a sync for which nobody waits")

    monkeypatch.setattr(Partition, "_sync", sync)
    text = found(durable)
    assert "is not there" in text or "back to" in text


def test_a_controller_that_does_not_sync_what_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.sync

    async def sync(self: PartitionLog) -> None:
        if self.topic_partition != METADATA_PARTITION:
            await original(self)

    monkeypatch.setattr(PartitionLog, "sync", sync)
    text = found(with_faults("power", side_topics=True))
    assert "told was" in text or "configs" in text or "partitions" in text


def test_a_broker_that_begins_its_producer_ids_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerIdBlocks, "_checked", lambda self, response: Block(0, 1000))
    assert "handed out twice" in found(with_faults("kill", "client kill"))


def test_a_producer_that_takes_out_of_order_for_not_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_acknowledged(self: PartitionSequences[Any], batch: Any) -> list[Any]:
        self._known = True
        if batch in self.unacked:
            self.unacked.remove(batch)
        return []

    monkeypatch.setattr(PartitionSequences, "on_acknowledged", on_acknowledged)
    monkeypatch.setattr(PartitionSequences, "untold", lambda self: [])
    # Our own broker knows five batches also after a restart; Apache Kafka's snapshot knows one.
    monkeypatch.setattr("twofold.log.recovery.opening.deepen_windows", lambda *args: None)

    def busy(plan: Plan) -> Plan:
        options = plan.producers[0].options | {"max_in_flight_requests_per_connection": 5, "linger_ms": 0}
        producer = replace(plan.producers[0], options=options | {"batch_size": 200}, pause_s=0.02, burst=8)
        topics = tuple(replace(topic, partitions=1) for topic in plan.topics)
        return replace(plan, topics=topics, producers=(producer,), faults=("restart", "loss", "delay", "reset"))

    text = found(busy)
    assert "more than once" in text or "out of order" in text


def test_a_consumer_that_skips_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def some_records(*arguments: Any, **options: Any) -> Iterator[Any]:
        records = list(parse_framed(*arguments, **options))
        return iter(records[1:] or records)

    monkeypatch.setattr("twofold.client.consumer.assigned.parse_framed", some_records)
    assert "follows" in found(with_faults())


def test_clients_that_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "delay_s", lambda self, failures, random: 100.0)
    assert "not done 60 s after everything healed" in found(with_faults("kill"))
