"""The controller: the machine over the metadata log, asked by requests and seen through images.

1. Everything that brokers and clients want goes through the request-shaped calls; nothing writes records past them.
2. A call returns when what it changed is committed and every subscriber has seen it.
3. What belongs into a row of the response is an error code there; what concerns the whole request (no leadership, a
   full queue, a failed disk) is raised as a KafkaError, retriable where a later try may succeed.
4. Leading or standing by, it is a function of the log: a standby loads what is committed, a leader writes, and one that
   lost its leadership goes back to what is committed. Everything that a successor must know is in the log.
5. Sessions are not part of the log: a new leader has heard of no broker yet, and any may register anew at once, unless
   it watches over them (`upkeep.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from twofold.config.settings import Settings
from twofold.controller.activation import activate
from twofold.controller.brokers import (
    allocate_producer_ids,
    fence_stale,
    heartbeat,
    register_broker,
    unregister_broker,
)
from twofold.controller.configs import alter_configs, incremental_alter_configs
from twofold.controller.context import Context
from twofold.controller.delta import ImageDelta, delta_between, full_delta, whole_difference
from twofold.controller.feature_updates import update_features
from twofold.controller.features import metadata_version
from twofold.controller.image import METADATA_VERSION, MetadataImage
from twofold.controller.operation import Operation
from twofold.controller.quotas import alter_client_quotas
from twofold.controller.records import MetadataRecord, encode_all
from twofold.controller.replay import ControllerState, MetadataMachine, OpenMetadataTransaction
from twofold.controller.replicas.alter_partition import alter_partition
from twofold.controller.replicas.directories import assign_replicas_to_dirs
from twofold.controller.replicas.elections import MOST_AT_ONCE, balance_leaders, elect_leaders, elect_unclean
from twofold.controller.replicas.reassignments import alter_partition_reassignments, list_partition_reassignments
from twofold.controller.security.acl_changes import create_acls, delete_acls
from twofold.controller.security.scram_changes import alter_scram
from twofold.controller.standing import Sessions
from twofold.controller.topics import (
    UNGUARDED,
    UNLIMITED,
    DeletionGuard,
    Permits,
    create_partitions,
    create_topics,
    delete_topics,
)
from twofold.machine.runtime import NO_OFFSET, MachineRuntime
from twofold.quorum.loader import Entry, refuse_transactions, segments
from twofold.quorum.writer import MetadataWriter
from twofold.runtime.api import Runtime
from twofold.wire.errors import InvalidUpdateVersion, KafkaError, NotController
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from twofold.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from twofold.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from twofold.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from twofold.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from twofold.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from twofold.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from twofold.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from twofold.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from twofold.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from twofold.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from twofold.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from twofold.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

T = TypeVar("T")
Q = TypeVar("Q")
Subscriber: TypeAlias = Callable[[ImageDelta, MetadataImage], None]

log = logging.getLogger(__name__)


class ReplicatedLog(Protocol):
    """What a controller needs of the metadata log; its owner says what is committed and which node leads."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        ...

    def append(self, values: Sequence[bytes], epoch: int) -> int:
        """Append one batch and return its last offset; refuse an epoch that is not the current one."""
        ...


class _Port:
    """The metadata log as the machine sees it: records instead of bytes, in the versions of the level that holds."""

    def __init__(self, metadata_log: ReplicatedLog, level: Callable[[], int]) -> None:
        self._log = metadata_log
        self._level = level

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def committed_offset(self) -> int:
        return NO_OFFSET  # the owner of the controller calls `committed`

    def append(self, records: Sequence[MetadataRecord], epoch: int) -> int:
        return self._log.append(encode_all(records, self._level()), epoch)


class QuorumController:
    """A controller of a quorum, leading or standing by; its owner calls `load`, `lead`, `committed` and `resign`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, metadata_log: ReplicatedLog, *, node_id: int, cluster_id: str
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._runtime = runtime
        self._settings = settings
        self._end = metadata_log
        self._subscribers: list[Subscriber] = []
        self._sessions = Sessions(settings.int("broker.session.timeout.ms") / 1000)
        self._from_snapshot = False  # what is shown next came as a snapshot
        starting = NotController("the controller is starting")
        port = _Port(metadata_log, lambda: metadata_version(self._machine.state.image))
        self._machine = MachineRuntime(MetadataMachine(), port, runtime.clock, inactive=starting)
        self._machine.on_committed(self._publish)
        self._writer = MetadataWriter(self._machine, runtime)

    # -- standing by and leading

    def load(self, entries: Sequence[Entry], *, is_snapshot: bool = False) -> None:
        """Take in a committed batch that another controller, or an earlier life, has written; `show` makes it seen.

        A snapshot replaces all that is known, an open transaction too.
        """
        if is_snapshot:
            refuse_transactions(entries)
            self._machine.restart()
            self._from_snapshot = True
        for piece in segments(entries):
            self._machine.replay(piece)

    def show(self) -> None:
        """Let subscribers and readers see what was loaded, as far as no transaction is open."""
        self._machine.show()

    def lead(self, epoch: int, bootstrap: Sequence[MetadataRecord] = ()) -> "asyncio.Future[None]":
        """Begin to lead; all that is committed was loaded. The answer is done when the first records are committed."""
        self._machine.become_leader(epoch)
        self._sessions.clear()
        minimum = self._settings.int("min.insync.replicas")
        return self._machine.write(lambda state, _: activate(state, bootstrap, min_insync_replicas=minimum))

    def committed(self, offset: int) -> None:
        """What this controller wrote, up to and including `offset`, is committed."""
        self._machine.commit(offset)

    def resign(self, error: KafkaError) -> None:
        """Lead no longer. What was not committed is forgotten; if it commits after all, `load` brings it."""
        self._writer.stop(error)
        self._machine.resign(error)

    # -- reading

    @property
    def image(self) -> MetadataImage:
        """The newest committed image; never one inside a metadata transaction."""
        return self._machine.committed.image

    @property
    def transaction(self) -> OpenMetadataTransaction | None:
        """The metadata transaction that is open in the log, committed or not."""
        return self._machine.state.transaction

    @property
    def is_leader(self) -> bool:
        return self._machine.is_leader

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every new image, beginning with all that is known now."""
        self._subscribers.append(subscriber)
        if self.image.offset >= 0:
            subscriber(full_delta(self.image), self.image)

    def _publish(
        self, old: ControllerState, new: ControllerState, offset: int, records: Sequence[MetadataRecord]
    ) -> None:
        whole, self._from_snapshot = self._from_snapshot, False
        if not self._subscribers:
            return
        delta = whole_difference(old.image, new.image) if whole else delta_between(old.image, new.image, records)
        for subscriber in self._subscribers:
            try:
                subscriber(delta, new.image)
            except Exception:
                log.exception("a subscriber failed on the image at offset %d", offset)

    # -- requests

    async def create_topics(self, request: CreateTopicsRequest, permits: Permits = UNLIMITED) -> CreateTopicsResponse:
        return await self._handle(
            lambda image, request, context: create_topics(image, request, context, permits), request
        )

    async def delete_topics(
        self, request: DeleteTopicsRequest, guard: DeletionGuard = UNGUARDED, permits: Permits = UNLIMITED
    ) -> DeleteTopicsResponse:
        try:
            return await self._handle(
                lambda image, request, context: delete_topics(image, request, context, guard, permits), request
            )
        finally:
            guard.release()

    async def create_partitions(
        self, request: CreatePartitionsRequest, permits: Permits = UNLIMITED
    ) -> CreatePartitionsResponse:
        return await self._handle(
            lambda image, request, context: create_partitions(image, request, context, permits), request
        )

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        return await self._handle(incremental_alter_configs, request)

    async def alter_configs(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        return await self._handle(alter_configs, request)

    async def create_acls(self, request: CreateAclsRequest) -> CreateAclsResponse:
        return await self._handle(create_acls, request)

    async def delete_acls(self, request: DeleteAclsRequest) -> DeleteAclsResponse:
        return await self._handle(delete_acls, request)

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        return await self._handle(alter_scram, request)

    async def alter_client_quotas(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        return await self._handle(alter_client_quotas, request)

    async def update_features(self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        if self._writer.is_busy:
            level = self.image.features.get(METADATA_VERSION, 0)
            for update in request.feature_updates:
                if update.feature == METADATA_VERSION and update.max_version_level < level:
                    raise InvalidUpdateVersion(
                        f"{METADATA_VERSION} does not go down while a metadata transaction is open: ask again later"
                    )
        return await self._handle(update_features, request)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        try:
            return await self._handle(allocate_producer_ids, request)
        except KafkaError as error:
            return AllocateProducerIdsResponse(error_code=error.code, producer_id_start=-1, producer_id_len=0)

    async def register_broker(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        try:
            return await self._handle(
                lambda image, request, context: register_broker(image, request, context, self._is_alive), request
            )
        except KafkaError as error:
            log.warning("broker %d is not registered: %s", request.broker_id, error)
            return BrokerRegistrationResponse(error_code=error.code)

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        broker_id = request.broker_id
        try:
            response = await self._handle(
                lambda image, request, context: heartbeat(
                    image, request, context, self._sessions.standing(image, broker_id)
                ),
                request,
            )
        except KafkaError as error:
            return BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)
        if response.should_shut_down:
            self._sessions.forget(broker_id)
        else:
            now = self._runtime.clock.monotonic()
            self._sessions.touch(self.image, broker_id, request.current_metadata_offset, now)
        return response

    async def unregister_broker(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        try:
            return await self._handle(unregister_broker, request)
        except KafkaError as error:
            return UnregisterBrokerResponse(error_code=error.code, error_message=error.message or None)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        try:
            return await self._handle(alter_partition, request)
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code, topics=())

    async def assign_replicas_to_dirs(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        try:
            return await self._handle(assign_replicas_to_dirs, request)
        except KafkaError as error:
            return AssignReplicasToDirsResponse(error_code=error.code, directories=())

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        return await self._handle(elect_leaders, request)

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        return await self._handle(alter_partition_reassignments, request)

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        if not self.is_leader:
            raise NotController("this controller does not lead")
        return list_partition_reassignments(self.image, request)

    # -- what no request asks for

    def watch_sessions(self) -> None:
        """Every unfenced broker has a session from now on, and no other process gets its id before that is over."""
        self._sessions.watch(self.image, self._runtime.clock.monotonic())

    async def fence_one_stale_broker(self) -> bool:
        """Fence the broker whose session is over for the longest time; whether there was one.

        One at a time, so that what it led is not given to another one that is gone, too, once that is known.
        """
        found = self._sessions.expired(self.image, self._runtime.clock.monotonic())
        if found is None:
            return False
        broker_id, epoch = found
        fenced = await self.perform(
            lambda image, context: fence_stale(image, context, broker_id, epoch), "FenceStaleBroker"
        )
        if fenced:
            log.warning("broker %d with epoch %d is fenced: its session is over", broker_id, epoch)
        else:
            self._sessions.forget(broker_id)
        return True

    async def balance_leaders(self) -> bool:
        """Let first replicas lead again; whether there may be more to do."""
        return await self.perform(balance_leaders, "BalanceLeaders") >= MOST_AT_ONCE

    async def elect_unclean_leaders(self) -> bool:
        """Elect leaders that may lack records, where topics allow it; whether there may be more to do."""
        return await self.perform(elect_unclean, "ElectUncleanLeaders") >= MOST_AT_ONCE

    async def perform(self, decide: Callable[[MetadataImage, Context], Operation[T]], name: str) -> T:
        """Do what no request asks for."""
        return await self._handle(lambda image, _, context: decide(image, context), None, name)

    def _handle(
        self, handler: Callable[[MetadataImage, Q, Context], Operation[T]], request: Q, name: str | None = None
    ) -> "asyncio.Future[T]":
        def begin(image: MetadataImage) -> Operation[T]:
            context = Context(self.node_id, self.cluster_id, self._settings, self._runtime.random, self._end.end_offset)
            return handler(image, request, context)

        return self._writer.submit(begin, name or type(request).__name__.removesuffix("Request"))

    def _is_alive(self, broker_id: int) -> bool:
        return self._sessions.is_alive(broker_id, self._runtime.clock.monotonic())
