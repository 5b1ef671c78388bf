"""The controller of a cluster as a broker reaches it: the metadata as it is followed, and requests over the wire.

1. Heartbeats and registration are sent once: their owner repeats them at its own pace. Everything else is tried until
   its time is over, at whichever controller leads then.
2. What concerns the connection is raised as a retriable KafkaError; what the controller answers is given back as it is.
3. After a change the answer waits, for a second at most, until this node has seen all that is committed by then: what
   was created can be used.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from twofold.cluster.controller_link import Controllers
from twofold.cluster.envelope import unwrap, wrap
from twofold.cluster.observer import MetadataObserver
from twofold.config.internal_topics import CLUSTER_METADATA
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.controller.topics import UNLIMITED, Permits
from twofold.runtime.api import Runtime
from twofold.wire.apis import KEYS
from twofold.wire.errors import NONE, KafkaError
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from twofold.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from twofold.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from twofold.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from twofold.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)

SEEN_WITHIN_S = 1.0
Subscriber: TypeAlias = Callable[[ImageDelta, MetadataImage], None]

log = logging.getLogger(__name__)


class RemoteController:
    is_leader = False  # this node is no controller
    snapshots = None  # nor does it keep any metadata on disk
    log_size_bytes = 0

    def __init__(
        self,
        runtime: Runtime,
        controllers: Controllers,
        observer: MetadataObserver,
        *,
        heartbeat_timeout_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._controllers = controllers
        self._observer = observer
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._lifecycle = controllers.channel("lifecycle")
        self._changes = controllers.channel("changes of replicas")
        self._assignments = controllers.channel("assignments to directories")
        self._forwarding = controllers.channel("forwarding")
        self._ids = controllers.channel("producer ids")

    @property
    def image(self) -> MetadataImage:
        return self._observer.image

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every new image, beginning with all that is known now."""
        self._observer.subscribe(subscriber)

    # -- of the broker itself

    async def register_broker(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        response: BrokerRegistrationResponse = await self._lifecycle.ask(
            request, KEYS["BrokerRegistration"], timeout_ms=self._heartbeat_timeout_ms, once=True
        )
        return response

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        response: BrokerHeartbeatResponse = await self._lifecycle.ask(
            request, KEYS["BrokerHeartbeat"], timeout_ms=self._heartbeat_timeout_ms, once=True
        )
        return response

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        try:
            response: AllocateProducerIdsResponse = await self._ids.ask(
                request, KEYS["AllocateProducerIds"], timeout_ms=self._request_timeout_ms
            )
        except KafkaError as error:
            return AllocateProducerIdsResponse(error_code=error.code, producer_id_start=-1, producer_id_len=0)
        return response

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response: AlterPartitionResponse = await self._changes.ask(
            request, KEYS["AlterPartition"], timeout_ms=self._request_timeout_ms
        )
        return response

    async def assign_replicas_to_dirs(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        response: AssignReplicasToDirsResponse = await self._assignments.ask(
            request, KEYS["AssignReplicasToDirs"], timeout_ms=self._request_timeout_ms
        )
        return response

    async def create_topics(self, request: CreateTopicsRequest, permits: Permits = UNLIMITED) -> CreateTopicsResponse:
        """As this broker itself: topics that it needs, or that a client may have."""
        response: CreateTopicsResponse = await self._forwarding.ask(
            request, KEYS["CreateTopics"], timeout_ms=self._request_timeout_ms
        )
        await self.seen()
        return response

    # -- for clients

    async def forward(self, request: bytes, *, principal: str, client_host: str, what: str) -> bytes:
        """Header and body of the controller's answer to a client's request, given in the same form."""
        envelope = wrap(request, principal, client_host)
        response = await self._forwarding.ask(envelope, KEYS["Envelope"], timeout_ms=self._request_timeout_ms)
        return unwrap(response, what)

    async def seen(self) -> None:
        """Return when this node has seen all that is committed now, or after a moment."""
        request = DescribeQuorumRequest(
            topics=[TopicData(topic_name=CLUSTER_METADATA, partitions=[PartitionData(partition_index=0)])]
        )
        try:
            response: DescribeQuorumResponse = await self._forwarding.ask(
                request, KEYS["DescribeQuorum"], timeout_ms=SEEN_WITHIN_S * 1000
            )
            row = next((row for topic in response.topics for row in topic.partitions), None)
            if response.error_code == NONE and row is not None and row.error_code == NONE:
                await self._observer.caught_up(SEEN_WITHIN_S, offset=row.high_watermark - 1)
        except KafkaError as error:
            log.debug("what is committed is not known: %s", error)

    async def stop(self) -> None:
        self._controllers.close()

    def describe(self) -> Any:
        """Which controller leads, for people; None where none is known."""
        return self._controllers.leader
