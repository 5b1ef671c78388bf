"""One end of a simulated connection, with the manners of an asyncio transport.

Invariants:

1. What is delivered is a prefix of what was written, in order; a lost message breaks the connection instead of leaving
   a gap. (Links that duplicate, which no stream does, are asked for explicitly.)
2. Of an end that is lost or whose node died nothing is delivered any more; data that reaches it is answered by a reset.
3. connection_lost is called once, from the loop, never inside the call that caused it.
4. Bytes count as buffered until the other side's protocol has received them, less what fits into the window, so a peer
   that stops reading stops the writer.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from twofold.runtime.api import Data
from twofold.runtime.sim.disk import PowerCut
from twofold.runtime.sim.loop import Life, SimLoop, SimTimer

DEFAULT_HIGH_WATER_BYTES = 64 * 1024

Address = tuple[str, int]


class MessageKind(Enum):
    DATA = "data"
    END = "end"
    RESET = "reset"


class SimMessage(NamedTuple):
    kind: MessageKind
    data: bytes = b""
    acknowledges: int = 0


class Wire(Protocol):
    """What a transport needs of its network."""

    loop: SimLoop
    window_bytes: int
    stall_timeout_s: float

    def note(self, text: str) -> None: ...

    def latency_s(self, sender: str, receiver: str) -> float: ...

    def is_blocked(self, sender: str, receiver: str) -> bool: ...

    def fate(self, sender: "SimTransport", data: bytes) -> list[SimMessage] | None:
        """What travels for one write; None when it is lost on the way."""
        ...

    def forget(self, transport: "SimTransport") -> None: ...


class SimTransport(asyncio.Transport):
    def __init__(self, wire: Wire, life: Life, number: int, local: Address, remote: Address) -> None:
        super().__init__(extra={"sockname": local, "peername": remote})
        self.life = life
        self.number = number
        self.peer: SimTransport = self
        self.lost = False
        self._wire = wire
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self._label = f"#{number} {local[0]}:{local[1]}->{remote[0]}:{remote[1]}"
        # Outgoing
        self._in_transit: deque[SimMessage] = deque()
        self._due = 0  # how many of them have had their delay
        self._last_due_at = 0.0
        self._stall_timer: SimTimer | None = None
        self._broken = False
        self._ended = False
        self._unacknowledged = 0
        self._high = DEFAULT_HIGH_WATER_BYTES
        self._low = DEFAULT_HIGH_WATER_BYTES // 4
        self._writing_paused = False
        # Incoming
        self._inbox: deque[SimMessage] = deque()
        self._connected = False
        self._reading = True
        self._closing = False

    # asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._wire.loop.call_soon(self._deliver)

    def write(self, data: Data) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._ended and not self._closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data or not self.life.alive:
            return
        payload = bytes(data)
        self._unacknowledged += len(payload)
        messages = self._wire.fate(self, payload)
        if messages is None:
            self._broken = True
        for message in messages or ():
            self._send(message)
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self._call("pause_writing")

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ended:
            self._ended = True
            self._send(SimMessage(MessageKind.END))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._lose_when_flushed()

    def abort(self) -> None:
        if not self.lost:
            self._in_transit.clear()
            self._send(SimMessage(MessageKind.RESET))
            self.lose(None)

    def get_write_buffer_size(self) -> int:
        return max(0, self._unacknowledged - self._wire.window_bytes)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    # What the network does to it

    def connect(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._call("connection_made", self)
        self._connected = True
        self._wire.loop.call_soon(self._deliver)

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            if self._inbox:
                # Closing with something unread resets, as in TCP: the sender must not wait for its acknowledgement.
                self._inbox.clear()
                self._send(SimMessage(MessageKind.RESET))
            self._wire.forget(self)
            self._wire.loop.call_soon(self._connection_lost, error)

    def reset(self) -> None:
        self._in_transit.clear()
        self.lose(ConnectionResetError(errno.ECONNRESET, f"connection reset {self._label}"))

    def die(self, *, silently: bool) -> None:
        """The node of this end is gone; the other end hears of it now or when it next sends."""
        self.lost = self._closing = True
        self._inbox.clear()
        self._in_transit.clear()
        self._wire.forget(self)
        if not silently:
            self._send(SimMessage(MessageKind.RESET))

    def on_heal(self) -> None:
        if self._stall_timer is not None and not self._is_blocked():
            self._stall_timer.cancel()
            self._stall_timer = None
            self._wire.loop.call_later(self._latency_s(), self._pump)

    def on_resume(self) -> None:
        self._wire.loop.call_soon(self._deliver)

    # Outgoing

    def _send(self, message: SimMessage) -> None:
        if self._broken:
            return
        loop = self._wire.loop
        self._wire.note(f"send {self._label} {message.kind.value} {len(message.data)} {crc32(message.data):08x}")
        self._in_transit.append(message)
        self._last_due_at = max(self._last_due_at, loop.time() + self._latency_s())
        loop.call_at(self._last_due_at, self._on_due)

    def _latency_s(self) -> float:
        return self._wire.latency_s(self.life.node, self.peer.life.node)

    def _is_blocked(self) -> bool:
        return self._wire.is_blocked(self.life.node, self.peer.life.node)

    def _on_due(self) -> None:
        self._due += 1
        self._pump()

    def _pump(self) -> None:
        while self._due and self._in_transit:
            if self._is_blocked():
                if self._stall_timer is None:
                    self._stall_timer = self._wire.loop.call_later(self._wire.stall_timeout_s, self._on_stalled)
                return
            self._due -= 1
            message = self._in_transit.popleft()
            self._wire.note(f"arrive {self._label} {message.kind.value} {len(message.data)}")
            self.peer._receive(message)

    def _on_stalled(self) -> None:
        self._stall_timer = None
        self._in_transit.clear()
        self.lose(TimeoutError(errno.ETIMEDOUT, f"no acknowledgement {self._label}"))

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged -= size
        if self.lost:
            return
        if self._closing:
            self._lose_when_flushed()
        elif self._writing_paused and self.get_write_buffer_size() <= self._low:
            self._writing_paused = False
            self._wire.loop.call_soon(self._call, "resume_writing")

    def _lose_when_flushed(self) -> None:
        if self.get_write_buffer_size() == 0:
            self.lose(None)

    # Incoming

    def _receive(self, message: SimMessage) -> None:
        if self.lost:
            if message.kind is MessageKind.DATA:
                self._send(SimMessage(MessageKind.RESET))
        elif message.kind is MessageKind.RESET:
            self.reset()
        else:
            self._inbox.append(message)
            self._deliver()

    def _deliver(self) -> None:
        while self._inbox and self._connected and (self._reading or self._closing) and not self.life.paused:
            message = self._inbox.popleft()
            self.peer._acknowledge(message.acknowledges)
            if self._closing:
                continue  # this end reads no more, but the sender must not wait for ever
            if message.kind is MessageKind.END:
                if not self._call("eof_received"):
                    self.close()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(memoryview(message.data))
            else:
                self._call("data_received", message.data)

    def _fill(self, data: memoryview) -> None:
        while data and not self._closing:
            buffer = self._call("get_buffer", len(data))
            if buffer is None:
                return
            view = memoryview(buffer)
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self._call("buffer_updated", size)
            data = data[size:]

    # Both

    def _connection_lost(self, error: Exception | None) -> None:
        self._call("connection_lost", error)

    def _call(self, method: str, *args: Any) -> Any:
        """Call the protocol as its own node; a protocol that raises loses its connection, as in asyncio."""
        if not self.life.alive:
            return None
        if self.life.paused:
            self.life.held.append(asyncio.Handle(self._call, (method, *args), self._wire.loop))
            return None
        try:
            return self.life.context().run(getattr(self._protocol, method), *args)
        except PowerCut:
            if not self.lost:
                raise
            return None  # the node died in the middle of this call
        except Exception as error:
            self._wire.loop.call_exception_handler(
                {
                    "message": f"protocol.{method}() failed {self._label}",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self._in_transit.clear()
            if not self.lost:
                self._send(SimMessage(MessageKind.RESET))
            self.lose(error)
            return None
