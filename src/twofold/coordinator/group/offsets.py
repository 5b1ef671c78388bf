"""Committed offsets: committing them, also as part of a transaction, reading, deleting and expiring them.

Everything here is a function of the log's state, of the membership as it is, and of the request.

1. A commit is fenced by member and generation as its kind demands: a plain one is refused during the sync phase and
   from strangers while there are members; one in a transaction by what the client says of itself, if it says anything.
2. A partition with an offset in an open transaction has no stable offset. A fetch that asks for stability gets
   an error; one that does not gets what is committed.
3. A deletion takes pending offsets along; expiry never touches a partition that has some.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from twofold.coordinator.group.classic import ClassicGroup
from twofold.coordinator.group.consumer.draft import removal_of
from twofold.coordinator.group.consumer.offsets import check_commit, check_fetch
from twofold.coordinator.group.consumer.state import ConsumerGroup
from twofold.coordinator.group.context import GroupConfig, Instant
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.records import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    GroupRecord,
    GroupValue,
    LogRecord,
    OffsetRecord,
    OffsetValue,
    encode_offset_value,
)
from twofold.coordinator.group.state import GroupsState, Partitions, Stored, committed
from twofold.coordinator.group.states import COMMIT, GroupState
from twofold.machine.runtime import Result
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from twofold.wire.errors import (
    NONE,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    UnknownMemberId,
    UnstableOffsetCommit,
)

NO_OFFSET = -1
KEEP_AS_CONFIGURED = -1
GROUP_ID_NOT_FOUND_SINCE = 9  # of OffsetCommit


class Commit(NamedTuple):
    """An offset of one partition of a topic that exists."""

    topic: str
    topic_id: UUID | None
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class Committer(NamedTuple):
    """What a client that commits says of itself. Nothing is set where it only uses the name of the group."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    @property
    def is_anonymous(self) -> bool:
        return self.generation < 0 and not self.member_id and self.group_instance_id is None


class Fetched(NamedTuple):
    """What is committed for a partition, or why that cannot be said."""

    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error_code: int = NONE


class Wanted(NamedTuple):
    """Partitions of a topic; the id is that of the topic which has this name now."""

    topic: str
    partitions: Sequence[int]
    topic_id: UUID | None = None


Codes: TypeAlias = list[int]


class Offsets:
    def __init__(self, config: GroupConfig, membership: Membership) -> None:
        self.config = config
        self._membership = membership
        # How many since the shard was loaded.
        self.committed = 0
        self.expired = 0
        self.deleted = 0

    # --- committing ---

    def commit(
        self,
        state: GroupsState,
        committer: Committer,
        commits: Sequence[Commit],
        version: int,
        now: Instant,
        retention_time_ms: int = KEEP_AS_CONFIGURED,
    ) -> Result[LogRecord, Codes]:
        """An error code for each commit; what concerns all of them is raised."""
        missing = GroupIdNotFound if version >= GROUP_ID_NOT_FOUND_SINCE else IllegalGeneration
        consumer = state.consumers.get(committer.group_id)
        if consumer is not None:
            partitions = self._storable(commits)
            check_commit(consumer, committer.member_id, committer.generation, partitions, version=version)
        else:
            self._check(state, committer, missing, in_transaction=False)
        group = self._membership.groups.get(committer.group_id)
        if group is not None:
            self._membership.renew(group, committer.member_id, now)
        expires = NO_TIMESTAMP if retention_time_ms == KEEP_AS_CONFIGURED else now.wall_ms + retention_time_ms
        return self._records(committer.group_id, commits, now, expires)

    def commit_in_transaction(
        self,
        state: GroupsState,
        committer: Committer,
        commits: Sequence[Commit],
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        now: Instant,
    ) -> Result[LogRecord, Codes]:
        if not committer.group_id:
            raise InvalidGroupId("the group id is empty")
        consumer = state.consumers.get(committer.group_id)
        if consumer is None:
            self._check(state, committer, IllegalGeneration, in_transaction=True)
        elif not committer.is_anonymous:
            check_commit(consumer, committer.member_id, committer.generation, self._storable(commits))
        return self._records(committer.group_id, commits, now, NO_TIMESTAMP, producer_id, producer_epoch)

    def _is_too_long(self, commit: Commit) -> bool:
        return commit.metadata is not None and _length(commit.metadata) > self.config.offset_metadata_max_bytes

    def _storable(self, commits: Iterable[Commit]) -> Iterator[tuple[UUID | None, int]]:
        """The partitions whose offsets will be stored, if the member may commit them."""
        return ((commit.topic_id, commit.partition) for commit in commits if not self._is_too_long(commit))

    def _check(
        self, state: GroupsState, committer: Committer, missing: type[KafkaError], *, in_transaction: bool
    ) -> None:
        group_id, generation, member_id, instance_id = committer
        group = self._membership.groups.get(group_id)
        if group is None:
            if group_id not in state.groups and generation >= 0:
                raise missing(f"there is no group {group_id} in generation {generation}")
            if generation >= 0:
                raise UnknownMemberId(f"group {group_id} is empty, {member_id} is no member of it")
            return
        if generation < 0 and group.state is GroupState.EMPTY:
            return
        if not committer.is_anonymous:
            group.check_member(member_id, instance_id)
            if generation != group.generation:
                raise IllegalGeneration(f"group {group_id} is in generation {group.generation}, not {generation}")
        elif not in_transaction:
            raise UnknownMemberId(f"group {group_id} has members, and only they may commit")
        refused = COMMIT[group.state]
        if refused is not None and not in_transaction:
            raise refused(f"group {group_id} is in state {group.state.value}")

    def _records(
        self,
        group_id: str,
        commits: Iterable[Commit],
        now: Instant,
        expires_ms: int,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> Result[LogRecord, Codes]:
        records: list[LogRecord] = []
        codes: Codes = []
        for commit in commits:
            topic, topic_id, partition, offset, leader_epoch, metadata = commit
            if self._is_too_long(commit):
                codes.append(OffsetMetadataTooLarge.code)
                continue
            value = OffsetValue(offset, leader_epoch, metadata or "", now.wall_ms, expires_ms, topic_id)
            encoded = encode_offset_value(value)
            records.append(OffsetRecord(group_id, topic, partition, encoded, producer_id, producer_epoch))
            codes.append(NONE)
        self.committed += len(records)
        return Result(records, codes)

    # --- reading ---

    def check_fetch(self, state: GroupsState, group_id: str, member_id: str | None, epoch: int) -> None:
        """What a client says of itself counts in consumer groups only."""
        consumer = state.consumers.get(group_id)
        if consumer is not None:
            check_fetch(consumer, member_id, epoch)

    def fetch(
        self, state: GroupsState, group_id: str, wanted: Iterable[Wanted], *, require_stable: bool
    ) -> list[tuple[Wanted, list[Fetched]]]:
        """For a group that does not exist, too: it has committed nothing."""
        topics = state.topics(group_id)
        found = []
        for topic in wanted:
            partitions = topics.get(topic.topic)
            rows = []
            for partition in topic.partitions:
                if require_stable and state.is_open(group_id, topic.topic, partition):
                    rows.append(_unstable(partition))
                else:
                    rows.append(_fetched(partitions, partition, topic.topic_id))
            found.append((topic, rows))
        return found

    def fetch_all(self, state: GroupsState, group_id: str, *, require_stable: bool) -> list[tuple[str, list[Fetched]]]:
        """Everything that is committed, by topic. What is only pending is not listed."""
        found = []
        for topic, partitions in sorted(state.topics(group_id).items()):
            rows = []
            for partition in sorted(partitions):
                unstable = require_stable and state.is_open(group_id, topic, partition)
                rows.append(_unstable(partition) if unstable else _fetched(partitions, partition, None))
            found.append((topic, rows))
        return found

    # --- deleting ---

    def delete(
        self, state: GroupsState, group_id: str, wanted: Iterable[Wanted]
    ) -> Result[LogRecord, list[tuple[Wanted, Codes]]]:
        """Delete offsets that no member of the group could miss."""
        if not group_id:
            raise InvalidGroupId("the group id is empty")
        consumer = state.consumers.get(group_id)
        group: ClassicGroup | ConsumerGroup | None = consumer
        if consumer is None:
            group = classic = self._membership.find(state, group_id)
            if classic is not None and classic.state is not GroupState.EMPTY and not classic.is_consumer_group:
                raise NonEmptyGroup(f"group {group_id} has members, and what they read is not known")
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        records: list[LogRecord] = []
        rows: list[tuple[Wanted, Codes]] = []
        for topic in wanted:
            subscribed = group.is_subscribed_to(topic.topic)
            rows.append((topic, [GroupSubscribedToTopic.code if subscribed else NONE for _ in topic.partitions]))
            if not subscribed:
                records.extend(
                    OffsetRecord(group_id, topic.topic, partition, None)
                    for partition in dict.fromkeys(topic.partitions)
                    if _is_known(state, group_id, topic.topic, partition)
                )
        self.deleted += len(records)
        return Result(records, rows)

    def delete_group(self, state: GroupsState, group_id: str) -> list[LogRecord]:
        """The records that remove a group and all that it has committed."""
        consumer = state.consumers.get(group_id)
        if consumer is not None:
            if consumer.members:
                raise NonEmptyGroup(f"group {group_id} is in state {consumer.state.value}")
            return [*_all_offsets(state, group_id), *removal_of(consumer)]
        group = self._membership.find(state, group_id)
        if group is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        if group.state is not GroupState.EMPTY:
            raise NonEmptyGroup(f"group {group_id} is in state {group.state.value}")
        return [*_all_offsets(state, group_id), GroupRecord(group_id, None)]

    def delete_topics(self, state: GroupsState, group_id: str, topics: Iterable[str]) -> list[LogRecord]:
        """The topics are gone, and with them every offset in them."""
        gone = frozenset(topics)
        return [record for record in _all_offsets(state, group_id, gone) if record.topic in gone]

    # --- expiring ---

    def expire(self, state: GroupsState, group_id: str, now: Instant) -> list[LogRecord]:
        """Removals of what a group has not used for too long; of the group, too, when nothing is left of it."""
        topics = state.topics(group_id)
        consumer = state.consumers.get(group_id)
        if consumer is not None:
            return self._expire_consumer(state, consumer, now)
        value = state.groups.get(group_id)
        if value is None:
            return []
        records: list[LogRecord] = []
        kept = state.has_open(group_id)
        if topics:
            base = self._expires_from(group_id, value)
            if base is None:
                return []
            kept |= not self._expire_topics(state, group_id, base, now, records)
        group = self._membership.groups.get(group_id)
        if not kept and (group is None or (group.state is GroupState.EMPTY and not group.pending_joins)):
            records.append(GroupRecord(group_id, None))
        return records

    def _expire_consumer(self, state: GroupsState, group: ConsumerGroup, now: Instant) -> list[LogRecord]:
        """When a group became empty is not known, so each offset goes by its own time, also beside members that do not
        read its topic."""
        records: list[LogRecord] = []
        group_id = group.group_id
        everything = self._expire_topics(state, group_id, NO_TIMESTAMP, now, records, group)
        if everything and not group.members and not state.has_open(group_id):
            records.extend(removal_of(group))
        return records

    def _expires_from(self, group_id: str, value: GroupValue) -> int | None:
        """From when on the retention counts: NO_TIMESTAMP for each offset's own time, None for never."""
        group = self._membership.groups.get(group_id)
        state = GroupState.EMPTY if group is None else group.state
        protocol_type = (value.protocol_type or None) if group is None else group.protocol_type
        if protocol_type is None:
            return NO_TIMESTAMP
        if state is GroupState.EMPTY:
            return value.state_timestamp_ms if group is None else group.state_timestamp_ms
        if state is GroupState.STABLE and group is not None and group.subscribed_topics is not None:
            return NO_TIMESTAMP
        return None

    def _expire_topics(
        self,
        state: GroupsState,
        group_id: str,
        base_ms: int,
        now: Instant,
        records: list[LogRecord],
        consumer: ConsumerGroup | None = None,
    ) -> bool:
        """Add what has expired; whether that is everything."""
        group = consumer or self._membership.groups.get(group_id)
        retention_ms = self.config.offsets_retention_ms
        everything = True
        for topic, partitions in sorted(state.topics(group_id).items()):
            if group is not None and group.is_subscribed_to(topic):
                everything = False
                continue
            for partition in sorted(partitions):
                value = committed(partitions[partition])
                if value.expire_timestamp_ms != NO_TIMESTAMP:
                    is_expired = now.wall_ms >= value.expire_timestamp_ms
                else:
                    since_ms = value.commit_timestamp_ms if base_ms == NO_TIMESTAMP else base_ms
                    is_expired = now.wall_ms - since_ms >= retention_ms
                if is_expired and not state.is_open(group_id, topic, partition):
                    records.append(OffsetRecord(group_id, topic, partition, None))
                    self.expired += 1
                else:
                    everything = False
        return everything


def _fetched(partitions: Partitions | None, partition: int, topic_id: UUID | None) -> Fetched:
    stored: Stored | None = None if partitions is None else partitions.get(partition)
    if stored is None:
        return Fetched(partition)
    value = committed(stored)
    if topic_id is not None and value.topic_id is not None and value.topic_id != topic_id:
        # Committed for a topic of this name that was deleted since.
        return Fetched(partition)
    return Fetched(partition, value.offset, value.leader_epoch, value.metadata)


def _length(text: str) -> int:
    """In UTF-16 units, as Kafka counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _unstable(partition: int) -> Fetched:
    return Fetched(partition, error_code=UnstableOffsetCommit.code)


def _is_known(state: GroupsState, group_id: str, topic: str, partition: int) -> bool:
    return state.offset(group_id, topic, partition) is not None or state.is_open(group_id, topic, partition)


def _all_offsets(state: GroupsState, group_id: str, topics: frozenset[str] | None = None) -> list[OffsetRecord]:
    """The removal of every offset, committed or pending, of these topics or of all."""
    known = state.topics(group_id)
    names = known.keys() if topics is None else [topic for topic in topics if topic in known]
    partitions = {(topic, partition) for topic in names for partition in known[topic]}
    partitions.update(at for at in state.open_partitions(group_id) if topics is None or at[0] in topics)
    return [OffsetRecord(group_id, topic, partition, None) for topic, partition in sorted(partitions)]
