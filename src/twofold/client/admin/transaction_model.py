"""Transactions as the administrator's client shows and ends them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.types import Ending, TopicPartition

NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a two-phase transaction."""


class TransactionState(StrEnum):
    """As coordinators name them; what a newer one calls otherwise is UNKNOWN."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"
    UNKNOWN = "Unknown"

    @classmethod
    def parse(cls, text: str) -> "TransactionState":
        return _STATES.get(text, cls.UNKNOWN)

    @property
    def is_open(self) -> bool:
        """Whether its records are, at least in one partition, neither committed nor aborted yet."""
        return self in _OPEN


_STATES = {state.value: state for state in TransactionState}
_OPEN = frozenset({TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: TransactionState


class EndedTwoPhase(NamedTuple):
    """A two-phase transaction that is decided: the state under which it was prepared, and how it ended."""

    state: PreparedTxnState
    ending: Ending

    @property
    def is_committed(self) -> bool:
        return self.ending is Ending.COMMITTED

    def __str__(self) -> str:
        return f"{self.state} {'committed' if self.is_committed else 'aborted'}"


class Decided(NamedTuple):
    """A transaction whose outcome the coordinator's record proves, by the producer id and epoch that wrote it."""

    producer_id: int
    producer_epoch: int
    commit: bool


class TransactionDescription(NamedTuple):
    """`start_ms` is -1 where none has begun. While markers are written, `partitions` are those that still lack one.
    Of a transaction that was kept the identity is that under which the records were written. `last_two_phase` is the
    last two-phase transaction of the id that was decided; None where there was none, and from Apache Kafka."""

    transactional_id: str
    coordinator_id: int
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: Collection[TopicPartition]
    last_two_phase: EndedTwoPhase | None = None
    decided: Decided | None = None
    """The transaction whose outcome the record shows; None where it shows none, and from Apache Kafka."""
    opened_by: str = ""
    """The principal that opened the transaction; "" where a client opened it that did not log in, and from Kafka."""

    def outcome_of(self, producer_id: int, producer_epoch: int) -> bool | None:
        """Whether the transaction with this identity was committed, or aborted; None where the record does not say."""
        ended = self.last_two_phase
        if ended is not None and ended.state.identity == ProducerIdentity(producer_id, producer_epoch):
            return ended.is_committed
        if self.decided is not None and self.decided[:2] == (producer_id, producer_epoch):
            return self.decided.commit
        return None

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def is_two_phase(self) -> bool:
        """Whether only an outside decision ends its transactions (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_still(self, shown: "TransactionDescription") -> bool:
        """Whether this is the transaction that was shown; where none was open, whether none is and the producer is the
        same. Under the first protocol transactions share an epoch: they differ by their start."""
        if self.identity != shown.identity or self.is_ongoing != shown.is_ongoing:
            return False
        return not shown.is_ongoing or self.start_ms == shown.start_ms

    @property
    def in_words(self) -> str:
        since = f", open since {moment(self.start_ms)}" if self.is_ongoing else ""
        return f"producer id {self.producer_id}, epoch {self.producer_epoch}, state {self.state.value}{since}"

    def beside(self, ours: ProducerIdentity, prepared: ProducerIdentity) -> str:
        """Our identity, or that of the transaction that we wanted to end, beside the coordinator's, in words."""
        if self.is_ongoing and self.identity in (ours, prepared):
            state = f"{self.producer_id}:{self.producer_epoch}"
            return (
                f"transaction {state} is still open, but another producer has taken the transaction over with "
                "init_transactions(keep_prepared_txn=True), so this one cannot end it any more (it has producer id "
                f"{ours.producer_id}, epoch {ours.epoch}). Let that producer end it, take it over again in the same "
                f"way, or end it with `twofold txn complete --transactional-id {self.transactional_id} --state "
                f"{state}` and the decision, --commit or --abort"
            )
        if self.identity == ours:
            return (
                f"the coordinator has the same producer id {ours.producer_id}, epoch {ours.epoch}, but in state "
                f"{self.state.value}, where there is nothing left to decide"
            )
        return (
            f"we have producer id {ours.producer_id}, epoch {ours.epoch}, the coordinator has producer id "
            f"{self.producer_id}, epoch {self.producer_epoch}, state {self.state}, timeout {self.timeout_ms} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionSpec:
    """What is to be aborted in one partition: what this producer has open there under this epoch; with a start offset,
    only if it begins there. The epoch of a coordinator is for brokers that check it (Apache Kafka), where it is read
    from the partition if it is not given, and is needed for brokers without DescribeProducers."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int | None = None
    coordinator_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.start_offset is not None and self.coordinator_epoch is not None:
            raise ValueError(
                f"start_offset={self.start_offset} and coordinator_epoch={self.coordinator_epoch}: give one of them"
            )
        if self.start_offset is not None and self.start_offset < 0:
            raise ValueError(f"start_offset={self.start_offset} is no offset")


def moment(timestamp_ms: int) -> str:
    """As people and ISO 8601 write it, in UTC and to the millisecond."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EndedTransaction(NamedTuple):
    """What was ended, as it was shown before. `is_exact` says that the broker has compared it at the write; otherwise
    it was read again immediately before, and another transaction may have come in between."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    start_ms: int
    partitions: Collection[TopicPartition]
    is_exact: bool


class AbortedInPartition(NamedTuple):
    """What was aborted in one partition alone; `start_offset` is None where the broker was too old to be asked."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int | None
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTransactionSpec:
    """The marker that one partition has lost: of the transaction that begins at an offset there, as it was decided."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    commit: bool


class FencedProducer(NamedTuple):
    """The identity that the id has after its producers were fenced."""

    producer_id: int
    producer_epoch: int
