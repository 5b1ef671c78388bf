"""One connection to one broker: framing, version negotiation, requests in flight.

1. Requests go out in the order of their `send` calls; a broker answers them in that order.
2. When the connection ends, for whatever reason, every request in flight fails with the same error, once.
3. An answer that is overdue ends the connection: those behind it would be as late, and a late answer must not meet a
   caller that gave up.
4. The number of requests in flight has a bound.
5. A connection is handed out when it is logged in. While it logs in again, requests wait in their order.
"""

import asyncio
import os
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from twofold.connections.authentication import LoginSession
from twofold.connections.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConnectionLost,
    ListenerMismatch,
    NoAnswer,
    UnsupportedByBroker,
)
from twofold.connections.security import PLAINTEXT, PROTOCOL, ConnectionSecurity
from twofold.connections.tls_errors import no_tls_connection, tls_alert
from twofold.connections.waiting import done_within
from twofold.runtime.api import Runtime, TimerHandle
from twofold.security.protocols import SecurityProtocol
from twofold.version import VERSION
from twofold.wire.apis import APIS
from twofold.wire.codec import Undecodable, decode_response, encode_request
from twofold.wire.errors import KafkaError, UnsupportedVersion, raise_for
from twofold.wire.foreign import LONGEST_GREETING, other_protocol
from twofold.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

API_VERSIONS = 18
SOFTWARE_NAME = "twofold"
# A response above this is not a response: the length prefix of something else was read. What TLS, HTTP and SSH begin
# with is above it.
MAX_FRAME_BYTES = 0x15 << 24
_HEADER = struct.Struct(">ihhih")  # of a request: size, key, version, correlation id, length of the client id
_UNSUPPORTED_VERSION = UnsupportedVersion.code.to_bytes(2, "big")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(bootstrap_servers: str) -> tuple[Address, ...]:
    """`host:port,[::1]:port` as addresses; ValueError names the part that is neither."""
    if not isinstance(bootstrap_servers, str):
        raise ValueError(f"bootstrap_servers={bootstrap_servers!r} is no text: write 'HOST:PORT,HOST:PORT'")
    addresses = []
    for part in map(str.strip, bootstrap_servers.split(",")):
        scheme, separator, rest = part.partition("://")
        if separator:
            raise ValueError(f"{part!r} in bootstrap_servers is an address with {scheme}://; write {rest.strip('/')!r}")
        host, separator, port = part.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} in bootstrap_servers is not HOST:PORT")
        addresses.append(Address(host, int(port)))
    return tuple(dict.fromkeys(addresses))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    client_id: str | None = "twofold"
    connect_timeout_ms: float = 10_000
    request_timeout_ms: float = 30_000
    max_in_flight: int = 32


@dataclass(slots=True)
class _InFlight:
    api_key: int
    version: int
    future: "asyncio.Future[Any]"
    timer: TimerHandle


class JoinedWrites:
    """Writes to TLS, where each piece would become a record of its own."""

    __slots__ = ("_transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.write = transport.write

    def writelines(self, pieces: "list[bytes | bytearray]") -> None:
        self._transport.write(b"".join(pieces))


class HeldWrites:
    """Takes what is written until `release`. There is no more than the bound of requests in flight allows."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[list[bytes | bytearray]] = []

    def write(self, data: bytes | bytearray) -> None:
        self._pieces.append([data])

    def writelines(self, pieces: "list[bytes | bytearray]") -> None:
        self._pieces.append(pieces)

    def release(self, output: "asyncio.Transport | JoinedWrites") -> None:
        for pieces in self._pieces:
            output.writelines(pieces)


class Connection(asyncio.Protocol):
    """Made by `open_connection`, which returns it ready for requests."""

    def __init__(
        self, runtime: Runtime, label: str, limits: ConnectionLimits, security: ConnectionSecurity = PLAINTEXT
    ) -> None:
        self.label = label
        self.limits = limits
        self._security = security
        self.versions: Mapping[int, tuple[int, int]] = {API_VERSIONS: (0, APIS[API_VERSIONS].max_version)}
        self.finalized_features: Mapping[str, int] = {}
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._output: asyncio.Transport | JoinedWrites | HeldWrites | None = None  # where requests are written to
        self._timer: TimerHandle | None = None
        self._error: KafkaError | None = None
        self._in_flight: dict[int, _InFlight] = {}
        self._next_correlation_id = 0
        self._slots: deque[asyncio.Future[None]] = deque()
        self._writable = True
        self._when_writable: list[Callable[[], None]] = []
        self._buffer = bytearray()
        self._is_negotiated = False
        self._first_id = 0  # of the first request after the connection was ready

    @property
    def closed(self) -> bool:
        return self._error is not None

    @property
    def error(self) -> KafkaError | None:
        """Why it has ended."""
        return self._error

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def check_writable(self, otherwise: Callable[[], None]) -> bool:
        """Whether the socket takes more; if not, `otherwise` is called when it does."""
        if not self._writable:
            self._when_writable.append(otherwise)
        return self._writable

    def supports(self, api_key: int, version: int = 0) -> bool:
        """Whether the broker serves that version or a later one that we speak too."""
        try:
            return self.version(api_key) >= version
        except UnsupportedByBroker:
            return False

    def version(self, api_key: int, *, at_most: int | None = None) -> int:
        """The highest version of an API that both sides speak."""
        api = APIS[api_key]
        highest = api.spoken_max if at_most is None else min(at_most, api.spoken_max)
        served = self.versions.get(api_key)
        if served is None:
            raise UnsupportedByBroker(f"{self.label} does not serve {api.name}")
        version = min(highest, served[1])
        if version < max(api.min_version, served[0]):
            raise UnsupportedByBroker(
                f"{self.label} serves {api.name} {served[0]} to {served[1]}, this client speaks "
                f"{api.min_version} to {highest}"
            )
        return version

    async def request(self, message: Any, api_key: int, *, version: int | None = None, timeout_ms: float = -1) -> Any:
        """Send when there is room for one more in flight, and return the answer."""
        while not self.closed and (len(self._in_flight) >= self.limits.max_in_flight or not self._writable):
            slot: asyncio.Future[None] = self._loop.create_future()
            self._slots.append(slot)
            try:
                await slot
            except asyncio.CancelledError:
                # The turn that this waiter was given, or would have got, goes to the next one.
                if slot.done() and not slot.cancelled():
                    self._offer_slot()
                raise
        return await self.send(message, api_key, version=version, timeout_ms=timeout_ms)

    def send(
        self, message: Any, api_key: int, *, version: int | None = None, timeout_ms: float = -1
    ) -> "asyncio.Future[Any]":
        """Write now; the future is the answer. The caller keeps the number in flight below the bound."""
        if version is None:
            version = self.version(api_key)
        output = self._open_output()
        correlation_id = self._take_correlation_id()
        frame = encode_request(message, api_key, version, correlation_id, self.limits.client_id)
        future = self._expect(correlation_id, api_key, version, timeout_ms)
        output.write(frame)
        return future

    def send_body(self, body: "list[bytes | bytearray]", api_key: int, version: int) -> "asyncio.Future[Any]":
        """As `send`, for a body of a flexible version that is encoded already, in pieces that are not copied. They must
        stay as they are until the answer is there or the connection has ended."""
        output = self._open_output()
        correlation_id = self._take_correlation_id()
        name = (self.limits.client_id or "").encode()
        id_length = -1 if self.limits.client_id is None else len(name)
        size = _HEADER.size - 4 + len(name) + 1 + sum(map(len, body))
        head = _HEADER.pack(size, api_key, version, correlation_id, id_length) + name + b"\0"
        future = self._expect(correlation_id, api_key, version, -1)
        output.writelines([head, *body])
        return future

    def send_past_hold(self, message: Any, api_key: int, version: int) -> "asyncio.Future[Any]":
        """Of the login itself: it passes those that wait for it, and the bound."""
        self._open_output()
        assert self._transport is not None
        correlation_id = self._take_correlation_id()
        frame = encode_request(message, api_key, version, correlation_id, self.limits.client_id)
        future = self._track(correlation_id, api_key, version, self.limits.request_timeout_ms)
        self._transport.write(frame)
        return future

    def hold(self) -> None:
        """Requests wait from now on, until `release`."""
        if self._error is None:
            self._output = HeldWrites()

    def release(self) -> None:
        held, self._output = self._output, self._direct_output()
        if isinstance(held, HeldWrites) and self._error is None:
            held.release(self._direct_output())

    def when_open_in(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` then, unless the connection has ended before."""
        if self._error is None:
            self._timer = self._runtime.timers.call_later(delay_s, callback)

    def _expect(self, correlation_id: int, api_key: int, version: int, timeout_ms: float) -> "asyncio.Future[Any]":
        if len(self._in_flight) >= self.limits.max_in_flight:
            raise RuntimeError(f"{self.limits.max_in_flight} requests are in flight to {self.label} already")
        return self._track(correlation_id, api_key, version, timeout_ms)

    def _track(self, correlation_id: int, api_key: int, version: int, timeout_ms: float) -> "asyncio.Future[Any]":
        if timeout_ms < 0:
            timeout_ms = self.limits.request_timeout_ms
        timer = self._runtime.timers.call_later(
            timeout_ms / 1000, lambda: self._on_overdue(api_key, version, timeout_ms)
        )
        future: asyncio.Future[Any] = self._loop.create_future()
        self._in_flight[correlation_id] = _InFlight(api_key, version, future, timer)
        return future

    def send_without_answer(self, message: Any, api_key: int, *, version: int | None = None) -> None:
        """For Produce with acks=0, the one request that a broker does not answer."""
        if version is None:
            version = self.version(api_key)
        output = self._open_output()
        output.write(encode_request(message, api_key, version, self._take_correlation_id(), self.limits.client_id))

    def close(self, error: KafkaError | None = None) -> None:
        """End the connection; what is in flight fails with `error`."""
        if self._error is not None:
            return
        self._error = error or ClientClosed(f"the connection to {self.label} was closed")
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        in_flight, self._in_flight = self._in_flight, {}
        for entry in in_flight.values():
            entry.timer.cancel()
            if not entry.future.done():
                entry.future.set_exception(self._error)
                # A caller that was cancelled meanwhile will never look.
                entry.future.exception()
        while self._slots:
            self._offer_slot()

    def _open_output(self) -> "asyncio.Transport | JoinedWrites | HeldWrites":
        if self._error is not None:
            raise self._error
        if self._output is None:
            raise RuntimeError(f"{self.label} is not connected yet")
        return self._output

    def _direct_output(self) -> "asyncio.Transport | JoinedWrites":
        assert self._transport is not None
        return JoinedWrites(self._transport) if self._security.protocol.uses_tls else self._transport

    def _take_correlation_id(self) -> int:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id

    def _offer_slot(self) -> None:
        while self._slots:
            slot = self._slots.popleft()
            if not slot.done():
                slot.set_result(None)
                return

    def _on_overdue(self, api_key: int, version: int, timeout_ms: float) -> None:
        self.close(
            NoAnswer(
                f"{self.label} did not answer {APIS[api_key].name} v{version} within {timeout_ms:g} ms "
                "(request_timeout_ms)"
            )
        )

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not extend asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._output = self._direct_output()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is not None:
            return
        if isinstance(exc, ssl.SSLError):
            self.close(tls_alert(self.label, self._security, exc))
            return
        reason = f": {describe_os_error(exc)}" if isinstance(exc, OSError) else ""
        self.close(ConnectionLost(f"{self.label} closed the connection{self._what_was_lost()}{reason}"))

    def _what_was_lost(self) -> str:
        count = len(self._in_flight)
        if not count:
            return ""
        protocol = self._security.protocol
        if not self._is_negotiated:
            more = "" if protocol.uses_tls else f" A listener with TLS ({PROTOCOL}=SSL or SASL_SSL) closes so, too"
            if protocol.uses_tls and not self._security.has_key:
                more = " Perhaps it asks for a certificate of the client (ssl.keystore.location)"
            return f" instead of answering the first request: is it a Kafka broker with a {protocol} listener?{more}"
        waiting = f" with {count} request{'' if count == 1 else 's'} in flight"
        if self._first_id + count == self._next_correlation_id:
            # So does a listener with SASL to a client that does not log in.
            return f"{waiting} and none answered: does this listener speak {PROTOCOL}={protocol}?"
        return waiting

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        callbacks, self._when_writable = self._when_writable, []
        for callback in callbacks:
            callback()
        self._offer_slot()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= 4:
            size = int.from_bytes(buffer[position : position + 4], "big")
            if size > MAX_FRAME_BYTES:
                spoken = other_protocol(bytes(buffer[position : position + LONGEST_GREETING]))
                what = f"it speaks {spoken}" if spoken else f"it sent a frame of {size} bytes"
                self.close(not_kafka(self.label, self._security, what))
                return
            if len(buffer) - position - 4 < size:
                break
            with memoryview(buffer) as view:
                frame = bytes(view[position + 4 : position + 4 + size])
            position += 4 + size
            self._on_frame(frame)
            if self._error is not None:
                return
        if position:
            del buffer[:position]

    def _on_frame(self, frame: bytes) -> None:
        entry = self._in_flight.pop(int.from_bytes(frame[:4], "big"), None) if len(frame) >= 4 else None
        if entry is None:
            self.close(ConnectionLost(f"{self.label} answered what was not asked"))
            return
        entry.timer.cancel()
        version = entry.version
        if entry.api_key == API_VERSIONS and frame[4:6] == _UNSUPPORTED_VERSION:
            # The one answer that comes in another version than asked for (KIP-511).
            version = 0
        try:
            _, response = decode_response(entry.api_key, version, frame)
        except Undecodable as error:
            lost = ConnectionLost(f"{self.label} answered {APIS[entry.api_key].name} v{version} with garbage: {error}")
            if not entry.future.done():
                entry.future.set_exception(lost)
            self.close(lost)
            return
        if not entry.future.done():
            entry.future.set_result(response)
        self._offer_slot()

    async def negotiate(self) -> None:
        """Learn which versions the broker serves, and log in."""
        version = APIS[API_VERSIONS].max_version
        response = await self._ask_versions(version)
        if response.error_code == UnsupportedVersion.code:
            highest = max((row.max_version for row in response.api_keys if row.api_key == API_VERSIONS), default=0)
            response = await self._ask_versions(min(highest, version))
        raise_for(response.error_code, f"{self.label} refused ApiVersions")
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        self.finalized_features = {row.name: row.max_version_level for row in response.finalized_features}
        if self._security.protocol.uses_sasl:
            await LoginSession(self._runtime, self, self._security).begin()
        self._is_negotiated = True
        self._first_id = self._next_correlation_id

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        message = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=VERSION)
        response: ApiVersionsResponse = await self.send(message, API_VERSIONS, version=version)
        return response


async def open_connection(
    runtime: Runtime,
    address: Address,
    limits: ConnectionLimits,
    *,
    security: ConnectionSecurity = PLAINTEXT,
    node_id: int | None = None,
    on_connected: Callable[[], None] | None = None,
) -> Connection:
    """Connect, negotiate and log in; BrokerUnreachable or another KafkaError when one of these fails.

    `on_connected` is called between the two.
    """
    label = str(address) if node_id is None else f"broker {node_id} ({address})"
    tls = None if security.is_plain else await runtime.blocking(security.tls_context)
    connecting = runtime.spawn(
        runtime.network.connect(
            lambda: Connection(runtime, label, limits, security), address.host, address.port, tls=tls
        ),
        name=f"connect {label}",
    )
    try:
        if not await done_within(runtime, connecting, limits.connect_timeout_ms / 1000):
            raise BrokerUnreachable(
                f"cannot connect to {label}{'' if tls is None else ' with TLS'} within "
                f"{limits.connect_timeout_ms:g} ms (socket_connection_setup_timeout_ms)"
            )
        _, connection = connecting.result()
    except OSError as error:
        why = None if tls is None else no_tls_connection(label, security, error)
        if why is not None:
            raise why from error
        raise BrokerUnreachable(f"cannot connect to {label}: {describe_os_error(error)}") from error
    except BaseException:
        # A caller that stops waiting must not leave a socket behind.
        connecting.add_done_callback(_close_unclaimed)
        connecting.cancel()
        raise
    assert isinstance(connection, Connection)
    if on_connected is not None:
        on_connected()
    try:
        await connection.negotiate()
    except BaseException:
        connection.close()
        raise
    return connection


def _close_unclaimed(connecting: "asyncio.Task[tuple[asyncio.Transport, asyncio.BaseProtocol]]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].abort()


def not_kafka(label: str, security: ConnectionSecurity, what: str) -> KafkaError:
    if security.protocol.uses_tls:
        return ConnectionLost(f"{label} does not speak Kafka inside of TLS: {what}")
    message = f"{label} does not speak Kafka in plain text: {what}"
    if not what.endswith(" TLS"):
        return ConnectionLost(message)
    others = [other for other in SecurityProtocol if other.uses_tls]
    return ListenerMismatch(f"{message}. This client has {PROTOCOL}={security.protocol}: set {' or '.join(others)}")


def describe_os_error(error: OSError) -> str:
    """The system's own words, without the addresses that event loops put around them."""
    if isinstance(error.errno, int) and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
