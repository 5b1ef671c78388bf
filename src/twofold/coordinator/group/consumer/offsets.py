"""Which members of a consumer group may commit and fetch offsets.

1. A member commits with its epoch, whatever it owns. With an older epoch it may still commit what it has had since then
   (KIP-1251): a heartbeat that is on its way must not make a commit fail. One partition that it has not fails all.
2. A client that is no member commits only while there are none, except in a transaction, where it may say nothing of
   itself.
3. A fetch that names a member and an epoch is answered for the current epoch only.
"""

from collections.abc import Iterable
from uuid import UUID

from twofold.coordinator.group.consumer.state import ConsumerGroup, ConsumerMember
from twofold.wire.errors import IllegalGeneration, StaleMemberEpoch, UnknownMemberId, UnsupportedVersion

EPOCHS_SINCE = 9  # of OffsetCommit


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    partitions: Iterable[tuple[UUID | None, int]],
    *,
    version: int | None = None,
) -> None:
    """`version` is that of OffsetCommit; None in a transaction, where members of all versions are told the same."""
    if epoch < 0 and not group.members:
        return
    member = _member(group, member_id)
    if version is not None and not member.is_classic and version < EPOCHS_SINCE:
        raise UnsupportedVersion(f"a member of the consumer protocol commits with version {EPOCHS_SINCE} or higher")
    if epoch == member.epoch:
        return
    stale = IllegalGeneration if member.is_classic or version is None else StaleMemberEpoch
    if epoch > member.epoch:
        raise stale(f"member {member_id} is in epoch {member.epoch}, not {epoch}")
    for topic_id, partition in partitions:
        since = _held_since(member, topic_id, partition)
        if since is None or since > epoch:
            raise stale(f"member {member_id} of epoch {epoch} has no right to commit partition {partition} any more")


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    member = _member(group, member_id or "")
    if epoch != member.epoch:
        stale = IllegalGeneration if member.is_classic else StaleMemberEpoch
        raise stale(f"member {member_id} is in epoch {member.epoch}, not {epoch}")


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"{member_id} is no member of group {group.group_id}")
    return member


def _held_since(member: ConsumerMember, topic_id: UUID | None, partition: int) -> int | None:
    if topic_id is None:
        return None
    for held in (member.current.assigned, member.current.pending):
        since = held.get(topic_id, {}).get(partition)
        if since is not None:
            return since
    return None
