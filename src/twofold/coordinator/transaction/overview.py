"""What DescribeTransactions and ListTransactions say.

1. A decided transaction is described with the partitions that still lack their marker, and an ended one with none.
2. A transaction is listed when it passes every kind of filter, and a kind of filter when it passes one of its values.
   Names of states are exact; unknown ones are given back, and no transaction has them.
3. A pattern is RE2 and matches the whole id. RE2 takes time in proportion to the id whatever the pattern, so no client
   can stop the broker with one. Where RE2 is not installed every pattern is refused: Python's `re` understands many of
   them otherwise, and takes for ever with some.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from twofold.coordinator.transaction.proofs import Pair, proven
from twofold.coordinator.transaction.records import Ended, TransactionMetadata
from twofold.coordinator.transaction.refusals import check_id
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    InvalidRegularExpression,
    TransactionalIdNotFound,
    UnsupportedVersion,
)

NO_DURATION = -1

STATES_BY_NAME: Mapping[str, State] = {state.wire_name: state for state in State}


class Description(NamedTuple):
    state: str
    timeout_ms: int
    start_ms: int  # -1: the id has had no transaction since its last InitProducerId
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    topics: dict[str, list[int]]
    last_two_phase: Ended | None = None
    decided: tuple[Pair, bool] | None = None
    """The transaction whose outcome the record proves, and whether it was committed."""
    opened_by: str = ""
    """The principal that opened the transaction; "" where none is open, or a client that did not log in opened it."""


class Listing(NamedTuple):
    transactional_id: str
    producer_id: ProducerId
    state: str


def describe(
    entry: TransactionMetadata | None, transactional_id: str, remaining: frozenset[TopicPartition] | None = None
) -> Description:
    """`remaining` are the partitions that wait for their marker, where markers are under way."""
    check_id(transactional_id)
    if entry is None:
        raise TransactionalIdNotFound(f"{transactional_id!r} is not known here: it never was, or it expired")
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(entry.partitions if remaining is None else remaining):
        topics.setdefault(topic, []).append(partition)
    return Description(
        entry.state.wire_name,
        entry.timeout_ms,
        entry.start_ms,
        entry.producer_id,
        entry.producer_epoch,
        topics,
        entry.last_two_phase,
        next(proven(entry), None),
        entry.opened_by,
    )


@dataclass(frozen=True, slots=True)
class Filter:
    states: frozenset[State] | None
    producer_ids: frozenset[int] | None
    duration_ms: int
    is_match: Callable[[str], bool] | None
    unknown_states: tuple[str, ...]

    @classmethod
    def of(
        cls,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int = NO_DURATION,
        pattern: str | None = None,
    ) -> "Filter":
        return cls(
            frozenset(STATES_BY_NAME[name] for name in states if name in STATES_BY_NAME) if states else None,
            frozenset(producer_ids) if producer_ids else None,
            duration_ms,
            _matcher(pattern) if pattern else None,
            tuple(dict.fromkeys(name for name in states if name not in STATES_BY_NAME)),
        )

    def passes(self, transactional_id: str, entry: TransactionMetadata, now_ms: int) -> bool:
        if self.states is not None and entry.state not in self.states:
            return False
        if self.producer_ids is not None and not self._has_producer(entry):
            return False
        # An id that has had no transaction began at -1, so it is older than any duration.
        if self.duration_ms >= 0 and now_ms - entry.start_ms <= self.duration_ms:
            return False
        return self.is_match is None or self.is_match(transactional_id)

    def _has_producer(self, entry: TransactionMetadata) -> bool:
        """Under the producer id that it has, or that of the transaction whose outcome it proves: an id that was given a
        new one at the end of its epochs is found by the old one, too."""
        wanted = self.producer_ids or ()
        return entry.producer_id in wanted or any(pair.producer_id in wanted for pair, _ in proven(entry))


def list_transactions(
    entries: Mapping[str, TransactionMetadata] | Iterable[tuple[str, TransactionMetadata]], wanted: Filter, now_ms: int
) -> list[Listing]:
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    passes = wanted.passes
    return [
        Listing(transactional_id, entry.producer_id, entry.state.wire_name)
        for transactional_id, entry in pairs
        if passes(transactional_id, entry, now_ms)
    ]


def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        import re2  # here, because few brokers are ever asked and every start would pay for it
    except ImportError as error:
        raise UnsupportedVersion(f"patterns need RE2, which cannot be imported here ({error})") from None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRegularExpression(f"{pattern!r} is no pattern of RE2: {_text(error)}") from None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
