"""The `range` assignor: each topic's partitions in order, divided into one stretch per subscriber.

Where the division leaves a rest, the first members get one partition more. Topics with the same number of partitions
and the same subscribers are divided alike, so that partition n of each has the same owner.
"""

from collections.abc import Mapping, Sequence

from twofold.client.consumer.assignors.model import (
    Assignments,
    RebalanceProtocol,
    SubscribedMember,
    in_order,
    partitions_of,
    sorted_assignments,
)
from twofold.types import TopicPartition


class RangeAssignor:
    name = "range"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, members: Sequence[SubscribedMember], partitions: Mapping[str, int]) -> Assignments:
        found: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        ordered = in_order(members)
        for topic in partitions:
            rows = list(partitions_of(topic, partitions))
            subscribers = [member.id for member in ordered if topic in member.topics]
            if not subscribers:
                continue
            share, rest = divmod(len(rows), len(subscribers))
            start = 0
            for place, member in enumerate(subscribers):
                end = start + share + (place < rest)
                found[member] += rows[start:end]
                start = end
        return sorted_assignments(found)

    def user_data(self, generation: int) -> bytes:
        return b""
