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
    KafkaError
     +- BufferExhausted      the producer's buffer stayed full
     +- ClientClosed         the client was closed
     +- NoOffset             a partition has no position and no rule to find one
"""

from twofold.wire.errors import (
    KafkaError,
    NetworkException,
    RequestTimedOut,
    UnsupportedVersion,
)


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
