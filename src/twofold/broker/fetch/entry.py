"""One partition of a fetch: what is wanted of it, and what was read."""

from typing import TYPE_CHECKING

from twofold.broker.codec.fetch import FetchRow
from twofold.broker.fetch.sessions import CachedPartition, PartitionKey
from twofold.broker.partitions.purgatory import Interest
from twofold.log.api import Bound
from twofold.wire.messages.fetch import FetchPartition

if TYPE_CHECKING:
    from twofold.broker.partitions.partition import Partition

NOTHING_NEW = FetchRow(-1)  # what was told before is still true


class Entry(CachedPartition):
    """One partition of a fetch or of a session, and its row once it is known.

    In a session it stays. A partition that was read to its end and whose row was told is `quiet`: it is looked at again
    when it has moved.
    """

    __slots__ = ("bound", "interest", "name", "partition", "quiet", "row", "seen")

    def __init__(self, key: PartitionKey, asked: FetchPartition) -> None:
        # Not by super(): every fetch makes one for each of its partitions.
        self.key = key
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1
        self.name: str | None = None  # of the topic, once it is known
        self.partition: Partition | None = None
        self.row: FetchRow | None = None
        self.seen = -1  # the partition's count of changes when the row was made
        self.bound: Bound | None = None  # up to which it was read, if that is all there was
        self.quiet = False
        self.interest: Interest | None = None  # where a session sits

    def ask(self, asked: FetchPartition) -> None:
        super().ask(asked)
        self.quiet = False

    def leave(self) -> None:
        if self.interest is not None:
            self.interest.partition.unwatch(self.interest)
            if self.interest.fetch is not None:
                self.interest.fetch.wake()  # it would hear of nothing any more
            self.interest = None

    def wait(self, partition: "Partition", bound: Bound, *, standing: bool) -> Interest:
        """Its wish for more than the row has."""
        assert self.row is not None
        room = self.asked.partition_max_bytes - len(self.row.records)
        interest = self.interest
        if interest is not None and interest.partition is partition and interest.bound is bound:
            interest.room = room
            return interest
        self.leave()
        interest = Interest(partition, bound, room, standing=standing)
        if standing:
            self.interest = interest
            partition.watch(interest)
        return interest

    def settle(self) -> None:
        """Its row was told."""
        self.quiet = self.bound is not None
        self.row = NOTHING_NEW if self.quiet else None

    def drop(self) -> None:
        """Its row is not told."""
        if not self.quiet:
            self.row = None
