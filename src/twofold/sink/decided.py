"""What is known of a name that was decided under: a query and its batches, or a writeId. Pure.

1. A batch is known by its number and by a digest of its input: where it ends in every source. Only both together say
   that a batch which comes again is the one that was decided.
2. Digests are kept of as many batches as Spark keeps in a checkpoint by default. What is older cannot be told apart any
   more, and is not taken for the same.
3. What the version before decided has no digest. It is taken for the same once, and has one from then on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

KEPT_DIGESTS = 100
"""spark.sql.streaming.minBatchesToRetain."""
UNKNOWN = ""
LONGEST_ENDS = 8_192


class Purpose(StrEnum):
    """Of a name."""

    QUERY = "query"
    WRITE = "write"
    """A writeId."""
    ONCE = "once"
    """A batch without a writeId: nothing will ask for it again."""
    UNKNOWN = "?"
    """The version before did not say."""


@dataclass(frozen=True, slots=True)
class Input:
    """What a micro-batch reads: `ends` are its end offsets, a line for each source, where that is short."""

    batch_id: int
    digest: str
    ends: str = ""


@dataclass(frozen=True, slots=True)
class DecidedEntry:
    """`digests` are those of the batches up to `batch_id`, oldest first; `ends` are the end offsets of that batch."""

    name: str
    batch_id: int
    digests: tuple[str, ...] = ()
    purpose: Purpose = Purpose.UNKNOWN
    at_ms: int = 0
    ends: str = ""

    @property
    def is_remembered(self) -> bool:
        return self.purpose is not Purpose.ONCE

    @property
    def is_write(self) -> bool:
        """As far as that is known: the version before had one list for queries and writeIds."""
        return self.purpose is Purpose.WRITE or (self.purpose is Purpose.UNKNOWN and self.batch_id == 0)

    @property
    def oldest(self) -> int:
        """The first batch that has a place among the digests."""
        return self.batch_id - len(self.digests) + 1

    def digest(self, batch_id: int) -> str | None:
        """UNKNOWN where it was decided without one; None for a batch that was decided too long ago, or not at all."""
        return self.digests[batch_id - self.oldest] if self.oldest <= batch_id <= self.batch_id else None

    def advanced(self, batch_id: int, now_ms: int, read: Input | None) -> "DecidedEntry":
        """Numbers that were left out have no digest: the version before did not write down what was empty."""
        digest = UNKNOWN if read is None else read.digest
        between = (UNKNOWN,) * min(KEPT_DIGESTS, batch_id - self.batch_id - 1)
        digests = (*self.digests, *between, digest)[-KEPT_DIGESTS:]
        ends = "" if read is None else read.ends
        return replace(self, batch_id=batch_id, digests=digests, at_ms=now_ms, ends=ends)

    def without_last(self) -> "DecidedEntry":
        return replace(self, batch_id=self.batch_id - 1, digests=self.digests[:-1], ends="")

    def noted(self, read: Input) -> "DecidedEntry":
        """With the digest that the batch lacked."""
        digests = list(self.digests)
        digests[read.batch_id - self.oldest] = read.digest
        ends = read.ends if read.batch_id == self.batch_id else self.ends
        return replace(self, digests=tuple(digests), ends=ends)

    # Records

    def row(self) -> list[Any]:
        return [
            self.name,
            self.batch_id,
            self.purpose.value,
            self.at_ms,
            " ".join(d or "-" for d in self.digests),
            self.ends,
        ]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "DecidedEntry":
        if len(row) == 2:  # of the version before
            name, batch_id = row
            return cls(str(name), int(batch_id), (UNKNOWN,) if batch_id >= 0 else ())
        name, batch_id, purpose, at_ms, digests, ends = row
        kept = tuple(UNKNOWN if digest == "-" else digest for digest in digests.split())
        return cls(str(name), int(batch_id), kept, Purpose(purpose), int(at_ms), str(ends))
