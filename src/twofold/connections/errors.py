"""Why a broker did not answer. Each class extends the protocol's own error of the same nature.

NetworkException
 +- BrokerUnreachable    no connection could be made
 +- ConnectionLost       a connection ended under a request: whether the broker acted on it is unknown
RequestTimedOut
 +- NoAnswer             one request was not answered in time
 +- GaveUp               all attempts together took too long
UnsupportedVersion
 +- UnsupportedByBroker  the broker lacks the API, or every version of it that we speak
SaslAuthenticationFailed
 +- LoginRefused         the broker does not accept this client's credentials, or the client not the broker's proof
SecurityFailed (fatal: another try fails in the same way)
 +- TlsRefused           one side does not accept the other's certificate, or they have no version or cipher in common
 +- ListenerMismatch     the listener does not speak the security_protocol of this client, or not its mechanism
 +- SecretUnreadable     a file or a variable that a security setting names cannot be read
KafkaError
 +- ClientClosed         the client was closed
"""

from twofold.wire.errors import (
    FatalError,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)


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


class LoginRefused(PlainMessage, SaslAuthenticationFailed):
    pass


class SecurityFailed(PlainMessage, FatalError):
    name = "SECURITY_FAILED"


class TlsRefused(SecurityFailed):
    name = "SSL_AUTHENTICATION_FAILED"


class ListenerMismatch(SecurityFailed):
    name = "LISTENER_MISMATCH"


class SecretUnreadable(SecurityFailed):
    name = "SECRET_UNREADABLE"
