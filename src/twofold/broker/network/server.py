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
5. Where a listener has TLS or SASL, a client first passes the entrance (`entrance.py`); until it is inside, nothing of
   it but that is handled. How many may come, and how fast, is decided before (`admission.py`).
6. A byte now and then is no activity: only whole requests and large pieces keep `connections.max.idle.ms` from passing.
7. A client that has to wait (quotas) has its answer, and then its connection is muted (`muting.py`).
8. Whatever ends a connection from our side leaves a log line that names the peer and, where there is one, the setting.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from twofold.broker.network.admission import ConnectionAdmission, let_in
from twofold.broker.network.buffers import LARGE_BUFFER_BYTES, SpareBuffers
from twofold.broker.network.context import NO_RESPONSE, Answer, CloseConnection, Frame, Later, Peer
from twofold.broker.network.dispatch import Dispatcher, Request, Result
from twofold.broker.network.entrance import Entrance, Guarded, Visitor
from twofold.broker.network.guard import ListenerGuard
from twofold.broker.network.muting import Mute, Mutes
from twofold.broker.network.options import ServerOptions
from twofold.broker.network.quiet import QuietLog
from twofold.broker.network.settling import result_of, settle
from twofold.broker.network.shedding import IdleSweep, shed_answers, shed_requests
from twofold.broker.network.tls_pieces import joined
from twofold.runtime.api import HeldSocket, Listener, Runtime
from twofold.security.addresses import java_address
from twofold.wire.foreign import LONGEST_GREETING, other_protocol

PRODUCE = b"\x00\x00"  # the API key, first in a frame
SHARED_BUFFER_BYTES = 256 * 1024
# A frame's buffers come with what arrives, so that a client pays for what it only claims to send: first a small one,
# then one that the requests of common clients fit into (1 MiB and a little). What is longer still comes in several of
# these and is joined at its end: to copy it into larger and larger ones would cost most where it never ends.
SMALL_BUFFER_BYTES = 64 * 1024
LARGE_BUFFER_AFTER_BYTES = 16 * 1024  # a client that has sent so much of a large frame gets the large buffer at once
WRITE_HIGH_WATER_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MIN_RESPONSE_BYTES = 64 * 1024
MAX_HELD_BYTES = 256 * 1024 * 1024
AT_WORK_FACTOR = 16  # what a large request that is being handled takes, in objects, by its bytes
MOST_AT_WORK_BYTES = 64 * 1024 * 1024  # because its entries are bounded (`wire/entries.py`)
ACTIVITY_MIN_BYTES = 4096  # what has to arrive at once to count as activity, unless it completes a request
REQUESTS_PER_TURN = 16
MAX_OVERLAPPED = 1000

_SIZE = struct.Struct(">i")
_unpack_size = _SIZE.unpack_from

log = logging.getLogger(__name__)


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
        self.quiet = QuietLog(log, runtime.clock)
        self.entrance = Entrance(runtime, dispatcher, self.quiet)
        self.admission = ConnectionAdmission()
        self.apply(options or ServerOptions())
        self.buffers = SpareBuffers()
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.connections: dict[ServerConnection, None] = {}  # in order: a set's would differ from run to run
        self.held_bytes = 0  # of answers, for clients that do not read them fast enough
        self.request_bytes = 0  # of requests that are not handled yet, whole or not
        self.mutes = Mutes(runtime)
        self.draining = False
        self.is_open = False
        self.is_cut = False  # by a test: no client can connect
        self._listeners: list[Listener] = []
        self._sweep: IdleSweep | None = None
        self._all_gone: asyncio.Event = asyncio.Event()

    def apply(self, options: ServerOptions) -> None:
        self.options = options
        self.admission.limits = options.limits
        self.entrance.options = options.entrance

    async def listen(
        self, host: str, port: int, name: str = "PLAINTEXT", guard: Callable[[], ListenerGuard | None] = lambda: None
    ) -> Listener:
        """`guard` is asked at each connection. None lets every client in."""
        network = self.runtime.network
        now = guard()
        if now is not None and now.uses_tls:
            listener = await network.listen_held(
                lambda held: ServerConnection(self, name, guard()).accepted(held), host, port
            )
        else:
            listener = await network.listen(lambda: ServerConnection(self, name, guard()), host, port)
        self._listeners.append(listener)
        if self._sweep is None and self.options.max_idle_ms >= 0:
            self._sweep = IdleSweep(self)
        return listener

    def open(self) -> None:
        """Begin to answer. Clients that connected before have waited, because a chosen port must be known before.

        A broker registers its port, and only a registered broker can lead.
        """
        self.is_open = True
        for connection in list(self.connections):
            if connection.transport is not None:  # else it is still in its TLS handshake
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

    def admit(self, connection: "ServerConnection") -> bool:
        """Count a new connection, unless there are too many."""
        if self.draining or self.is_cut:
            return False
        refusal = self.admission.refusal(connection.peer)
        if refusal is not None:
            self.quiet.warning(refusal[0], "refused %s: %s", connection.peer, refusal[1])
            return False
        self.connections[connection] = None
        self.admission.enter(connection.peer)
        return True

    def forget(self, connection: "ServerConnection") -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.admission.leave(connection.peer)
        if not self.connections:
            self._all_gone.set()


class ServerConnection(Guarded, asyncio.BufferedProtocol):
    """One client. There is no task per connection: what arrives drives it."""

    __slots__ = (
        "_server", "_listener", "_guard", "_visitor", "_held_socket", "_is_held", "_is_secure", "transport", "peer",
        "last_active",
        "_head", "_frame", "_filled", "_size", "_parts", "_missing",
        "_queue", "_queued_bytes", "_counted_bytes", "_at_work_bytes", "_unanswered", "_exclusive", "_poison",
        "_writable", "_held_bytes", "_reading_paused", "_closing", "_draining", "_turn_scheduled",
        "_mute", "__weakref__",
    )  # fmt: skip

    def __init__(self, server: Server, listener: str, guard: ListenerGuard | None = None) -> None:
        self._server = server
        self._listener = listener
        self._guard = guard
        self._visitor: Visitor | None = None  # while frames are looked at before they are handled
        self._is_held = False  # nothing is read, or handled, until it is its turn and TLS is there
        self._held_socket: HeldSocket | None = None  # where TLS comes first, until it is there
        self._is_secure = False
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
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
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        if self._held_socket is not None:
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
            self._secured()
        elif self._is_admitted(transport.get_extra_info("peername") or ("unknown", 0)):
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
            let_in(self._server, self)
        else:
            self.transport.abort()

    def _is_admitted(self, address: Sequence[Any]) -> bool:
        self.peer = Peer(java_address(str(address[0])), int(address[1]), self._listener)
        self.last_active = self._server.now()
        self._closing = not self._server.admit(self)
        return not self._closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._unmute()
        self._server.forget(self)
        if self._visitor is not None:
            self._server.entrance.leave(self._visitor)
        self._drop()
        for answer in self._unanswered:
            if isinstance(answer, Later):
                answer.give_up()
        self._unanswered.clear()

    # --- the way in ---

    def accepted(self, held: HeldSocket) -> None:
        """A connection whose first bytes are of TLS. `connection_made` follows when there is a handshake."""
        self._held_socket = held
        self._is_held = True
        if self._is_admitted(held.peer):
            let_in(self._server, self)
        else:
            held.close()

    def hold(self) -> None:
        """Handle nothing, and read little."""
        self._is_held = True
        if self._held_socket is None:
            # Not from here: uvloop begins to read after it has called `connection_made`.
            asyncio.get_running_loop().call_soon(self._pause_while_held)

    def _pause_while_held(self) -> None:
        if self._is_held and not self._closing:
            self._reading_paused = True
            self.transport.pause_reading()

    def begin(self) -> None:
        """It is its turn."""
        if self._closing:
            return
        guard = self._guard
        if guard is not None:
            self._visitor = self._server.entrance.enter(self, guard, self._held_socket)
            self._server.entrance.begin(self._visitor)
        if self._is_held and self._held_socket is None:
            self._is_held = False
            self.advance()

    def _secured(self) -> None:
        self._is_held = False
        self._is_secure = True
        self._held_socket = None
        visitor = self._visitor
        if visitor is None or visitor.is_over:
            self.abort()
            return
        try:
            visitor.secured(self.transport.get_extra_info("ssl_object").getpeercert(binary_form=True))
        except CloseConnection as reason:
            self._hang_up(reason)

    def inside(self) -> None:
        """Every frame is for the dispatcher from now on."""
        self._visitor = None

    def answer(self, answer: Answer) -> None:
        self._unanswered.append(answer)
        self._send_answered()

    def answer_late_and_close(self, answer: Answer | None, delay_s: float, reason: str) -> None:
        """Read and handle nothing more."""
        self._poison = CloseConnection(reason)
        self._queue.clear()
        self._queued_bytes = 0
        self._exclusive = True
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(self._answered)
        self._unanswered.append(Later(waiting))
        self._server.runtime.timers.call_later(delay_s, partial(settle, waiting, answer or NO_RESPONSE))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = False
        self._held_bytes = self.transport.get_write_buffer_size()
        self._server.held_bytes += self._held_bytes
        if self._server.held_bytes > 2 * MAX_HELD_BYTES:
            # Not from here: the transport calls this in the middle of a write.
            asyncio.get_running_loop().call_soon(shed_answers, self._server, 2 * MAX_HELD_BYTES)

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
                shed_requests(server, server.options.max_request_memory)

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
        limit = self._server.options.max_request_bytes if self._visitor is None else self._frame_limit()
        while nbytes - position >= 4:
            size = _unpack_size(data, position)[0]
            if not 0 < size <= limit:
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
            self._frame = self._server.buffers.take()
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
            self._frame = self._server.buffers.take()
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
            self._server.buffers.give_back(part)
        self._parts.clear()

    def _frame_limit(self) -> int:
        return (self._visitor and self._visitor.max_frame_bytes) or self._server.options.max_request_bytes

    def _refuse(self, size: int, beginning: bytes) -> NoReturn:
        if (spoken := other_protocol(beginning)) is not None:
            how = "inside TLS" if self._is_secure else "in plain text"
            raise CloseConnection(f"it speaks {spoken}, and this listener ({self._listener}) speaks Kafka {how}")
        raise CloseConnection(self._server.options.refusal_of(size, self._frame_limit()))

    # --- handling, in order ---

    def advance(self) -> None:
        """Handle what may be handled now."""
        if self._is_held:
            return
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
            self._server.buffers.give_back(buffer)

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
            if self._visitor is not None and not self._visitor.lets_pass(frame):
                return
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
                later, answer = answer, result_of(self.peer, answer.answer)
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

    def _write(self, answer: Frame) -> None:
        parts = answer.parts
        if len(parts) == 1:
            self.transport.write(parts[0])
        elif self._is_secure:
            for piece in joined(parts):
                self.transport.write(piece)
        else:
            self.transport.writelines(parts)

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
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

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
        if self._held_socket is not None:
            self.abort()
            return
        self._draining = True
        self._unmute()
        self.advance()

    def close(self) -> None:
        """Hang up after what was written has been sent."""
        self._closing = True
        self.transport.close()

    def abort(self) -> None:
        self._closing = True
        self._unmute()
        self._drop()
        if self._held_socket is None:
            self.transport.abort()
        else:
            self._held_socket.close()
            self.connection_lost(None)

    def _hang_up(self, reason: CloseConnection) -> None:
        self._server.quiet.warning("closed", "closed %s: %s", self.peer, reason)
        self._queue.clear()
        self.close()
