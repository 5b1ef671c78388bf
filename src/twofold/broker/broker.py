"""One broker: its parts, in the order in which they start and stop.

1. The log directory is taken first and given back last: nothing of this process touches it before or after. The
   metadata is read before any log is: a directory that is not for this node is left as it was found.
2. Clients are answered only after the broker is registered and has seen its own registration in the image. A
   client that connects earlier waits.
3. The image is replaced as a whole. Replicas see it before a request that waited for the change is answered.
4. A stop answers what was asked before it hangs up, then ends the background work, then closes the logs.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from twofold.broker.coordinators.groups.service import GroupService
from twofold.broker.coordinators.transactions.missing_markers import MissingMarkers
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.core import BrokerCore
from twofold.broker.fetch.entry import Entry
from twofold.broker.fetch.sessions import FetchSessionCache
from twofold.broker.lifecycle import Lifecycle
from twofold.broker.network.admission import HELD_S, ListenerLimits, ServerLimits
from twofold.broker.network.aside import Aside
from twofold.broker.network.audit import DenialAudit
from twofold.broker.network.context import ANONYMOUS
from twofold.broker.network.dispatch import Dispatcher, Wrap
from twofold.broker.network.entrance import EntranceOptions
from twofold.broker.network.forwarding import Forwarder, ForwardingPort
from twofold.broker.network.guard import ListenerGuards
from twofold.broker.network.options import MAX_REQUEST_MEMORY, ServerOptions
from twofold.broker.network.server import Server
from twofold.broker.network.standard_authorizer import StandardAuthorizer
from twofold.broker.nodes.alone import NodeAlone
from twofold.broker.nodes.node import BrokerNode, NodeParts
from twofold.broker.partitions.first_look import FirstLook
from twofold.broker.partitions.held_lso import HeldLso
from twofold.broker.quotas.ledger import QuotaLedger
from twofold.broker.quotas.limits import CONNECTION
from twofold.broker.quotas.samples import Windows
from twofold.broker.services import Services
from twofold.broker.topics.auto_creation import AutoTopics
from twofold.broker.topics.rows import TopicRowCache
from twofold.config.authorization import CLASS_NAME as AUTHORIZER_CLASS
from twofold.config.authorization import AuthorizerSettings, authorizer_settings
from twofold.config.cluster import serves_heartbeats
from twofold.config.listener_security import per_ip_overrides
from twofold.config.listeners import EVERYWHERE, ListenerAddress, advertised_addresses, listen_addresses
from twofold.config.servable import check_servable
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.controller.delta import ImageDelta
from twofold.controller.fitness.openable import without_effect
from twofold.controller.image import BROKER_RESOURCE, MetadataImage
from twofold.controller.security.stored_users import StoredUsers
from twofold.log.manager import LogManager, LogOptions
from twofold.log.segments.files import pool_size
from twofold.quorum.controller import Controller
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from twofold.broker.replication.replication import Replication

STOP_TIMEOUT_S = 10.0
LOADING_S = 0.1
LOADING_TURN_S = 0.05
LOADING_REST_S = 0.001
OTHER_FILES = 64  # listeners, locks, the metadata log, those of a pass of the cleaner, ...

log = logging.getLogger(__name__)


class Broker:
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        data_dir: str,
        *,
        hostname: str = "localhost",
        wrap: Wrap | None = None,
    ) -> None:
        self.runtime = runtime
        self.logs = LogManager(
            runtime, data_dir, LogOptions.from_settings(settings), default_config=LogConfig.resolve({}, settings)
        )
        self.core = core = BrokerCore(runtime, settings, self.logs)
        self.node_id = core.node_id
        self.replicas = core.replicas
        self.attention = core.attention
        self.fetch_sessions = fetch_session_cache(core)
        self.replicas.on_mended = self._reload
        self.logs.on_directory_failure = self._give_up
        self.groups = GroupService(core)
        self.producer_ids = ProducerIdBlocks(self._allocate_producer_ids, runtime)
        self.missing_markers = MissingMarkers(core, self.producer_ids)
        self.transactions = TransactionService(core, self.groups, self.producer_ids, self.missing_markers)
        self.held_lso = HeldLso(self.replicas, runtime, lambda: core.settings.int("transaction.max.timeout.ms"))
        self.first_look = FirstLook(self.replicas, self.logs, runtime)
        self.services = Services(
            core=core,
            runtime=runtime,
            logs=self.logs,
            replicas=self.replicas,
            groups=self.groups,
            transactions=self.transactions,
            producer_ids=self.producer_ids,
            auto_topics=AutoTopics(core),
            topic_rows=TopicRowCache(),
            fetch_sessions=self.fetch_sessions,
            aside=Aside(runtime.blocking),
            max_response_bytes=lambda: self.server.max_response_bytes(),
        )
        self.quotas = quota_ledger(runtime.clock.monotonic, settings)
        self.guards = ListenerGuards(runtime, self._salt_secret)
        self.guards.users = StoredUsers(lambda: self.core.image)
        self.server = self._new_server(settings, wrap)
        self.listeners: list[ListenerAddress] = []
        self.advertised: list[ListenerAddress] = []  # in their order
        self._static_settings = settings
        self._authorizer_settings: AuthorizerSettings | None = None
        self._hostname = hostname
        self._directory_id: UUID | None = None  # until the data folder is identified
        self._node: BrokerNode | None = None  # from the start on
        self._replication: Replication | None = None  # of a member of a cluster
        self._lifecycle: Lifecycle | None = None
        self._background: list[asyncio.Task[None]] = []
        self._failure: KafkaError | None = None
        self._on_failure: Callable[[KafkaError], None] | None = None

    def _new_server(self, settings: Settings, wrap: Wrap | None) -> Server:
        runtime = self.runtime
        dispatcher = Dispatcher(
            self.services,
            runtime.spawn,
            runtime.clock.monotonic,
            heartbeats=serves_heartbeats(settings),
            wrap=wrap,
            quotas=self.quotas,
            forwarder=Forwarder(lambda: cast(ForwardingPort, self.core.controller)) if self.core.is_member else None,
        )
        server = Server(runtime, dispatcher, ServerOptions(), self.attention.monotonic)
        server.admission.rate_of = self.quotas.connection_rate
        server.admission.told = partial(self.quotas.throttled, CONNECTION, round(HELD_S * 1000))
        return server

    @property
    def settings(self) -> Settings:
        """The settings of the start with what was changed since."""
        return self.core.settings

    @property
    def image(self) -> MetadataImage:
        return self.core.image

    @property
    def cluster_id(self) -> str:
        return self.core.cluster_id

    @property
    def controller(self) -> Controller:
        """Of a node that is its own controller. Set by `start`."""
        return cast(Controller, self.core.controller)

    # --- starting ---

    async def start(self, on_failure: Callable[[KafkaError], None] | None = None) -> None:
        """Return when clients are served. `on_failure` is told when the broker cannot go on and has to be stopped."""
        self._on_failure = on_failure
        check_servable(self._static_settings, hostname=self._hostname)
        self._authorizer_settings = authorizer_settings(self._static_settings)
        self.guards.make(self._static_settings)
        self._apply_to_server(self._static_settings)
        addresses = listen_addresses(self._static_settings)
        advertised_addresses(self._static_settings, addresses, self._hostname)  # what is wrong there is said now
        self.logs.take()
        try:
            await self._start(addresses)
        except BaseException:
            await self.stop(timeout_s=0.0)
            raise

    async def _start(self, addresses: list[ListenerAddress]) -> None:
        parts = NodeParts(
            self.runtime,
            self._static_settings,
            self.logs.directory,
            self.node_id,
            self._authorizer_settings,
            self._give_up,
        )
        self._node = node = _node(parts, is_member=self.core.is_member)
        opened = await node.open()
        self.core.cluster_id = opened.cluster_id
        self._directory_id = opened.directory_id
        self.core.controller = opened.controller
        if self.core.is_member:
            self._replication = _replication(self.core, self._broker_epoch, opened.directory_id)
        self._authorize()
        for kept in without_effect(opened.controller.image):
            log.warning("%s holds, and keeps, %s", "the cluster" if self.core.is_member else self.logs.directory, kept)
        await self._load_logs()
        if not self.core.is_member:  # a transaction of a member may have its coordinator elsewhere
            self.missing_markers.look()
        if not self.core.is_member:
            self._take_over()
        await self._listen(addresses)
        await self._register(node, opened.directory_id)
        transactions = self.transactions.open()
        if not self.core.is_member:
            self._run(self.missing_markers.report(transactions), "transactions that lost their markers")
        await self._let_load([*self.groups.open(), *transactions])
        self._run(self.attention.run(), "attention")
        self._run(self.logs.run_background(), "log maintenance")
        self._run(self.groups.run_background(), "offset expiry")
        sweeps = self.transactions.sweeps
        self._run(sweeps.run_timeouts(), "transaction timeouts")
        if serves_heartbeats(self.settings):  # otherwise no client can send one, and silence means nothing
            self._run(sweeps.run_heartbeats(), "transaction heartbeats")
        self._run(sweeps.run_expiry(), "transactional id expiry")
        self._run(self.held_lso.run(), "transactions that hold readers up")
        self._run(self.first_look.run(), "first look at partitions")
        self.producer_ids.prefetch()  # or the first idempotent producer would have to ask twice
        self.server.open()

    def _take_over(self) -> None:
        """From now on this broker does what the metadata say. A member begins when they hold its own registration:
        before, they may say that it leads what it led, with records that it has lost since."""
        self.core.controller.subscribe(self._apply)
        if self._replication is not None:
            self.core.controller.subscribe(self._replication.directories.look)
        self.replicas.set_strays_aside()
        self.first_look.begin()

    def _authorize(self) -> None:
        """From now on the entries of the newest image decide, if there is an authorizer."""
        chosen = self._authorizer_settings
        if chosen is None:
            log.info("%s is not set: every client may do everything", AUTHORIZER_CLASS)
            return
        self.core.authorizer = StandardAuthorizer(
            lambda: self.core.image.acls,
            super_users=chosen.super_users,
            without_entries=chosen.allow_everyone,
            audit=DenialAudit(self.runtime.clock),
        )
        if ANONYMOUS in chosen.super_users:
            log.warning("%s is a super user: every client that does not log in may do everything", ANONYMOUS)

    async def _load_logs(self) -> None:
        """In turns: a probe that asks for the state of the broker is answered while many logs are recovered."""
        clock = self.runtime.clock
        turn_began_s = clock.monotonic()
        for _ in self.logs.load_step_by_step():
            if clock.monotonic() - turn_began_s > LOADING_TURN_S:
                await self.runtime.timers.sleep(LOADING_REST_S)
                turn_began_s = clock.monotonic()

    async def _listen(self, addresses: list[ListenerAddress]) -> None:
        for address in addresses:
            guard = partial(self.guards.of, address.name)
            listener = await self.server.listen(address.host, address.port, address.name, guard)
            host = address.host or listener.host
            self.listeners.append(ListenerAddress(address.name, host, listener.port))

    async def _register(self, node: BrokerNode, directory_id: UUID) -> None:
        self._lifecycle = lifecycle = Lifecycle(
            self.runtime,
            self.core.controller,
            lambda: self.core.controller.image,
            node_id=self.node_id,
            heartbeat_interval_ms=self._static_settings.int("broker.heartbeat.interval.ms"),
            membership=node.membership,
        )
        self.advertised = advertised_addresses(self._static_settings, self.listeners, self._hostname)
        await lifecycle.register(
            cluster_id=self.cluster_id,
            directory_id=directory_id,
            listeners=self.advertised,
            protocols=self.guards.protocols(),
            features=node.features(),
            rack=self._static_settings.optional_string("broker.rack"),
            caught_up=self._take_over if self.core.is_member else None,
        )
        node.registered(lifecycle)
        if self._replication is not None:
            self._replication.begin()
        self._tell_advertised()
        await lifecycle.beat()
        self._run(lifecycle.run(), "heartbeats")

    def _tell_advertised(self) -> None:
        """Where clients are sent is the first thing to look at when a remote one cannot connect."""
        is_chosen = bool(self._static_settings.list("advertised.listeners"))
        for address in self.advertised:
            bound = next(one for one in self.listeners if one.name == address.name)
            if bound.host in EVERYWHERE and not is_chosen:
                log.warning(
                    "%s listens on all addresses, and clients are told to connect to %s:%d, the name of this machine. "
                    "Name an address that all of them can reach with --advertise HOST:PORT (advertised.listeners)",
                    bound, address.host, address.port,
                )  # fmt: skip
            elif bound != address:
                log.info("%s: clients are told to connect to %s:%d", bound, address.host, address.port)

    async def _let_load(self, loading: "list[asyncio.Task[None]]") -> None:
        """Small coordinators are loaded before the first client is served, large ones go on while others are."""
        over = asyncio.Event()
        left = set(loading)

        def done(task: "asyncio.Task[None]") -> None:
            left.discard(task)
            if not left:
                over.set()

        for task in loading:
            task.add_done_callback(done)
        if loading:
            timer = self.runtime.timers.call_later(LOADING_S, over.set)
            await over.wait()
            timer.cancel()

    def _salt_secret(self) -> bytes:
        """A user that does not exist has the same salt after a restart.

        A client that may learn the id of the directory (DescribeQuorum) may list the users as well.
        """
        assert self._directory_id is not None
        return self._directory_id.bytes

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._background.append(self.runtime.spawn(work, name=name))

    # --- stopping ---

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Also after a start that failed half-way."""
        if self._node is not None and self.server.is_open:
            self.replicas.is_leaving = True
            await self._node.leave()
        await self.server.stop(timeout_s, self._answer_early)
        self.transactions.stop()
        self.groups.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._replication is not None:
            await self._replication.close()
        metadata_is_whole = True
        if self._node is not None:
            try:
                await self._node.close()
            except (OSError, KafkaError) as error:  # of a disk that failed: the logs are still to be given back
                metadata_is_whole = False
                log.error("the metadata log cannot be closed: %s", error)
        if self.core.is_member and self._lifecycle is not None:
            self.logs.broker_epoch = self._lifecycle.broker_epoch
        await self.logs.close(others_are_whole=metadata_is_whole)

    def _answer_early(self) -> None:
        self.replicas.purgatory.answer_fetches()
        self.groups.answer_early()

    def _give_up(self, error: KafkaError) -> None:
        if self._failure is None:
            self._failure = error
            if self._on_failure is not None:
                self._on_failure(error)

    def _reload(self, partition: TopicPartition) -> None:
        self.groups.reload(partition)
        self.transactions.reload(partition)

    # --- the metadata ---

    def _apply(self, delta: ImageDelta, image: MetadataImage) -> None:
        if any(resource.type == BROKER_RESOURCE for resource in delta.changed_configs):
            self.core.settings = self._static_settings.with_dynamic(
                broker=image.broker_configs(self.node_id), cluster=image.broker_configs()
            )
            self.logs.apply_settings(self.settings)
            self._apply_to_server(self.settings)
        if delta.changed_quotas:
            self.quotas.limit(image.quotas.items())
        self.core.image = image
        self.replicas.apply(delta, image, self.settings)
        self.groups.apply(delta, image)
        self.transactions.apply(delta, image)

    def _apply_to_server(self, settings: Settings) -> None:
        self.server.apply(server_options(settings, self.guards.limits(), self.runtime.disk.open_file_limit()))

    def _broker_epoch(self) -> int:
        return -1 if self._lifecycle is None else self._lifecycle.broker_epoch

    async def _allocate_producer_ids(self) -> AllocateProducerIdsResponse:
        return await self.core.controller.allocate_producer_ids(
            AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self._broker_epoch())
        )


def _node(parts: NodeParts, *, is_member: bool) -> BrokerNode:
    if not is_member:
        return NodeAlone(parts)
    from twofold.broker.nodes.member import ClusterMember  # a node alone starts without what it takes to be one

    return ClusterMember(parts)


def _replication(core: BrokerCore, broker_epoch: Callable[[], int], directory_id: UUID) -> "Replication":
    from twofold.broker.replication.replication import Replication  # a node alone starts without it

    return Replication(core, broker_epoch, directory_id)


def fetch_session_cache(core: BrokerCore) -> FetchSessionCache[Entry]:
    slots = core.settings.int("max.incremental.fetch.session.cache.slots")
    return FetchSessionCache(Entry, core.runtime.random.randint, core.attention.monotonic, max_slots=slots)


def quota_ledger(now_s: Callable[[], float], settings: Settings) -> QuotaLedger:
    quotas = QuotaLedger(now_s)
    samples, seconds = settings.int("quota.window.num"), settings.int("quota.window.size.seconds")
    of_changes = Windows(
        settings.int("controller.quota.window.num"), 1000 * settings.int("controller.quota.window.size.seconds")
    )
    quotas.configure(Windows(samples, 1000 * seconds), of_changes, settings.float("quota.new.transactional.ids.rate"))
    return quotas


def server_options(settings: Settings, listeners: Mapping[str, ListenerLimits], open_file_limit: int) -> ServerOptions:
    queued_bytes = settings.int("queued.max.request.bytes")
    return ServerOptions(
        max_request_bytes=settings.int("socket.request.max.bytes"),
        max_queued_requests=settings.int("queued.max.requests"),
        max_request_memory=queued_bytes if queued_bytes > 0 else MAX_REQUEST_MEMORY,
        max_idle_ms=settings.int("connections.max.idle.ms"),
        limits=ServerLimits(
            max_connections=settings.int("max.connections"),
            max_open_sockets=max(1, open_file_limit - pool_size(open_file_limit) - OTHER_FILES),
            max_per_ip=settings.int("max.connections.per.ip"),
            per_ip_overrides=per_ip_overrides(settings),
            max_creation_rate=settings.int("max.connection.creation.rate"),
            listeners=listeners,
        ),
        entrance=EntranceOptions(
            timeout_ms=settings.int("authentication.timeout.ms"),
            failure_delay_ms=settings.int("connection.failed.authentication.delay.ms"),
            max_waiting=settings.int("max.unauthenticated.connections"),
        ),
    )
