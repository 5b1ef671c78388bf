"""Connections that outlive a task: Spark's Python workers serve one task after the other.

1. A process has one loop thread and, for each configuration, one cluster on it; both stay until the process ends.
2. A process that was forked starts anew: neither threads nor connections come along.
"""

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from twofold.client.blocking import LoopThread
from twofold.client.cluster import Cluster
from twofold.client.config import ClientConfig, ProducerConfig
from twofold.runtime.real import real_runtime

T = TypeVar("T")

MAX_CLUSTERS = 8


class Client:
    """A cluster, and the loop on which it lives."""

    def __init__(self, loop: LoopThread, config: ClientConfig) -> None:
        self._loop = loop
        self.cluster: Cluster = loop.run(_make(config))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)


async def _make(config: ClientConfig) -> Cluster:
    return Cluster(real_runtime(), config, allow_auto_create=isinstance(config, ProducerConfig))


class _Process:
    pid = -1
    loop: LoopThread
    clients: dict[ClientConfig, Client]


def client_for(config: ClientConfig) -> Client:
    """The client of this process for a configuration."""
    if _Process.pid != os.getpid():
        _Process.pid = os.getpid()
        _Process.loop = LoopThread("twofold-spark")
        _Process.clients = {}
    client = _Process.clients.pop(config, None)
    if client is None:
        client = Client(_Process.loop, config)
        while len(_Process.clients) >= MAX_CLUSTERS:
            oldest = next(iter(_Process.clients))
            client.run(_Process.clients.pop(oldest).cluster.close())
    _Process.clients[config] = client
    return client
