"""What is known of a name that was decided under: a query and its batches, or a writeId. Pure.

1. A batch is known by its number and by a digest of its input: where it ends in every source. Only both together say
   that a batch which comes again is the one that was decided.
2. Digests are kept of as many batches as Spark keeps in a checkpoint by default. What is older cannot be told apart any
   more, and is not taken for the same.
3. What the version before decided has no digest. It is taken for the same once, and has one from then on.
4. Of every topic that a batch reads, its id is known: a topic that was deleted and made anew under its name has another
   one. A topic without an id was decided about by the version before, and is taken for the same once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Any

KEPT_DIGESTS = 100
"""spark.sql.streaming.minBatchesToRetain."""
UNKNOWN = ""
LONGEST_ENDS = 8_192
MOST_TOPICS = 500
"""More are not told apart when they are made anew: the register has to fit into a record."""


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
    """What a micro-batch reads: `ends` are its end offsets, a line for each source, where that is short. `topics` are
    names and ids of the topics in them; an id is empty where it is not known."""

    batch_id: int
    digest: str
    ends: str = ""
    topics: tuple[tuple[str, str], ...] = ()


class TopicStanding(Enum):
    """Of a topic, as a batch finds it."""

    SAME = 1
    ANEW = 2
    """It was deleted and made anew since the last decided batch."""
    BEGUN = 3
    """It was made anew before this batch, which comes again and began at its beginning."""


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """`since` is the batch that was the first to read it after it was made anew; -1 where it never was."""

    name: str
    id: str
    since: int = -1


@dataclass(frozen=True, slots=True)
class DecidedEntry:
    """`digests` are those of the batches up to `batch_id`, oldest first; `ends` are the end offsets of that batch."""

    name: str
    batch_id: int
    digests: tuple[str, ...] = ()
    purpose: Purpose = Purpose.UNKNOWN
    at_ms: int = 0
    ends: str = ""
    topics: tuple[KnownTopic, ...] = ()

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
        topics = self.topics if read is None else self._topics_after(read)
        return replace(self, batch_id=batch_id, digests=digests, at_ms=now_ms, ends=ends, topics=topics)

    def _topics_after(self, read: Input) -> tuple[KnownTopic, ...]:
        """A topic of which the batch read nothing keeps its id: only tasks that read compare it with what is there."""
        known = {topic.name: topic for topic in self.topics}
        unread = _same_topics(self.ends, read.ends)
        for name, found in read.topics:
            old = known.get(name)
            if old is None and found:
                known[name] = KnownTopic(name, found)
            elif old is not None and found not in ("", old.id) and name not in unread:
                known[name] = KnownTopic(name, found, read.batch_id)
        return tuple(known[name] for name, _ in read.topics if name in known)

    def standing(self, batch_id: int, topic: str, topic_id: str) -> TopicStanding:
        """Of a topic with that id, as the batch finds it. What was decided too long before says nothing."""
        known = next((one for one in self.topics if one.name == topic), None)
        if known is None or batch_id > self.batch_id + 1:
            return TopicStanding.SAME
        if known.id != topic_id:
            return TopicStanding.ANEW
        return TopicStanding.BEGUN if known.since == batch_id else TopicStanding.SAME

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

    def topic_rows(self) -> list[list[Any]]:
        """Beside the row, where builds that do not know topics leave them out."""
        return [[topic.name, topic.id, topic.since] for topic in self.topics]

    def with_topics(self, rows: Sequence[Sequence[Any]]) -> "DecidedEntry":
        known = tuple(KnownTopic(str(name), str(topic_id), int(since)) for name, topic_id, since in rows)
        return replace(self, topics=known)

    @classmethod
    def of(cls, row: Sequence[Any]) -> "DecidedEntry":
        if len(row) == 2:  # of the version before
            name, batch_id = row
            return cls(str(name), int(batch_id), (UNKNOWN,) if batch_id >= 0 else ())
        name, batch_id, purpose, at_ms, digests, ends = row
        kept = tuple(UNKNOWN if digest == "-" else digest for digest in digests.split())
        return cls(str(name), int(batch_id), kept, Purpose(purpose), int(at_ms), str(ends))


def _same_topics(before: str, after: str) -> set[str]:
    """Topics whose offsets did not change, in whatever source they are read."""
    same: set[str] = set()
    changed: set[str] = set()
    if not (before and after):
        return same
    for old, new in zip(before.splitlines(), after.splitlines(), strict=False):
        try:
            first, second = json.loads(old), json.loads(new)
            for name, offsets in second.items():
                (same if first.get(name) == offsets else changed).add(name)
        except (ValueError, AttributeError):
            continue  # no offsets of topics
    return same - changed
