"""A member of a consumer group, as simple as the protocol allows: it joins, assigns when it leads, sends heartbeats and
commits a growing number for every partition that it owns."""

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from sim.broker.watch import require
from sim.groups.check import GROUP, GroupHistory
from twofold.client.admin.group_model import CONSUMER_PROTOCOL_TYPE, read_assignment
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ClientConfig
from twofold.connections.connection import Connection
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    raise_for,
)
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from twofold.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from twofold.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

PROTOCOL = "range"
UUID_SIZE = len("-00000000-0000-0000-0000-000000000000")
COMMIT_VERSION = FETCH_VERSION = 9  # the last that name topics
_LOST_ITS_PLACE = (UnknownMemberId, FencedInstanceId)
_JOIN_AGAIN = (IllegalGeneration, RebalanceInProgress)


@dataclass(frozen=True)
class MemberPlan:
    node: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    request_timeout_ms: int
    join_version: int
    commit_pause_s: float
    rejoins_when_cut_off: bool
    """Some clients keep their generation when they lose a connection, others start over."""


@dataclass(frozen=True)
class Place:
    """What a member knows of itself in a generation. The leader goes by its name: the id of a static one changes."""

    member_id: str
    generation: int
    leader: str
    owned: tuple[TopicPartition, ...]


def subscription(topics: Sequence[str]) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def assignment(partitions: Sequence[TopicPartition], tag: bytes) -> bytes:
    """With the leader's mark, by which its assignments are told apart."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    rows = b"".join(
        struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name.encode(), len(indexes), *indexes)
        for name, indexes in topics.items()
    )
    return struct.pack(">hi", 0, len(topics)) + rows + struct.pack(">i", len(tag)) + tag


def tag_of(data: bytes, partitions: Sequence[TopicPartition]) -> bytes:
    size = len(assignment(partitions, b""))
    return data[size:]


def spread(members: Sequence[str], partitions: Sequence[TopicPartition]) -> Mapping[str, list[TopicPartition]]:
    """As the range assignor does: neighbours stay together, the first members get one more."""
    each, more = divmod(len(partitions), len(members))
    found, at = {}, 0
    for number, member in enumerate(members):
        count = each + (number < more)
        found[member] = list(partitions[at : at + count])
        at += count
    return found


class GroupMember:
    def __init__(self, runtime: Runtime, plan: MemberPlan, history: GroupHistory, name: str, bootstrap: str) -> None:
        self.plan = plan
        self.place: Place | None = None
        self.leaving = False
        self._name = name
        self._history = history
        self._runtime = runtime
        self._random = Random(runtime.random.getrandbits(64))
        config = ClientConfig(
            bootstrap_servers=bootstrap,
            client_id=plan.node,
            request_timeout_ms=plan.request_timeout_ms,
            default_api_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            reconnect_backoff_max_ms=500,
        )
        self._cluster = Cluster(runtime, config)
        self._member_id = ""
        self._coordinator: int | None = None
        self._assignments = 0

    async def run(self) -> None:
        """Until it has left."""
        while not self.leaving:
            try:
                if self.place is None:
                    self.place = await self._join()
                    await self._fetch(self.place)
                await self._work(self.place)
            except KafkaError as error:
                self._recover(error)
                if not isinstance(error, MemberIdRequired):
                    await self._sleep(self._random.uniform(0.02, 0.2))
        await self._leave()
        await self._cluster.close()

    def _recover(self, error: KafkaError) -> None:
        if isinstance(error, MemberIdRequired):
            return
        if isinstance(error, _LOST_ITS_PLACE):
            self._member_id, self.place = "", None
        elif isinstance(error, _JOIN_AGAIN):
            self.place = None
        elif error.retriable or isinstance(error, RequestTimedOut):
            self._coordinator = None
            if self.plan.rejoins_when_cut_off:
                self.place = None
        else:
            raise error

    async def _sleep(self, seconds: float) -> None:
        await self._runtime.timers.sleep(seconds)

    async def _connection(self) -> Connection:
        deadline = self._cluster.deadline()
        if self._coordinator is None:
            await self._cluster.refresh(deadline)
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            response = await self._cluster.request(None, request, "FindCoordinator", deadline)
            raise_for(response.coordinators[0].error_code, GROUP)
            self._coordinator = response.coordinators[0].node_id
        return await self._cluster.connection(self._coordinator, deadline)

    async def _ask(self, message: Any, api: str, *, wait_ms: int = 0, version: int | None = None) -> Any:
        connection = await self._connection()
        timeout_ms = wait_ms + self.plan.request_timeout_ms
        return await connection.request(message, KEYS[api], version=version, timeout_ms=timeout_ms)

    # Joining

    async def _join(self) -> Place:
        history, plan = self._history, self.plan
        topics = sorted({tp.topic for tp in history.partitions})
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=plan.session_timeout_ms,
            rebalance_timeout_ms=plan.rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=plan.instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription(topics))],
        )
        joined = await self._ask(
            request, "JoinGroup", wait_ms=plan.rebalance_timeout_ms + 3000, version=plan.join_version
        )
        if joined.error_code == MemberIdRequired.code:
            self._member_id = joined.member_id
        raise_for(joined.error_code, "JoinGroup")
        self._member_id = joined.member_id
        return await self._sync(joined)

    async def _sync(self, joined: Any) -> Place:
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self.plan.instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=self._assign(joined.members) if leads else [],
        )
        newest = self._history.newest
        synced = await self._ask(request, "SyncGroup", wait_ms=self.plan.rebalance_timeout_ms)
        raise_for(synced.error_code, "SyncGroup")
        owned = read_assignment(synced.assignment)
        require(owned is not None and synced.assignment, f"{self._name} was assigned {synced.assignment!r}")
        assert owned is not None
        tag = tag_of(synced.assignment, owned)
        identity = self.plan.instance_id or joined.member_id
        self._history.synced(identity, joined.generation_id, tag, owned, newest)
        return Place(joined.member_id, joined.generation_id, joined.leader[:-UUID_SIZE], owned)

    def _assign(self, members: Sequence[Any]) -> list[SyncGroupRequestAssignment]:
        """In an order of its own, so that two assignments of a generation would not be the same by chance."""
        require(members, f"{self._name} leads and knows no members")
        self._assignments += 1
        tag = f"{self._name} {self._assignments}".encode()
        names = sorted(member.member_id for member in members)
        self._random.shuffle(names)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment(owned, tag))
            for member_id, owned in spread(names, self._history.partitions).items()
        ]

    # Working

    async def _work(self, place: Place) -> None:
        beat_s = self.plan.session_timeout_ms / 3000
        clock = self._runtime.clock
        next_beat = clock.monotonic() + self._random.choice((0.0, 1.0)) * beat_s
        while not self.leaving:
            if clock.monotonic() >= next_beat:
                next_beat = clock.monotonic() + beat_s
                await self._heartbeat(place)
            until_beat = max(0.001, next_beat - clock.monotonic())  # less may be no step of the clock at all
            await self._sleep(min(until_beat, self._random.uniform(0.5, 1.5) * self.plan.commit_pause_s))
            if place.owned and self._random.random() < 0.8:
                await self._commit(place)

    async def _heartbeat(self, place: Place) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=place.generation,
            member_id=place.member_id,
            group_instance_id=self.plan.instance_id,
        )
        raise_for((await self._ask(request, "Heartbeat")).error_code, "Heartbeat")

    async def _commit(self, place: Place) -> None:
        connection = await self._connection()
        history = self._history
        newest = history.newest
        values = {tp: self._next_commit(tp, place) for tp in place.owned}
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, value in values.items():
            row = OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=value, committed_metadata=""
            )
            topics.setdefault(tp.topic, []).append(row)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=place.generation,
            member_id=place.member_id,
            group_instance_id=self.plan.instance_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        response = await connection.request(
            request, KEYS["OffsetCommit"], version=COMMIT_VERSION, timeout_ms=self.plan.request_timeout_ms
        )
        errors = {
            TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions
        }
        require(set(errors) == set(values), f"{self._name} committed {sorted(values)} and was told of {sorted(errors)}")
        for tp, value in values.items():
            if errors[tp]:
                history.not_committed(tp, value)
            else:
                history.committed(tp, value, newest)
        for code in errors.values():
            raise_for(code, "OffsetCommit")

    def _next_commit(self, tp: TopicPartition, place: Place) -> int:
        return self._history.next_commit(tp, place.generation)

    async def _fetch(self, place: Place) -> None:
        """Where an owner would start to read."""
        if not place.owned:
            return
        least = self._history.least()
        topics: dict[str, list[int]] = {}
        for topic, partition in place.owned:
            topics.setdefault(topic, []).append(partition)
        rows = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        request = OffsetFetchRequest(groups=[self._asked_for(place, rows)], require_stable=True)
        group = (await self._ask(request, "OffsetFetch", version=FETCH_VERSION)).groups[0]
        raise_for(group.error_code, "OffsetFetch")
        found = {}
        for topic in group.topics:
            for row in topic.partitions:
                raise_for(row.error_code, "OffsetFetch")
                found[TopicPartition(topic.name, row.partition_index)] = row.committed_offset
        self._history.fetched(self._name, found, least)

    def _asked_for(self, place: Place, topics: list[OffsetFetchRequestTopics]) -> OffsetFetchRequestGroup:
        return OffsetFetchRequestGroup(group_id=GROUP, topics=topics)

    async def _leave(self) -> None:
        identity = MemberIdentity(member_id=self._member_id, group_instance_id=self.plan.instance_id, reason="done")
        with suppress(KafkaError):  # then it is not heard of again, which is good enough
            await self._ask(LeaveGroupRequest(group_id=GROUP, members=[identity]), "LeaveGroup", version=5)
        self.place = None
