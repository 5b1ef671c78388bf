"""What a partition log takes and gives."""

from enum import Enum
from typing import NamedTuple

from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import KafkaError


class Origin(Enum):
    """Where a batch comes from, and so how much of it is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    ADMINISTRATOR = "administrator"
    REPLICATION = "replication"
    RAFT = "raft"


class Bound(Enum):
    """How far a reader may see."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    LAST_STABLE = "last_stable"


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 where the topic keeps the producer's timestamps
    log_start_offset: int
    duplicate: bool = False
    flush_due: bool = False  # the append asked for `defer_flush` and flush.messages is reached: await sync()


class TransactionMarker(NamedTuple):
    """The end of a producer's transaction, as its coordinator, or an administrator, wants it written to a partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 2  # of the producer; from 2 on every transaction ends with a higher epoch
    by_hand: bool = False  # an administrator's (KIP-664): without a coordinator epoch


class MarkersResult(NamedTuple):
    outcomes: list[int | KafkaError]  # per marker, in order: its offset, or why it was refused
    appended: AppendResult | None  # of all markers that were written; None where none was


class AbortedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int


class ReadResult(NamedTuple):
    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] | None


class TimestampOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


class OpenTransaction(NamedTuple):
    first_offset: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    since_ms: int  # when its first batch was appended
    is_exact: bool  # False: the time is not known, the batch was appended at `since_ms` or earlier


class ProducerRow(NamedTuple):
    """A row of DescribeProducers; -1 stands for what is not known."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
