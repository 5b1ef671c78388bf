"""What a server-side assignor takes and gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.types import TopicId

Target = Mapping[TopicId, frozenset[int]]
# An entry for each member, also for one that gets nothing. No set of partitions is empty. The target of a member whose
# partitions stay the same may be the very object that came in.
Assignment = Mapping[str, Target]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it: `topics` are those of its subscription that exist, `target` is its current
    one."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    target: Target


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`partitions` has the number of partitions of every topic that a member subscribes to. No partition is in two
    targets."""

    members: Mapping[str, MemberSpec]
    partitions: Mapping[TopicId, int]
    homogeneous: bool  # all members name the same topics, or all have the same pattern and no names
