"""The way to the coordinators of transactional ids and of groups.

1. They have connections of their own: a heartbeat does not stand in line behind a megabyte of records.
2. A coordinator that has moved (15, 16), does not answer or cannot be reached is looked up again; one that is loading
   (14) or busy with the transaction before (51) is asked again.
3. Every wait ends at the caller's deadline.
"""

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

from twofold.client.cluster.cluster import Cluster
from twofold.connections.connection import Connection
from twofold.connections.errors import ClientClosed
from twofold.connections.link import BrokerLink
from twofold.connections.waiting import Backoff, Deadline
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    TransactionalIdAuthorizationFailed,
    error_for,
)
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

T = TypeVar("T")
FIND_COORDINATOR = KEYS["FindCoordinator"]
BATCHED_SINCE = 4
# What a transaction's end leaves behind is written in milliseconds; the usual pause would be most of the wait.
CONCURRENT_BACKOFF_MS = 20


class CoordinatorKind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """Of one producer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: dict[tuple[CoordinatorKind, str], int] = {}
        self._links: dict[int, BrokerLink] = {}

    def close(self) -> None:
        error = ClientClosed("the client was closed")
        for link in self._links.values():
            link.close(error)

    def connected(self, kind: CoordinatorKind, key: str) -> Connection | None:
        """The connection to the coordinator as it was last known, when it is open."""
        node_id = self._nodes.get((kind, key))
        link = None if node_id is None else self._links.get(node_id)
        return None if link is None else link.connection

    def node_of(self, kind: CoordinatorKind, key: str) -> int:
        """The coordinator as it was last known; -1 for none."""
        return self._nodes.get((kind, key), -1)

    async def ask(
        self,
        kind: CoordinatorKind,
        key: str,
        what: str,
        attempt: Callable[[Connection], Awaitable[T]],
        deadline: Deadline,
        *,
        patient: bool = True,
    ) -> T:
        """Call `attempt` with the coordinator's connection until it succeeds or fails for good. Without patience a
        busy or absent coordinator is the caller's to wait for."""
        config, runtime = self._cluster.config, self._cluster.runtime
        busy = Backoff(CONCURRENT_BACKOFF_MS, config.retry_backoff_max_ms)
        failures = 0
        while True:
            try:
                return await attempt(await self.connection(kind, key, deadline))
            except KafkaError as error:
                if not isinstance(error, ConcurrentTransactions | CoordinatorLoadInProgress):
                    # Also after what is no coordinator's error: asking again costs little, and not asking may be wrong.
                    self._nodes.pop((kind, key), None)
                if not error.retriable or not patient:
                    raise
                failures += 1
                backoff = busy if isinstance(error, ConcurrentTransactions) else config.retry_backoff
                delay_s = backoff.delay_s(failures, runtime.random)
                if delay_s >= deadline.remaining_s():
                    raise deadline.gave_up(what, error) from error
            await runtime.timers.sleep(delay_s)

    async def connection(self, kind: CoordinatorKind, key: str, deadline: Deadline) -> Connection:
        """One attempt to find and to reach the coordinator."""
        node_id = self._nodes.get((kind, key))
        if node_id is None:
            node_id = self._nodes[kind, key] = await self._find(kind, key, deadline)
        return await (await self._link(node_id, deadline)).connect(deadline)

    async def _find(self, kind: CoordinatorKind, key: str, deadline: Deadline) -> int:
        connection = await self._cluster.any_connection(deadline)
        if connection.supports(FIND_COORDINATOR, BATCHED_SINCE):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        else:
            request = FindCoordinatorRequest(key_type=kind, key=key)
        response: FindCoordinatorResponse = await self._cluster.ask(connection, request, "FindCoordinator", deadline)
        row = response.coordinators[0] if response.coordinators else response
        if row.error_code:
            name = "transactional id" if kind is CoordinatorKind.TRANSACTION else "group"
            error = error_for(row.error_code)
            advice = ": the principal needs DESCRIBE on it" if error is TransactionalIdAuthorizationFailed else ""
            raise error(row.error_message or f"{connection.label} knows no coordinator of {name} {key!r}{advice}")
        return row.node_id

    async def _link(self, node_id: int, deadline: Deadline) -> BrokerLink:
        node = self._cluster.node(node_id)
        if node is None:
            await self._cluster.refresh(deadline)
            node = self._cluster.node(node_id)
        if node is None:
            raise CoordinatorNotAvailable(f"broker {node_id} is the coordinator and not part of the cluster's metadata")
        link = self._links.get(node_id)
        if link is None or link.address != node.address:
            if link is not None:
                link.close(CoordinatorNotAvailable(f"broker {node_id} moved to {node.address}"))
            link = self._links[node_id] = self._cluster.new_link(node)
        return link
