"""What the transactional driver and the readers share: a cluster of one's own, and requests that are answered raw."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ClientConfig
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import raise_for
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest

V = TypeVar("V")

GROUP_KEY, TRANSACTION_KEY = 0, 1
FIND_VERSION = 6


class Wire:
    """Requests on the connections of a `twofold.client` cluster: one for each broker, made again when it ended.

    It works in the simulator and against any broker, whatever `runtime` is. What the network does to a request is
    raised as the client's own KafkaError.
    """

    def __init__(
        self, runtime: Runtime, bootstrap_servers: str, *, request_timeout_ms: int = 30_000, **options: Any
    ) -> None:
        config = ClientConfig(
            bootstrap_servers=bootstrap_servers,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=request_timeout_ms,
            **{"reconnect_backoff_max_ms": 500, **options},
        )
        self.runtime = runtime
        self.cluster = Cluster(runtime, config)
        self._coordinators: dict[tuple[int, str], int] = {}

    async def ask(self, node_id: int | None, message: Any, api: str, version: int | None = None) -> Any:
        """One request to one broker (None: any), and its answer."""
        return await self.cluster.request(node_id, message, api, self.cluster.deadline(), version=version)

    async def find(self, key: str, kind: int, version: int = FIND_VERSION) -> Any:
        """The raw answer of FindCoordinator."""
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key] if version >= 4 else [])
        return await self.ask(None, request, "FindCoordinator", version)

    async def coordinator(self, key: str, kind: int) -> int:
        """The node that coordinates a transactional id or a group, remembered until `forget`."""
        found = self._coordinators.get((kind, key))
        if found is None:
            (row,) = (await self.find(key, kind)).coordinators
            raise_for(row.error_code, f"FindCoordinator of {key!r}")
            if row.node_id not in self.cluster.cache.nodes:
                await self.cluster.refresh(self.cluster.deadline())
            found = self._coordinators[kind, key] = row.node_id
        return found

    async def leader(self, tp: TopicPartition) -> int:
        return (await self.cluster.leader(tp, self.cluster.deadline())).leader

    def forget(self) -> None:
        """Coordinators and leaders are looked up again."""
        self._coordinators.clear()
        self.cluster.invalidate()

    async def close(self) -> None:
        await self.cluster.close()


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def rows_by_topic(values: Mapping[TopicPartition, V]) -> dict[str, list[tuple[int, V]]]:
    found: dict[str, list[tuple[int, V]]] = {}
    for (topic, partition), value in values.items():
        found.setdefault(topic, []).append((partition, value))
    return found
