"""The way into a listener with TLS or SASL, and what keeps a crowd there from holding up the clients inside.

1. A client has `authentication.timeout.ms` for TLS and SASL together. Then it is closed, however busy it seems.
2. At most `max.unauthenticated.connections` are on the way. Above that, the oldest of the address that has most of them
   is closed: a flood of one address costs that address.
3. TLS handshakes cost the loop a millisecond each, so that only some begin per second. Addresses take turns, and the
   time for which a client waits for its turn does not count against it.
4. A failed authentication is answered late. It holds a timer meanwhile, and no buffer: nothing more is read.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from twofold.broker.network.authentication import (
    Authentication,
    CloseAtOnce,
    PassOn,
    SendAtOnce,
    SendLateAndClose,
    SendRefusal,
)
from twofold.broker.network.context import Answer, CloseConnection, Frame, Peer
from twofold.broker.network.dispatch import Dispatcher
from twofold.broker.network.guard import ListenerGuard
from twofold.broker.network.quiet import QuietLog
from twofold.runtime.api import HeldSocket, Runtime, TimerHandle

HANDSHAKES_PER_TURN = 2
TURN_S = 0.008


@dataclass(frozen=True, slots=True)
class EntranceOptions:
    timeout_ms: int = 10_000  # authentication.timeout.ms
    failure_delay_ms: int = 100  # connection.failed.authentication.delay.ms
    max_waiting: int = 1000  # max.unauthenticated.connections


class Guarded(asyncio.BaseProtocol, ABC):
    """What of a connection is needed here."""

    __slots__ = ()
    peer: Peer

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def answer(self, answer: Answer) -> None: ...

    @abstractmethod
    def answer_late_and_close(self, answer: Answer | None, delay_s: float, reason: str) -> None: ...

    @abstractmethod
    def inside(self) -> None:
        """The client is authenticated; nothing is between it and the dispatcher any more."""
        ...


class Visitor:
    """One connection on its way in, or one whose authentication may expire."""

    __slots__ = (
        "connection",
        "guard",
        "authentication",
        "_entrance",
        "_deadline",
        "_held",
        "_handshake",
        "is_secured",
        "is_over",
    )

    def __init__(
        self, entrance: "Entrance", connection: Guarded, guard: ListenerGuard, held: HeldSocket | None
    ) -> None:
        self.connection = connection
        self.guard = guard
        self.authentication = None if guard.policy is None else Authentication(guard.policy)
        self.is_secured = not guard.uses_tls
        self.is_over = False  # it is inside, or gone
        self._entrance = entrance
        self._deadline: TimerHandle | None = None
        self._held = held  # until TLS has begun with it
        self._handshake: asyncio.Task[None] | None = None

    @property
    def max_frame_bytes(self) -> int | None:
        return None if self.authentication is None else self.authentication.max_frame_bytes

    def begin(self) -> None:
        """The time runs."""
        timeout_s = self._entrance.options.timeout_ms / 1000
        self._deadline = self._entrance.runtime.timers.call_later(timeout_s, self._too_late)

    def _too_late(self) -> None:
        step = "the TLS handshake" if not self.is_secured else "SASL"
        self._entrance.quiet.warning(
            "authentication.timeout.ms", "closed %s: it was not authenticated within authentication.timeout.ms=%d, and "
            "stood at %s", self.connection.peer, self._entrance.options.timeout_ms, step,
        )  # fmt: skip
        self.connection.abort()

    def shake_hands(self) -> None:
        assert self._held is not None
        self._handshake = self._entrance.runtime.spawn(
            self._entrance.shake_hands(self, self._held), name="TLS handshake"
        )

    def end(self) -> None:
        if not self.is_secured and self._held is not None:
            self._held.close()
            if self._handshake is not None:
                self._handshake.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def secured(self, certificate: bytes | None) -> None:
        """TLS is there. Without SASL, that is all."""
        self.is_secured = True
        if self.authentication is not None:
            return
        user = self.guard.user_of(certificate)
        if user is None:
            raise CloseConnection("no rule of ssl.principal.mapping.rules has a user for the name in its certificate")
        self.connection.peer.principal = f"User:{user}"
        self._entrance.leave(self)
        self.connection.inside()

    def lets_pass(self, frame: bytes | bytearray | memoryview) -> bool:
        """Handle a frame, unless the dispatcher is to handle it. May raise CloseConnection."""
        authentication = self.authentication
        if authentication is None:
            return True
        clock = self._entrance.runtime.clock
        now_ms = int(clock.monotonic() * 1000)
        if authentication.passes(bytes(frame[:2]), now_ms):
            return True
        frame = bytes(frame)
        was_open = authentication.user is not None
        step = authentication.receive(frame, now_ms, clock.wall_ms())
        if isinstance(step, PassOn):
            return True
        if authentication.is_open and not was_open:
            self.connection.peer.principal = f"User:{authentication.user}"
            self._entrance.leave(self)
        if isinstance(step, SendAtOnce):
            self.connection.answer(Frame([step.frame]))
            if authentication.is_finished:
                self.connection.inside()
        elif isinstance(step, CloseAtOnce):
            raise CloseConnection(step.reason)
        else:
            self._refuse(step, frame)
        return False

    def _refuse(self, step: SendRefusal | SendLateAndClose, frame: bytes) -> None:
        delay_s = self._entrance.options.failure_delay_ms / 1000
        if isinstance(step, SendLateAndClose):
            answer: Answer | None = None if step.frame is None else Frame([step.frame])
            self.connection.answer_late_and_close(answer, delay_s, step.reason)
            return
        answer = self._entrance.dispatcher.refuse(self.connection.peer, frame, step.error)
        if step.reason is not None:
            self.connection.answer_late_and_close(answer, delay_s, step.reason)
        elif answer is None:
            raise CloseConnection(str(step.error))
        else:
            self.connection.answer(answer)


class Entrance:
    """All connections of one broker that are on their way in."""

    def __init__(self, runtime: Runtime, dispatcher: Dispatcher, quiet: QuietLog) -> None:
        self.runtime = runtime
        self.dispatcher = dispatcher
        self.quiet = quiet
        self.options = EntranceOptions()
        self._waiting: dict[str, dict[Visitor, None]] = {}  # by address, the oldest first
        self._count = 0
        self._queues: dict[str, deque[Visitor]] = {}  # for a handshake, by address, the next address first
        self._turn: TimerHandle | None = None
        self._left_of_turn = HANDSHAKES_PER_TURN

    def __len__(self) -> int:
        return self._count

    def enter(self, connection: Guarded, guard: ListenerGuard, held: HeldSocket | None) -> Visitor:
        """`held` is the connection where TLS comes first."""
        visitor = Visitor(self, connection, guard, held)
        self._waiting.setdefault(connection.peer.client_host, {})[visitor] = None
        self._count += 1
        if self._count > self.options.max_waiting:
            self._close_one()
        return visitor

    def begin(self, visitor: Visitor) -> None:
        if visitor.is_secured:
            visitor.begin()
        else:
            self._queues.setdefault(visitor.connection.peer.client_host, deque()).append(visitor)
            self._next_handshakes()

    def leave(self, visitor: Visitor) -> None:
        """It is inside, or gone."""
        visitor.is_over = True
        visitor.end()
        host = visitor.connection.peer.client_host
        of_host = self._waiting.get(host)
        if of_host is None or visitor not in of_host:
            return
        del of_host[visitor]
        self._count -= 1
        if not of_host:
            del self._waiting[host]
        queue = self._queues.get(host)
        if queue is not None and not visitor.is_secured and visitor in queue:
            queue.remove(visitor)
            if not queue:
                del self._queues[host]

    def _close_one(self) -> None:
        most = max(self._waiting.values(), key=len)
        oldest = next(iter(most))
        self.quiet.warning(
            "max.unauthenticated.connections", "closed %s: %d connections are not authenticated, at most "
            "max.unauthenticated.connections=%d are kept, and its address has most of them",
            oldest.connection.peer, self._count, self.options.max_waiting,
        )  # fmt: skip
        self.leave(oldest)
        oldest.connection.abort()

    # --- TLS ---

    def _next_handshakes(self) -> None:
        while self._queues and self._left_of_turn:
            self._left_of_turn -= 1
            host = next(iter(self._queues))
            queue = self._queues.pop(host)
            visitor = queue.popleft()
            if queue:
                self._queues[host] = queue  # behind the others
            visitor.begin()
            visitor.shake_hands()
        if self._turn is None and self._left_of_turn < HANDSHAKES_PER_TURN:
            self._turn = self.runtime.timers.call_later(TURN_S, self._new_turn)

    def _new_turn(self) -> None:
        self._turn = None
        self._left_of_turn = HANDSHAKES_PER_TURN
        self._next_handshakes()

    async def shake_hands(self, visitor: Visitor, held: HeldSocket) -> None:
        connection = visitor.connection
        timeout_s = self.options.timeout_ms / 1000 + 1  # the deadline of the visitor comes first
        try:
            await self.runtime.network.begin_tls(held, connection, visitor.guard.context(), timeout_s)
        except OSError as error:
            if not visitor.is_over:
                self.quiet.warning("TLS", "closed %s: %s", connection.peer, tls_failure(error))
                connection.abort()


def tls_failure(error: Exception) -> str:
    """What went wrong in a handshake, in words that help."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if reason in ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return "it speaks HTTP, and this listener speaks TLS"
    if reason in _NO_TLS:
        return "it does not speak TLS, and this listener does (is its security.protocol PLAINTEXT or SASL_PLAINTEXT?)"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and ssl.client.auth=required"
    if reason in _ALERTS:
        return f"{_ALERTS[reason]} (its TLS says {reason.lower().replace('_', ' ')})"
    if reason:
        return f"the TLS handshake failed: {reason.lower().replace('_', ' ')}"
    return "it ended the TLS handshake" if isinstance(error, OSError) else "the TLS handshake took too long"


_NO_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_UNTRUSTED = "it does not trust this broker's certificate"
_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this broker's certificate expired",
    "UNSUPPORTED_PROTOCOL": "it offers no TLS version of ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "it offers no cipher suite that this listener has",
}
