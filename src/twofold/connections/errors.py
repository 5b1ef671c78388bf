"""Why a broker did not answer. Each class extends the protocol's own error of the same nature.

NetworkException
 +- BrokerUnreachable    no connection could be made
 +- ConnectionLost       a connection ended under a request: whether the broker acted on it is unknown
RequestTimedOut
 +- NoAnswer             one request was not answered in time
 +- GaveUp               all attempts together took too long
UnsupportedVersion
 +- UnsupportedByBroker  the broker lacks the API, or every version of it that we speak
KafkaError
 +- ClientClosed         the client was closed
"""

from twofold.wire.errors import KafkaError, NetworkException, RequestTimedOut, UnsupportedVersion


class PlainMessage:
    """A message that says everything needs no protocol name in front of it."""

    message: str

    def __str__(self) -> str:
        return self.message


class BrokerUnreachable(PlainMessage, NetworkException):
    pass


class ConnectionLost(PlainMessage, NetworkException):
    pass


class NoAnswer(PlainMessage, RequestTimedOut):
    pass


class GaveUp(PlainMessage, RequestTimedOut):
    """`last` is the error of the last attempt, when there was one."""

    # The caller's own time is over: trying again is not this layer's decision any more.
    retriable = False

    def __init__(self, message: str = "", last: BaseException | None = None) -> None:
        super().__init__(message)
        self.last = last


class UnsupportedByBroker(PlainMessage, UnsupportedVersion):
    pass


class ClientClosed(PlainMessage, KafkaError):
    name = "CLIENT_CLOSED"
