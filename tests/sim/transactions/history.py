"""What the clients of a transactional run did and were told.

Every value names the transaction that wrote it, so that a checker can tell whose it is:

    w0/2.17|3|1|in-0@42      the fourth record of transaction 17 of the second instance of w0,
                             a copy at the first hand of what was at offset 42 of in-0
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sim.broker.watch import require
from twofold.types import TopicPartition

EPOCH_MAX = 32767
TABLE = "table"
"""A topic that is compacted."""


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Committed or not: the answer was lost, or whoever waited for it died."""


class Value(NamedTuple):
    label: str
    number: int
    hops: int = 0
    source: str = ""
    """Where the record that was copied is, as `at`."""

    def encode(self) -> bytes:
        return f"{self.label}|{self.number}|{self.hops}|{self.source}".encode()


def decode_value(data: bytes) -> Value:
    label, number, hops, source = data.decode().split("|")
    return Value(label, int(number), int(hops), source)


def at(tp: TopicPartition, offset: int) -> str:
    return f"{tp.topic}-{tp.partition}@{offset}"


@dataclass(eq=False)
class Write:
    topic_partition: TopicPartition
    value: bytes
    offset: int | None = None
    """Where it is, once that was acknowledged; -1 when the broker only said that it is there."""

    @property
    def key(self) -> bytes | None:
        """Only a topic that is compacted has some, and few."""
        return f"key{decode_value(self.value).number % 3}".encode() if self.topic_partition.topic == TABLE else None


@dataclass(eq=False)
class Txn:
    """One transaction of one instance of a transactional id."""

    label: str
    transactional_id: str
    instance: str
    number: int
    identity: tuple[int, int] = (-1, -1)
    is_tv2: bool = True
    began_s: float = 0.0
    commit_sent_s: float | None = None
    ended_s: float | None = None
    told: Outcome | None = None
    """What the broker said about the end, if it said anything that is final."""
    writes: list[Write] = field(default_factory=list)
    reads: list[tuple[TopicPartition, int, bytes]] = field(default_factory=list)
    """What it consumed to make its writes."""
    consumed_from: dict[TopicPartition, int] = field(default_factory=dict)
    """Where a copier was when it began, by what was committed for its group."""
    group: str = ""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Committed for the group as a part of it."""
    offsets_acknowledged_s: float | None = None

    @property
    def outcome(self) -> Outcome:
        if self.commit_sent_s is None:
            return Outcome.ABORTED
        return self.told or Outcome.UNKNOWN


class Polled(NamedTuple):
    """A record that a reader got, and what the answer that brought it said."""

    topic_partition: TopicPartition
    offset: int
    value: bytes
    time_s: float
    last_stable_offset: int
    high_watermark: int


@dataclass(eq=False)
class Reading:
    """Everything that one reader got, in its order."""

    name: str
    committed: bool
    polled: list[Polled] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)


class OffsetRead(NamedTuple):
    """A committed offset as somebody was told it; -1 for none."""

    group: str
    topic_partition: TopicPartition
    offset: int
    stable: bool
    asked_s: float
    told_s: float


@dataclass(eq=False)
class History:
    txns: list[Txn] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    """Who was given which producer id and epoch."""

    def by_label(self) -> dict[str, Txn]:
        return {txn.label: txn for txn in self.txns}

    def given(self, who: str, identity: tuple[int, int]) -> None:
        """Nobody else has it, and the epoch is none that is kept for the coordinator."""
        owner = self.identities.setdefault(identity, who)
        require(owner == who, f"producer id and epoch {identity} were given to {owner} and to {who}")
        require(identity[0] >= 0 and 0 <= identity[1] < EPOCH_MAX, f"{who} was given {identity}")
