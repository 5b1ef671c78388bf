"""Which member of a group of the new protocol gets which partitions: `uniform` and `range`, with Apache Kafka's
results.

The broker assigns here, not a member as in a classic group. Both are pure functions of the group, and both ignore
racks, as those of Apache Kafka do. `orders` has the orders in which Apache Kafka goes through members, topics and
partitions.
"""

from collections.abc import Callable, Mapping

from twofold.coordinator.group.assignors.model import Assignment, GroupSpec, MemberSpec
from twofold.coordinator.group.assignors.range import assign_ranges
from twofold.coordinator.group.assignors.uniform import assign_uniformly

__all__ = ["ASSIGNORS", "Assignment", "GroupSpec", "MemberSpec"]

ASSIGNORS: Mapping[str, Callable[[GroupSpec], Assignment]] = {"uniform": assign_uniformly, "range": assign_ranges}
