"""The tests' controller node answers members as an active controller of Apache Kafka does."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from kits.cluster.controller_node import CLUSTER_ID, NODE_ID, PORT, ControllerNode, StandbyNode
from kits.metadata.controller import beat_of, create, registration, topic
from twofold.connections.connection import Address, Connection, ConnectionLimits, open_connection
from twofold.controller.records import BrokerRegistrationChange, MetadataRecord, RegisterBroker, decode
from twofold.metadata_log.metadata_log import METADATA_TOPIC_ID
from twofold.metadata_log.snapshots import decode_snapshot
from twofold.records.batch import iter_headers, iter_records
from twofold.runtime.sim import Simulation
from twofold.wire import codec, errors
from twofold.wire.apis import KEYS
from twofold.wire.messages.envelope import EnvelopeRequest
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from twofold.wire.messages.fetch import ReplicaState as Replica
from twofold.wire.messages.fetch_snapshot import FetchSnapshotRequest, PartitionSnapshot, SnapshotId, TopicSnapshot

FETCH = KEYS["Fetch"]
ANONYMOUS = bytes.fromhex("0000") + b"\x05User" + b"\x0aANONYMOUS" + b"\x00\x00"


class Member:
    """One connection of a broker to the controller."""

    def __init__(self, sim: Simulation, node: ControllerNode, connection: Connection) -> None:
        self.sim, self.node, self.connection = sim, node, connection

    async def ask(self, api: str, request: Any, version: int | None = None) -> Any:
        return await self.connection.request(request, KEYS[api], version=version)

    async def fetch(self, offset: int = 0, *, last: int = 0, version: int = 18, **fields: Any) -> FetchResponse:
        epoch = fields.pop("epoch", self.node.controller.leader_epoch)
        cluster_id = fields.pop("cluster_id", CLUSTER_ID)
        row = FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=0,
            current_leader_epoch=epoch,
            last_fetched_epoch=last,
            **fields,
        )
        rows = [FetchTopic(topic="__cluster_metadata", topic_id=METADATA_TOPIC_ID, partitions=[row])]
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=rows,
            cluster_id=cluster_id,
            replica_state=Replica(replica_id=7),
        )
        answer: FetchResponse = await self.ask("Fetch", request, version)
        return answer

    async def row(self, offset: int = 0, **fields: Any) -> PartitionData:
        answer = await self.fetch(offset, **fields)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]


def records(row: PartitionData) -> list[MetadataRecord]:
    data = bytes(row.records or b"")
    values = [
        record.value
        for position, header in iter_headers(data)
        if not header.is_control
        for record in iter_records(data, position)
    ]
    return [record for value in values if (record := decode(value or b"")) is not None]


Story = Callable[[Member], Awaitable[None]]


def play(story: Story) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            node = await ControllerNode(sim.runtime("c1"), host="c1").start()
            address = Address("c1", PORT)
            connection = await open_connection(sim.runtime("b7"), address, ConnectionLimits())
            await story(Member(sim, node, connection))

        sim.run(main(), timeout_s=600)


def offsets(row: PartitionData) -> list[int]:
    data = bytes(row.records or b"")
    return [offset for _, header in iter_headers(data) for offset in range(header.base_offset, header.next_offset)]


def test_a_member_reads_the_log_to_its_committed_end() -> None:
    async def story(member: Member) -> None:
        row = await member.row()
        assert offsets(row) == list(range(member.node.controller.metadata_log.end_offset))
        assert row.high_watermark == offsets(row)[-1] + 1

    play(story)


def test_an_epoch_that_is_over_learns_the_leader_and_its_address() -> None:
    async def story(member: Member) -> None:
        for epoch, error in ((0, errors.FencedLeaderEpoch), (9, errors.UnknownLeaderEpoch)):
            answer = await member.fetch(epoch=epoch)
            row = answer.responses[0].partitions[0]
            assert row.error_code == error.code
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (NODE_ID, 1)
            assert [(n.node_id, n.host, n.port) for n in answer.node_endpoints] == [(NODE_ID, "c1", PORT)]

    play(story)


def test_what_no_replica_can_ask_is_refused() -> None:
    async def story(member: Member) -> None:
        for changes in ({"epoch": -1}, {"last": 2}, {"offset": -1}, {"last": -1}):
            assert (await member.row(**changes)).error_code == errors.InvalidRequest.code
        answer = await member.fetch(cluster_id="another")
        assert (answer.error_code, list(answer.responses)) == (errors.InconsistentClusterId.code, [])

    play(story)


def test_a_log_that_is_no_prefix_is_told_where_it_parts() -> None:
    async def story(member: Member) -> None:
        end = member.node.controller.metadata_log.end_offset
        row = await member.row(end + 5, last=1)
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (1, end)

    play(story)


def test_a_fetch_at_the_end_waits_for_what_is_written_and_then_for_its_commit() -> None:
    async def story(member: Member) -> None:
        end = member.node.controller.metadata_log.end_offset
        before = member.sim.now_s
        row = await member.row(end, last=1, high_watermark=end)
        assert offsets(row) == [end]  # the NoOp of an idle controller
        assert 0.1 < member.sim.now_s - before <= 0.6
        before = member.sim.now_s
        row = await member.row(end + 1, last=1, high_watermark=row.high_watermark)
        assert not row.records or offsets(row) == [end + 1]
        assert row.high_watermark > end

    play(story)


def test_offset_zero_is_answered_with_the_snapshot_which_arrives_in_slices() -> None:
    async def story(member: Member) -> None:
        await member.node.controller.snapshots.write_now()
        row = await member.row()
        snapshot = row.snapshot_id
        assert snapshot.end_offset > 0 and not row.records
        data = b""
        while True:
            answer = await member.ask("FetchSnapshot", slice_of(snapshot.end_offset, snapshot.epoch, len(data)))
            part = answer.topics[0].partitions[0]
            data += part.unaligned_records
            if len(data) == part.size:
                break
        values = [decode(value) for value in decode_snapshot(data).values]
        assert any(getattr(value, "name", "") == "metadata.version" for value in values)
        assert offsets(await member.row(1, last=1))[0] >= 0  # the log still has it
        gone = await member.ask("FetchSnapshot", slice_of(snapshot.end_offset + 1, snapshot.epoch, 0))
        assert (gone.error_code, list(gone.topics)) == (-1, [])

    play(story)


def slice_of(end_offset: int, epoch: int, position: int) -> FetchSnapshotRequest:
    row = PartitionSnapshot(
        partition=0,
        current_leader_epoch=1,
        snapshot_id=SnapshotId(end_offset=end_offset, epoch=epoch),
        position=position,
    )
    topics = [TopicSnapshot(name="__cluster_metadata", partitions=[row])]
    return FetchSnapshotRequest(cluster_id=CLUSTER_ID, max_bytes=100, topics=topics)


def test_a_broker_registers_and_is_unfenced_by_a_heartbeat() -> None:
    async def story(member: Member) -> None:
        registered = await member.ask("BrokerRegistration", registration(broker_id=7))
        assert registered.error_code == 0
        offset = member.node.controller.image.offset
        beat = await member.ask("BrokerHeartbeat", beat_of(7, registered.broker_epoch, offset))
        assert (beat.error_code, beat.is_fenced) == (0, False)
        found = [type(record) for record in records(await member.row())]
        assert found[-2:] == [RegisterBroker, BrokerRegistrationChange]

    play(story)


def test_a_forwarded_request_is_answered_in_its_own_version_with_its_own_correlation_id() -> None:
    async def story(member: Member) -> None:
        registered = await member.ask("BrokerRegistration", registration(broker_id=7))
        await member.ask("BrokerHeartbeat", beat_of(7, registered.broker_epoch, member.node.controller.image.offset))
        inner = codec.encode_request(create(topic("t")), KEYS["CreateTopics"], 7, 4711, "client")
        envelope = EnvelopeRequest(
            request_data=bytes(inner[4:]), request_principal=ANONYMOUS, client_host_address=b"\x7f\0\0\1"
        )
        answer = await member.ask("Envelope", envelope)
        assert answer.error_code == 0
        correlation_id, response = codec.decode_response(KEYS["CreateTopics"], 7, answer.response_data)
        assert correlation_id == 4711
        assert [(row.name, row.error_code) for row in response.topics] == [("t", 0)]
        assert member.node.controller.image.topic("t") is not None

        beat = codec.encode_request(beat_of(7, 0, 0), KEYS["BrokerHeartbeat"], 1, 1, None)
        envelope = EnvelopeRequest(
            request_data=bytes(beat[4:]), request_principal=ANONYMOUS, client_host_address=b"1234"
        )
        assert (await member.ask("Envelope", envelope)).error_code == errors.InvalidRequest.code
        envelope = EnvelopeRequest(request_data=bytes(inner[4:]), request_principal=None, client_host_address=b"1234")
        assert (await member.ask("Envelope", envelope)).error_code == errors.PrincipalDeserializationFailure.code

    play(story)


def test_a_standby_tells_where_the_active_controller_is_and_does_nothing_else() -> None:
    async def story(member: Member) -> None:
        standby = await StandbyNode(member.sim.runtime("c2"), member.node.active, host="c2").start()
        connection = await open_connection(member.sim.runtime("b7"), Address("c2", PORT), ConnectionLimits())
        at_standby = Member(member.sim, member.node, connection)
        answer = await at_standby.fetch()
        assert answer.responses[0].partitions[0].error_code == errors.NotLeaderOrFollower.code
        assert answer.node_endpoints[0].host == "c1"
        refused = await at_standby.ask("BrokerRegistration", registration(broker_id=7))
        assert refused.error_code == errors.NotController.code
        assert standby.seen("BrokerRegistration")

    play(story)


@pytest.mark.parametrize("power_cut", [True, False])
def test_a_controller_that_died_leads_the_next_epoch_of_the_same_log(power_cut: bool) -> None:
    async def story(member: Member) -> None:
        end = member.node.controller.metadata_log.committed_offset
        member.sim.crash("c1", power_cut=power_cut)
        node = await ControllerNode(member.sim.runtime("c1"), host="c1").start()
        assert node.controller.leader_epoch == 2
        connection = await open_connection(member.sim.runtime("b7"), Address("c1", PORT), ConnectionLimits())
        row = await Member(member.sim, node, connection).row(end + 1, last=1)
        assert row.error_code == 0 and offsets(row)[0] == end + 1

    play(story)


def test_a_scripted_step_answers_once() -> None:
    async def story(member: Member) -> None:
        member.node.script("BrokerRegistration", lambda request: None)
        assert (await member.ask("BrokerRegistration", registration(broker_id=7))).error_code == 0
        assert member.node.seen("BrokerRegistration")[0].incarnation_id == UUID(int=1)

    play(story)
