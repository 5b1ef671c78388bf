"""Connections that outlive a task: Spark's Python workers serve one task after the other.

1. A process has one loop thread and, for each configuration, one cluster on it; both stay until the process ends.
2. A process that was forked starts anew: neither threads nor connections come along.
3. Connections of tasks' own are kept too, one for each broker, when nothing is in flight on them.
"""

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ClientConfig, ProducerConfig
from twofold.client.loop_thread import LoopThread
from twofold.connections.connection import Address
from twofold.runtime.real import real_runtime
from twofold.spark.fetch_socket import FetchSocket, Route

T = TypeVar("T")

MAX_CLUSTERS = 8


class SparkClient:
    """A cluster, and the loop on which it lives."""

    def __init__(self, loop: LoopThread, config: ClientConfig) -> None:
        self._loop = loop
        self._config = config
        self._idle: dict[Address, FetchSocket] = {}
        self.cluster: Cluster = loop.run(_make(config))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    def take_socket(self, route: Route) -> FetchSocket:
        """A connection for one task, to be given back; OSError where there is none."""
        kept = self._idle.pop(route.address, None)
        if kept is not None and kept.route == route:
            return kept
        if kept is not None:
            kept.close()
        return FetchSocket(route, self._config.limits, self._config.security)

    def give_back(self, connection: FetchSocket) -> None:
        if connection.in_flight or connection.route.address in self._idle:
            connection.close()
        else:
            self._idle[connection.route.address] = connection

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()
        self.run(self.cluster.close())


async def _make(config: ClientConfig) -> Cluster:
    return Cluster(real_runtime(), config, allow_auto_create=isinstance(config, ProducerConfig))


class _Process:
    pid = -1
    loop: LoopThread
    clients: dict[ClientConfig, SparkClient]


def client_for(config: ClientConfig) -> SparkClient:
    """The client of this process for a configuration."""
    if _Process.pid != os.getpid():
        _Process.pid = os.getpid()
        _Process.loop = LoopThread("twofold-spark")
        _Process.clients = {}
    client = _Process.clients.pop(config, None)
    if client is None:
        client = SparkClient(_Process.loop, config)
        while len(_Process.clients) >= MAX_CLUSTERS:
            oldest = next(iter(_Process.clients))
            _Process.clients.pop(oldest).close()
    _Process.clients[config] = client
    return client
