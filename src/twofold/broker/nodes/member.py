"""A node that is a broker of a cluster whose controllers are elsewhere.

1. First of all it learns which cluster the controllers are of: an empty directory becomes one of that cluster, another
   one must belong to it. Then it follows the metadata until it has all that is committed.
2. What this software could not obey keeps it from registering (`controller/fitness/joinable.py`), with the command that
   helps.
3. When the metadata cannot be followed any further, the broker says goodbye to the controller and stops: others lead
   what it led, and its clients find them.
4. A topic with remote storage cannot be served here: the broker asks to be fenced as long as it has a replica of one.
"""

import asyncio
import logging
from collections.abc import Sequence

from twofold.broker.lifecycle import ClusterTerms, Lifecycle
from twofold.broker.nodes.node import NodeParts, OpenedNode
from twofold.cluster.controller_link import ControllerOptions, Controllers
from twofold.cluster.errors import CannotJoin
from twofold.cluster.joining import learn_cluster_id
from twofold.cluster.observer import MetadataObserver
from twofold.cluster.remote_controller import RemoteController
from twofold.config import cluster
from twofold.config.definition import ConfigError
from twofold.connections.connection import parse_addresses
from twofold.connections.security import ConnectionSecurity
from twofold.controller.delta import ImageDelta
from twofold.controller.fitness.joinable import CLAIMED, joining_problem
from twofold.controller.fitness.openable import REMOTE_STORAGE
from twofold.controller.image import TOPIC_RESOURCE, MetadataImage
from twofold.log.directory.identity import cluster_id_of, identify
from twofold.log.recovery.checkpoints import clean_broker_epoch, decode_uuid
from twofold.wire.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InvalidRegistration,
    KafkaError,
    UnsupportedVersion,
)
from twofold.wire.messages.broker_registration import Feature

log = logging.getLogger(__name__)


class ClusterMember:
    def __init__(self, parts: NodeParts) -> None:
        self.membership: ClusterTerms | None = None
        self._parts = parts
        self._controllers = Controllers(parts.runtime, controller_options(parts))
        self._observer: MetadataObserver | None = None
        self._observing: asyncio.Task[None] | None = None
        self._lifecycle: Lifecycle | None = None
        self._unservable: set[str] = set()  # topics

    async def open(self) -> OpenedNode:
        parts, settings = self._parts, self._parts.settings
        patience_ms = settings.int("initial.broker.registration.timeout.ms")
        disk = parts.runtime.disk
        known = cluster_id_of(disk, parts.directory)
        cluster_id = await learn_cluster_id(parts.runtime, self._controllers, patience_ms, known=known)
        identity = identify(disk, parts.directory, parts.node_id, parts.runtime.random, cluster_id=cluster_id)
        directory_id = decode_uuid(identity.meta.directory_id)
        self._observer = observer = MetadataObserver(
            parts.runtime, self._controllers, node_id=parts.node_id, directory_id=directory_id, cluster_id=cluster_id
        )
        self._observing = parts.runtime.spawn(observer.run(), name="metadata of the cluster")
        await observer.caught_up(patience_ms / 1000)
        self._check(observer.image)
        identity.complete(disk, parts.directory)
        observer.on_failure = self._fail
        observer.subscribe(self._look)
        self.membership = ClusterTerms(
            registration_timeout_ms=patience_ms,
            previous_broker_epoch=clean_broker_epoch(disk, parts.directory),
            cordoned=lambda: (directory_id,) if cluster.all_cordoned(settings) else (),
            explained=self._explained,
        )
        remote = RemoteController(
            parts.runtime,
            self._controllers,
            observer,
            heartbeat_timeout_ms=settings.int("broker.heartbeat.interval.ms"),
            request_timeout_ms=settings.int("request.timeout.ms"),
        )
        return OpenedNode(cluster_id, directory_id, remote)

    def _check(self, image: MetadataImage) -> None:
        problem = joining_problem(
            image, is_cordoned=cluster.all_cordoned(self._parts.settings), authorizer=self._parts.authorizer
        )
        if problem is not None:
            raise CannotJoin(f"broker {self._parts.node_id} cannot join: {problem}")

    def features(self) -> Sequence[Feature]:
        return [
            Feature(name=one.name, min_supported_version=one.min_version, max_supported_version=one.max_version)
            for one in CLAIMED
        ]

    def registered(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        lifecycle.on_failure = self._fail
        self._fence_or_not()

    async def leave(self) -> None:
        if self._lifecycle is not None and self._parts.settings.bool("controlled.shutdown.enable"):
            await self._lifecycle.leave()

    async def close(self) -> None:
        if self._observing is not None:
            self._observing.cancel()
            await asyncio.gather(self._observing, return_exceptions=True)
        self._controllers.close()

    def _fail(self, error: KafkaError) -> None:
        log.critical("broker %d cannot go on as a member: %s", self._parts.node_id, error)
        self._parts.fail(error)

    def _explained(self, error: KafkaError) -> str:
        this = f"broker {self._parts.node_id}"
        if isinstance(error, DuplicateBrokerRegistration):
            return (
                f"{this} cannot be registered: another broker with this node.id is alive, or this one was killed a "
                "moment ago and its session is not over (broker.session.timeout.ms). If it is another one, set node.id "
                "to a number that no broker has"
            )
        if isinstance(error, InvalidRegistration):
            return (
                f"{this} cannot be registered: the controller refuses its directory {self._parts.directory}. Was it "
                "copied from another broker? Give each broker a directory of its own (log.dirs)"
            )
        if isinstance(error, UnsupportedVersion):
            image = MetadataImage() if self._observer is None else self._observer.image
            found = joining_problem(image, is_cordoned=False, authorizer=self._parts.authorizer)
            return f"{this} cannot be registered: {found or 'the cluster has features that Twofold does not have'}"
        if isinstance(error, BrokerIdNotRegistered):
            return f"{this} cannot be registered: the cluster migrates from ZooKeeper; finish that first"
        return f"{this} cannot be registered: {error}"

    # -- what cannot be served

    def _look(self, delta: ImageDelta, image: MetadataImage) -> None:
        changed = {change.topic.name for change in delta.changed_topics}
        changed |= {owner.name for owner in delta.changed_configs if owner.type == TOPIC_RESOURCE}
        changed |= {topic.name for topic in delta.deleted_topics}
        for name in changed:
            if self._is_remote_here(image, name):
                self._unservable.add(name)
            else:
                self._unservable.discard(name)
        self._fence_or_not()

    def _is_remote_here(self, image: MetadataImage, name: str) -> bool:
        topic = image.topic(name)
        if topic is None or image.topic_configs(name).get(REMOTE_STORAGE, "false").lower() != "true":
            return False
        return any(self._parts.node_id in state.replicas for state in topic.partitions.values())

    def _fence_or_not(self) -> None:
        lifecycle = self._lifecycle
        if lifecycle is None:
            return
        why = None
        if self._unservable:
            why = (
                f"topic {min(self._unservable)} has {REMOTE_STORAGE}=true, and Twofold reads no remote storage: move "
                f"its partitions away from broker {self._parts.node_id} with kafka-reassign-partitions.sh"
            )
        if why != lifecycle.wants_fence:
            self._parts.runtime.spawn(lifecycle.fence(why), name="fence this broker")


def controller_options(parts: NodeParts) -> ControllerOptions:
    settings = parts.settings
    security = cluster.controller_security(settings)
    try:
        found = ConnectionSecurity.of(security.of_client(settings.string("sasl.mechanism.controller.protocol")))
        bootstrap = parse_addresses(",".join(cluster.bootstrap_addresses(settings)))
    except ValueError as error:
        raise ConfigError(cluster.BOOTSTRAP, None, f"the controllers' listener {security.listener}: {error}") from None
    return ControllerOptions(
        bootstrap=bootstrap,
        security=found,
        request_timeout_ms=settings.int("controller.quorum.request.timeout.ms"),
        client_id=f"broker-{parts.node_id}",
    )
