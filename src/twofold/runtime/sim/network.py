"""A network between simulated nodes: every node is a host of its own name.

What one seed decides for each message: its delay, and whether it is lost, doubled or cut in two. What a test decides:
how likely these are on a link, which nodes cannot reach each other, and when connections are reset.
"""

import asyncio
import errno
import itertools
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from ssl import SSLContext
from typing import Any

from twofold.runtime.api import HeldSocket, ProtocolFactory
from twofold.runtime.sim.loop import Life, SimLoop
from twofold.runtime.sim.transport import Address, MessageKind, SimMessage, SimTransport

OWN_HOSTS = ("", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost")
FIRST_EPHEMERAL_PORT = 32768


@dataclass(frozen=True, slots=True)
class Link:
    """How messages fare in one direction between two nodes."""

    latency_s: tuple[float, float] = (0.0001, 0.002)
    drop: float = 0.0
    """Probability that a message is lost: it never arrives, and later both ends lose the connection."""
    duplicate: float = 0.0
    """Probability that a message arrives twice. No stream does this: it stands for a peer that repeats itself."""
    split: float = 0.0
    """Probability that a message arrives in two parts."""


@dataclass(frozen=True, slots=True, eq=False)
class NetworkPartition:
    """Messages from `sources` to `targets` (None: all other nodes) stall until it is healed."""

    sources: frozenset[str]
    targets: frozenset[str] | None
    one_way: bool
    _heal: Callable[["NetworkPartition"], None]

    def blocks(self, sender: str, receiver: str) -> bool:
        return self._covers(sender, receiver) or (not self.one_way and self._covers(receiver, sender))

    def _covers(self, source: str, target: str) -> bool:
        if source not in self.sources:
            return False
        return target not in self.sources if self.targets is None else target in self.targets

    def heal(self) -> None:
        self._heal(self)


class SimListener:
    def __init__(self, network: "SimNetwork", life: Life, port: int, factory: ProtocolFactory) -> None:
        self.life = life
        self.factory = factory
        self._network = network
        self._port = port

    @property
    def host(self) -> str:
        return self.life.node

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._network._stop_listening(self)


class SimNetwork:
    """Shared by all nodes of a simulation; `of` gives a node its own door to it."""

    def __init__(self, loop: SimLoop, random: Random, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.note = note
        self.window_bytes = 64 * 1024
        self.stall_timeout_s = 30.0
        """After so long without an acknowledgement a sender gives its connection up."""
        self.connect_timeout_s = 20.0
        self.break_delay_s = (0.001, 1.0)
        """How long after a lost message both ends hear that their connection is gone."""
        self._random = random
        self._default_link = Link()
        self._links: dict[tuple[str, str], Link] = {}
        self._partitions: list[NetworkPartition] = []
        self._healed: asyncio.Future[None] | None = None
        self._listeners: dict[Address, SimListener] = {}
        self._transports: dict[SimTransport, None] = {}
        self._numbers = itertools.count(1)
        self._ports = itertools.count(FIRST_EPHEMERAL_PORT)

    def of(self, life: Life) -> "NodeNetwork":
        return NodeNetwork(self, life)

    # Faults

    def set_default_link(self, **changes: Any) -> None:
        """Fields of `Link` for all links that have not been set on their own."""
        self._default_link = replace(self._default_link, **changes)

    def set_link(self, a: str, b: str, *, one_way: bool = False, **changes: Any) -> None:
        """Fields of `Link` for the messages from `a` to `b` and, unless `one_way`, back."""
        for pair in ((a, b),) if one_way else ((a, b), (b, a)):
            self._links[pair] = replace(self.link(*pair), **changes)

    def link(self, sender: str, receiver: str) -> Link:
        return self._links.get((sender, receiver), self._default_link)

    def partition(
        self, a: str | Iterable[str], b: str | Iterable[str] | None = None, *, one_way: bool = False
    ) -> NetworkPartition:
        """Cut `a` off from `b`, or from all other nodes. Open connections stall; they break after `stall_timeout_s`."""
        cut = NetworkPartition(_names(a), None if b is None else _names(b), one_way, self._heal)
        self._partitions.append(cut)
        self.note(f"partition {_show(cut.sources)} {_show(cut.targets)} one_way={one_way}")
        return cut

    def heal(self) -> None:
        """End all partitions. What was stalled arrives."""
        for cut in list(self._partitions):
            cut.heal()

    def reset(self, a: str, b: str | None = None) -> int:
        """Reset the connections between `a` and `b` (or all of `a`'s); how many there were."""
        victims = [t for t in self._transports if t.life.node == a and b in (None, t.peer.life.node)]
        self.note(f"reset {a} {b} {len(victims)}")
        for transport in victims:
            transport.reset()
            transport.peer.reset()
        return len(victims)

    def _heal(self, cut: NetworkPartition) -> None:
        self._partitions = [other for other in self._partitions if other is not cut]
        self.note(f"heal {_show(cut.sources)} {_show(cut.targets)}")
        for transport in list(self._transports):
            transport.on_heal()
            transport.peer.on_heal()  # its own end may be closed and still have something under way
        if self._healed is not None:
            self._healed.set_result(None)
            self._healed = None

    # What transports need (`transport.Wire`)

    def latency_s(self, sender: str, receiver: str) -> float:
        return self._random.uniform(*self.link(sender, receiver).latency_s)

    def is_blocked(self, sender: str, receiver: str) -> bool:
        return sender != receiver and any(cut.blocks(sender, receiver) for cut in self._partitions)

    def fate(self, sender: SimTransport, data: bytes) -> list[SimMessage] | None:
        link = self.link(sender.life.node, sender.peer.life.node)
        if self._happens(link.drop):
            self.note(f"drop #{sender.number} {len(data)}")
            self.loop.call_later(self._random.uniform(*self.break_delay_s), self._break, sender)
            return None
        parts = [data]
        if len(data) > 1 and self._happens(link.split):
            middle = self._random.randint(1, len(data) - 1)
            parts = [data[:middle], data[middle:]]
        messages = [SimMessage(MessageKind.DATA, part, len(part)) for part in parts]
        if self._happens(link.duplicate):
            messages.append(SimMessage(MessageKind.DATA, data))
        return messages

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _break(self, transport: SimTransport) -> None:
        transport.reset()
        transport.peer.reset()

    # What nodes ask for

    def listen(self, life: Life, factory: ProtocolFactory, host: str, port: int) -> SimListener:
        if not life.alive:
            raise OSError(errno.ENETDOWN, f"node {life.node} has crashed")
        if host not in (*OWN_HOSTS, life.node):
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {host}:{port}: the host is {life.node}")
        if port == 0:
            port = next(p for p in self._ports if (life.node, p) not in self._listeners)
        if (life.node, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {host}:{port}: Address already in use")
        listener = SimListener(self, life, port, factory)
        self._listeners[life.node, port] = listener
        return listener

    def _stop_listening(self, listener: SimListener) -> None:
        address = (listener.host, listener.port)
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    async def connect(
        self, life: Life, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        if not life.alive:
            raise OSError(errno.ENETDOWN, f"node {life.node} has crashed")
        target = life.node if host in OWN_HOSTS else host
        give_up_at = self.loop.time() + self.connect_timeout_s
        await self._pass(life.node, target, give_up_at)
        listener = self._listeners.get((target, port))
        client = self._accept(life, listener) if listener is not None else None
        try:
            await self._pass(target, life.node, give_up_at)
            if client is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"no node listens on {target}:{port}")
            if client.lost:
                raise ConnectionResetError(errno.ECONNRESET, f"{target}:{port} reset the connection")
            if not life.alive:
                raise OSError(errno.ENETDOWN, f"node {life.node} has crashed")
        except BaseException:
            if client is not None:
                client.abort()
            raise
        protocol = life.context().run(factory)
        client.connect(protocol)
        return client, protocol

    def _accept(self, life: Life, listener: SimListener) -> SimTransport:
        number = next(self._numbers)
        local, remote = (life.node, next(self._ports)), (listener.host, listener.port)
        client = SimTransport(self, life, number, local, remote)
        server = SimTransport(self, listener.life, number, remote, local)
        client.peer, server.peer = server, client
        self._transports[client] = None
        self._transports[server] = None
        self.note(f"accept #{number} {local[0]}->{remote[0]}:{remote[1]}")
        server.connect(listener.life.context().run(listener.factory))
        return client

    async def _pass(self, sender: str, receiver: str, give_up_at: float) -> None:
        """The way of one packet of the handshake, which is repeated while there is a partition."""
        while self.is_blocked(sender, receiver):
            if self._healed is None:
                self._healed = self.loop.create_future()
            remaining_s = give_up_at - self.loop.time()
            if remaining_s <= 0:
                raise TimeoutError(errno.ETIMEDOUT, f"connecting from {sender} to {receiver} timed out")
            await asyncio.wait([self._healed], timeout=remaining_s)
        await asyncio.sleep(self.latency_s(sender, receiver))

    def resume(self, life: Life) -> None:
        """A paused node goes on: what has arrived for it is delivered."""
        for transport in [transport for transport in self._transports if transport.life is life]:
            transport.on_resume()

    def crash(self, life: Life, *, silently: bool) -> None:
        for listener in [listener for listener in self._listeners.values() if listener.life is life]:
            self._stop_listening(listener)
        for transport in [transport for transport in self._transports if transport.life is life]:
            transport.die(silently=silently)


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The network as one node sees it."""

    _network: SimNetwork
    _life: Life

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> SimListener:
        return self._network.listen(self._life, factory, host, port)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if tls is not None:
            raise NotImplementedError("the simulated network has no TLS")
        return await self._network.connect(self._life, factory, host, port)

    async def listen_held(self, accept: Callable[[HeldSocket], None], host: str, port: int) -> SimListener:
        raise OSError(errno.EPROTONOSUPPORT, "the simulated network has no TLS")

    async def begin_tls(
        self, held: HeldSocket, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, timeout_s: float
    ) -> None:
        raise OSError(errno.EPROTONOSUPPORT, "the simulated network has no TLS")


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset([names] if isinstance(names, str) else names)


def _show(names: frozenset[str] | None) -> str:
    return "others" if names is None else ",".join(sorted(names))
