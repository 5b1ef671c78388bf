"""What a member says to the coordinator of its group: one method per request, with what may pass tried again inside.

1. JoinGroup and SyncGroup wait for other members, and a broker handles the requests of one connection in their order.
   They have a connection of their own, so that heartbeats and commits do not stand in line behind them.
2. A coordinator that has moved, loads or does not answer is looked up and asked again until the deadline comes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

from twofold.client.admin.group_model import CONSUMER_PROTOCOL_TYPE, OffsetAndMetadata
from twofold.client.admin.group_offsets import (
    BATCHED_SINCE,
    BY_NAME_UNTIL,
    STABLE_SINCE,
    commit_row,
    fetch_requests,
    read_offsets,
)
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import CoordinatorKind, Coordinators
from twofold.client.cluster.metadata import group_by_topic
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.membership import Identity
from twofold.client.errors import CommitFailed
from twofold.connections.connection import Connection
from twofold.connections.errors import UnsupportedByBroker
from twofold.connections.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    FencedInstanceId,
    GroupAuthorizationFailed,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    MemberIdRequired,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for,
)
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from twofold.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from twofold.wire.messages.offset_fetch import OffsetFetchResponse
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

T = TypeVar("T")
JOIN_GROUP, SYNC_GROUP = KEYS["JoinGroup"], KEYS["SyncGroup"]
CONSUMER_HEARTBEAT = KEYS["ConsumerGroupHeartbeat"]
REGEX_SINCE = 1
OFFSET_COMMIT, OFFSET_FETCH = KEYS["OffsetCommit"], KEYS["OffsetFetch"]
STATIC_MEMBERS_SINCE = 5  # of JoinGroup
# A coordinator answers JoinGroup when the rebalance timeout is over; this long after it, no answer will come.
ROUND_GRACE_MS = 5_000
# Of the errors of several partitions, those about the member say more than those about one partition.
_ABOUT_THE_MEMBER = (FencedInstanceId, UnknownMemberId, IllegalGeneration)


class Patience(Enum):
    """What a commit waits for."""

    NONE = auto()  # one attempt
    WITHOUT_TOPICS = auto()  # what passes, but not a topic that is not there
    FULL = auto()  # what passes; a topic that is new may not be known everywhere yet


class MemberCalls:
    """Of one consumer."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        assert config.group_id is not None
        self._cluster = cluster
        self._config = config
        self._group = config.group_id
        self._coordinators = Coordinators(cluster)
        self._rounds = Coordinators(cluster)

    def close(self) -> None:
        self._coordinators.close()
        self._rounds.close()

    @property
    def round_timeout_ms(self) -> float:
        return max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + ROUND_GRACE_MS)

    # A round

    async def join(self, member_id: str, protocols: Sequence[tuple[str, bytes]], reason: str) -> JoinGroupResponse:
        """The answer without an error, or with MEMBER_ID_REQUIRED."""
        config = self._config
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
            reason=reason or None,
        )

        async def attempt(connection: Connection) -> JoinGroupResponse:
            if config.group_instance_id is not None and not connection.supports(JOIN_GROUP, STATIC_MEMBERS_SINCE):
                raise UnsupportedByBroker(
                    f"{connection.label} knows no static members: group_instance_id needs JoinGroup "
                    f"{STATIC_MEMBERS_SINCE}"
                )
            response: JoinGroupResponse = await connection.request(
                request, JOIN_GROUP, timeout_ms=self.round_timeout_ms
            )
            if response.error_code not in (0, MemberIdRequired.code):
                raise self._error("JoinGroup", response.error_code)
            return response

        return await self._in_round("JoinGroup", attempt)

    async def sync(
        self, identity: Identity, protocol: str | None, assignments: Mapping[str, bytes]
    ) -> SyncGroupResponse:
        """`assignments` is empty unless the member leads the group."""
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in assignments.items()
            ],
        )

        async def attempt(connection: Connection) -> SyncGroupResponse:
            response: SyncGroupResponse = await connection.request(
                request, SYNC_GROUP, timeout_ms=self.round_timeout_ms
            )
            if response.error_code:
                raise self._error("SyncGroup", response.error_code)
            return response

        return await self._in_round("SyncGroup", attempt)

    async def _in_round(self, api: str, attempt: Callable[[Connection], Awaitable[T]]) -> T:
        deadline = self._cluster.deadline(self.round_timeout_ms, "max_poll_interval_ms")
        what = f"{api} of group {self._group!r}"
        return await self._rounds.ask(CoordinatorKind.GROUP, self._group, what, attempt, deadline)

    # Signs of life

    async def heartbeat(self, identity: Identity) -> None:
        """One attempt."""
        config = self._config
        deadline = self.deadline_of_heartbeat()
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=config.group_instance_id,
        )

        async def attempt(connection: Connection) -> None:
            response: HeartbeatResponse = await self._cluster.ask(connection, request, "Heartbeat", deadline)
            if response.error_code:
                raise self._error("Heartbeat", response.error_code)

        await self._ask("Heartbeat", attempt, deadline, patient=False)

    def deadline_of_heartbeat(self) -> Deadline:
        """An answer that comes later is of no use any more."""
        config = self._config
        return self._cluster.deadline(min(config.request_timeout_ms, config.session_timeout_ms), "session_timeout_ms")

    async def speak(self, request: ConsumerGroupHeartbeatRequest, deadline: Deadline) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of the new protocol: one attempt. The answer without an error."""

        async def attempt(connection: Connection) -> ConsumerGroupHeartbeatResponse:
            if request.subscribed_topic_regex and not connection.supports(CONSUMER_HEARTBEAT, REGEX_SINCE):
                raise UnsupportedByBroker(
                    f"{connection.label} matches no patterns: subscribe(pattern=...) with group_protocol='consumer' "
                    f"needs ConsumerGroupHeartbeat {REGEX_SINCE}"
                )
            response: ConsumerGroupHeartbeatResponse = await self._cluster.ask(
                connection, request, "ConsumerGroupHeartbeat", deadline
            )
            if response.error_code:
                raise self._error("ConsumerGroupHeartbeat", response.error_code, response.error_message)
            return response

        return await self._ask("ConsumerGroupHeartbeat", attempt, deadline, patient=False)

    async def leave(self, member_id: str, reason: str, deadline: Deadline) -> None:
        """One attempt: the session of a member that is not heard of ends by itself."""
        member = MemberIdentity(member_id=member_id, reason=reason)
        request = LeaveGroupRequest(group_id=self._group, member_id=member_id, members=[member])

        async def attempt(connection: Connection) -> None:
            response: LeaveGroupResponse = await self._cluster.ask(connection, request, "LeaveGroup", deadline)
            code = response.error_code or next((row.error_code for row in response.members if row.error_code), 0)
            if code:
                raise self._error("LeaveGroup", code)

        await self._ask("LeaveGroup", attempt, deadline, patient=False)

    # Offsets

    async def commit(
        self,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        patience: Patience,
    ) -> None:
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[commit_row(index, offsets[TopicPartition(topic, index)]) for index in indexes],
            )
            for topic, indexes in group_by_topic(offsets).items()
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=identity.generation,
            member_id=identity.member_id,
            group_instance_id=self._config.group_instance_id,
            topics=topics,
        )

        async def attempt(connection: Connection) -> None:
            version = connection.version(OFFSET_COMMIT, at_most=BY_NAME_UNTIL)
            response: OffsetCommitResponse = await self._cluster.ask(
                connection, request, "OffsetCommit", deadline, version=version
            )
            problem = _worst(response)
            if problem is not None:
                tp, code = problem
                if error_for(code) is UnknownTopicOrPartition and patience is not Patience.FULL:
                    raise CommitFailed(f"{tp} does not exist: what was read of it is not committed")
                raise self._error(f"OffsetCommit of {tp}", code)

        await self._ask("OffsetCommit", attempt, deadline, patient=patience is not Patience.NONE)

    async def committed(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those that have an offset. A transaction that commits one of them is waited for."""
        topics = group_by_topic(dict.fromkeys(partitions))

        async def attempt(connection: Connection) -> dict[TopicPartition, OffsetAndMetadata]:
            version = connection.version(OFFSET_FETCH, at_most=BY_NAME_UNTIL)
            (request,) = fetch_requests({self._group: topics}, version, require_stable=version >= STABLE_SINCE)
            response: OffsetFetchResponse = await self._cluster.ask(
                connection, request, "OffsetFetch", deadline, version=version
            )
            row: Any = response.groups[0] if version >= BATCHED_SINCE else response
            if row.error_code:
                raise self._error("OffsetFetch", row.error_code)
            found = read_offsets(row.topics)
            for tp, error in found.errors.items():
                raise type(error)(f"OffsetFetch of {tp} for group {self._group!r}")
            return dict(found.values)

        return await self._ask("OffsetFetch", attempt, deadline)

    async def _ask(
        self,
        api: str,
        attempt: Callable[[Connection], Awaitable[T]],
        deadline: Deadline,
        *,
        patient: bool = True,
    ) -> T:
        what = f"{api} of group {self._group!r}"
        return await self._coordinators.ask(
            CoordinatorKind.GROUP, self._group, what, attempt, deadline, patient=patient
        )

    def _error(self, what: str, code: int, said: str | None = None) -> KafkaError:
        """What the coordinator says in one number, in words; `said` are its own."""
        kind = error_for(code)
        config = self._config
        words = {
            InconsistentGroupProtocol: f"its members share none of the strategies {', '.join(config.assignors)}: set "
            "partition_assignment_strategy to one that all of them have",
            GroupMaxSizeReached: "it has as many members as the broker's group.max.size allows",
            InvalidSessionTimeout: f"session_timeout_ms={config.session_timeout_ms} is not between the broker's "
            "group.min.session.timeout.ms and group.max.session.timeout.ms",
            GroupAuthorizationFailed: "the principal needs READ on it",
            UnsupportedVersion: "the broker does not serve group_protocol='consumer': leave it out",
        }.get(kind, said or "")
        return kind(f"{what}: group {self._group!r}" + (f": {words}" if words else ""))


def _worst(response: OffsetCommitResponse) -> tuple[TopicPartition, int] | None:
    found = [
        (TopicPartition(topic.name, row.partition_index), row.error_code)
        for topic in response.topics
        for row in topic.partitions
        if row.error_code
    ]

    def rank(row: tuple[TopicPartition, int]) -> tuple[bool, bool]:
        kind = error_for(row[1])
        return not issubclass(kind, _ABOUT_THE_MEMBER), kind.retriable

    return min(found, key=rank, default=None)
