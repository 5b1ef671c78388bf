"""What a blocking connection reads from and writes to: a socket as it is, or TLS over it; and the login on it.

1. A plain socket waits in the kernel for the whole of a frame. TLS decrypts piece by piece, so it waits in Python.
2. A session that a broker will end is renewed before a request, when 85 % of its time are over: nothing is on its way
   then.
3. Whatever goes wrong is an OSError; the ordinary way finds out and tells why.
"""

import socket
import ssl
import struct
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from twofold.connections.authentication import (
    AUTHENTICATE,
    HANDSHAKE,
    HANDSHAKE_VERSION,
    check_answer,
    check_handshake,
    renewal_delay_s,
)
from twofold.connections.connection import Address
from twofold.connections.security import ConnectionSecurity
from twofold.runtime.real import RealClock
from twofold.security.sasl import SaslError
from twofold.wire.errors import KafkaError
from twofold.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from twofold.wire.messages.sasl_handshake import SaslHandshakeRequest

_TIME = struct.Struct("@ll")  # the C library's timeval
# With tokens in frames and a lifetime in the answer; every broker with SASL that this client speaks to has it.
AUTHENTICATE_VERSION = 1

Ask = Callable[[Any, int, int], Any]


class Stream(Protocol):
    def send(self, data: bytes | bytearray) -> None: ...

    def receive(self, size: int) -> bytes:
        """Fewer bytes only where the other end has closed."""
        ...

    def close(self) -> None: ...


def open_stream(address: Address, connect_timeout_s: float, timeout_s: float, security: ConnectionSecurity) -> Stream:
    try:
        context = security.tls_context()
    except KafkaError as error:
        raise OSError(str(error)) from None
    plain = socket.create_connection(address, connect_timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return PlainStream(plain, timeout_s)
        return TlsStream(context.wrap_socket(plain, server_hostname=address.host), timeout_s)
    except BaseException:
        plain.close()
        raise


class PlainStream:
    def __init__(self, plain: socket.socket, timeout_s: float) -> None:
        self._socket = plain
        # Python's own timeouts would make it non-blocking, and then the kernel does not wait for the whole of a frame.
        plain.settimeout(None)
        timeout = _TIME.pack(int(timeout_s), int(timeout_s % 1 * 1_000_000))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def send(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        while 0 < len(data) < size:  # a signal came in between
            more = self._socket.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


class TlsStream:
    def __init__(self, secured: ssl.SSLSocket, timeout_s: float) -> None:
        self._socket = secured
        self._timeout_s = timeout_s
        secured.settimeout(timeout_s)

    def send(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        buffer = bytearray(size)
        position = 0
        with memoryview(buffer) as view:
            while position < size:
                count = self._socket.recv_into(view[position:])
                if not count:
                    break
                position += count
        return bytes(buffer) if position == size else bytes(buffer[:position])

    def close(self) -> None:
        self._socket.close()


class BlockingSession:
    """The login on a blocking connection; `ask` sends one request and returns its answer."""

    def __init__(self, address: Address, security: ConnectionSecurity, ask: Ask) -> None:
        self._label = str(address)
        self._security = security
        self._ask = ask
        self._clock = RealClock()
        self._renew_at: float | None = None
        if security.protocol.uses_sasl:
            self._log_in()

    def renew(self) -> None:
        """Call before a request, when nothing is on its way."""
        if self._renew_at is not None and self._clock.monotonic() >= self._renew_at:
            self._log_in()

    def _log_in(self) -> None:
        try:
            lifetime_ms = self._exchange()
        except (KafkaError, SaslError) as error:
            raise ConnectionError(f"no login at {self._label}: {error}") from None
        self._renew_at = None
        if lifetime_ms > 0:
            delay_s = renewal_delay_s(lifetime_ms, Random())
            self._renew_at = self._clock.monotonic() + delay_s

    def _exchange(self) -> int:
        security = self._security
        client = security.sasl_client()
        handshake = SaslHandshakeRequest(mechanism=security.mechanism)
        check_handshake(self._label, security, self._ask(handshake, HANDSHAKE, HANDSHAKE_VERSION))
        token: bytes | None = client.first()
        lifetime_ms = 0
        while token is not None:
            answer = self._ask(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE, AUTHENTICATE_VERSION)
            check_answer(self._label, security, answer)
            lifetime_ms = answer.session_lifetime_ms
            token = client.next(answer.auth_bytes)
        return lifetime_ms
