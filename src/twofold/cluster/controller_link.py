"""Where the active controller is, and the connections to it.

1. One part learns which controller leads: the observer, from the answers to its fetches. The highest epoch is right.
2. Each purpose has a connection of its own (`Channel`): a parked fetch, or a slow change, must not hold a heartbeat up.
3. A channel asks the leader that is known. Where none is, it waits for one within its time.
4. A controller that says it is not the active one was asked on old news: the channel waits a moment and asks anew.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from twofold.cluster.errors import NoController
from twofold.cluster.signal import Signal
from twofold.connections.connection import Address, Connection, ConnectionLimits
from twofold.connections.errors import ClientClosed
from twofold.connections.link import BrokerLink
from twofold.connections.security import PLAINTEXT, ConnectionSecurity
from twofold.connections.waiting import Backoff, Deadline
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError, NetworkException, NotController

RETRY = Backoff(20, 50)
RECONNECT = Backoff(50, 1000)
NO_LEADER = -1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Where to look for the controllers, and how to talk to them."""

    bootstrap: tuple[Address, ...]
    security: ConnectionSecurity = PLAINTEXT
    request_timeout_ms: int = 2000
    client_id: str = "twofold"


class Leader(NamedTuple):
    """A controller that leads, as far as is known."""

    node_id: int
    epoch: int
    address: Address


class Controllers:
    def __init__(self, runtime: Runtime, options: ControllerOptions) -> None:
        self.options = options
        self.epoch = 0  # the newest that any controller has told
        self._runtime = runtime
        self._leader: Leader | None = None
        self._next_bootstrap = 0
        self._changed = Signal(runtime)
        self._closed = False
        self._channels: list[Channel] = []
        self.on_leader: Callable[[Leader], None] | None = None

    @property
    def leader(self) -> Leader | None:
        return self._leader

    @property
    def bootstrap_text(self) -> str:
        return ", ".join(map(str, self.options.bootstrap))

    def channel(self, name: str) -> "Channel":
        channel = Channel(self._runtime, self, name)
        self._channels.append(channel)
        return channel

    def next_bootstrap(self) -> Address:
        """One after the other, and then again."""
        address = self.options.bootstrap[self._next_bootstrap % len(self.options.bootstrap)]
        self._next_bootstrap += 1
        return address

    def learn(self, node_id: int, epoch: int, address: Address | None) -> bool:
        """A controller has told which one leads; whether that is news."""
        if epoch < self.epoch:
            return False
        known = self._leader
        if epoch > self.epoch:
            self.epoch, self._leader = epoch, None
        if node_id == NO_LEADER or address is None:
            return known is not self._leader
        leader = Leader(node_id, epoch, address)
        if leader == known:
            return False
        self._leader = leader
        self._changed.fire()
        log.info("controller %d at %s leads the metadata in epoch %d", node_id, address, epoch)
        if self.on_leader is not None:
            self.on_leader(leader)
        return True

    def forget(self, leader: Leader | None) -> None:
        """It does not answer, or is none: ask the others."""
        if leader is not None and leader == self._leader:
            self._leader = None

    async def known_leader(self, deadline: Deadline) -> Leader:
        """The one that leads; NoController, retriable, where none is known in time."""
        while self._leader is None:
            if self._closed:
                raise ClientClosed("the connections to the controllers are closed")
            if not await self._changed.wait(deadline.remaining_s()):
                raise NoController(
                    f"no active controller was found within {deadline.timeout_ms:g} ms at {self.bootstrap_text}"
                )
        return self._leader

    def close(self) -> None:
        self._closed = True
        self._changed.fire()
        for channel in self._channels:
            channel.close()

    def link(self, address: Address, node_id: int | None = None) -> BrokerLink:
        limits = ConnectionLimits(
            client_id=self.options.client_id,
            connect_timeout_ms=self.options.request_timeout_ms,
            request_timeout_ms=self.options.request_timeout_ms,
        )
        return BrokerLink(self._runtime, limits, RECONNECT, address, node_id, self.options.security)


class Channel:
    """Requests of one purpose to whichever controller leads."""

    def __init__(self, runtime: Runtime, controllers: Controllers, name: str) -> None:
        self.name = name
        self._runtime = runtime
        self._controllers = controllers
        self._link: BrokerLink | None = None

    async def connection(self, deadline: Deadline) -> Connection:
        """To the leader, as far as one is known within the deadline."""
        leader = await self._controllers.known_leader(deadline)
        if self._link is None or self._link.address != leader.address:
            if self._link is not None:  # what is in flight there is asked again at the new one
                self._link.close(NetworkException(f"controller {leader.node_id} leads now"))
            self._link = self._controllers.link(leader.address, leader.node_id)
        link = self._link
        try:
            return await link.connect(deadline)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if link is self._link or (task is not None and task.cancelling()):
                raise
            raise NetworkException("another controller leads now") from None  # its link was closed while it connected

    async def ask(self, message: Any, api_key: int, *, timeout_ms: float, once: bool = False) -> Any:
        """What the active controller answers; a retriable KafkaError where none does in time.

        `once`: send at most one request, whatever comes of it.
        """
        deadline = Deadline(self._runtime.clock, timeout_ms, self.name)
        failures = 0
        while True:
            error: KafkaError
            try:
                connection = await self.connection(deadline)
                response = await connection.request(
                    message, api_key, timeout_ms=max(1.0, deadline.remaining_s() * 1000)
                )
            except KafkaError as failed:
                if not failed.retriable or isinstance(failed, NoController):
                    raise
                error = failed
            else:
                if getattr(response, "error_code", 0) != NotController.code:
                    return response
                error = NotController(f"{connection.label} is not the active controller")
            failures += 1
            delay_s = RETRY.delay_s(failures, self._runtime.random)
            if once or delay_s >= deadline.remaining_s():
                raise error
            await self._runtime.timers.sleep(delay_s)

    def close(self) -> None:
        if self._link is not None:
            self._link.close(ClientClosed(f"the connection for {self.name} was closed"))
            self._link = None


def endpoint_of(node_id: int, endpoints: "Sequence[Any]") -> Address | None:
    """Where an answer says that a node is."""
    return next((Address(at.host, at.port) for at in endpoints if at.node_id == node_id), None)
