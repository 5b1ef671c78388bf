"""Connections to the other brokers of the cluster.

1. Where a broker is, the newest image tells: its endpoint of the inter-broker listener. It is looked up for every
   connection, so a broker that comes back elsewhere is found there.
2. A connection belongs to one registration of the broker. What its process spoke before a restart need not be what it
   speaks now: versions are negotiated anew with every connection.
3. A link has one connection, and one attempt to make it. A purpose whose requests wait for long has its own link,
   because a broker answers the requests of a connection one after the other.
"""

from collections.abc import Callable

from twofold.connections.connection import Address, Connection, ConnectionLimits, open_connection
from twofold.connections.errors import BrokerUnreachable, ClientClosed
from twofold.connections.security import PLAINTEXT, ConnectionSecurity
from twofold.controller.image import MetadataImage
from twofold.runtime.api import Runtime


class Peers:
    def __init__(
        self,
        runtime: Runtime,
        image: Callable[[], MetadataImage],
        *,
        listener: str,
        security: ConnectionSecurity = PLAINTEXT,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`listener` is the name of the inter-broker listener, and `security` is how one connects to it."""
        self._runtime = runtime
        self._image = image
        self._listener = listener
        self._security = security
        self._limits = limits or ConnectionLimits()
        self._links: dict[tuple[int, str], PeerLink] = {}

    def link(self, node_id: int, purpose: str) -> "PeerLink":
        """The link to a broker for one purpose; the same one whenever it is asked for."""
        key = (node_id, purpose)
        if key not in self._links:
            self._links[key] = PeerLink(self, node_id)
        return self._links[key]

    def give_up(self, node_id: int, purpose: str) -> None:
        """The link is not needed any more."""
        link = self._links.pop((node_id, purpose), None)
        if link is not None:
            link.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def where(self, node_id: int) -> tuple[Address, int]:
        """The address of a broker, and the epoch of its registration there."""
        broker = self._image().broker(node_id)
        if broker is None:
            raise BrokerUnreachable(f"broker {node_id} is not registered")
        end_point = broker.end_point(self._listener)
        if end_point is None:
            names = ", ".join(sorted(end_point.name for end_point in broker.end_points))
            raise BrokerUnreachable(
                f"broker {node_id} has no listener {self._listener} (inter.broker.listener.name), but {names}"
            )
        return Address(end_point.host, end_point.port), broker.epoch

    async def open(self, node_id: int, address: Address) -> Connection:
        return await open_connection(self._runtime, address, self._limits, security=self._security, node_id=node_id)


class PeerLink:
    """The way to one broker, for one purpose. Used by one task at a time."""

    def __init__(self, peers: Peers, node_id: int) -> None:
        self.node_id = node_id
        self._peers = peers
        self._connection: Connection | None = None
        self._place: tuple[Address, int] | None = None
        self._is_closed = False

    async def connect(self) -> Connection:
        """The connection that is open, or a new one; KafkaError where there is none to be had."""
        place = self._peers.where(self.node_id)
        connection = self._connection
        if connection is not None:
            if not connection.closed and place == self._place:
                return connection
            self._connection = None
            connection.close()
        opened = await self._peers.open(self.node_id, place[0])
        if self._is_closed:
            opened.close()
            raise ClientClosed(f"the link to broker {self.node_id} was closed")
        self._connection, self._place = opened, place
        return opened

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
