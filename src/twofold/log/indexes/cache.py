"""Which sealed segments have their indexes in memory: a bounded LRU over all logs."""

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.log.segments.segment import Segment

DEFAULT_BYTES = 64 << 20
_OVERHEAD_BYTES = 1024  # the objects around the arrays


class IndexCache:
    __slots__ = ("_capacity", "_segments", "_bytes")

    def __init__(self, capacity_bytes: int = DEFAULT_BYTES) -> None:
        self._capacity = capacity_bytes
        self._segments: OrderedDict[Segment, int] = OrderedDict()
        self._bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def touch(self, segment: "Segment") -> None:
        """Called when a sealed segment's indexes were read or used; drops those that were not used for longest."""
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        self._segments[segment] = size = segment.memory_bytes + _OVERHEAD_BYTES
        self._bytes += size
        while self._bytes > self._capacity and len(self._segments) > 1:
            victim, size = self._segments.popitem(last=False)
            self._bytes -= size
            victim.unload()

    def forget(self, segment: "Segment") -> None:
        """The segment is gone, or it is the active one again, whose indexes always stay in memory."""
        self._bytes -= self._segments.pop(segment, 0)
