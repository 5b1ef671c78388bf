"""Sockets: frames in, answers out, and a bound on everything that a client can make us hold.

1. Requests of one connection are handled in the order of their bytes and answered in that order. One is handled at a
   time, except that a Produce whose append is done may wait for its answer while the next Produce is handled.
2. A frame is received straight into its own buffer, and that is used again for another when nothing refers to it any
   more: fresh memory costs a page fault every 4 KB. Small frames are cut from a buffer that all connections share, so
   that an idle connection holds no buffer at all.
3. Reading stops while a connection has enough requests waiting, and handling stops while its answers are not read: a
   client that never reads costs one answer and the transport's high-water mark, no more. The more is held for such
   clients, the smaller `max_response_bytes` makes the next answers.
4. What is held for all connections together is bounded too: requests that are not handled yet by
   `queued.max.request.bytes`, answers that are not read by twice MAX_HELD_BYTES. Above that the server closes the
   connections that have gone longest without progress; connections that make progress are never closed.
5. A byte now and then is no activity: only whole requests and large pieces keep `connections.max.idle.ms` from passing.
6. A client that has to wait (quotas) has its answer, and then its connection is muted (`muting.py`).
7. Whatever ends a connection from our side leaves a log line that names the peer and, where there is one, the setting.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from twofold.broker.network.context import Answer, CloseConnection, Frame, Later, Peer
from twofold.broker.network.dispatch import Dispatcher, Request, Result
from twofold.broker.network.muting import Mute, Mutes
from twofold.broker.network.quiet import QuietLog
from twofold.runtime.api import Listener, Runtime, TimerHandle
from twofold.wire.foreign import LONGEST_GREETING, other_protocol

PRODUCE = b"\x00\x00"  # the API key, first in a frame
SHARED_BUFFER_BYTES = 256 * 1024
# A frame's buffers come with what arrives, so that a client pays for what it only claims to send: first a small one,
# then one that the requests of common clients fit into (1 MiB and a little). What is longer still comes in several of
# these and is joined at its end: to copy it into larger and larger ones would cost most where it never ends.
SMALL_BUFFER_BYTES = 64 * 1024
LARGE_BUFFER_BYTES = (1024 + 64) * 1024
LARGE_BUFFER_AFTER_BYTES = 16 * 1024  # a client that has sent so much of a large frame gets the large buffer at once
SPARE_BUFFERS = 8
WRITE_HIGH_WATER_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MIN_RESPONSE_BYTES = 64 * 1024
MAX_HELD_BYTES = 256 * 1024 * 1024
MAX_REQUEST_MEMORY = 512 * 1024 * 1024  # where queued.max.request.bytes is -1
SHED_TO = 0.9  # of a bound, once it was passed: to find the connections to close costs a walk over all of them
AT_WORK_FACTOR = 16  # what a large request that is being handled takes, in objects, by its bytes
MOST_AT_WORK_BYTES = 64 * 1024 * 1024  # because its entries are bounded (`wire/entries.py`)
ACTIVITY_MIN_BYTES = 4096  # what has to arrive at once to count as activity, unless it completes a request
REQUESTS_PER_TURN = 16
MAX_OVERLAPPED = 1000

_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The settings that concern sockets."""

    max_request_bytes: int = 104_857_600  # socket.request.max.bytes
    max_queued_requests: int = 500  # queued.max.requests, per connection
    max_queued_bytes: int = 4 * 1024 * 1024  # of one connection; then reading from it stops
    max_request_memory: int = MAX_REQUEST_MEMORY  # queued.max.request.bytes, of all connections
    max_connections: int = 2**31 - 1  # max.connections
    max_open_sockets: int = 2**31 - 1  # what the limit of open files leaves beside the files of the logs
    max_connections_per_ip: int = 2**31 - 1  # max.connections.per.ip
    max_idle_ms: int = 600_000  # connections.max.idle.ms; negative: for ever


class Server:
    """The listeners of one broker and their connections."""

    def __init__(
        self,
        runtime: Runtime,
        dispatcher: Dispatcher,
        options: ServerOptions | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`now` is the clock by which connections are idle; without it, the monotonic one."""
        self.runtime = runtime
        self.now = now or runtime.clock.monotonic
        self.dispatcher = dispatcher
        self.options = options or ServerOptions()
        self.quiet = QuietLog(log, runtime.clock)
        self.spare_buffers: list[bytearray] = []
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.connections: dict[ServerConnection, None] = {}  # in order: a set's would differ from run to run
        self.held_bytes = 0  # of answers, for clients that do not read them fast enough
        self.request_bytes = 0  # of requests that are not handled yet, whole or not
        self.mutes = Mutes(runtime)
        self.draining = False
        self.is_open = False
        self.is_cut = False  # by a test: no client can connect
        self._per_host: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self._sweep: TimerHandle | None = None
        self._all_gone: asyncio.Event = asyncio.Event()

    async def listen(self, host: str, port: int, name: str = "PLAINTEXT") -> Listener:
        listener = await self.runtime.network.listen(lambda: ServerConnection(self, name), host, port)
        self._listeners.append(listener)
        if self._sweep is None and self.options.max_idle_ms >= 0:
            self._schedule_sweep()
        return listener

    def open(self) -> None:
        """Begin to answer. Clients that connected before have waited, because a chosen port must be known before.

        A broker registers its port, and only a registered broker can lead.
        """
        self.is_open = True
        for connection in list(self.connections):
            connection.advance()

    async def stop(self, timeout_s: float, answer_early: Callable[[], None]) -> None:
        """Accept nothing more, answer what was asked (`answer_early` ends the long polls), then hang up."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.drain()
        answer_early()
        if self.connections:
            self._all_gone.clear()
            timer = self.runtime.timers.call_later(timeout_s, self._all_gone.set)
            await self._all_gone.wait()
            timer.cancel()
        for connection in list(self.connections):
            log.warning("closing %s although it is not done after %.1f s", connection.peer, timeout_s)
            connection.abort()

    def drop_all(self) -> int:
        """Close every connection at once, unanswered, and return how many there were."""
        dropped = list(self.connections)
        for connection in dropped:
            connection.abort()
        return len(dropped)

    def max_response_bytes(self) -> int:
        """How large an answer may be whose size is ours to choose."""
        return max(MIN_RESPONSE_BYTES, min(MAX_RESPONSE_BYTES, MAX_HELD_BYTES - self.held_bytes))

    def take_large_buffer(self) -> bytearray:
        while self.spare_buffers:
            buffer = self.spare_buffers.pop()
            try:
                # The one operation that tells whether something still looks into it: what is exported keeps its size.
                buffer.append(buffer.pop())
            except BufferError:
                continue
            return buffer
        return bytearray(LARGE_BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for a later frame. The loop may still hold it, so whether it is free is asked then."""
        if len(buffer) == LARGE_BUFFER_BYTES and len(self.spare_buffers) < SPARE_BUFFERS:
            self.spare_buffers.append(buffer)

    def admit(self, connection: "ServerConnection") -> bool:
        """Count a new connection, unless there are too many."""
        host = connection.peer.client_host
        options = self.options
        if self.draining or self.is_cut:
            return False
        if len(self.connections) >= options.max_connections:
            self.quiet.warning(
                "max.connections", "refused %s: %d connections are open and max.connections=%d",
                connection.peer, len(self.connections), options.max_connections,
            )  # fmt: skip
            return False
        if len(self.connections) >= options.max_open_sockets:
            # Were the last file handles given to connections, the logs could not open their next segments.
            self.quiet.warning(
                "open files", "refused %s: %d connections are open, and the other files that this process may open are "
                "for the logs; raise the limit (ulimit -n)", connection.peer, len(self.connections),
            )  # fmt: skip
            return False
        count = self._per_host.get(host, 0)
        if count >= options.max_connections_per_ip:
            self.quiet.warning(
                "max.connections.per.ip", "refused %s: %d connections of this host are open and "
                "max.connections.per.ip=%d", connection.peer, count, options.max_connections_per_ip,
            )  # fmt: skip
            return False
        self.connections[connection] = None
        self._per_host[host] = count + 1
        return True

    def forget(self, connection: "ServerConnection") -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        host = connection.peer.client_host
        left = self._per_host.get(host, 1) - 1
        if left:
            self._per_host[host] = left
        else:
            self._per_host.pop(host, None)
        if not self.connections:
            self._all_gone.set()

    def shed_requests(self) -> None:
        """Too much is held of requests: close the connections that have gone longest without sending a whole one."""
        bound = self.options.max_request_memory
        for connection in sorted(
            filter(ServerConnection.holds_requests, self.connections), key=ServerConnection.last_activity
        ):
            if self.request_bytes <= bound * SHED_TO:
                return
            self.quiet.warning(
                "queued.max.request.bytes", "closed %s: unhandled requests of all connections have %d bytes, "
                "queued.max.request.bytes allows %d, and those of this one have waited longest",
                connection.peer, self.request_bytes, bound,
            )  # fmt: skip
            connection.abort()

    def shed_answers(self) -> None:
        """Too much is held of answers: close the connections that have gone longest without reading theirs."""
        bound = 2 * MAX_HELD_BYTES
        for connection in sorted(
            filter(ServerConnection.holds_answers, self.connections), key=ServerConnection.last_activity
        ):
            if self.held_bytes <= bound * SHED_TO:
                return
            self.quiet.warning(
                "unread", "closed %s: answers that are not read have %d bytes, at most %d are kept, and this one has "
                "read nothing for the longest time", connection.peer, self.held_bytes, bound,
            )  # fmt: skip
            connection.abort()

    def _schedule_sweep(self) -> None:
        interval_s = min(max(self.options.max_idle_ms / 1000 / 4, 0.05), 30.0)
        self._sweep = self.runtime.timers.call_later(interval_s, self._close_idle)

    def _close_idle(self) -> None:
        limit_s = self.options.max_idle_ms / 1000
        now = self.now()
        for connection in list(self.connections):
            if connection.is_idle() and now - connection.last_active >= limit_s:
                log.debug("closing %s: idle for connections.max.idle.ms=%d", connection.peer, self.options.max_idle_ms)
                connection.abort()
        self._schedule_sweep()


class ServerConnection(asyncio.BufferedProtocol):
    """One client. There is no task per connection: what arrives drives it."""

    __slots__ = (
        "_server", "_listener", "_transport", "peer", "last_active",
        "_head", "_frame", "_filled", "_size", "_parts", "_missing",
        "_queue", "_queued_bytes", "_counted_bytes", "_at_work_bytes", "_unanswered", "_exclusive", "_poison",
        "_writable", "_held_bytes", "_reading_paused", "_closing", "_draining", "_turn_scheduled",
        "_mute", "__weakref__",
    )  # fmt: skip

    def __init__(self, server: Server, listener: str) -> None:
        self._server = server
        self._listener = listener
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self.peer = Peer("", 0, listener)
        self.last_active = 0.0
        self._head = b""  # the part of a length that arrived without the rest
        self._frame: bytearray | None = None  # a frame of which a part has arrived
        self._filled = 0  # of the frame's buffer, or of its last one
        self._size = 0
        self._parts: list[bytearray] = []  # the full buffers of a frame that needs several
        self._missing = 0  # of the frame, beyond the buffer
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._at_work_bytes = 0  # of a large request that is being handled
        self._counted_bytes = 0  # of all of these and of an unfinished frame, as counted in the server's
        # Answers in request order: a frame that waits for its turn, one that comes later, or the end.
        self._unanswered: deque[Answer | CloseConnection | Later] = deque()
        self._exclusive = False  # the last of them must be answered before anything else is handled
        self._poison: CloseConnection | None = None  # the stream makes no sense from here on
        self._writable = True
        self._held_bytes = 0  # counted in the server's
        self._reading_paused = False
        self._closing = False
        self._draining = False
        self._turn_scheduled = False
        self._mute: Mute | None = None

    # --- what the transport calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        name: Any = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = Peer(str(name[0]), int(name[1]), self._listener)
        self.last_active = self._server.now()
        if not self._server.admit(self):
            self._closing = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._unmute()
        self._server.forget(self)
        self._drop()
        for answer in self._unanswered:
            if isinstance(answer, Later):
                answer.give_up()
        self._unanswered.clear()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = False
        self._held_bytes = self._transport.get_write_buffer_size()
        self._server.held_bytes += self._held_bytes
        if self._server.held_bytes > 2 * MAX_HELD_BYTES:
            # Not from here: the transport calls this in the middle of a write.
            asyncio.get_running_loop().call_soon(self._server.shed_answers)

    def resume_writing(self) -> None:
        self._writable = True
        self._let_go()
        self.last_active = self._server.now()
        self.advance()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._server.shared_buffer
        return memoryview(self._frame)[self._filled : self._filled + self._missing]

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing or self._poison:
            return
        try:
            if self._frame is None:
                self._cut_frames(nbytes)
            else:
                self._continue_frame(nbytes)
        except CloseConnection as reason:
            self._poison = reason
        if self._queue or nbytes >= ACTIVITY_MIN_BYTES:
            self.last_active = self._server.now()
        if self._queue or self._poison:
            self.advance()
        elif self._frame is not None:
            self._count_requests()

    def _count_requests(self) -> None:
        """Tell the server what is held here of requests that are not handled yet."""
        held = self._queued_bytes + self._at_work_bytes
        if self._frame is not None:
            held += len(self._frame) + len(self._parts) * LARGE_BUFFER_BYTES
        if held != self._counted_bytes:
            server = self._server
            server.request_bytes += held - self._counted_bytes
            self._counted_bytes = held
            if server.request_bytes > server.options.max_request_memory:
                server.shed_requests()

    def _drop(self) -> None:
        """Hold nothing more for this client."""
        self._let_go()
        self._queue.clear()
        self._queued_bytes = self._at_work_bytes = 0
        self._frame = None
        self._parts.clear()
        self._server.request_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def _let_go(self) -> None:
        self._server.held_bytes -= self._held_bytes
        self._held_bytes = 0

    # --- framing ---

    def _cut_frames(self, nbytes: int) -> None:
        data = self._server.shared_buffer[:nbytes]
        if self._head:
            data = memoryview(self._head + bytes(data))
            self._head = b""
            nbytes = len(data)
        position = 0
        while nbytes - position >= 4:
            size = _unpack_size(data, position)[0]
            if not 0 < size <= self._server.options.max_request_bytes:
                self._refuse(size, bytes(data[position : position + LONGEST_GREETING]))
            position += 4
            end = position + size
            if end > nbytes:
                self._begin_frame(data[position:], size)
                return
            self._queue.append(bytes(data[position:end]))
            self._queued_bytes += size
            position = end
        if position < nbytes:
            self._head = bytes(data[position:])

    def _begin_frame(self, data: memoryview, size: int) -> None:
        self._size = size
        self._filled = len(data)
        if size <= SMALL_BUFFER_BYTES or self._filled < LARGE_BUFFER_AFTER_BYTES:
            self._frame = bytearray(min(size, SMALL_BUFFER_BYTES))
        else:
            self._frame = self._server.take_large_buffer()
        self._frame[: self._filled] = data
        self._missing = size - self._filled

    def _continue_frame(self, nbytes: int) -> None:
        frame = self._frame
        assert frame is not None
        self._filled += nbytes
        self._missing -= nbytes
        if not self._missing:
            self._end_frame(frame)
        elif self._filled == len(frame):
            # Another buffer and not a longer one: the loop still exports this one here.
            self._frame = self._server.take_large_buffer()
            if len(frame) < LARGE_BUFFER_BYTES:
                self._frame[: self._filled] = frame
            else:
                self._parts.append(frame)
                self._filled = 0

    def _end_frame(self, frame: bytearray) -> None:
        self._frame = None
        self._queued_bytes += self._size
        if not self._parts:
            self._queue.append(memoryview(frame)[: self._size])
            return
        self._queue.append(b"".join([*self._parts, memoryview(frame)[: self._filled]]))
        for part in self._parts:
            self._server.give_back(part)
        self._parts.clear()

    def _refuse(self, size: int, beginning: bytes) -> NoReturn:
        limit = self._server.options.max_request_bytes
        spoken = other_protocol(beginning)
        if spoken is not None:
            raise CloseConnection(
                f"it speaks {spoken}, and this listener ({self._listener}) speaks Kafka in plain text"
            )
        if size > limit:
            raise CloseConnection(f"a request of {size} bytes is larger than socket.request.max.bytes={limit}")
        raise CloseConnection(f"a request of {size} bytes; sizes go from 1 to socket.request.max.bytes={limit}")

    # --- handling, in order ---

    def advance(self) -> None:
        """Handle what may be handled now."""
        queue = self._queue
        turns = REQUESTS_PER_TURN if self._server.is_open else 0
        while turns and queue and self._writable and not self._exclusive and not self._mute and not self._closing:
            if self._unanswered and (queue[0][:2] != PRODUCE or len(self._unanswered) >= MAX_OVERLAPPED):
                break
            turns -= 1
            if not turns:
                self._advance_soon()
            frame = queue.popleft()
            self._queued_bytes -= len(frame)
            self._handle(frame)
            if type(frame) is memoryview:
                self._release(frame)
        self._regulate_reading()
        if queue or self._counted_bytes or self._at_work_bytes or self._frame is not None:
            self._count_requests()
        if not queue and not self._unanswered and not self._closing:
            if self._poison:
                self._hang_up(self._poison)
            elif self._draining:
                self.close()

    def _release(self, frame: memoryview) -> None:
        buffer = frame.obj
        frame.release()
        if isinstance(buffer, bytearray):
            self._server.give_back(buffer)

    def _advance_soon(self) -> None:
        """Let the other connections have a turn."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not self._closing:
            self.advance()

    def _handle(self, frame: Request) -> None:
        try:
            result: Result = self._server.dispatcher.dispatch(self.peer, frame)
        except CloseConnection as reason:
            self._exclusive = True
            self._unanswered.append(reason)
            self._send_answered()
            return
        if type(result) is Frame and not self._unanswered:
            self._write(result)
            if self.peer.mute_ms:
                self._be_muted()
            return
        if isinstance(result, Later):
            if self.peer.mute_ms:
                self._be_muted()
            self._exclusive = not result.overlaps
            self._unanswered.append(result)
            result.answer.add_done_callback(self._answered)
        else:
            self._unanswered.append(result)
            self._send_answered()
            return
        if self._exclusive and len(frame) > SMALL_BUFFER_BYTES:
            self._at_work_bytes = len(frame) + min(AT_WORK_FACTOR * len(frame), MOST_AT_WORK_BYTES)

    def _answered(self, _: "asyncio.Future[Answer]") -> None:
        if not self._closing:
            self._send_answered()
            self.advance()

    def _send_answered(self) -> None:
        """Write the answers that are there, up to the first that is not."""
        unanswered = self._unanswered
        while unanswered:
            answer = unanswered[0]
            if isinstance(answer, Later):
                if not answer.answer.done():
                    return
                later, answer = answer, self._result(answer.answer)
                answer = later.end(self._server.runtime.clock.monotonic(), answer)
            unanswered.popleft()
            if type(answer) is Frame:
                self._write(answer)
            elif isinstance(answer, CloseConnection):
                self._hang_up(answer)
                return
        if self.peer.mute_ms:
            self._be_muted()
        self._exclusive = False
        self._at_work_bytes = 0

    def _result(self, answer: "asyncio.Future[Answer]") -> Answer | CloseConnection:
        try:
            return answer.result()
        except CloseConnection as reason:
            return reason
        except (Exception, asyncio.CancelledError) as error:
            log.error("an answer to %s failed: %r", self.peer, error, exc_info=error)
            return CloseConnection(f"its request failed: {error!r}")

    def _write(self, answer: Frame) -> None:
        parts = answer.parts
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _regulate_reading(self) -> None:
        options = self._server.options
        full = (
            len(self._queue) >= options.max_queued_requests
            or self._queued_bytes >= options.max_queued_bytes
            or (not self._writable and bool(self._queue))
            or self._draining
            or self._poison is not None
            or self._mute is not None
        )
        if full != self._reading_paused and not self._closing:
            self._reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # --- waiting for a quota ---

    def _be_muted(self) -> None:
        if self._closing or self._draining:
            self.peer.mute_ms = 0
        elif self._mute is not None:
            self._mute.extend(self.peer)
        else:
            self._mute = self._server.mutes.begin(self.peer, self._end_mute)
            self._regulate_reading()

    def _end_mute(self) -> None:
        self._unmute()
        self.last_active = self._server.now()
        self.advance()

    def _unmute(self) -> None:
        if self._mute is not None:
            self._mute.over()
            self._mute = None

    # --- ending ---

    def is_idle(self) -> bool:
        """Nothing is being done for this client, unless it is the client that does not read its answers."""
        return self._mute is None and (not self._writable or not (self._unanswered or self._queue))

    def holds_requests(self) -> bool:
        return self._counted_bytes > 0

    def holds_answers(self) -> bool:
        return self._held_bytes > 0

    def last_activity(self) -> float:
        return self.last_active if self._mute is None else self._server.now()

    def drain(self) -> None:
        """Read nothing more and close when everything is answered."""
        self._draining = True
        self._unmute()
        self.advance()

    def close(self) -> None:
        """Hang up after what was written has been sent."""
        self._closing = True
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._unmute()
        self._drop()
        self._transport.abort()

    def _hang_up(self, reason: CloseConnection) -> None:
        self._server.quiet.warning("closed", "closed %s: %s", self.peer, reason)
        self._queue.clear()
        self.close()
