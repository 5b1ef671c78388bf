"""What can go wrong on this side of the wire. Every class extends the protocol's own error of the same nature, so that
one `except KafkaError` sees all and `retriable` means the same everywhere. `twofold.connections.errors` has those of a
single connection.

    RequestTimedOut
     +- DeliveryTimeout      a record was not acknowledged in time
    InvalidTxnState
     +- IllegalTransactionCall   the producer's state does not allow the call; nothing was sent and nothing changed
     +- EndedMeanwhile       the transaction that was shown is not the one that is open: an administrator ended nothing
    TransactionAbortable
     +- TransactionFailed    the transaction is lost: abort it, then the producer can go on
    ProducerFenced
     +- Fenced               another producer took the transactional id over: close this one
    FatalError
     +- ProducerFailed       the producer cannot go on for another reason: close it
    FencedInstanceId
     +- InstanceFenced       another consumer took the group_instance_id over: close this one
    OffsetOutOfRange
     +- LogTruncated         the log was cut below a position: what was read after `diverging_offset` is gone
    KafkaError
     +- CommitFailed         offsets were not committed: other members of the group have the partitions
     +- IllegalConsumerCall  subscribe and assign exclude each other, or the call needs one of them
     +- WokenUp              `wakeup` has ended a poll
     +- DeserializationFailed  a deserializer refused a record; the position stays at it
     +- TransactionAborted   a record was dropped because its transaction was aborted
     +- InDoubt              a prepared transaction was left without a decision; `state` is what to decide about
     +- PreparedAborted      a transaction that is to be committed was aborted after it had been prepared
     +- BufferExhausted      the producer's buffer stayed full
     +- NoOffset             a partition has no position and no rule to find one
"""

from typing import TYPE_CHECKING

from twofold.connections.errors import PlainMessage
from twofold.types import TopicPartition
from twofold.wire.errors import (
    FatalError,
    FencedInstanceId,
    InvalidTxnState,
    KafkaError,
    OffsetOutOfRange,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
)

if TYPE_CHECKING:
    from twofold.client.transactions.prepared import PreparedTxnState
    from twofold.client.transactions.states import Call, ManagerState


class DeliveryTimeout(PlainMessage, RequestTimedOut):
    retriable = False


class BufferExhausted(PlainMessage, KafkaError):
    name = "BUFFER_EXHAUSTED"


class NoOffset(PlainMessage, KafkaError):
    name = "NO_OFFSET"


class CommitFailed(PlainMessage, KafkaError):
    name = "COMMIT_FAILED"


class IllegalConsumerCall(PlainMessage, KafkaError):
    name = "ILLEGAL_CONSUMER_CALL"


class WokenUp(PlainMessage, KafkaError):
    name = "WOKEN_UP"


class InstanceFenced(PlainMessage, FencedInstanceId):
    fatal = True


class LogTruncated(PlainMessage, OffsetOutOfRange):
    """`diverging_offset` is the first offset at which the log differs from what was read; -1 where the leader does not
    know the leader epoch of the position any more."""

    def __init__(self, message: str, partition: TopicPartition, offset: int, diverging_offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.diverging_offset = diverging_offset


class DeserializationFailed(PlainMessage, KafkaError):
    """The cause is what the deserializer raised. `seek(error.partition, error.offset + 1)` passes over the record."""

    name = "DESERIALIZATION_FAILED"

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset


class IllegalTransactionCall(PlainMessage, InvalidTxnState):
    # The protocol's error of this name ends a producer; a call that was never sent does not.
    fatal = False

    def __init__(self, message: str, call: "Call | None" = None, state: "ManagerState | None" = None) -> None:
        super().__init__(message)
        self.call = call
        self.state = state


class EndedMeanwhile(PlainMessage, InvalidTxnState):
    pass


class TransactionFailed(PlainMessage, TransactionAbortable):
    pass


class Fenced(PlainMessage, ProducerFenced):
    pass


class ProducerFailed(PlainMessage, FatalError):
    name = "PRODUCER_FAILED"


class TransactionAborted(PlainMessage, KafkaError):
    name = "TRANSACTION_ABORTED"


class InDoubt(PlainMessage, KafkaError):
    """The cause is what left the block. Nothing was sent: the application that knows the decision calls
    `complete_transaction`."""

    name = "IN_DOUBT"

    def __init__(self, state: "PreparedTxnState", message: str = "") -> None:
        super().__init__(
            message
            or f"transaction {state} is prepared and was left without a decision: find out what the other system did, "
            "then call complete_transaction() on this producer, or on another after "
            "init_transactions(keep_prepared_txn=True)"
        )
        self.state = state


class PreparedAborted(PlainMessage, KafkaError):
    """`state` was prepared and can never be committed; `cause` says what has aborted it. The other system and the log
    disagree where that system has committed."""

    name = "PREPARED_ABORTED"

    def __init__(self, transactional_id: str, state: "PreparedTxnState", cause: str) -> None:
        super().__init__(
            f"transaction {state} of {transactional_id!r} was prepared, and it was aborted: {cause}. It cannot be "
            "committed any more: what belongs to it in the other system has no counterpart in the log"
        )
        self.state = state
        self.cause = cause
