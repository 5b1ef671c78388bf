"""The leaders of partitions and the connections to them, for code that must not wait.

What is missing is fetched beside the sender, which is woken when it has come or failed.
"""

import asyncio

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.client.producer.waking import Waking
from twofold.connections.connection import Connection
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError


class Leaders:
    def __init__(self, runtime: Runtime, config: ProducerConfig, cluster: Cluster, waking: Waking) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._waking = waking
        self._connecting: dict[int, asyncio.Task[object]] = {}
        self._closed = False

    def leader(self, tp: TopicPartition) -> int | None:
        """The broker that leads the partition, when one is known."""
        row = self._cluster.cache.leader(tp)
        return None if row is None else row.leader

    def connection(self, node_id: int) -> Connection | None:
        """The open connection; without one, it is on its way."""
        try:
            link = self._cluster.link(node_id)
        except KafkaError:
            self.refresh()
            return None
        if link.connection is not None:
            return link.connection
        if node_id not in self._connecting:
            task = spawn_shared(
                self._runtime,
                link.connect(self._cluster.deadline(self._config.delivery_timeout_ms, "delivery_timeout_ms")),
                name=f"producer connects to {node_id}",
            )
            self._connecting[node_id] = task
            task.add_done_callback(lambda done: self._on_connected(done, node_id))
        return None

    def _on_connected(self, done: "asyncio.Task[object]", node_id: int) -> None:
        self._connecting.pop(node_id, None)
        if not done.cancelled() and done.exception() is not None:
            # The link pauses before the next attempt; meanwhile the leader may have moved.
            self.refresh()
        self._waking.now()

    def refresh(self) -> None:
        """Fetch metadata: a leader may have moved."""
        if not self._closed:
            self._cluster.refresh_soon().add_done_callback(lambda _: self._waking.now())

    def close(self) -> list["asyncio.Task[object]"]:
        """Fetch nothing any more. Returns what is under way, for the caller to end."""
        self._closed = True
        return list(self._connecting.values())
