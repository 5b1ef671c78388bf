"""A blocking connection for the fetches of one task: from the socket into the frame, without a loop in between.

A task asks one broker for one thing at a time and has nothing else to do while it waits, and what it reads is large:
the way through the event loop of another thread would copy every byte twice more. Whatever goes wrong here is an
OSError, and the caller asks again in the ordinary way, which knows how to find leaders and when to give up.
"""

import socket
import struct
from typing import NamedTuple

from twofold.connections.connection import MAX_FRAME_BYTES, Address, ConnectionLimits
from twofold.wire.apis import KEYS
from twofold.wire.codec import Undecodable, decode_response, encode_request
from twofold.wire.messages.fetch import FetchRequest, FetchResponse

FETCH = KEYS["Fetch"]
_TIME = struct.Struct("@ll")  # the C library's timeval
_SIZE = struct.Struct(">i")
LONGEST_WAIT_MS = 1000  # that a broker is asked to wait for records before it answers
IS_SUPPORTED = hasattr(socket, "MSG_WAITALL") and hasattr(socket, "SO_RCVTIMEO")


class Route(NamedTuple):
    """Where to, and which version is spoken there."""

    address: Address
    version: int


class FetchSocket:
    def __init__(self, route: Route, limits: ConnectionLimits) -> None:
        if not IS_SUPPORTED:
            raise OSError("this system has no sockets that wait for all that is asked for")
        self.route = route
        self.in_flight = False
        self._client_id = limits.client_id
        self._correlation_id = 0
        self._socket = socket.create_connection(route.address, limits.connect_timeout_ms / 1000)
        # Python's own timeouts would make it non-blocking, and then the kernel does not wait for the whole of a frame.
        self._socket.settimeout(None)
        seconds, millis = divmod(int(limits.request_timeout_ms) + LONGEST_WAIT_MS, 1000)
        timeout = _TIME.pack(seconds, millis * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: FetchRequest) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self.in_flight = True
        self._socket.sendall(encode_request(request, FETCH, self.route.version, self._correlation_id, self._client_id))

    def answer(self) -> FetchResponse:
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        if not 0 < size <= MAX_FRAME_BYTES:
            raise ConnectionError(f"a frame of {size} bytes: {self.route.address} does not speak Kafka")
        frame = self._receive(size)
        try:
            correlation_id, response = decode_response(FETCH, self.route.version, frame)
        except Undecodable as error:
            raise ConnectionError(f"{self.route.address} answered with garbage: {error}") from error
        if correlation_id != self._correlation_id:
            raise ConnectionError(f"{self.route.address} answered what was not asked")
        self.in_flight = False
        found: FetchResponse = response
        return found

    def _receive(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        while 0 < len(data) < size:  # a signal came in between
            more = self._socket.recv(size - len(data), socket.MSG_WAITALL)
            if not more:
                break
            data += more
        if len(data) < size:
            raise ConnectionResetError(f"{self.route.address} closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()
