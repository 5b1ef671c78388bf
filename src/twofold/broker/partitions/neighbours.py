"""What a partition knows of the brokers beside this one, and where its changes of in-sync replicas go."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from twofold.replication.isr import IsrChange
from twofold.replication.leader import Brokers

if TYPE_CHECKING:
    from twofold.broker.partitions.partition import Partition


class Neighbours:
    """One for all partitions of a broker."""

    __slots__ = ("broker", "isr_expands", "isr_shrinks", "lag_ms", "node_id", "now_ms", "propose")

    def __init__(self, node_id: int, broker: Brokers, now_ms: Callable[[], int], lag_ms: Callable[[], int]) -> None:
        """`now_ms` counts the time in which this broker could listen: a leader that wakes up has heard no follower, and
        none is behind because of that. `lag_ms` is asked at every use: replica.lag.time.max.ms may change."""
        self.node_id = node_id
        self.broker = broker
        self.now_ms = now_ms
        self.lag_ms = lag_ms
        self.isr_expands = self.isr_shrinks = 0  # for metrics
        self.propose: Callable[[Partition, IsrChange], None] = _to_nobody


def _to_nobody(partition: "Partition", change: IsrChange) -> None:
    """Until there is something that asks the controller: the change stays pending."""
