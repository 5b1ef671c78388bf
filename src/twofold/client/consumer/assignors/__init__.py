"""Which member of a group gets which partitions: `range`, `roundrobin` and `cooperative-sticky`."""

from twofold.client.consumer.assignors.cooperative_sticky import CooperativeStickyAssignor
from twofold.client.consumer.assignors.model import Assignments, Assignor, RebalanceProtocol, SubscribedMember
from twofold.client.consumer.assignors.range import RangeAssignor
from twofold.client.consumer.assignors.roundrobin import RoundRobinAssignor

__all__ = ["Assignments", "Assignor", "RebalanceProtocol", "SubscribedMember", "assignor_named"]

_ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor for assignor in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}
_JAVA_CLASSES = {f"org.apache.kafka.clients.consumer.{type(found).__name__}": found for found in _ASSIGNORS.values()}


def assignor_named(name: str) -> Assignor:
    """By its name, or by that of its class in Apache Kafka, as `partition.assignment.strategy` has it there."""
    found = _ASSIGNORS.get(name) or _JAVA_CLASSES.get(name)
    if found is None:
        raise ValueError(f"there is no assignor {name!r}: known are {', '.join((*_ASSIGNORS, *_JAVA_CLASSES))}")
    return found
