"""`/metrics` and the probes (`/healthz`, `/readyz`) over HTTP/1.1: enough of it for scrapers, orchestrators and people
with curl, and nothing that can hurt the broker.

1. GET and HEAD of /metrics are answered with the page (200), of a probe with what it finds (200 or 503), other paths
   404, other methods 405, what is no request 400, a head of more than 8 KiB 431, another version of HTTP 505, a page
   that could not be made 500, one that cannot be made before the broker has started or while it stops 503.
2. A request has no body: one that announces a body is answered and the connection closed.
3. One request of a connection is handled at a time; nothing more is read meanwhile.
4. Everything that a client can hold has an end: 10 s for a request to arrive, 60 s between requests, 30 s to take the
   answer, 16 connections. A client that comes when all are taken replaces the one that has been idle longest.
5. One page is made at a time: a client that asks meanwhile gets the same one. A probe is answered at once.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias, cast

from twofold.runtime.api import Listener, Runtime, TimerHandle

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_HEAD_BYTES = 8192
MAX_CONNECTIONS = 16
REQUEST_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/(\d)\.(\d)")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")

log = logging.getLogger(__name__)

Probe: TypeAlias = Callable[[], tuple[bool, str]]
"""Whether all is well, and a text that says so or says why not."""


class NotNow(Exception):
    """There is no page at this moment; the text says why."""


class BadRequest(Exception):
    """Answered with `status`; the connection is closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    keeps_alive: bool


def parse(head: bytes) -> Request:
    """A request's head, without the empty line that ends it."""
    try:
        lines = head.decode("ascii").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        raise BadRequest(400, "the request is not ASCII") from None
    matched = _REQUEST_LINE.fullmatch(lines[0])
    if matched is None:
        raise BadRequest(400, "the first line is not METHOD PATH HTTP/1.1")
    method, target, major, minor = matched.groups()
    if major != "1":
        raise BadRequest(505, f"HTTP/{major}.{minor} is not spoken here, HTTP/1.1 is")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        field = _HEADER.fullmatch(line)
        if field is None:
            raise BadRequest(400, "a header is not of the form NAME: VALUE")
        headers[field.group(1).lower()] = field.group(2).lower()
    if minor != "0" and "host" not in headers:
        raise BadRequest(400, "the Host header is missing")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    connection = {word.strip() for word in headers.get("connection", "").split(",")}
    keeps_alive = "close" not in connection and (minor != "0" or "keep-alive" in connection)
    return Request(method, _path_of(target), keeps_alive and not has_body)


def _path_of(target: str) -> str:
    if target.lower().startswith("http://"):
        target = "/" + target[7:].partition("/")[2]
    return target.partition("?")[0].partition("#")[0]


def encode(status: int, body: bytes, *, keeps_alive: bool, only_head: bool = False) -> bytes:
    head = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {len(body)}"]
    head += ["Allow: GET, HEAD"] * (status == 405)
    head.append(f"Connection: {'keep-alive' if keeps_alive else 'close'}")
    return "\r\n".join([*head, "", ""]).encode() + (b"" if only_head else body)


class MetricsServer:
    """Serves the page that `make_page` makes, and probes by their paths."""

    def __init__(
        self, runtime: Runtime, make_page: Callable[[], Awaitable[bytes]], probes: Mapping[str, Probe] | None = None
    ) -> None:
        self.runtime = runtime
        self.probes: Mapping[str, Probe] = probes or {}
        self.sessions: dict[Session, None] = {}  # in the order of their last answer
        self._make_page = make_page
        self._making: asyncio.Task[bytes] | None = None
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int) -> Listener:
        self._listener = await self.runtime.network.listen(lambda: Session(self), host, port)
        return self._listener

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for session in list(self.sessions):
            session.abort()
        if self._making is not None:
            self._making.cancel()

    async def page(self) -> bytes:
        if self._making is None or self._making.done():
            self._making = self.runtime.spawn(self._page(), name="metrics")
        return await asyncio.shield(self._making)

    async def _page(self) -> bytes:
        return await self._make_page()

    def admit(self, session: "Session") -> bool:
        if len(self.sessions) >= MAX_CONNECTIONS:
            waiting = next((other for other in self.sessions if not other.is_answering), None)
            if waiting is None:
                return False
            waiting.abort()
            self.sessions.pop(waiting, None)
        self.sessions[session] = None
        return True

    def has_answered(self, session: "Session") -> None:
        if self.sessions.pop(session, self) is None:
            self.sessions[session] = None


class Session(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: MetricsServer) -> None:
        self.is_answering = False
        self._server = server
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self._received = bytearray()
        self._timer: TimerHandle | None = None
        self._closes = False  # after this answer
        self._has_paused = False
        self._answer: asyncio.Task[None] | None = None

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # so that it says when the answer is taken
        if self._server.admit(self):
            self._wait(IDLE_TIMEOUT_S)
        else:
            self._closes = True
            self._send(encode(503, b"too many connections\n", keeps_alive=False))

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.sessions.pop(self, None)
        self._cancel_timer()
        if self._answer is not None:
            self._answer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closes:
            return
        if not self._received and not self.is_answering:
            self._wait(REQUEST_TIMEOUT_S)
        self._received += data
        if self.is_answering:
            self._transport.pause_reading()
        else:
            self._advance()

    def eof_received(self) -> bool:
        """A client that asked and closed its side is still answered."""
        self._closes = True
        return self.is_answering

    def pause_writing(self) -> None:
        self._has_paused = True

    def resume_writing(self) -> None:
        self._has_paused = False
        if self.is_answering and self._answer is None:
            self._answered()

    # --- a request ---

    def _advance(self) -> None:
        head = self._take_head()
        if head is None:
            return
        self.is_answering = True
        try:
            request = parse(head)
        except BadRequest as error:
            self._refuse(error)
            return
        if not request.keeps_alive:
            self._closes = True
        probe = self._server.probes.get(request.path)
        if probe is None and request.path != PATH:
            self._reply(404, f"{request.path} is not here: {', '.join((PATH, *self._server.probes))}\n", request)
        elif request.method not in ("GET", "HEAD"):
            self._reply(405, "GET and HEAD are known\n", request)
        elif probe is not None:
            is_well, text = probe()
            self._reply(200 if is_well else 503, text, request)
        else:
            self._wait(ANSWER_TIMEOUT_S)
            self._answer = self._server.runtime.spawn(self._reply_with_page(request), name="answer metrics")

    def _take_head(self) -> bytes | None:
        """The head of the next request if it is all there."""
        received = self._received
        while received.startswith((b"\r", b"\n")):  # an empty line before a request is to be overlooked
            del received[:1]
        limit = MAX_HEAD_BYTES + 4
        ends = [(at, len(end)) for end in (b"\r\n\r\n", b"\n\n") if (at := received.find(end, 0, limit)) >= 0]
        at, size = min(ends, default=(len(received), 0))
        if at > MAX_HEAD_BYTES:
            self._refuse(BadRequest(431, f"a request of more than {MAX_HEAD_BYTES} bytes"))
            return None
        if not ends:
            return None
        head = bytes(received[:at])
        del received[: at + size]
        return head

    async def _reply_with_page(self, request: Request) -> None:
        try:
            status, page = 200, await self._server.page()
        except NotNow as reason:
            status, page = 503, f"{reason}\n".encode()
        except Exception:
            log.exception("the metrics could not be read")
            status, page = 500, b"the metrics could not be read; the broker's log says why\n"
        self._answer = None
        if not self._transport.is_closing():
            self._send(encode(status, page, keeps_alive=not self._closes, only_head=request.method == "HEAD"))

    def _reply(self, status: int, text: str, request: Request) -> None:
        only_head = request.method == "HEAD"
        self._send(encode(status, text.encode(), keeps_alive=not self._closes, only_head=only_head))

    def _refuse(self, error: BadRequest) -> None:
        self.is_answering = True
        self._closes = True
        self._send(encode(error.status, f"{error}\n".encode(), keeps_alive=False))

    # --- the answer ---

    def _send(self, data: bytes) -> None:
        self.is_answering = True
        self._wait(ANSWER_TIMEOUT_S)
        self._transport.write(data)
        if not self._has_paused:
            self._answered()

    def _answered(self) -> None:
        self._cancel_timer()
        if self._closes:
            self._transport.close()
            return
        self.is_answering = False
        self._server.has_answered(self)
        self._wait(REQUEST_TIMEOUT_S if self._received else IDLE_TIMEOUT_S)
        self._transport.resume_reading()
        # In the next turn: requests that came in one piece must not become one deep stack of calls.
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._received and not self.is_answering and not self._transport.is_closing():
            self._advance()

    # --- ends ---

    def _wait(self, timeout_s: float) -> None:
        self._cancel_timer()
        self._timer = self._server.runtime.timers.call_later(timeout_s, self._timed_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer = None
        if self._received and not self.is_answering:
            self._refuse(BadRequest(408, f"the request was not complete after {REQUEST_TIMEOUT_S:g} s"))
        else:
            self.abort()

    def abort(self) -> None:
        self._closes = True
        self._transport.abort()
