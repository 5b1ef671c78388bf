"""A network that delays, loses and repeats single requests: a TCP proxy that knows where a Kafka frame begins and ends.

Clients connect to it instead of the server (a server that advertises it makes stock clients do so). A rule catches the
next request of an API, of anybody or of the client that is named:

    hold          the request stays under way until it is released, and all that its connection sends after it; that
                  its client may be gone by then does not matter
    lose_answer   the server carries the request out, the client hears nothing and its connection breaks
    repeat        the server gets a copy of a request that was caught, on a connection of its own

And it can make a broker look older: what is in `hidden` is not among the APIs that ApiVersions lists.
"""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from oracle.processes import free_port
from oracle.wire import KEYS

PATIENCE_S = 20.0
UNKNOWN_KEY = 9_999


class Request(NamedTuple):
    """A request as it came, length included."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    frame: bytes


def parse(frame: bytes) -> Request:
    api_key, version, correlation_id, size = struct.unpack_from(">hhih", frame, 4)
    return Request(api_key, version, correlation_id, frame[14 : 14 + size].decode() if size >= 0 else None, frame)


class Caught:
    """One request that a rule caught, and what the server answered."""

    def __init__(self, api: str, client_id: str | None, where: Callable[[Request], bool] | None) -> None:
        self.api, self._key, self._client_id, self._where = api, KEYS[api], client_id, where
        self.request: Request | None = None
        self.answer: bytes | None = None
        self.arrived = threading.Event()
        self.answered = threading.Event()

    def matches(self, request: Request) -> bool:
        if request.api_key != self._key or self._client_id not in (None, request.client_id):
            return False
        return self._where is None or self._where(request)

    def wait(self, patience_s: float = PATIENCE_S) -> Request:
        """Until a request is caught."""
        assert self.arrived.wait(patience_s), f"no {self.api} came"
        assert self.request is not None
        return self.request

    def wait_answer(self, patience_s: float = PATIENCE_S) -> bytes:
        """The payload of the server's answer."""
        assert self.answered.wait(patience_s), f"{self.api} was not answered"
        assert self.answer is not None, f"the server closed the connection instead of answering {self.api}"
        return self.answer


class Held(Caught):
    def __init__(self, api: str, client_id: str | None, where: Callable[[Request], bool] | None) -> None:
        super().__init__(api, client_id, where)
        self.released = threading.Event()

    def release(self) -> bytes:
        """Let it go on to the server; returns the payload of the answer."""
        self.wait()
        self.released.set()
        return self.wait_answer()


class Lost(Caught):
    """A request whose answer never reaches the client."""


class Proxy:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, free_port()
        self._upstream: tuple[str, int] | None = None
        self._listener = socket.create_server((host, self.port))
        self.seen: Counter[tuple[str | None, int, int]] = Counter()
        """How many requests by client id, API key and version."""
        self.hidden: set[str] = set()
        """APIs by their names."""
        self._rules: list[Caught] = []
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def forward_to(self, host: str, port: int) -> None:
        self._upstream = (host, port)

    def hold(self, api: str, client_id: str | None = None, *, where: Callable[[Request], bool] | None = None) -> Held:
        rule = Held(api, client_id, where)
        with self._lock:
            self._rules.append(rule)
        return rule

    def lose_answer(
        self, api: str, client_id: str | None = None, *, where: Callable[[Request], bool] | None = None
    ) -> Lost:
        rule = Lost(api, client_id, where)
        with self._lock:
            self._rules.append(rule)
        return rule

    def repeat(self, caught: Caught) -> bytes:
        """The payload of the answer to a copy."""
        request = caught.wait()
        with self._connect() as server:
            server.settimeout(PATIENCE_S)
            server.sendall(request.frame)
            answer = read_frame(server)
        assert answer is not None, f"the server closed the connection instead of answering a repeated {caught.api}"
        return answer[4:]

    def break_connections(self) -> None:
        """All of now, as seen by clients; what is held stays under way."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.break_client()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links, self._links = self._links, []
            rules, self._rules = self._rules, []
        for rule in rules:
            if isinstance(rule, Held):
                rule.released.set()
        for link in links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> socket.socket:
        assert self._upstream is not None, "the proxy does not know its server"
        return socket.create_connection(self._upstream, timeout=PATIENCE_S)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                client.close()  # as if nobody listened
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            with self._lock:
                self._links = [known for known in self._links if not known.done]
                self._links.append(link)
            link.start()

    def take_rule(self, request: Request) -> Caught | None:
        """The rule for this request, which is used up."""
        with self._lock:
            self.seen[request.client_id, request.api_key, request.version] += 1
            for rule in self._rules:
                if rule.matches(request):
                    self._rules.remove(rule)
                    rule.request = request
                    return rule
        return None


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._waiting: dict[int, Caught] = {}
        self._api_versions: dict[int, int] = {}  # by correlation id: the version of an ApiVersions under way
        self._client_is_gone = False
        self.done = False

    def start(self) -> None:
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._answers, daemon=True).start()

    def _requests(self) -> None:
        with suppress(OSError):
            while (frame := read_frame(self._client)) is not None:
                request = parse(frame)
                if request.api_key == KEYS["ApiVersions"]:
                    self._api_versions[request.correlation_id] = request.version
                rule = self._proxy.take_rule(request)
                if rule is not None:
                    self._waiting[request.correlation_id] = rule
                    rule.arrived.set()
                    if isinstance(rule, Held):
                        rule.released.wait()
                self._server.sendall(frame)
        self._client_is_gone = True
        if not self._waiting:
            self.close()

    def _answers(self) -> None:
        with suppress(OSError):
            while (frame := read_frame(self._server)) is not None:
                (correlation_id,) = struct.unpack_from(">i", frame, 4)
                rule = self._waiting.pop(correlation_id, None)
                version = self._api_versions.pop(correlation_id, None)
                if version is not None:
                    frame = without(frame, version, {KEYS[name] for name in self._proxy.hidden})
                if rule is not None:
                    rule.answer = frame[4:]
                if isinstance(rule, Lost):
                    self.break_client()
                    rule.answered.set()
                    continue
                with suppress(OSError):
                    self._client.sendall(frame)
                if rule is not None:
                    rule.answered.set()
                if self._client_is_gone and not self._waiting:
                    break
        for rule in self._waiting.values():
            rule.answered.set()
        self.close()

    def break_client(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.done = True
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def without(frame: bytes, version: int, keys: set[int]) -> bytes:
    """An answer to ApiVersions in which some APIs have a number that nobody knows."""
    # Length, correlation id, error code; then the rows: as many as an int32 says, or in flexible versions a byte or two
    # with one more than that, and a byte of tags after each row.
    at, size = (14, 6) if version < 3 else (12 if frame[10] & 0x80 else 11, 7)
    if version < 3:
        (count,) = struct.unpack_from(">i", frame, 10)
    else:
        count = (frame[10] & 0x7F | (frame[11] << 7 if frame[10] & 0x80 else 0)) - 1
    changed = bytearray(frame)
    for place in range(at, at + count * size, size):
        if struct.unpack_from(">h", frame, place)[0] in keys:
            struct.pack_into(">h", changed, place, UNKNOWN_KEY)
    return bytes(changed)


def read_frame(connection: socket.socket) -> bytes | None:
    """The next frame with its length, or None at the end."""
    head = _read(connection, 4)
    if head is None:
        return None
    body = _read(connection, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
