"""`leader-epoch-checkpoint`: at which offset each leader epoch began.

Epochs and start offsets both increase strictly. The file is version 0, the number of lines, then one line
`epoch start_offset` per epoch.
"""

from bisect import bisect_right
from itertools import pairwise

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
NO_EPOCH = -1
NO_OFFSET = -1
VERSION = 0


class CorruptCheckpoint(Exception):
    """A checkpoint file that is damaged."""


class EpochCache:
    __slots__ = ("latest", "_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or ()]
        self._starts = [start for _, start in entries or ()]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH  # asked at every append

    def adopt(self, other: "EpochCache") -> None:
        """Take over what another one holds, which is not used any more."""
        self._epochs, self._starts, self.latest = other._epochs, other._starts, other.latest

    def clear(self) -> None:
        self.adopt(EpochCache())

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begin `epoch` at `start_offset`; entries that contradict this, or that got no records, are dropped."""
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start_offset:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.latest = epoch
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) for OffsetForLeaderEpoch; (-1, -1) for an epoch that is not known yet."""
        if epoch == NO_EPOCH:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        at = bisect_right(self._epochs, epoch)
        if at == len(self._epochs):
            return NO_EPOCH, NO_OFFSET
        return (self._epochs[at - 1] if at else epoch), self._starts[at]

    def epoch_for(self, offset: int) -> int:
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else NO_EPOCH

    def truncate_from_end(self, offset: int) -> bool:
        """Forget epochs that begin at `offset` or later."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= offset:
            self._epochs.pop()
            self._starts.pop()
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        return len(self._starts) != before

    def truncate_from_start(self, offset: int) -> bool:
        """Forget epochs that end at `offset` or earlier; the one that holds it begins there now."""
        keep = bisect_right(self._starts, offset) - 1
        if keep < 0 or (keep == 0 and self._starts[0] == offset):
            return False
        del self._epochs[:keep], self._starts[:keep]
        self._starts[0] = offset
        return True

    def encode(self) -> bytes:
        lines = [str(VERSION), str(len(self._epochs)), *(f"{epoch} {start}" for epoch, start in self.entries())]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> "EpochCache":
        try:
            version, count, *lines = data.decode("ascii").splitlines()
            entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
            if int(version) != VERSION or int(count) != len(entries):
                raise ValueError(f"version {version}, {count} of {len(entries)} lines")
        except ValueError as error:
            raise CorruptCheckpoint(str(error)) from None
        increasing = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        if not increasing:
            raise CorruptCheckpoint("its epochs do not increase")
        return cls(entries)
