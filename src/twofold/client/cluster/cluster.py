"""A client's view of a cluster: one connection per broker, metadata kept fresh, requests tried again.

1. Any number of callers that need the same connection or newer metadata share one attempt.
2. A broker that fails is left alone for a while that grows; nothing is tried in a loop without a pause.
3. Every wait has an end that a setting names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from twofold.client.cluster.metadata import NO_LEADER, MetadataCache, Node, PartitionMetadata, TopicMetadata
from twofold.client.config import ClientConfig
from twofold.connections.connection import Address, Connection
from twofold.connections.errors import BrokerUnreachable, ClientClosed, SecurityFailed
from twofold.connections.link import BrokerLink
from twofold.connections.waiting import Deadline, done_within, retry, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    BrokerNotAvailable,
    KafkaError,
    LeaderNotAvailable,
    SaslAuthenticationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
METADATA = KEYS["Metadata"]


class Cluster:
    """Shared by a client's parts. `allow_auto_create` is what metadata requests for unknown topics ask for."""

    def __init__(self, runtime: Runtime, config: ClientConfig, *, allow_auto_create: bool = False) -> None:
        self.runtime = runtime
        self.config = config
        self.cache = MetadataCache()
        self._allow_auto_create = allow_auto_create
        self._bootstrap = [self._way_to(address) for address in config.addresses]
        self._links: dict[int, BrokerLink] = {}
        self._tracked: set[str] = set()
        self._refreshed_at = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._closed = False

    def deadline(self, timeout_ms: float | None = None, setting: str = "default_api_timeout_ms") -> Deadline:
        if timeout_ms is None:
            timeout_ms = self.config.default_api_timeout_ms
        return Deadline(self.runtime.clock, timeout_ms, setting)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        error = ClientClosed("the client was closed")
        for task in (self._running, self._waiting):
            if task is not None:
                task.cancel()
        for link in (*self._bootstrap, *self._links.values()):
            link.close(error)

    # Requests

    async def request(self, node_id: int | None, message: Any, api: str, deadline: Deadline, **options: Any) -> Any:
        """One request to one broker, or to any for None; not tried again."""
        connection = await (self.any_connection(deadline) if node_id is None else self.connection(node_id, deadline))
        return await self.ask(connection, message, api, deadline, **options)

    async def ask(self, connection: Connection, message: Any, api: str, deadline: Deadline, **options: Any) -> Any:
        """One request on one connection, within the deadline and `request_timeout_ms`."""
        timeout_ms = min(self.config.request_timeout_ms, max(1.0, deadline.remaining_s() * 1000))
        return await connection.request(message, KEYS[api], timeout_ms=timeout_ms, **options)

    async def retry(self, what: str, attempt: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """Call `attempt` until it succeeds or the deadline comes; metadata is refreshed between attempts."""

        async def attempt_and_refresh() -> T:
            try:
                return await attempt()
            except KafkaError as error:
                if error.retriable:
                    self.invalidate()
                raise

        return await retry(self.runtime, self.config.retry_backoff, deadline, what, attempt_and_refresh)

    # Connections

    def new_link(self, node: Node) -> BrokerLink:
        """A way to a broker that the caller owns and closes."""
        return self._way_to(node.address, node.node_id)

    def _way_to(self, address: Address, node_id: int | None = None) -> BrokerLink:
        config = self.config
        return BrokerLink(
            self.runtime, config.limits, config.reconnect_backoff, address, node_id, security=config.security
        )

    def link(self, node_id: int) -> BrokerLink:
        node = self.cache.nodes.get(node_id)
        if node is None:
            raise _UnknownNode(f"broker {node_id} is not part of the cluster at {self.config.bootstrap_servers}")
        link = self._links.get(node_id)
        if link is None or link.address != node.address:
            if link is not None:
                link.close(BrokerUnreachable(f"broker {node_id} moved from {link.address} to {node.address}"))
            link = self._links[node_id] = self.new_link(node)
        return link

    async def connection(self, node_id: int, deadline: Deadline) -> Connection:
        self._check_open()
        return await self.link(node_id).connect(deadline)

    async def any_connection(self, deadline: Deadline) -> Connection:
        """A connection to some broker: an open one, else to a broker that is known, else to a bootstrap server."""
        self._check_open()
        # A try of each address; callers that want more attempts call this again.
        reasons: dict[str, None] = {}
        for link in self._candidates():
            try:
                return await link.connect(deadline)
            except (SaslAuthenticationFailed, SecurityFailed):
                raise  # the next broker would say the same, and a wrong password tried often locks an account
            except KafkaError as error:
                reasons[str(error)] = None
        raise BrokerUnreachable("; ".join(reasons))

    def _candidates(self) -> list[BrokerLink]:
        known = [self.link(node_id) for node_id in self.cache.nodes]
        # A cluster behind one bootstrap address lists that address again as a node.
        links = {link.address: link for link in (*self._bootstrap, *known)}.values()

        def preference(link: BrokerLink) -> tuple[bool, int, bool, float]:
            connection = link.connection
            load = 0 if connection is None else connection.in_flight
            return (connection is None, load, link.backing_off, self.runtime.random.random())

        return sorted(links, key=preference)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed")

    # Metadata

    def invalidate(self) -> None:
        """The next lookup asks anew before it answers."""
        self._refreshed_at = float("-inf")

    async def bootstrap(self, patience_ms: float) -> None:
        """Learn the brokers. Fails when none has answered after `patience_ms` and one more try of each address."""
        patience = self.deadline(patience_ms, "patience_ms")
        failures = 0
        while True:
            try:
                return await self.refresh(self.deadline())
            except KafkaError as error:
                if not error.retriable or patience.expired:
                    raise
            failures += 1
            await self.runtime.timers.sleep(self.config.retry_backoff.delay_s(failures, self.runtime.random))

    async def topic(self, name: str, deadline: Deadline) -> TopicMetadata:
        """A topic's metadata: cached while fresh, otherwise asked for until it is there or the deadline comes."""
        found = self._fresh(name)
        if found is not None:
            return found
        return await retry(
            self.runtime,
            self.config.retry_backoff,
            deadline,
            f"looking up topic {name!r} at {self.config.bootstrap_servers}",
            lambda: self._lookup(name, deadline),
        )

    async def leader(self, tp: TopicPartition, deadline: Deadline) -> PartitionMetadata:
        """The partition's row once it has a leader."""

        async def attempt() -> PartitionMetadata:
            topic = await self.topic(tp.topic, deadline)
            row = topic.partitions.get(tp.partition)
            if row is not None and row.leader != NO_LEADER:
                return row
            self.invalidate()
            if row is None:
                count = len(topic.partitions)
                raise UnknownTopicOrPartition(f"topic {tp.topic!r} has {count} partitions, not a {tp.partition}")
            raise LeaderNotAvailable(f"partition {tp} has no leader")

        row = self.cache.leader(tp)
        if row is not None and self._is_fresh():
            return row
        return await retry(self.runtime, self.config.retry_backoff, deadline, f"finding the leader of {tp}", attempt)

    def peek(self, name: str) -> TopicMetadata | None:
        """What is cached, at once; when that is old, newer metadata is on its way."""
        topic = self.cache.topic(name)
        if topic is not None:
            self.refresh_if_old()
        return topic

    def refresh_if_old(self) -> None:
        """Newer metadata is on its way when what is cached is old."""
        if not self._is_fresh():
            self.refresh_soon()

    def _fresh(self, name: str) -> TopicMetadata | None:
        self._tracked.add(name)
        return self.cache.topic(name) if self._is_fresh() else None

    def _is_fresh(self) -> bool:
        age_ms = (self.runtime.clock.monotonic() - self._refreshed_at) * 1000
        return age_ms < self.config.metadata_max_age_ms

    async def _lookup(self, name: str, deadline: Deadline) -> TopicMetadata:
        found = self._fresh(name)
        if found is not None:
            return found
        await self.refresh(deadline)
        found = self.cache.topic(name)
        if found is not None:
            return found
        raise self.cache.error_of(name) or UnknownTopicOrPartition(f"topic {name!r} does not exist")

    def track(self, names: Iterable[str]) -> None:
        """Every refresh asks for these too."""
        self._tracked.update(names)

    def untrack(self, names: Iterable[str]) -> None:
        for name in names:
            self._tracked.discard(name)
            self.cache.forget(name)

    async def refresh(self, deadline: Deadline) -> None:
        """Metadata asked for after this call began. Callers that come while one request is out share the next."""
        self._check_open()
        task = self.refresh_soon()
        if not await done_within(self.runtime, task, deadline.remaining_s()):
            links = (*self._bootstrap, *self._links.values())
            silence = next((link.silence for link in links if link.silence is not None), None)
            raise deadline.gave_up(f"asking {self.config.bootstrap_servers} for metadata", silence)
        task.result()

    def refresh_soon(self) -> "asyncio.Task[None]":
        """The refresh that starts next."""
        if self._waiting is None:
            self._waiting = spawn_shared(self.runtime, self._refresh_after(self._running), name="refresh metadata")
        return self._waiting

    async def _refresh_after(self, previous: "asyncio.Task[None] | None") -> None:
        if previous is not None and not previous.done():
            await asyncio.wait((previous,))
        self._running, self._waiting = self._waiting, None
        names = sorted(self._tracked)
        # Not a caller's deadline: another one, with more patience, may share the outcome.
        deadline = self.deadline()
        connection = await self.any_connection(deadline)
        self.cache.update(await self.fetch_metadata(connection, names, deadline, may_create=True))
        self._refreshed_at = self.runtime.clock.monotonic()

    async def fetch_metadata(
        self, connection: Connection, names: "list[str] | None", deadline: Deadline, *, may_create: bool = False
    ) -> MetadataResponse:
        """One request, past the cache; None asks for every topic. It makes none, unless it `may_create`."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._allow_auto_create and may_create)
        response: MetadataResponse = await self.ask(connection, request, "Metadata", deadline)
        return response

    def node(self, node_id: int) -> Node | None:
        return self.cache.nodes.get(node_id)


class _UnknownNode(BrokerNotAvailable):
    # Nodes come and go: newer metadata may know it.
    retriable = True
