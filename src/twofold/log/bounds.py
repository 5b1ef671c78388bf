"""How far a log reaches, and how far a reader may see.

1. Of an open log: log start <= last stable offset <= high watermark <= log end.
2. What the bounds say before the log is opened comes from the checkpoints of a clean shutdown.
"""

from twofold.log.api import Bound
from twofold.log.producers.table import ProducerTable


class LogBounds:
    __slots__ = ("cleaned_offset", "high_watermark", "last_stable_offset", "log_end_offset", "log_start_offset")

    def __init__(self, log_start_offset: int, log_end_offset: int, high_watermark: int, cleaned_offset: int) -> None:
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.last_stable_offset = high_watermark
        self.cleaned_offset = cleaned_offset  # compaction has been through the whole segments below it

    def of(self, bound: Bound) -> int:
        """The first offset that a reader with this bound may not see."""
        if bound is Bound.HIGH_WATERMARK:
            return self.high_watermark
        return self.log_end_offset if bound is Bound.LOG_END else self.last_stable_offset

    def clamped_high_watermark(self) -> int:
        """A checkpointed high watermark may lie outside of what is left of the log."""
        return max(min(self.high_watermark, self.log_end_offset), self.log_start_offset)

    def set_high_watermark(self, offset: int, producers: ProducerTable) -> None:
        self.high_watermark = offset
        if producers.advance_high_watermark(offset) >= offset:
            # Almost always: nothing below is open, and the log start is at most this offset.
            self.last_stable_offset = offset
        else:
            self.update_stable(producers)

    def update_stable(self, producers: ProducerTable) -> None:
        unstable = max(producers.first_unstable_offset(), self.log_start_offset)
        self.last_stable_offset = min(unstable, self.high_watermark)
