"""What can go wrong on this side of the wire. Every class extends the protocol's own error of the same nature, so that
one `except KafkaError` sees all and `retriable` means the same everywhere.

    NetworkException
     +- BrokerUnreachable    no connection could be made
     +- ConnectionLost       a connection ended under a request: whether the broker acted on it is unknown
    RequestTimedOut
     +- NoAnswer             one request was not answered in time
     +- GaveUp               all attempts together took too long
     +- DeliveryTimeout      a record was not acknowledged in time
    UnsupportedVersion
     +- UnsupportedByBroker  the broker lacks the API, or every version of it that we speak
    InvalidTxnState
     +- IllegalTransactionCall   the producer's state does not allow the call; nothing was sent and nothing changed
     +- EndedMeanwhile       the transaction that was shown is not the one that is open: an administrator ended nothing
    TransactionAbortable
     +- TransactionFailed    the transaction is lost: abort it, then the producer can go on
    ProducerFenced
     +- Fenced               another producer took the transactional id over: close this one
    FatalError
     +- ProducerFailed       the producer cannot go on for another reason: close it
    KafkaError
     +- TransactionAborted   a record was dropped because its transaction was aborted
     +- InDoubt              a prepared transaction was left without a decision; `state` is what to decide about
     +- PreparedAborted      a transaction that is to be committed was aborted after it had been prepared
     +- BufferExhausted      the producer's buffer stayed full
     +- ClientClosed         the client was closed
     +- NoOffset             a partition has no position and no rule to find one
"""

from typing import TYPE_CHECKING

from twofold.wire.errors import (
    FatalError,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from twofold.client.prepared import PreparedTxnState
    from twofold.client.transaction_states import Call, State


class _Plain:
    """A message that says everything needs no protocol name in front of it."""

    message: str

    def __str__(self) -> str:
        return self.message


class BrokerUnreachable(_Plain, NetworkException):
    pass


class ConnectionLost(_Plain, NetworkException):
    pass


class NoAnswer(_Plain, RequestTimedOut):
    pass


class GaveUp(_Plain, RequestTimedOut):
    """`last` is the error of the last attempt, when there was one."""

    # The caller's own time is over: trying again is not this layer's decision any more.
    retriable = False

    def __init__(self, message: str = "", last: BaseException | None = None) -> None:
        super().__init__(message)
        self.last = last


class DeliveryTimeout(_Plain, RequestTimedOut):
    retriable = False


class UnsupportedByBroker(_Plain, UnsupportedVersion):
    pass


class BufferExhausted(_Plain, KafkaError):
    name = "BUFFER_EXHAUSTED"


class ClientClosed(_Plain, KafkaError):
    name = "CLIENT_CLOSED"


class NoOffset(_Plain, KafkaError):
    name = "NO_OFFSET"


class IllegalTransactionCall(_Plain, InvalidTxnState):
    # The protocol's error of this name ends a producer; a call that was never sent does not.
    fatal = False

    def __init__(self, message: str, call: "Call | None" = None, state: "State | None" = None) -> None:
        super().__init__(message)
        self.call = call
        self.state = state


class EndedMeanwhile(_Plain, InvalidTxnState):
    pass


class TransactionFailed(_Plain, TransactionAbortable):
    pass


class Fenced(_Plain, ProducerFenced):
    pass


class ProducerFailed(_Plain, FatalError):
    name = "PRODUCER_FAILED"


class TransactionAborted(_Plain, KafkaError):
    name = "TRANSACTION_ABORTED"


class InDoubt(_Plain, KafkaError):
    """The cause is what left the block. Nothing was sent: whoever knows the decision calls `complete_transaction`."""

    name = "IN_DOUBT"

    def __init__(self, state: "PreparedTxnState", message: str = "") -> None:
        super().__init__(
            message
            or f"transaction {state} is prepared and was left without a decision: find out what the other system did, "
            "then call complete_transaction() on this producer, or on another after "
            "init_transactions(keep_prepared_txn=True)"
        )
        self.state = state


class PreparedAborted(_Plain, KafkaError):
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
