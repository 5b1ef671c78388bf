"""The parts of a member of a cluster that replicate its partitions: connections to other brokers, fetchers, and what
looks after its followers.

1. They are there before the first image is taken over: it says what is followed.
2. Nothing is fetched before the broker is registered. What it acknowledges is acknowledged as that registration.
3. They end before the logs are closed.
"""

import asyncio
from collections.abc import Callable
from typing import cast
from uuid import UUID

from twofold.broker.controller_port import ReplicationPort
from twofold.broker.core import BrokerCore
from twofold.broker.replication.directory_reports import DirectoryReports
from twofold.broker.replication.fetchers import FetcherContext, ReplicaFetchers
from twofold.broker.replication.follower_watch import FollowerWatch
from twofold.broker.replication.isr_changes import BrokerIdentity, IsrChanges
from twofold.cluster.peers import Peers
from twofold.config import cluster
from twofold.config.definition import ConfigError
from twofold.config.settings import Settings
from twofold.connections.connection import ConnectionLimits
from twofold.connections.security import ConnectionSecurity


class Replication:
    def __init__(self, core: BrokerCore, broker_epoch: Callable[[], int], directory_id: UUID) -> None:
        """`broker_epoch` is asked at every request: a broker may have to register again."""
        settings = core.settings
        self._registered = asyncio.Event()
        self.peers = Peers(
            core.runtime,
            lambda: core.image,
            listener=cluster.inter_broker_listener(settings),
            security=_security(settings),
            limits=ConnectionLimits(
                client_id=f"broker-{core.node_id}-fetcher",
                request_timeout_ms=settings.int("replica.socket.timeout.ms"),
            ),
        )
        context = FetcherContext(core.runtime, core.node_id, lambda: core.settings, broker_epoch, self._registered)
        self.fetchers = ReplicaFetchers(context, self.peers)
        core.replicas.fetchers = self.fetchers
        self.isr_changes = IsrChanges(
            core.runtime,
            lambda: BrokerIdentity(core.node_id, broker_epoch()),
            lambda request: cast(ReplicationPort, core.controller).alter_partition(request),
        )
        core.replicas.neighbours.propose = self.isr_changes.propose
        self.directories = DirectoryReports(
            core.runtime,
            lambda: BrokerIdentity(core.node_id, broker_epoch()),
            directory_id,
            lambda request: cast(ReplicationPort, core.controller).assign_replicas_to_dirs(request),
        )
        watch = FollowerWatch(core.replicas, core.runtime.timers, core.replicas.neighbours.lag_ms)
        self._watch = core.runtime.spawn(watch.run(), name="followers that fall behind")

    def begin(self) -> None:
        """The broker is registered."""
        self._registered.set()

    async def close(self) -> None:
        self._watch.cancel()
        await self.fetchers.close()
        await self.isr_changes.close()
        await self.directories.close()
        self.peers.close()


def _security(settings: Settings) -> ConnectionSecurity:
    found = cluster.inter_broker_security(settings)
    try:
        return ConnectionSecurity.of(found.of_client(settings.string("sasl.mechanism.inter.broker.protocol")))
    except ValueError as error:
        name = "inter.broker.listener.name"
        raise ConfigError(name, found.listener, f"connections to other brokers: {error}") from None
