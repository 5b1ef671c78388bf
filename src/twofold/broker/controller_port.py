"""What a broker needs of the controller, wherever it is: in this process, or elsewhere in the cluster.

`quorum.QuorumController` and `cluster.RemoteController` are of this form.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.quorum.snapshotting import SnapshotGenerator
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from twofold.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from twofold.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from twofold.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse


class LifecyclePort(Protocol):
    """What registration and heartbeats need."""

    def register_broker(self, request: BrokerRegistrationRequest) -> Awaitable[BrokerRegistrationResponse]: ...

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Awaitable[BrokerHeartbeatResponse]: ...


class ControllerPort(LifecyclePort, Protocol):
    @property
    def image(self) -> MetadataImage: ...

    @property
    def is_leader(self) -> bool:
        """Whether this node is the active controller."""
        ...

    @property
    def snapshots(self) -> SnapshotGenerator | None:
        """Where the metadata is kept on this node's disk."""
        ...

    @property
    def log_size_bytes(self) -> int: ...

    def subscribe(self, subscriber: Callable[[ImageDelta, MetadataImage], None]) -> None:
        """Call it for every new image, beginning with all that is known now."""
        ...

    def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> Awaitable[AllocateProducerIdsResponse]: ...

    def create_topics(self, request: CreateTopicsRequest) -> Awaitable[CreateTopicsResponse]: ...

    async def stop(self) -> None: ...


class ReplicationPort(Protocol):
    """What leaders of replicated partitions need."""

    def alter_partition(self, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]: ...

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> Awaitable[AssignReplicasToDirsResponse]: ...
