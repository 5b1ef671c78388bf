"""Which connections are closed although nothing is wrong with them: idle ones, and, when too much is held for all of
them together, those that have gone longest without progress."""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from twofold.broker.network.context import Peer
from twofold.broker.network.options import ServerOptions
from twofold.broker.network.quiet import QuietLog
from twofold.runtime.api import Runtime

SHED_TO = 0.9  # of a bound, once it was passed: to find the connections to close costs a walk over all of them

log = logging.getLogger(__name__)


class Sheddable(Protocol):
    peer: Peer

    def is_idle(self) -> bool: ...

    def holds_requests(self) -> bool: ...

    def holds_answers(self) -> bool: ...

    def last_activity(self) -> float: ...

    def abort(self) -> None: ...


class Held(Protocol):
    """What a server holds of all its connections."""

    runtime: Runtime
    now: Callable[[], float]
    options: ServerOptions
    quiet: QuietLog
    held_bytes: int
    request_bytes: int

    @property
    def connections(self) -> Iterable[Sheddable]: ...


def shed_requests(server: Held, bound: int) -> None:
    """Too much is held of requests: close the connections that have gone longest without sending a whole one."""
    holders = [connection for connection in server.connections if connection.holds_requests()]
    for connection in sorted(holders, key=lambda holder: holder.last_activity()):
        if server.request_bytes <= bound * SHED_TO:
            return
        server.quiet.warning(
            "queued.max.request.bytes", "closed %s: unhandled requests of all connections have %d bytes, "
            "queued.max.request.bytes allows %d, and those of this one have waited longest",
            connection.peer, server.request_bytes, bound,
        )  # fmt: skip
        connection.abort()


def shed_answers(server: Held, bound: int) -> None:
    """Too much is held of answers: close the connections that have gone longest without reading theirs."""
    holders = [connection for connection in server.connections if connection.holds_answers()]
    for connection in sorted(holders, key=lambda holder: holder.last_activity()):
        if server.held_bytes <= bound * SHED_TO:
            return
        server.quiet.warning(
            "unread", "closed %s: answers that are not read have %d bytes, at most %d are kept, and this one has "
            "read nothing for the longest time", connection.peer, server.held_bytes, bound,
        )  # fmt: skip
        connection.abort()


class IdleSweep:
    """Closes idle connections, again and again until it is cancelled."""

    def __init__(self, server: Held) -> None:
        self._server = server
        self._schedule()

    def cancel(self) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        interval_s = min(max(self._server.options.max_idle_ms / 1000 / 4, 0.05), 30.0)
        self._timer = self._server.runtime.timers.call_later(interval_s, self._close_idle)

    def _close_idle(self) -> None:
        limit_ms = self._server.options.max_idle_ms
        now = self._server.now()
        for connection in list(self._server.connections):
            if connection.is_idle() and now - connection.last_activity() >= limit_ms / 1000:
                log.debug("closing %s: idle for connections.max.idle.ms=%d", connection.peer, limit_ms)
                connection.abort()
        self._schedule()
