"""How many connections there may be, and how fast they may come: in all, per listener and per address.

1. `max.connections` and the number of files that may be open refuse; so do `max.connections` of a listener,
   `max.connections.per.ip` and its overrides.
2. A connection beyond `max.connection.creation.rate`, of the broker or of its listener, waits unread until it is its
   turn. A burst of ten seconds passes, as in Kafka. The line is ten seconds long at most: what would wait longer is
   closed, and takes no turn. So a flood is over for the others when it is over.
3. A connection beyond the rate of its address (the quota `connection_creation_rate`) is held unread for a second, then
   closed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from twofold.broker.network.context import Peer
from twofold.broker.network.quiet import QuietLog
from twofold.runtime.api import Runtime

UNLIMITED = 2**31 - 1
BURST_S = 10.0
LONGEST_LINE_S = 10.0
HELD_S = 1.0  # a connection of an address that comes too fast


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    max_connections: int = UNLIMITED
    max_creation_rate: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_connections: int = UNLIMITED  # max.connections
    max_open_sockets: int = UNLIMITED  # what the limit of open files leaves beside the files of the logs
    max_per_ip: int = UNLIMITED  # max.connections.per.ip
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)  # by address as Java writes it
    max_creation_rate: int = UNLIMITED  # max.connection.creation.rate
    listeners: Mapping[str, ListenerLimits] = field(default_factory=dict)


class ConnectionPace:
    """New connections per second: `take` says how long one has to wait for its turn."""

    __slots__ = ("_left", "_since_s", "_rate")

    def __init__(self) -> None:
        self._left = 0.0
        self._since_s = 0.0
        self._rate = 0.0

    def take(self, rate: float, now_s: float) -> float:
        if rate != self._rate:
            self._rate, self._left, self._since_s = rate, rate * BURST_S, now_s
        self._left = min(rate * BURST_S, self._left + (now_s - self._since_s) * rate) - 1
        self._since_s = now_s
        if self._left >= 0:
            return 0.0
        return -self._left / rate if rate > 0 else float("inf")

    def give_back(self) -> None:
        self._left += 1


class ConnectionAdmission:
    """Counts the connections of one broker.

    `rate_of` is the rate of an address, None without a limit; `told` hears of each connection that came too fast.
    """

    def __init__(self, rate_of: Callable[[str], float | None] = lambda host: None) -> None:
        self.limits = ServerLimits()
        self.rate_of = rate_of
        self.told: Callable[[], None] = lambda: None
        self._count = 0
        self._per_host: dict[str, int] = {}
        self._per_listener: dict[str, int] = {}
        self._pace = ConnectionPace()
        self._listener_paces: dict[str, ConnectionPace] = {}
        self._host_paces: dict[str, ConnectionPace] = {}

    def refusal(self, peer: Peer) -> tuple[str, str] | None:
        """Why a connection is not admitted: the kind of the reason, and its words."""
        limits = self.limits
        if self._count >= limits.max_connections:
            return "max.connections", f"{self._count} connections are open and max.connections={limits.max_connections}"
        if self._count >= limits.max_open_sockets:
            # Were the last file handles given to connections, the logs could not open their next segments.
            return "open files", (
                f"{self._count} connections are open, and the other files that this process may open are for the logs; "
                "raise the limit (ulimit -n)"
            )
        of_listener = limits.listeners.get(peer.listener)
        count = self._per_listener.get(peer.listener, 0)
        if of_listener is not None and count >= of_listener.max_connections:
            name = f"listener.name.{peer.listener.lower()}.max.connections"
            return name, f"{count} connections of this listener are open and {name}={of_listener.max_connections}"
        count = self._per_host.get(peer.client_host, 0)
        override = limits.per_ip_overrides.get(peer.client_host)
        most = limits.max_per_ip if override is None else override
        if count >= most:
            name = "max.connections.per.ip" if override is None else "max.connections.per.ip.overrides"
            says = f"{name}={most}" if override is None else f"{name} allows {most}"
            return name, f"{count} connections of this host are open and {says}"
        return None

    def enter(self, peer: Peer) -> None:
        self._count += 1
        self._per_host[peer.client_host] = self._per_host.get(peer.client_host, 0) + 1
        self._per_listener[peer.listener] = self._per_listener.get(peer.listener, 0) + 1

    def leave(self, peer: Peer) -> None:
        self._count -= 1
        _less(self._per_host, peer.client_host)
        _less(self._per_listener, peer.listener)

    def wait_s(self, peer: Peer, now_s: float) -> float | None:
        """How long a new connection has to wait for its turn; None where the line is too long."""
        limits = self.limits
        taken: list[ConnectionPace] = []
        wait_s = 0.0
        if limits.max_creation_rate < UNLIMITED:
            taken.append(self._pace)
            wait_s = self._pace.take(limits.max_creation_rate, now_s)
        of_listener = limits.listeners.get(peer.listener)
        if of_listener is not None and of_listener.max_creation_rate < UNLIMITED:
            pace = self._listener_paces.setdefault(peer.listener, ConnectionPace())
            taken.append(pace)
            wait_s = max(wait_s, pace.take(of_listener.max_creation_rate, now_s))
        if wait_s <= LONGEST_LINE_S:
            return wait_s
        for pace in taken:
            pace.give_back()
        return None

    def comes_too_fast(self, peer: Peer, now_s: float) -> bool:
        """Whether the address has used up its rate."""
        host = peer.client_host
        rate = self.rate_of(host)
        if rate is None:
            self._host_paces.pop(host, None)
            return False
        pace = self._host_paces.get(host)
        if pace is None:
            if len(self._host_paces) >= 10_000:
                self._host_paces.pop(next(iter(self._host_paces)))
            pace = self._host_paces[host] = ConnectionPace()
        if pace.take(rate, now_s) == 0:
            return False
        pace.give_back()
        return True


def _less(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 1) - 1
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


class Comer(Protocol):
    """A connection that has just been accepted."""

    peer: Peer

    def hold(self) -> None: ...

    def begin(self) -> None: ...

    def abort(self) -> None: ...


class Door(Protocol):
    admission: ConnectionAdmission
    quiet: QuietLog
    runtime: Runtime


def let_in(door: Door, comer: Comer) -> None:
    """Let a new connection begin: at once, when it is its turn, or never."""
    now_s = door.runtime.clock.monotonic()  # the time of a pause of the broker fills the buckets as well
    later = door.runtime.timers.call_later
    if door.admission.comes_too_fast(comer.peer, now_s):
        comer.hold()
        later(HELD_S, comer.abort)
        door.admission.told()
        door.quiet.warning(
            "connection_creation_rate", "closed %s: its address opens connections faster than its quota "
            "connection_creation_rate=%g allows (twofold quota list)",
            comer.peer, door.admission.rate_of(comer.peer.client_host) or 0,
        )  # fmt: skip
        return
    wait_s = door.admission.wait_s(comer.peer, now_s)
    if wait_s is None:
        door.quiet.warning(
            "max.connection.creation.rate", "closed %s: it would have waited for more than %d s for its turn "
            "(max.connection.creation.rate)", comer.peer, LONGEST_LINE_S,
        )  # fmt: skip
        comer.abort()
    elif wait_s > 0:
        comer.hold()
        later(wait_s, comer.begin)
    else:
        comer.begin()
