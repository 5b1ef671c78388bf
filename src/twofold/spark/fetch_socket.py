"""A blocking connection for the fetches of one task: from the socket into the frame, without a loop in between.

A task asks one broker for one thing at a time and has nothing else to do while it waits, and what it reads is large:
the way through the event loop of another thread would copy every byte twice more. Whatever goes wrong here is an
OSError, and the caller asks again in the ordinary way, which knows how to find leaders and when to give up.
"""

import socket
import struct
from typing import Any, NamedTuple

from twofold.connections.connection import MAX_FRAME_BYTES, Address, ConnectionLimits
from twofold.connections.security import PLAINTEXT, ConnectionSecurity
from twofold.spark.blocking_streams import BlockingSession, open_stream
from twofold.wire.apis import KEYS
from twofold.wire.codec import Undecodable, decode_response, encode_request
from twofold.wire.messages.fetch import FetchRequest, FetchResponse

FETCH = KEYS["Fetch"]
_SIZE = struct.Struct(">i")
LONGEST_WAIT_MS = 1000  # that a broker is asked to wait for records before it answers
IS_SUPPORTED = hasattr(socket, "MSG_WAITALL") and hasattr(socket, "SO_RCVTIMEO")


class Route(NamedTuple):
    """Where to, and which version is spoken there."""

    address: Address
    version: int


class FetchSocket:
    def __init__(self, route: Route, limits: ConnectionLimits, security: ConnectionSecurity = PLAINTEXT) -> None:
        if not IS_SUPPORTED:
            raise OSError("this system has no sockets that wait for all that is asked for")
        self.route = route
        self.in_flight = False
        self._client_id = limits.client_id
        self._correlation_id = 0
        timeout_s = (int(limits.request_timeout_ms) + LONGEST_WAIT_MS) / 1000
        self._stream = open_stream(route.address, limits.connect_timeout_ms / 1000, timeout_s, security)
        try:
            self._session = BlockingSession(route.address, security, self._exchange)
        except BaseException:
            self._stream.close()
            raise

    def ask(self, request: FetchRequest) -> None:
        self._session.renew()
        self._send(request, FETCH, self.route.version)

    def answer(self) -> FetchResponse:
        found: FetchResponse = self._receive(FETCH, self.route.version)
        return found

    def _exchange(self, request: Any, api_key: int, version: int) -> Any:
        self._send(request, api_key, version)
        return self._receive(api_key, version)

    def _send(self, request: Any, api_key: int, version: int) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self.in_flight = True
        self._stream.send(encode_request(request, api_key, version, self._correlation_id, self._client_id))

    def _receive(self, api_key: int, version: int) -> Any:
        (size,) = _SIZE.unpack(self._all_of(_SIZE.size))
        if not 0 < size <= MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {size} bytes: {self.route.address} does not speak Kafka")
        frame = self._all_of(size)
        try:
            correlation_id, response = decode_response(api_key, version, frame)
        except Undecodable as error:
            raise ConnectionError(f"{self.route.address} answered with garbage: {error}") from error
        if correlation_id != self._correlation_id:
            raise ConnectionError(f"{self.route.address} answered what was not asked")
        self.in_flight = False
        return response

    def _all_of(self, size: int) -> bytes:
        data = self._stream.receive(size)
        if len(data) < size:
            raise ConnectionResetError(f"{self.route.address} closed the connection")
        return data

    def close(self) -> None:
        self._stream.close()
