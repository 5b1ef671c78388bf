"""Stories of transactions, told by requests to one broker; the name of each test is the name of its story."""

from typing import Any

import pytest

from kits.node.fetching import lead_in
from kits.node.txn_node import Node, Pair, exact, held_markers, simulated
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.records.batch import iter_records, single_record_batch
from twofold.records.crc import crc32c
from twofold.records.filtering import visible_batches
from twofold.types import ProducerEpoch, ProducerId

UNSTABLE = "error 88"


class Story(Node):
    """With the requests of readers and groups."""

    async def ready(self) -> "Story":
        while (await self.ask("FindCoordinator", 1, key="g", key_type=0))["error_code"]:
            await self.sleep(0.01)
        return self

    async def commit_offset(self, pair: Pair, offset: int, *, name: str = "x", version: int = 5, **member: Any) -> int:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {"transactional_id": name, "group_id": "g", "producer_id": pair[0], "producer_epoch": pair[1], **member}
        answer = await self.ask("TxnOffsetCommit", version, topics=[{"name": "t", "partitions": [row]}], **body)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    async def plain_commit(self, offset: int) -> int:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {"group_id": "g", "member_id": "", "generation_id_or_member_epoch": -1}
        answer = await self.ask("OffsetCommit", 7, topics=[{"name": "t", "partitions": [row]}], **body)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    async def offset(self, *, stable: bool = True) -> int | str:
        topics = [{"name": "t", "partition_indexes": [0]}]
        answer = await self.ask("OffsetFetch", 7, group_id="g", topics=topics, require_stable=stable)
        row = answer["topics"][0]["partitions"][0]
        return f"error {row['error_code']}" if row["error_code"] else int(row["committed_offset"])

    async def read(self, partition: int = 0, *, committed: bool = True, offset: int = 0) -> list[int]:
        """The offsets of the records that a reader sees, aborted ones left out where it wants committed ones."""
        rows = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
        answer = await self.ask(
            "Fetch",
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[{"topic": "t", "partitions": rows}],
        )
        row = answer["responses"][0]["partitions"][0]
        assert row["error_code"] == 0
        aborted = None
        if committed:
            aborted = [(entry["first_offset"], entry["producer_id"]) for entry in row["aborted_transactions"]]
        data = row["records"] or b""
        return [
            record.offset
            for at, _, is_visible in visible_batches(data, aborted)
            if is_visible
            for record in iter_records(data, at)
        ]

    async def producer_epoch(self, partition: int = 0) -> int:
        topics = [{"name": "t", "partition_indexes": [partition]}]
        answer = await self.ask("DescribeProducers", 0, topics=topics)
        return int(answer["topics"][0]["partitions"][0]["active_producers"][0]["producer_epoch"])


def story(**settings: object) -> Any:
    from kits.node.sim_node import simulated as simulated_node

    return simulated_node(Story, **settings)


# Offsets in transactions


@story()
async def test_90_txn_offset_visible_after_commit(node: Story) -> None:
    await node.ready()
    pair = await node.init()
    assert await node.commit_offset(pair, 7) == 0
    assert (await node.offset(stable=False), await node.offset()) == (-1, UNSTABLE)
    pair = await node.end(pair, version=5)
    await node.sleep(0.01)
    assert await node.offset() == 7


@story()
async def test_91_txn_offset_abort(node: Story) -> None:
    await node.ready()
    await node.plain_commit(3)
    pair = await node.init()
    await node.commit_offset(pair, 7)
    await node.end(pair, commit=False, version=5)
    await node.sleep(0.01)
    assert await node.offset() == 3


@story()
async def test_92_txn_vs_plain_order(node: Story) -> None:
    await node.ready()
    pair = await node.init()
    await node.commit_offset(pair, 100)
    await node.plain_commit(50)
    await node.end(pair, version=5)
    await node.sleep(0.01)
    assert await node.offset() == 50


@story()
async def test_93_two_producers(node: Story) -> None:
    await node.ready()
    one, other = await node.init("x"), await node.init("y")
    await node.commit_offset(one, 1, name="x")
    await node.commit_offset(other, 2, name="y")
    await node.end(one, name="x", version=5)
    await node.sleep(0.01)
    assert await node.offset() == UNSTABLE
    await node.end(other, name="y", version=5)
    await node.sleep(0.01)
    assert await node.offset() == 2


@story(group_initial_rebalance_delay_ms=0)
async def test_94_generation_fencing(node: Story) -> None:
    await node.ready()
    metadata = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    body = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    joined = await node.ask("JoinGroup", 5, **body)
    mine = {"generation_id": joined["generation_id"], "member_id": joined["member_id"], "group_instance_id": "i"}
    pair = await node.init()
    assert await node.commit_offset(pair, 1, **{**mine, "generation_id": 9}) == 22
    assert await node.commit_offset(pair, 1, **{**mine, "member_id": "who", "group_instance_id": None}) == 25
    assert await node.commit_offset(pair, 1, **{**mine, "member_id": "who"}) == 82
    assert await node.commit_offset(pair, 1, **mine) == 0
    assert await node.commit_offset(pair, 1, version=2) == 0, "an old client says nothing of its group"


@story(offsets_retention_minutes=1, offsets_retention_check_interval_ms=60_000)
async def test_95_delete_group_with_pending(node: Story) -> None:
    await node.ready()
    await node.plain_commit(3)
    pair = await node.init(timeout=900_000)
    await node.commit_offset(pair, 7)
    await node.sleep(300)
    assert await node.offset(stable=False) == 3, "nothing expires while a transaction may still add to it"
    await node.end(pair, commit=False, version=5)
    await node.sleep(300)
    assert await node.offset() == -1


@story()
async def test_96_marker_materialised(node: Story) -> None:
    await node.ready()
    pair = await node.init()
    await node.commit_offset(pair, 7)
    with held_markers(node):
        after = await node.end(pair, version=5)
        await node.sleep(0.01)
    index = node.broker.groups.shard("g").index
    marker = {
        "producer_id": pair[0],
        "producer_epoch": after[1],
        "transaction_result": True,
        "coordinator_epoch": node.shard().epoch,
        "transaction_version": 2,
        "topics": [{"name": "__consumer_offsets", "partition_indexes": [index]}],
    }
    answer = await node.ask("WriteTxnMarkers", 2, markers=[marker])
    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == 0
    assert await node.offset() == 7, "visible when the marker is answered"


# Producers and readers


@story()
async def test_110_basic(node: Story) -> None:
    pair = await node.init()
    await node.produce(pair, 0, version=12)
    await node.produce(pair, 1, version=12)
    pair = await node.end(pair, version=5)
    await node.produce(pair, 0, version=12)
    await node.produce(pair, 1, version=12)
    await node.end(pair, commit=False, version=5)
    await node.sleep(0.01)
    for partition in (0, 1):
        assert await node.read(partition) == [0]
        assert await node.read(partition, committed=False) == [0, 2]


@story()
async def test_111_undecided_data(node: Story) -> None:
    one, other = await node.init("x"), await node.init("y")
    await node.produce(one, 0, version=12, name="x")
    await node.produce(other, 0, version=12, name="y")
    await node.produce(one, 0, sequence=1, version=12, name="x")
    await node.end(other, name="y", version=5)
    await node.sleep(0.01)
    assert (node.stable_offset(), await node.read()) == (0, [])
    await node.end(one, name="x", version=5)
    await node.sleep(0.01)
    assert await node.read() == [0, 1, 2]


@pytest.mark.parametrize("call", ["commit", "send-offsets", "send", "add-partitions"])
@story()
async def test_113_fencing_on(node: Story, call: str) -> None:
    await node.ready()
    pair = await node.init()
    await node.produce(pair, 0, version=12)
    second = await node.init()
    assert second[1] > pair[1]
    if call == "commit":
        assert await node.end(pair, version=5) == 90
    elif call == "send-offsets":
        assert await node.commit_offset(pair, 1) == 47
    elif call == "send":
        assert await node.produce(pair, 0, sequence=1, version=12) == 47
    else:
        assert await node.add(pair, 1) == [90]
    await node.produce(second, 0, version=12)
    await node.end(second, version=5)
    await node.sleep(0.01)
    assert await node.read() == [2], "what the first one wrote is aborted"


@story(transaction_abort_timed_out_transaction_cleanup_interval_ms=100)
async def test_114_fencing_on_expiration(node: Story) -> None:
    pair = await node.init(timeout=100)
    await node.produce(pair, 0, version=12)
    await node.sleep(0.5)
    assert await node.end(pair, version=5) == 90
    after = await node.end(pair, commit=False, version=5)
    assert after == (pair[0], pair[1] + 1)
    assert await node.produce(after, 0, version=12) == 0
    await node.end(after, version=5)
    await node.sleep(0.01)
    assert await node.read() == [2]


@story()
async def test_115_multiple_markers_one_leader(node: Story) -> None:
    await node.ready()
    pair = await node.init()
    for partition in (0, 1):
        await node.produce(pair, partition, version=12)
    await node.commit_offset(pair, 5)
    await node.end(pair, version=5)
    await node.sleep(0.01)
    assert await node.state() == "CompleteCommit"
    assert [node.stable_offset(partition) for partition in (0, 1)] == [2, 2]
    assert await node.offset() == 5


@exact()
async def test_117_epoch_overflow_recovery(node: Node) -> None:
    now_ms = node.broker.runtime.clock.wall_ms()
    near = TransactionMetadata(ProducerId(4000), ProducerEpoch(32_765), 60_000, State.EMPTY, last_update_ms=now_ms)
    node.write_raw("x", near)
    await node.restart()
    await node.sleep(0.1)
    assert await node.init() == (4000, 32_766)
    fresh = await node.init()
    assert fresh[0] != 4000 and fresh[1] == 0
    assert await node.produce(fresh, 0, version=12) == 0


@story()
async def test_118_bump_tv2(node: Story) -> None:
    pair = await node.init()
    for _ in range(3):
        await node.produce(pair, 0, version=12)
        assert await node.producer_epoch() == pair[1]
        pair = await node.end(pair, version=5)
        await node.sleep(0.01)
        assert await node.producer_epoch() == pair[1]
    assert pair[1] == 3


@story()
async def test_118_bump_tv1(node: Story) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    await node.produce(pair, 0)
    assert await node.produce(pair, 0, sequence=5) == 45
    await node.end(pair, commit=False)
    await node.sleep(0.01)
    assert await node.producer_epoch() == pair[1], "the epoch stays"
    after = await node.init(pair=pair)
    assert after == (pair[0], pair[1] + 1)
    await node.add(after, 0)
    assert await node.produce(after, 0) == 0


@story()
async def test_120_empty_abort_after_commit(node: Story) -> None:
    pair = await node.init()
    await node.produce(pair, 0, version=12)
    pair = await node.end(pair, version=5)
    await node.sleep(0.01)
    pair = await node.end(pair, commit=False, version=5)
    assert pair[1] == 2
    await node.sleep(0.01)
    assert await node.produce(pair, 0, version=12) == 0
    await node.end(pair, version=5)
    await node.sleep(0.01)
    assert await node.read() == [0, 2]


@story(
    producer_id_expiration_ms=60_000,
    producer_id_expiration_check_interval_ms=10_000,
    log_cleaner_enable="false",
)
async def test_123_expiration_mix(node: Story) -> None:
    pair = await node.init()
    await node.produce(pair, 0, version=12)
    pair = await node.end(pair, version=5)
    await node.sleep(700)
    topics = [{"name": "t", "partition_indexes": [0]}]
    answer = await node.ask("DescribeProducers", 0, topics=topics)
    assert answer["topics"][0]["partitions"][0]["active_producers"] == []
    assert await node.produce(pair, 0, version=12) == 0, "the id is known to the coordinator still"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("point", ["ongoing", "prepare", "half", "complete"])
@simulated()
async def test_127_coordinator_kill_points(node: Node, point: str, commit: bool) -> None:
    pair = await node.init()
    await node.add(pair, 0, 1)
    await node.produce(pair, 0)
    await node.produce(pair, 1)
    if point == "ongoing":
        await node.restart()
        assert await node.end(pair, commit) == 0
    elif point == "half":
        node.broker.replicas.leader("t", 1).is_leader = False  # its marker has to wait
        assert await node.end(pair, commit) == 0
        await node.sleep(0.01)
        assert (node.end_offset(0), node.end_offset(1)) == (2, 1)
        await node.restart()
    elif point == "prepare":
        with held_markers(node):
            assert await node.end(pair, commit) == 0
            await node.sleep(0.01)
        await node.restart()
    else:
        assert await node.end(pair, commit) == 0
        await node.sleep(0.01)
        await node.restart()
    await node.sleep(0.2)
    assert await node.state() == ("CompleteCommit" if commit else "CompleteAbort")
    for partition in (0, 1):
        assert node.stable_offset(partition) == node.end_offset(partition) >= 2


# The coordinator's log


@exact()
async def test_39_pending_kept_on_retry(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    with held_markers(node) as held:
        await node.end(pair)
        await node.sleep(0.01)
    partition = node.shard().partition
    partition.isr, isr = (), partition.isr  # the end of the transaction cannot be written
    held[0]()
    await node.sleep(1)
    assert await node.state() == "PrepareCommit"
    assert await node.add(pair, 1) == [51]
    partition.isr = isr
    await node.sleep(0.2)
    assert await node.state() == "CompleteCommit"


async def slow_down(node: Node) -> None:
    """What the coordinator writes is committed when it is synced, which takes simulated time."""
    configs = [{"name": "flush.messages", "config_operation": 0, "value": "1"}]
    resource = {"resource_type": 2, "resource_name": TRANSACTION_STATE, "configs": configs}
    answer = await node.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    assert answer["responses"][0]["error_code"] == 0
    await node.sleep(0.1)


@exact()
async def test_40_append_after_epoch_change(node: Node) -> None:
    pair = await node.init()
    await slow_down(node)
    answer = node.send_add(pair, 0)
    assert not answer.is_answered()
    node.lead_anew()
    assert await answer() == [16]
    await node.sleep(0.1)
    assert await node.state() == "Ongoing", "it was written all the same, and is adopted"
    assert await node.add(pair, 0) == [0]


@exact()
async def test_42_load_empty_trailing_batch(node: Node) -> None:
    pair = await node.init()
    emptied = bytearray(single_record_batch(b"k", b"v", 1, 1, 0, False)[1])
    emptied[57:61] = (0).to_bytes(4, "big")  # no records are left of it
    del emptied[61:]
    emptied[8:12] = (len(emptied) - 12).to_bytes(4, "big")
    emptied[17:21] = crc32c(bytes(emptied[21:])).to_bytes(4, "big")
    node.shard().partition.log.append_replicated(bytes(emptied))
    await node.restart()
    await node.sleep(0.1)
    assert await node.init(pair=pair) == (pair[0], pair[1] + 1)


@exact()
async def test_44_delete_partition_while_loading(node: Node) -> None:
    pair = await node.init()
    for _ in range(20):
        pair = await node.init(pair=pair)
    node.lead_anew()  # a load is under way ...
    loading = node.shard()
    node.lead_anew()  # ... and another one takes over
    await node.sleep(0.1)
    assert not loading.is_active and node.shard().is_active
    assert await node.init(pair=pair) == (pair[0], pair[1] + 1)
    node.lead_anew()
    node.broker.transactions._resign(node.shard().index)
    await node.sleep(0.1)
    assert await node.init() == 16, "what was loaded for nobody serves nobody"


@exact()
async def test_45_reimmigration(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    old = node.shard()
    partition = old.partition
    lead_in(partition, old.epoch + 1)
    node.broker.transactions._lead(old.index, old.epoch + 1)
    await node.sleep(0.1)
    assert (node.shard().epoch, old.is_active) == (old.epoch + 1, False)
    assert await node.end(pair) == 0
    await node.sleep(0.01)
    assert await node.state() == "CompleteCommit"


@story(transaction_two_phase_commit_enable="true")
async def test_99_force_terminate_2pc(node: Story) -> None:
    answer = await node.ask("InitProducerId", 6, transactional_id="x", transaction_timeout=1, enable2_pc=True)
    pair = (answer["producer_id"], answer["producer_epoch"])
    await node.produce(pair, 0, version=12)
    await node.sleep(1_000)  # more than transaction.max.timeout.ms
    assert await node.state() == "Ongoing"
    await node.init()  # as fenceProducers and forceTerminateTransaction do
    assert await node.end(pair, version=5) == 90
    assert await node.read() == []
    assert node.stable_offset() == node.end_offset()
