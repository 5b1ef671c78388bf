"""The controller: the machine over the metadata log, asked by requests and seen through images.

1. Everything that brokers and clients want goes through the request-shaped calls; nobody writes records past them.
2. A call returns when what it changed is committed and every subscriber has seen it.
3. What belongs into a row of the response is an error code there; what concerns the whole request (no leadership, a
   full queue, a failed disk) is raised as a KafkaError, retriable where a later try may succeed.
4. Sessions are not part of the log: a controller that starts gives every broker a full session timeout.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar
from uuid import UUID

from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.controller.activation import activate
from twofold.controller.brokers import allocate_producer_ids, heartbeat, register_broker
from twofold.controller.configs import alter_configs, incremental_alter_configs
from twofold.controller.context import Answer, Context
from twofold.controller.delta import ImageDelta, delta_between, full_delta
from twofold.controller.feature_updates import update_features
from twofold.controller.image import MetadataImage
from twofold.controller.records import MetadataRecord, UnsupportedRecord, decode, encode
from twofold.controller.replay import ControllerState, InconsistentRecord, MetadataMachine
from twofold.controller.snapshot_records import snapshot_records
from twofold.controller.topics import create_partitions, create_topics, delete_topics
from twofold.machine.runtime import MachineRuntime
from twofold.machine.schema import MalformedRecord
from twofold.raft.errors import CorruptMetadataLog, UnusableMetadata
from twofold.raft.metadata_log import MetadataLog
from twofold.runtime.api import Runtime
from twofold.wire.errors import InvalidRecord, KafkaError, NotController
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from twofold.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from twofold.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from twofold.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from twofold.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

T = TypeVar("T")
Q = TypeVar("Q")
Subscriber: TypeAlias = Callable[[ImageDelta, MetadataImage], None]

log = logging.getLogger(__name__)


class _Port:
    """The metadata log as the machine sees it: records instead of bytes."""

    def __init__(self, metadata_log: MetadataLog) -> None:
        self._log = metadata_log

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    def append(self, records: Sequence[MetadataRecord], epoch: int) -> int:
        return self._log.append([encode(record) for record in records], epoch)


class Controller:
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        log_dir: str,
        cluster_id: str,
        directory_id: UUID,
        on_failure: Callable[[KafkaError], None] | None = None,
        check: Callable[[MetadataImage], str | None] | None = None,
        closed_cleanly: bool = False,
    ) -> None:
        """`on_failure` is told once when the metadata log is lost and the node had better stop.

        `check` says what keeps the node from serving what the log holds, if anything does. `closed_cleanly`: whoever
        had the directory before left it in order.
        """
        self.node_id = settings.int("node.id")
        self.cluster_id = cluster_id
        self._runtime = runtime
        self._settings = settings
        self._check = check
        self._on_failure = on_failure
        self._subscribers: list[Subscriber] = []
        self._last_contact: dict[int, float] = {}
        self._log = MetadataLog(
            runtime,
            log_dir,
            node_id=self.node_id,
            directory_id=directory_id,
            on_commit=self._committed,
            on_failure=self._failed,
            config=LogConfig(segment_bytes=settings.int("metadata.log.segment.bytes")),
            closed_cleanly=closed_cleanly,
        )
        starting = NotController("the controller is starting")
        self._machine = MachineRuntime(MetadataMachine(), _Port(self._log), runtime.clock, inactive=starting)
        self._machine.on_committed(self._publish)

    # -- life

    async def start(self) -> None:
        """Replay the log, begin a new epoch and wait until it is committed; then requests are served.

        UnusableMetadata, and nothing is written, where the log is not for this node or this software.
        """
        try:
            bootstrap = self._replay()
            epoch = await self._log.become_leader()
        except UnusableMetadata:
            self._log.abandon()
            raise
        self._machine.become_leader(epoch)
        activated = self._machine.write(lambda state, _: activate(state, bootstrap))
        await self._log.wait_committed(self._log.end_offset - 1)
        await activated
        self._machine.show()
        log.info("controller %d leads epoch %d from offset %d", self.node_id, epoch, self._log.end_offset)

    def _replay(self) -> list[MetadataRecord]:
        """Load what is in the log; returns the records that an empty one is to begin with, if somebody left any."""
        where, offset = self._log.directory, -1
        try:
            for batch in self._log.replay():
                offset = batch.base_offset
                records = ((at, decode(value)) for at, value in batch.numbered())
                self._machine.replay([(at, record) for at, record in records if record is not None])
            state = self._machine.state
            image = state.image if state.transaction is None else state.transaction.before
            values = self._log.bootstrap_values() if image.is_empty else []
            bootstrap = [record for value in values if (record := decode(value)) is not None]
        except (UnsupportedRecord, MalformedRecord, InconsistentRecord, InvalidRecord) as error:
            raise CorruptMetadataLog(
                f"{where}: the batch at offset {offset} cannot be applied: {error}; was it written by a "
                "newer version, or by Apache Kafka with features that Twofold does not have?"
            ) from error
        self._log.check_quorum()
        if image.is_empty:
            image = self._machine.machine.apply_all(ControllerState(), enumerate(bootstrap)).image
        problem = None if self._check is None else self._check(image)
        if problem is not None:
            raise UnusableMetadata(f"{where}: {problem}")
        return bootstrap

    async def stop(self) -> None:
        """Commit what was accepted, refuse the rest."""
        if self._log.is_leader:
            await self._log.wait_committed(self._log.end_offset - 1)
        self._machine.resign(NotController("the controller has stopped"))
        await self._log.close()

    def _committed(self, offset: int) -> None:
        self._machine.commit(offset)

    def _failed(self, error: KafkaError) -> None:
        self._machine.resign(NotController(f"the metadata log failed: {error}"))
        if self._on_failure is not None:
            self._on_failure(error)

    # -- reading

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._machine.committed.image

    @property
    def is_leader(self) -> bool:
        return self._machine.is_leader

    @property
    def leader_epoch(self) -> int:
        return self._log.epoch

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every new image, beginning with all that is known now."""
        self._subscribers.append(subscriber)
        if self.image.offset >= 0:
            subscriber(full_delta(self.image), self.image)

    def _publish(
        self, old: ControllerState, new: ControllerState, offset: int, records: Sequence[MetadataRecord]
    ) -> None:
        if not self._subscribers:
            return
        delta = delta_between(old.image, new.image, records)
        for subscriber in self._subscribers:
            try:
                subscriber(delta, new.image)
            except Exception:
                log.exception("a subscriber failed on the image at offset %d", offset)

    # -- requests

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return await self._handle(create_topics, request)

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        return await self._handle(delete_topics, request)

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        return await self._handle(create_partitions, request)

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        return await self._handle(incremental_alter_configs, request)

    async def alter_configs(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        return await self._handle(alter_configs, request)

    async def update_features(self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        before = self.image.features
        response = await self._handle(update_features, request)
        after = self.image.features
        if any(after.get(name, 0) < level for name, level in before.items()):
            await self._snapshot()
        return response

    async def _snapshot(self) -> None:
        """Write a snapshot, so that software that does not know a level that was given up never meets it in the log."""
        image = self.image
        values = [encode(record) for record in snapshot_records(image)]
        try:
            written = await self._log.write_snapshot(values, image.offset + 1)
            log.info("%s: wrote the snapshot %s", self._log.directory, written.file_name)
        except OSError as error:
            log.error("%s: cannot write a snapshot: %s", self._log.directory, error)

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        try:
            return await self._handle(allocate_producer_ids, request)
        except KafkaError as error:
            return AllocateProducerIdsResponse(error_code=error.code, producer_id_start=-1, producer_id_len=0)

    async def register_broker(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        try:
            response = await self._handle(
                lambda image, request, context: register_broker(image, request, context, self._is_alive), request
            )
        except KafkaError as error:
            log.warning("broker %d is not registered: %s", request.broker_id, error)
            return BrokerRegistrationResponse(error_code=error.code)
        self._last_contact[request.broker_id] = self._runtime.clock.monotonic()
        return response

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        try:
            response = await self._handle(heartbeat, request)
        except KafkaError as error:
            return BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)
        if response.should_shut_down:
            self._last_contact.pop(request.broker_id, None)
        else:
            self._last_contact[request.broker_id] = self._runtime.clock.monotonic()
        return response

    def _handle(self, handler: Callable[[MetadataImage, Q, Context], Answer[T]], request: Q) -> "asyncio.Future[T]":
        context = Context(self.node_id, self.cluster_id, self._settings, self._runtime.random, self._log.end_offset)
        return self._machine.write(lambda state, _: handler(state.image, request, context))

    def _is_alive(self, broker_id: int) -> bool:
        seen = self._last_contact.get(broker_id)
        timeout_s = self._settings.int("broker.session.timeout.ms") / 1000
        return seen is not None and self._runtime.clock.monotonic() - seen < timeout_s
