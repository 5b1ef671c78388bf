"""DeleteRecords (key 21): the log start moves, and stays where it is whatever ends the broker."""

from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.sim_node import NODE, SimNode, simulated
from kits.node.two_phase_node import TwoPhaseNode, two_phase
from twofold.broker.network.authorizer import Operation
from twofold.controller.image import PartitionState
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder
from twofold.runtime.sim import CutMode, Simulation

HIGH_WATERMARK = -1


class DeletingNode(SimNode):
    async def write(self, count: int, *, topic: str = "t", partition: int = 0, size: int = 1) -> None:
        """So many batches of one record."""
        for _ in range(count):
            builder = BatchBuilder()
            builder.add(b"k", b"v" * size, self.broker.runtime.clock.wall_ms())
            data = [{"name": topic, "partition_data": [{"index": partition, "records": builder.build()}]}]
            answer = await self.ask("Produce", 7, acks=-1, timeout=1000, topic_data=data)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0

    async def delete(self, *wanted: tuple[str, int, int], version: int = 2) -> list[tuple[str, int, int, int]]:
        return await delete(self, *wanted, version=version)

    async def start_offset(self, topic: str = "t", partition: int = 0) -> int:
        rows = [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": -2}]}]
        answer = await self.ask("ListOffsets", 5, replica_id=-1, topics=rows)
        return int(answer["topics"][0]["partitions"][0]["offset"])

    async def fetch_error(self, offset: int) -> int:
        rows = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
        topics = [{"topic": "t", "partitions": rows}]
        body = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
        answer = await self.ask("Fetch", 11, topics=topics, **body)
        return int(answer["responses"][0]["partitions"][0]["error_code"])

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        return self.broker.replicas.leader(topic, partition).log


async def delete(node: SimNode, *wanted: tuple[str, int, int], version: int = 2) -> list[tuple[str, int, int, int]]:
    """(topic, partition, low watermark, error code) of each (topic, partition, offset)."""
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, partition, offset in wanted:
        topics.setdefault(topic, []).append({"partition_index": partition, "offset": offset})
    rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    answer = await node.ask("DeleteRecords", version, topics=rows, timeout=1000)
    return [
        (topic["name"], row["partition_index"], row["low_watermark"], row["error_code"])
        for topic in answer["topics"]
        for row in topic["partitions"]
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
@simulated(DeletingNode)
async def test_every_version_moves_the_log_start(node: DeletingNode, version: int) -> None:
    await node.write(5)
    assert await node.delete(("t", 0, 3), version=version) == [("t", 0, 3, 0)]
    assert await node.start_offset() == 3
    assert (await node.fetch_error(2), await node.fetch_error(3)) == (1, 0)


@simulated(DeletingNode)
async def test_minus_one_is_the_high_watermark(node: DeletingNode) -> None:
    await node.write(5)
    await node.write(2, partition=1)
    assert await node.delete(("t", 0, HIGH_WATERMARK), ("t", 1, 1)) == [("t", 0, 5, 0), ("t", 1, 1, 0)]
    await node.write(1)
    assert (await node.start_offset(), node.log().log_end_offset) == (5, 6)


@simulated(DeletingNode)
async def test_the_log_start_never_moves_back(node: DeletingNode) -> None:
    await node.write(5)
    await node.delete(("t", 0, 4))
    assert await node.delete(("t", 0, 2), ("t", 1, 0)) == [("t", 0, 4, 0), ("t", 1, 0, 0)]


@simulated(DeletingNode)
async def test_what_cannot_be_deleted_says_why_and_stops_no_other_row(node: DeletingNode) -> None:
    await node.create_topic("compacted", cleanup_policy="compact")
    await node.create_topic("both", cleanup_policy="compact,delete")
    await node.create_topic("kept", cleanup_policy="")
    await node.write(3)
    await node.write(3, topic="both")
    rows = await node.delete(
        ("none", 0, 0), ("t", 0, 1), ("t", 1, 1), ("t", 2, 0), ("compacted", 0, 0), ("both", 0, 2), ("both", 1, -2),
        ("kept", 0, 0), ("__consumer_offsets", 0, 0), ("__consumer_offsets", 99, 0), ("a b", 0, 0),
    )  # fmt: skip
    assert rows == [
        ("none", 0, -1, 3),
        ("t", 0, 1, 0),
        ("t", 1, -1, 1),
        ("t", 2, -1, 3),
        ("compacted", 0, -1, 44),
        ("both", 0, 2, 0),
        ("both", 1, -1, 1),
        ("kept", 0, 0, 0),
        ("__consumer_offsets", 0, -1, 17),
        ("__consumer_offsets", 99, -1, 3),
        ("a b", 0, -1, 3),
    ]
    assert await node.delete() == []


@simulated(DeletingNode)
async def test_a_partition_named_twice_counts_once_with_the_last_offset(node: DeletingNode) -> None:
    await node.write(5)
    assert await node.delete(("t", 0, 4), ("t", 0, 2)) == [("t", 0, 2, 0)]


@simulated(DeletingNode)
async def test_deleting_needs_permission(node: DeletingNode) -> None:
    await node.write(2)
    node.broker.core.authorizer = Deny((Operation.DELETE, "t"))
    assert await node.delete(("t", 0, 1)) == [("t", 0, -1, 29)]
    assert node.log().log_start_offset == 0


@simulated(DeletingNode)
async def test_another_leader_must_be_asked(node: DeletingNode) -> None:
    await node.write(2)
    node.broker.replicas.leader("t", 0).follow(PartitionState((1, 7), (7,), 7, 3, 3))
    assert await node.delete(("t", 0, 1)) == [("t", 0, -1, 6)]


@simulated(DeletingNode)
async def test_whole_segments_below_the_log_start_go_at_once(node: DeletingNode) -> None:
    await node.create_topic("small", internal_segment_bytes=200)
    await node.write(10, topic="small", size=100)
    log = node.log("small")
    before = log.segment_count
    assert before > 5
    await node.delete(("small", 0, 7))
    assert log.segment_count <= 4
    assert log.log_start_offset == 7


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("offset", [3, HIGH_WATERMARK])
@pytest.mark.parametrize("seed", range(2))
def test_what_was_deleted_stays_deleted_after_any_crash(power_cut: bool, offset: int, seed: int) -> None:
    """The answer is a promise: nothing was flushed before it but what it needs."""
    with Simulation(seed, cut_mode=CutMode.REORDERED) as sim:

        async def main() -> None:
            node = await DeletingNode(sim).start()
            await node.create_topic()
            await node.write(5)
            (row,) = await node.delete(("t", 0, offset))
            assert row == ("t", 0, 3 if offset == 3 else 5, 0)
            await node.write(2)
            sim.crash(NODE, power_cut=power_cut)
            await node.start()
            assert await node.start_offset() == row[2]
            assert node.log().log_end_offset in ((5, 6, 7) if power_cut else (7,))
            assert await node.fetch_error(row[2] - 1) == 1
            await node.write(1)
            await node.broker.stop()
            await node.start()
            assert await node.start_offset() == row[2]
            await node.broker.stop()

        sim.run(main(), timeout_s=86_400)


@pytest.mark.parametrize("file", ["/t-0/", "log-start-offset-checkpoint"])
@simulated(DeletingNode)
async def test_a_disk_that_fails_at_it_is_a_storage_error(node: DeletingNode, file: str) -> None:
    await node.write(5)
    disk: Any = node.broker.runtime.disk
    disk.fail_syncs(times=100, match=file)
    assert await node.delete(("t", 0, 3)) == [("t", 0, -1, 56)]
    disk.clear_faults()


# Open transactions


@two_phase()
async def test_records_of_an_ordinary_open_transaction_may_be_deleted(node: TwoPhaseNode) -> None:
    """As in Kafka: the transaction stays open, and readers wait at the log start."""
    pair = await node.init()
    await node.add(pair, 0)
    for sequence in range(3):
        assert await node.produce(pair, sequence=sequence) == 0
    log = node.log("t", 0)
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)
    assert await delete(node, ("t", 0, 2)) == [("t", 0, 2, 0)]
    assert (log.log_start_offset, log.last_stable_offset) == (2, 2)
    assert await delete(node, ("t", 0, HIGH_WATERMARK)) == [("t", 0, 3, 0)]
    assert await node.end(pair, commit=True) == 0
    await node.settled()
    assert log.last_stable_offset == 4


@two_phase()
async def test_what_is_prepared_is_not_deleted(node: TwoPhaseNode) -> None:
    first = await node.init("plain")
    await node.add(first, 0, name="plain")
    assert await node.produce(first, name="plain") == 0
    assert await node.end(first, commit=True, name="plain") == 0
    await node.settled("plain")
    await node.prepared()
    log = node.log("t", 0)
    stable = log.last_stable_offset
    assert 0 < stable < log.high_watermark
    assert await delete(node, ("t", 0, stable + 1)) == [("t", 0, -1, 1)]
    assert await delete(node, ("t", 0, HIGH_WATERMARK)) == [("t", 0, stable, 0)]
    await node.kill()
    assert await delete(node, ("t", 0, stable + 1)) == [("t", 0, -1, 1)]
    assert node.log("t", 0).log_start_offset == stable


@two_phase()
async def test_a_prepared_transaction_protects_its_own_partitions_only(node: TwoPhaseNode) -> None:
    pair = (await node.vow()).pair
    assert await node.produce(pair, 1, version=12) == 0
    plain = await node.init("plain")
    await node.add(plain, 0, name="plain")
    assert await node.produce(plain, 0, name="plain") == 0
    assert await delete(node, ("t", 0, 1), ("t", 1, 1)) == [("t", 0, 1, 0), ("t", 1, -1, 1)]


@two_phase()
async def test_a_reader_that_waits_where_records_go_hears_of_it(node: TwoPhaseNode) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    for sequence in range(3):
        assert await node.produce(pair, sequence=sequence) == 0
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    body = {"replica_id": -1, "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
    waiting = node.send("Fetch", 11, isolation_level=1, topics=[{"topic": "t", "partitions": rows}], **body)
    await node.sleep(1)
    assert not waiting.is_answered()
    before = node.broker.runtime.clock.monotonic()
    assert await delete(node, ("t", 0, HIGH_WATERMARK)) == [("t", 0, 3, 0)]
    answer = await waiting()
    assert answer["responses"][0]["partitions"][0]["error_code"] == 1
    assert node.broker.runtime.clock.monotonic() - before < 10
