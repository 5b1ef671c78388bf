"""SASL on a connection that has negotiated its versions: the login, and the next one before its session is over.

1. A broker with `connections.max.reauth.ms`, or a token, gives a session an end. The client logs in again on the same
   connection when 85 to 95 % of that time are over, so that nothing is lost.
2. Between SaslHandshake and the last SaslAuthenticate nothing else may be sent: requests wait in the connection, in
   their order, and those that were sent before are answered before.
3. A refused login ends the connection, and every request that waits fails with the reason. It is never tried again by
   itself: a wrong password tried again and again locks accounts.
"""

from typing import TYPE_CHECKING

from twofold.connections.errors import ListenerMismatch, LoginRefused
from twofold.connections.security import MECHANISM, PROTOCOL, ConnectionSecurity
from twofold.security.sasl import SaslError
from twofold.wire.errors import (
    IllegalSaslState,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    raise_for,
)
from twofold.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from twofold.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from random import Random

    from twofold.connections.connection import Connection
    from twofold.runtime.api import Runtime

HANDSHAKE, AUTHENTICATE = 17, 36
HANDSHAKE_VERSION = 1  # tokens travel in SaslAuthenticate; with version 0 they would have no frame
FIRST_SHARE, SPREAD = 0.85, 0.1  # of a session's time, as Kafka's clients


async def log_in(runtime: "Runtime", connection: "Connection", security: ConnectionSecurity) -> int:
    """How long the session may last, in milliseconds; 0 where it has no end."""
    client = await runtime.blocking(security.sasl_client)
    if not connection.supports(HANDSHAKE, HANDSHAKE_VERSION):
        raise no_sasl(connection.label, security)
    handshake = SaslHandshakeRequest(mechanism=security.mechanism)
    shaken: SaslHandshakeResponse = await connection.send_past_hold(handshake, HANDSHAKE, HANDSHAKE_VERSION)
    check_handshake(connection.label, security, shaken)
    token: bytes | None = client.first()
    lifetime_ms = 0
    while token is not None:
        request = SaslAuthenticateRequest(auth_bytes=token)
        version = connection.version(AUTHENTICATE)
        answer: SaslAuthenticateResponse = await connection.send_past_hold(request, AUTHENTICATE, version)
        check_answer(connection.label, security, answer)
        lifetime_ms = answer.session_lifetime_ms
        try:
            token = await runtime.blocking(client.next, answer.auth_bytes)  # SCRAM's sum takes milliseconds, and more
        except SaslError as error:
            raise refused(connection.label, security, str(error)) from None
    return lifetime_ms


def check_handshake(label: str, security: ConnectionSecurity, answer: SaslHandshakeResponse) -> None:
    if answer.error_code == UnsupportedSaslMechanism.code:
        served = ", ".join(sorted(answer.mechanisms)) or "none"
        raise ListenerMismatch(
            f"{label} does not serve {MECHANISM}={security.mechanism} on this listener: it serves {served}"
        )
    if answer.error_code == IllegalSaslState.code:
        raise no_sasl(label, security)
    raise_for(answer.error_code, f"{label} refused the SASL handshake")


def check_answer(label: str, security: ConnectionSecurity, answer: SaslAuthenticateResponse) -> None:
    if answer.error_code == SaslAuthenticationFailed.code:
        raise refused(label, security, answer.error_message or "it gives no reason")
    raise_for(answer.error_code, f"{label} refused the login: {answer.error_message}")


def refused(label: str, security: ConnectionSecurity, reason: str) -> LoginRefused:
    return LoginRefused(f"{label} refused the login ({security.login}): {reason}")


def no_sasl(label: str, security: ConnectionSecurity) -> ListenerMismatch:
    other = "SSL" if security.protocol.uses_tls else "PLAINTEXT"
    return ListenerMismatch(
        f"{label} has no SASL on this listener, and this client has {PROTOCOL}={security.protocol}: set "
        f"{PROTOCOL}={other}, or name the port of another listener"
    )


class LoginSession:
    """The login of one connection, renewed until the connection ends."""

    def __init__(self, runtime: "Runtime", connection: "Connection", security: ConnectionSecurity) -> None:
        self._runtime = runtime
        self._connection = connection
        self._security = security

    async def begin(self) -> None:
        self._renew_after(await log_in(self._runtime, self._connection, self._security))

    def _renew_after(self, lifetime_ms: int) -> None:
        if lifetime_ms > 0:
            delay_s = renewal_delay_s(lifetime_ms, self._runtime.random)
            self._connection.when_open_in(delay_s, self._renew)

    def _renew(self) -> None:
        self._runtime.spawn(self._log_in_again(), name=f"re-authenticate {self._connection.label}")

    async def _log_in_again(self) -> None:
        connection = self._connection
        connection.hold()
        try:
            lifetime_ms = await log_in(self._runtime, connection, self._security)
        except KafkaError as error:
            connection.close(error)
            return
        connection.release()
        self._renew_after(lifetime_ms)


def renewal_delay_s(lifetime_ms: int, chance: "Random") -> float:
    """From the beginning of a session to the next login."""
    return lifetime_ms / 1000 * (FIRST_SHARE + SPREAD * chance.random())
