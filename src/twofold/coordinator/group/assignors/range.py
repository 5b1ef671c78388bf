"""`range`: each topic's partitions in order, divided into one stretch per subscriber.

Where the division leaves a rest, the first subscribers get one partition more. Static members come first, so that a
restart moves nothing. Topics with the same number of partitions and the same subscribers are divided alike. What the
members had before plays no part.
"""

from collections import defaultdict

from twofold.coordinator.group.assignors.model import Assignment, GroupSpec, MemberSpec
from twofold.types import TopicId


def assign_ranges(group: GroupSpec) -> Assignment:
    found: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in group.members}
    subscribers: dict[TopicId, list[str]] = defaultdict(list)
    for member in sorted(group.members.values(), key=_static_first):
        for topic in member.topics:
            subscribers[topic].append(member.member_id)
    for topic, members in subscribers.items():
        share, rest = divmod(group.partitions[topic], len(members))
        start = 0
        for place, member_id in enumerate(members):
            end = start + share + (place < rest)
            if start == end:
                break  # and the others get none either
            found[member_id][topic] = frozenset(range(start, end))
            start = end
    return found


def _static_first(member: MemberSpec) -> tuple[bool, bytes]:
    dynamic = member.instance_id is None
    return dynamic, _in_javas_order(member.member_id if member.instance_id is None else member.instance_id)


def _in_javas_order(text: str) -> bytes:
    """Java compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")
