"""The coordinator inside a broker, on simulated time: loading, resigning, restarts, timeouts, expiry, markers."""

import logging
from functools import partial
from typing import Any

import pytest

from kits.log.partition import marker_of
from kits.node.admin_world import Deny
from kits.node.sim_node import COORDINATORS, Asked, SimNode
from kits.node.sim_node import simulated as simulated_node
from twofold.broker.coordinators import shard as coordinator_shard
from twofold.broker.coordinators.groups import shard as group_shard
from twofold.broker.coordinators.groups.shard import GroupShard
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.config.internal_topics import CONSUMER_OFFSETS, coordinator_partition
from twofold.coordinator.group.records import OffsetRecord, encode_key
from twofold.log.api import Origin
from twofold.records.batch import BatchBuilder
from twofold.runtime.sim import Simulation
from twofold.wire.errors import KafkaError, NotCoordinator


class Node(SimNode):
    def __init__(self, sim: Simulation, **settings: object) -> None:
        # The transactions of these tests are known to the group coordinator alone.
        fixed = {"group_initial_rebalance_delay_ms": 0, "transaction_partition_verification_enable": "false"}
        super().__init__(sim, **{**fixed, **settings})

    def shard(self, group: str = "g") -> GroupShard:
        return self.broker.groups.shards[coordinator_partition(group, COORDINATORS)]

    def reload(self, group: str = "g") -> GroupShard:
        """The partition is led anew; loading has begun when this returns, and goes on with the next turn."""
        old = self.broker.groups.shards.pop(coordinator_partition(group, COORDINATORS))
        old.resign(NotCoordinator("moved"))
        self.broker.groups._lead(old.index, old.epoch)
        return self.shard(group)

    def append_raw(self, key: bytes, value: bytes | None, group: str = "g") -> None:
        builder = BatchBuilder(base_sequence=0)
        builder.add(key, value, 0)
        partition = self.broker.replicas.leader(CONSUMER_OFFSETS, self.shard(group).index)
        partition.append(builder.build(), -1, origin=Origin.COORDINATOR)

    # --- requests ---

    def send_commit(self, offset: int, group: str = "g", topic: str = "t") -> Asked[int]:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {"group_id": group, "member_id": "", "topics": [{"name": topic, "partitions": [row]}]}
        receive = self.send("OffsetCommit", 7, generation_id_or_member_epoch=-1, **body)

        async def code() -> int:
            return int((await receive())["topics"][0]["partitions"][0]["error_code"])

        return Asked(code, receive.is_answered)

    async def commit(self, offset: int, group: str = "g", topic: str = "t") -> int:
        return await self.send_commit(offset, group, topic)()

    async def offset(self, group: str = "g", topic: str = "t", *, stable: bool = False) -> int | str:
        topics = [{"name": topic, "partition_indexes": [0]}]
        answer = await self.ask("OffsetFetch", 7, group_id=group, topics=topics, require_stable=stable)
        if answer["error_code"]:
            return f"error {answer['error_code']}"
        row = answer["topics"][0]["partitions"][0]
        return f"error {row['error_code']}" if row["error_code"] else row["committed_offset"]

    def send_join(self, member_id: str = "", group: str = "g", version: int = 3) -> Asked[dict[str, Any]]:
        return self.send(
            "JoinGroup",
            version,
            group_id=group,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}],
        )

    async def stable(self, group: str = "g") -> dict[str, Any]:
        joined = await self.send_join(group=group)()
        assert joined["error_code"] == 0
        share = {"member_id": joined["member_id"], "assignment": b"mine"}
        body = {"group_id": group, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
        assert (await self.ask("SyncGroup", 3, assignments=[share], **body))["error_code"] == 0
        return joined

    async def heartbeat(self, joined: dict[str, Any], group: str = "g") -> int:
        body = {"generation_id": joined["generation_id"], "member_id": joined["member_id"]}
        return int((await self.ask("Heartbeat", 3, group_id=group, **body))["error_code"])

    async def commit_in_transaction(self, producer_id: int, offset: int, epoch: int = 0) -> int:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {"transactional_id": "x", "group_id": "g", "producer_id": producer_id, "producer_epoch": epoch}
        answer = await self.ask("TxnOffsetCommit", 3, topics=[{"name": "t", "partitions": [row]}], **body)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    async def groups(self) -> dict[str, str]:
        answer = await self.ask("ListGroups", 4)
        assert answer["error_code"] == 0
        return {row["group_id"]: row["group_state"] for row in answer["groups"]}


simulated = partial(simulated_node, Node)


# Loading and resigning


@simulated()
async def test_while_it_is_loaded_a_group_is_told_to_wait_and_its_members_are_not_disturbed(node: Node) -> None:
    joined = await node.stable()
    await node.commit(5, group="g")
    node.reload()
    answers = [
        node.send_join(joined["member_id"]),
        node.send("LeaveGroup", 3, group_id="g", members=[{"member_id": joined["member_id"]}]),
        node.send("ListGroups", 4),
        node.send("OffsetFetch", 7, group_id="g", topics=None, require_stable=False),
    ]
    commit = node.send_commit(6)
    waiting = node.send("Heartbeat", 3, group_id="g", generation_id=1, member_id=joined["member_id"])
    described = node.send("DescribeGroups", 4, groups=["g"])
    deleted = node.send("DeleteGroups", 1, groups_names=["g"])
    assert [(await answer())["error_code"] for answer in answers] == [14, 14, 14, 14]
    assert await commit() == 14
    assert (await waiting())["error_code"] == 0
    assert (await described())["groups"][0]["error_code"] == 14
    assert (await deleted())["results"][0]["error_code"] in (14, 68)
    await node.sleep(0.1)
    assert await node.heartbeat(joined) == 0


@simulated()
async def test_loading_takes_turns_with_everything_else(node: Node) -> None:
    for number in range(2_500):
        node.append_raw(encode_key(OffsetRecord(f"g{number}", "t", 0, None)), None)
    shard = node.reload()
    turns = 0
    while not shard.is_active:
        await node.sleep(0)
        turns += 1
    assert turns >= 2_500 // coordinator_shard.SLICE_RECORDS


@simulated()
async def test_a_shard_that_resigns_sends_every_member_to_another_broker(node: Node) -> None:
    joined = await node.stable()
    waiting = node.send_join()
    await node.sleep(0.1)
    assert not waiting.is_answered()
    node.broker.groups._resign(node.shard().index)
    assert (await waiting())["error_code"] == 16
    assert await node.commit(5) == 16
    assert await node.offset() == "error 16"
    assert await node.heartbeat(joined) == 16
    assert (await node.send_join()())["error_code"] == 16


@simulated()
async def test_groups_are_coordinated_nowhere_before_their_topic_exists(node: Node) -> None:
    for index in list(node.broker.groups.shards):
        node.broker.groups._resign(index)
    node.broker.groups._partitions = 0
    assert await node.offset() == "error 16"
    assert await node.groups() == {}


@simulated()
async def test_records_of_unknown_types_are_reported_and_passed_over(node: Node) -> None:
    await node.commit(5)
    node.append_raw(b"\x03\xe7what?", b"", "g")
    node.append_raw(b"\x00\x0b\x00\x01g", b"\x00\x00", "g")  # a share group
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]
    group_shard.log.addHandler(handler)
    try:
        node.reload()
        await node.sleep(0.1)
    finally:
        group_shard.log.removeHandler(handler)
    assert await node.offset() == 5
    assert ["999" in record.getMessage() for record in records if record.levelno >= logging.WARNING] == [True]


@simulated()
async def test_a_log_that_cannot_be_read_is_not_served(node: Node) -> None:
    await node.commit(5)
    node.append_raw(encode_key(OffsetRecord("g", "t", 0, None)), b"\x00\x09 no such version")
    node.reload()
    await node.sleep(0.1)
    assert await node.offset() == "error 16"
    assert await node.commit(6) == 16


# Restarts


@simulated()
async def test_everything_that_was_acknowledged_is_there_after_a_kill(node: Node) -> None:
    joined = await node.stable()
    await node.commit(5, group="other")
    assert await node.commit_in_transaction(77, 9) == 0
    await node.restart()
    await node.sleep(0.1)
    assert await node.groups() == {"g": "Stable", "other": "Empty"}
    assert await node.heartbeat(joined) == 0
    assert await node.offset("other") == 5
    assert await node.offset("g", stable=True) == "error 88"
    answer = await node.ask(
        "SyncGroup", 3, group_id="g", generation_id=1, member_id=joined["member_id"], assignments=[]
    )
    assert answer["assignment"] == b"mine"


@simulated()
async def test_a_stop_does_not_wait_for_members_that_wait(node: Node) -> None:
    await node.stable()
    waiting = node.send_join()
    await node.sleep(0.1)
    before = node.broker.runtime.clock.monotonic()
    broker, node.broker = node.broker, None  # type: ignore[assignment]
    await broker.stop()
    assert (await waiting())["error_code"] == 16
    assert broker.runtime.clock.monotonic() - before < 1


# Time


@simulated()
async def test_sessions_end_on_the_clock_of_the_broker(node: Node) -> None:
    joined = await node.stable()
    for _ in range(5):
        await node.sleep(9.9)
        assert await node.heartbeat(joined) == 0
    await node.sleep(10.1)
    assert await node.heartbeat(joined) == 25
    assert await node.groups() == {"g": "Empty"}


@simulated(group_initial_rebalance_delay_ms=3000)
async def test_the_initial_delay_is_waited(node: Node) -> None:
    first = node.send_join()
    await node.sleep(2.9)
    assert not first.is_answered()
    await node.sleep(0.2)
    assert (await first())["error_code"] == 0


@simulated(offsets_retention_minutes=10, offsets_retention_check_interval_ms=60_000)
async def test_offsets_and_groups_expire(node: Node) -> None:
    await node.commit(5)
    await node.sleep(5 * 60)
    await node.commit(5, group="younger")
    await node.sleep(6 * 60)
    assert await node.groups() == {"younger": "Empty"}
    assert await node.offset() == -1
    await node.restart()
    await node.sleep(0.1)
    assert await node.groups() == {"younger": "Empty"}
    await node.sleep(6 * 60)
    assert await node.groups() == {}


@simulated()
async def test_offsets_of_a_deleted_topic_are_removed(node: Node) -> None:
    await node.create_topic("gone")
    for group in ("a", "b", "g"):
        await node.commit(5, group, "gone")
        await node.commit(6, group, "t")
    node.reload("b")
    await node.ask("DeleteTopics", 4, topic_names=["gone"], timeout=1000)
    await node.sleep(1)
    await node.create_topic("gone")
    assert [await node.offset(group, "gone") for group in ("a", "b", "g")] == [-1, -1, -1]
    assert [await node.offset(group, "t") for group in ("a", "b", "g")] == [6, 6, 6]
    assert list(node.shard("a").committed.topics("a")) == ["t"]


# Safety of what is answered


@simulated(log_flush_interval_messages=1, offsets_commit_timeout_ms=2000)
async def test_a_commit_is_answered_and_seen_when_it_is_safe(node: Node) -> None:
    await node.commit(5)
    node.sim.blocking_delay_s = (0.5, 0.5)
    commit = node.send_commit(6)
    stable = node.send(
        "OffsetFetch", 7, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}], require_stable=True
    )
    await node.sleep(0.2)
    assert not commit.is_answered()
    assert await node.offset() == 5
    assert not stable.is_answered()
    assert await commit() == 0
    assert await node.offset() == 6
    assert (await stable())["topics"][0]["partitions"][0]["committed_offset"] == 6


@simulated(log_flush_interval_messages=1, offsets_commit_timeout_ms=2000)
async def test_a_commit_that_takes_too_long_is_answered_and_may_still_be_seen_later(node: Node) -> None:
    await node.commit(5)
    node.sim.blocking_delay_s = (5.0, 5.0)
    assert await node.commit(6) == 15
    assert await node.offset() == 5
    await node.sleep(20)
    assert await node.offset() == 6


@simulated()
async def test_requests_larger_than_a_batch_are_written_in_several(node: Node) -> None:
    shard = node.shard()
    await node.commit(1)
    partition = node.broker.replicas.leader(CONSUMER_OFFSETS, shard.index)
    config = partition.log.config
    rows = [
        {"partition_index": index % 2, "committed_offset": index, "committed_metadata": "x" * 4000}
        for index in range(600)
    ]
    assert config.max_message_bytes < 600 * 4000
    body = {"group_id": "g", "member_id": "", "topics": [{"name": "t", "partitions": rows}]}
    answer = await node.ask("OffsetCommit", 7, generation_id_or_member_epoch=-1, **body)
    assert {row["error_code"] for row in answer["topics"][0]["partitions"]} == {0}
    assert await node.offset() == 598
    node.reload()
    await node.sleep(0.1)
    assert await node.offset() == 598


# Transactions


@simulated()
async def test_a_marker_makes_offsets_visible_when_it_is_answered(node: Node) -> None:
    await node.commit(1)
    index = node.shard().index
    for epoch, (committed, expected) in enumerate([(True, 10), (False, 10), (True, 30)]):
        assert await node.commit_in_transaction(77, 10 * (epoch + 1), epoch) == 0
        assert await node.offset(stable=True) == "error 88"
        await node.broker.groups.complete_transaction(index, marker_of(77, epoch + 1, commit=committed))
        assert await node.offset(stable=True) == expected
    node.reload()
    await node.sleep(0.1)
    assert await node.offset(stable=True) == 30


@simulated()
async def test_markers_that_the_log_refuses_change_nothing(node: Node) -> None:
    await node.commit(1)
    index = node.shard().index
    assert await node.commit_in_transaction(77, 10, epoch=5) == 0
    with pytest.raises(KafkaError) as refused:
        node.broker.groups.complete_transaction(index, marker_of(77, 4, commit=True))
    assert refused.value.code == 47
    assert await node.offset(stable=True) == "error 88"
    with pytest.raises(KafkaError) as refused:
        node.broker.groups.complete_transaction(99, marker_of(77, 5, commit=True))
    assert refused.value.code == 16


@simulated()
async def test_a_producer_with_an_older_epoch_commits_nothing(node: Node) -> None:
    assert await node.commit_in_transaction(77, 10, epoch=5) == 0
    assert await node.commit_in_transaction(77, 11, epoch=4) == 47
    await node.broker.groups.complete_transaction(node.shard().index, marker_of(77, 6, commit=True))
    assert await node.offset() == 10


# Permissions


@simulated()
async def test_every_request_asks_for_permission(node: Node) -> None:
    await node.commit(5)
    deny = node.broker.core.authorizer = Deny(
        (Operation.READ, "g"), (Operation.DESCRIBE, "g"), (Operation.DELETE, "g"), (Operation.DESCRIBE, CLUSTER_NAME)
    )
    member = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert (await node.send_join()())["error_code"] == 30
    assert (await node.ask("SyncGroup", 3, assignments=[], **member))["error_code"] == 30
    assert (await node.ask("Heartbeat", 3, **member))["error_code"] == 30
    assert (await node.ask("LeaveGroup", 3, group_id="g", members=[]))["error_code"] == 30
    assert await node.commit(6) == 30
    assert await node.commit_in_transaction(7, 6) == 30
    assert await node.offset() == await node.offset(stable=True) == "error 30"
    assert (await node.ask("OffsetDelete", 0, group_id="g", topics=[]))["error_code"] == 30
    assert (await node.ask("DescribeGroups", 5, groups=["g"]))["groups"][0]["error_code"] == 30
    assert (await node.ask("DeleteGroups", 2, groups_names=["g"]))["results"][0]["error_code"] == 30
    assert await node.groups() == {}
    deny.denied = {(Operation.WRITE, "x")}
    assert await node.commit_in_transaction(7, 6) == 53


@simulated()
async def test_topics_that_may_not_be_read_are_refused_one_by_one(node: Node) -> None:
    await node.commit(5)
    node.broker.core.authorizer = Deny((Operation.READ, "t"), (Operation.DESCRIBE, "t"))
    assert await node.commit(6) == 29
    assert await node.commit_in_transaction(7, 6) == 29
    assert await node.offset() == "error 29"
    rows = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    answer = await node.ask("OffsetDelete", 0, group_id="g", topics=rows)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 29
    assert (await node.ask("OffsetFetch", 7, group_id="g", topics=None))["topics"] == []
