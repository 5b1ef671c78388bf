"""One TCP connection that sends frames, good or broken, and tells what came back."""

import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Self

from oracle.wire import decode_response, encode_request

CLOSED = "closed"
"""The server ended the connection without an answer."""
SILENT = "no answer"
"""The server neither answered nor closed in the time given."""


class WireClosed(Exception):
    """The server closed the connection where an answer was due."""


class Connection:
    """A raw connection; requests go out one at a time unless `send` and `receive` are used on their own."""

    asked: ClassVar[Counter[tuple[str, int]]] = Counter()
    """How often each API was asked in each version, over all connections of the process."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 15.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        """Send one request and decode its answer."""
        correlation_id = self.send(api, version, body)
        payload = self.receive()
        if payload is None:
            raise WireClosed(f"{api} v{version}: closed instead of an answer")
        answered, answer = decode_response(api, version, payload)
        assert answered == correlation_id, f"{api} v{version}: correlation id {answered}, sent {correlation_id}"
        return answer

    def outcome(self, api: str, version: int, body: dict[str, Any], *, patience_s: float | None = None) -> Any:
        """The answer as a dict, or CLOSED, or SILENT."""
        correlation_id = self.send(api, version, body)
        payload = self.receive_or_silence(patience_s)
        if isinstance(payload, str):
            return SILENT
        if payload is None:
            return CLOSED
        answered, answer = decode_response(api, version, payload)
        assert answered == correlation_id, f"{api} v{version}: correlation id {answered}, sent {correlation_id}"
        return answer

    def send(self, api: str, version: int, body: dict[str, Any], *, client_id: str | None = "differential") -> int:
        self._correlation_id += 1
        self.asked[api, version] += 1
        self.send_raw(encode_request(api, version, body, correlation_id=self._correlation_id, client_id=client_id))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def await_read(self, patience_s: float = 15.0) -> None:
        """Until the server's process has taken all that was sent. A server that handles requests one after the other
        handles these before anything that another connection sends from now on."""
        deadline = time.monotonic() + patience_s
        while self._unread():
            assert time.monotonic() < deadline, f"the server has not read what was sent {patience_s} s ago"
            time.sleep(0.001)

    def _unread(self) -> bool:
        """Whether bytes of this connection wait in a queue of the kernel, on our side or on the server's."""
        here, there = self._socket.getsockname()[1], self._socket.getpeername()[1]
        return any(
            (port, peer, sending) == (here, there, True) or (port, peer, receiving) == (there, here, True)
            for port, peer, sending, receiving in _queues(here, there)
        )

    def set_timeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> bytes | None:
        """The next frame without its length, or None when the server closed the connection."""
        head = self._read(4)
        if head is None:
            return None
        (size,) = struct.unpack(">i", head)
        return self._read(size)

    def receive_or_silence(self, patience_s: float | None) -> bytes | str | None:
        if patience_s is None:
            return self.receive()
        before = self._socket.gettimeout()
        self._socket.settimeout(patience_s)
        try:
            return self.receive()
        except TimeoutError:
            return SILENT
        finally:
            self._socket.settimeout(before)

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)


def _queues(*ports: int) -> list[tuple[int, int, bool, bool]]:
    """Of the TCP sockets of this machine between these ports: its port, its peer's, and whether bytes wait to leave and
    to be read. There may be thousands of other sockets."""
    rows = []
    named = [f":{port:04X} " for port in ports]
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            if not all(name in line for name in named):
                continue
            _, local, remote, _, queues, *_ = line.split()
            port, peer = (int(address.rpartition(":")[2], 16) for address in (local, remote))
            sending, receiving = (int(size, 16) > 0 for size in queues.split(":"))
            rows.append((port, peer, sending, receiving))
    return rows
