"""Requests that wait for a log to move: long-polling fetches, produces until their records are safe, and deletions.

1. A parked request sits on its partitions and is touched only when one of these moves; no timer and no move of another
   partition costs it anything.
2. A move costs each fetch parked there a subtraction: what it still misses of min_bytes is counted down. No other
   partition is looked at, and nothing is read before it is answered.
3. A request is answered once: enough bytes, all safe, a partition taken away, the time up, the broker stopping, or the
   client gone, whichever comes first. Then it sits nowhere.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from twofold.log.api import Bound
from twofold.runtime.api import TimerHandle, Timers

if TYPE_CHECKING:
    from twofold.broker.partitions.partition import Partition

MAX_CHUNKS = 1024


class Unseen:
    """Sizes of what was appended beyond a bound, so that a move of the bound tells how many bytes came to light."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: deque[tuple[int, int]] = deque()  # end offset, bytes

    def appended(self, end_offset: int, size: int) -> None:
        chunks = self.chunks
        if len(chunks) >= MAX_CHUNKS:
            # Coarser, not wrong: these bytes count when the later of the two is in sight.
            size += chunks.pop()[1]
        chunks.append((end_offset, size))

    def reached(self, bound: int) -> int:
        """The bytes below `bound` that were not counted before."""
        chunks = self.chunks
        size = 0
        while chunks and chunks[0][0] <= bound:
            size += chunks.popleft()[1]
        return size

    def clear(self) -> None:
        self.chunks.clear()


class Interest:
    """A fetch's wish for more of one partition.

    A standing one belongs to a fetch session and sits on its partition also between the session's requests: to sit
    down and get up a thousand times a request is what costs most where a client reads a thousand partitions.
    """

    __slots__ = ("fetch", "partition", "bound", "room", "standing")

    def __init__(self, partition: "Partition", bound: Bound, room: int, *, standing: bool = False) -> None:
        self.fetch: DelayedFetch | None = None
        self.partition = partition
        self.bound = bound
        self.room = room  # of partition_max_bytes: more than this does not count towards min_bytes
        self.standing = standing

    def grew(self, size: int) -> None:
        counted = min(size, self.room)
        self.room -= counted
        if self.fetch is not None:
            self.fetch.count(counted)


class DelayedFetch:
    """Waits until `missing_bytes` more are visible."""

    __slots__ = ("_interests", "_missing_bytes", "_on_ready", "_purgatory", "_timer", "_woken")

    def __init__(
        self,
        purgatory: "Purgatory",
        interests: list[Interest],
        missing_bytes: int,
        timeout_s: float,
        on_ready: Callable[[], None],
    ) -> None:
        self._purgatory = purgatory
        self._interests = interests
        self._missing_bytes = missing_bytes
        self._on_ready = on_ready
        self._woken = False
        self._timer = purgatory.timers.call_later(timeout_s, self.wake)
        for interest in interests:
            if interest.fetch is not None:
                interest.fetch.wake()  # an earlier request of the session: its client has gone on
            interest.fetch = self
            if not interest.standing:
                interest.partition.watch(interest)

    def count(self, size: int) -> None:
        self._missing_bytes -= size
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Answer in the next turn of the loop: several appends of this turn may then be answered at once."""
        if not self._woken:
            self._woken = True
            self._leave()
            asyncio.get_running_loop().call_soon(self._on_ready)

    def cancel(self) -> None:
        """The client is gone."""
        if not self._woken:
            self._woken = True
            self._leave()

    def _leave(self) -> None:
        self._timer.cancel()
        self._purgatory.fetches.pop(self, None)
        for interest in self._interests:
            interest.fetch = None
            if not interest.standing:
                interest.partition.unwatch(interest)


class Until(Enum):
    """What ends the wait of a request that has changed a partition."""

    REPLICATED = "the high watermark has passed the offset"
    SYNCED = "the leader has it on disk"
    DELETED = "no replica that lives begins below the offset"


class DelayedProduce:
    """Waits until what was done to each partition is safe: appended, or deleted."""

    __slots__ = ("_done", "_on_done", "_registry", "_timer", "waiting")

    def __init__(
        self,
        purgatory: "Purgatory",
        waiting: Iterable[tuple["Partition", int]],
        timeout_s: float,
        on_done: "Callable[[DelayedProduce], None]",
        until: Until,
    ) -> None:
        self._registry = purgatory.deletions if until is Until.DELETED else purgatory.produces
        self._on_done = on_done
        self._done = False
        self.waiting: dict[Partition, int] = dict(waiting)  # partition -> the offset that is to be passed
        self._timer: TimerHandle = purgatory.timers.call_later(timeout_s, self.finish)
        for partition, offset in self.waiting.items():
            partition.wait(self, offset, until)

    def passed(self, partition: "Partition") -> None:
        self.waiting.pop(partition, None)
        if not self.waiting:
            self.finish()

    def finish(self) -> None:
        """Answer with what is known now; the partitions still in `waiting` did not make it."""
        if self._done:
            return
        self._done = True
        self._timer.cancel()
        self._registry.pop(self, None)
        for partition in self.waiting:
            partition.stop_waiting(self)
        self._on_done(self)


class Purgatory:
    """Everything of this broker that waits."""

    __slots__ = ("deletions", "fetches", "produces", "stopping", "timers")

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        # In order of arrival, which is the same in every run of a seed; that of a set is not.
        self.fetches: dict[DelayedFetch, None] = {}
        self.produces: dict[DelayedProduce, None] = {}
        self.deletions: dict[DelayedProduce, None] = {}
        self.stopping = False

    def park_fetch(
        self, interests: list[Interest], missing_bytes: int, timeout_s: float, on_ready: Callable[[], None]
    ) -> DelayedFetch:
        fetch = DelayedFetch(self, interests, missing_bytes, timeout_s, on_ready)
        self.fetches[fetch] = None
        return fetch

    def park_produce(
        self,
        waiting: Iterable[tuple["Partition", int]],
        timeout_s: float,
        on_done: Callable[[DelayedProduce], None],
        until: Until = Until.REPLICATED,
    ) -> DelayedProduce:
        produce = DelayedProduce(self, waiting, timeout_s, on_done, until)
        self.produces[produce] = None
        return produce

    def park_deletion(
        self, waiting: Iterable[tuple["Partition", int]], timeout_s: float, on_done: Callable[[DelayedProduce], None]
    ) -> DelayedProduce:
        """Until no replica has records below the offsets."""
        deletion = DelayedProduce(self, waiting, timeout_s, on_done, Until.DELETED)
        self.deletions[deletion] = None
        return deletion

    def answer_fetches(self) -> None:
        """The broker stops: no fetch waits for more data."""
        self.stopping = True
        for fetch in list(self.fetches):
            fetch.wake()
