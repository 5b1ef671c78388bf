"""The `roundrobin` assignor: all partitions of all topics in order, dealt out to the members in turn.

A member that does not subscribe to a partition's topic is passed over.
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


class RoundRobinAssignor:
    name = "roundrobin"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, members: Sequence[SubscribedMember], partitions: Mapping[str, int]) -> Assignments:
        found: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        ordered = in_order(members)
        topics = sorted({topic for member in members for topic in member.topics} & partitions.keys())
        turn = 0
        for topic in topics:
            for tp in partitions_of(topic, partitions):
                while topic not in ordered[turn].topics:
                    turn = (turn + 1) % len(ordered)
                found[ordered[turn].id].append(tp)
                turn = (turn + 1) % len(ordered)
        return sorted_assignments(found)

    def user_data(self, generation: int) -> bytes:
        return b""
