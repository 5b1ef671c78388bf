"""The metadata of a cluster, followed from its controllers: Fetch and FetchSnapshot of `__cluster_metadata`.

1. An image is never above the high watermark, and never inside a metadata transaction (`quorum/loader.py`).
2. The controller with the highest epoch is right about the leader. Without a leader, the bootstrap servers are asked
   one after the other.
3. All is in memory: a restart fetches anew, mostly one snapshot and what follows it.
4. A snapshot counts once it is whole. Any error while it is fetched drops the part that is here, and fetches again.
5. What this software cannot read, and what the controllers have lost, ends the following: the last image stays, and
   `on_failure` is told why. A broker that served on would obey old metadata for ever.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from twofold.cluster.controller_link import Controllers, Leader, endpoint_of
from twofold.cluster.errors import MetadataUnusable
from twofold.cluster.metadata_tail import LostRecords, MetadataBatch, MetadataTail
from twofold.cluster.signal import Signal
from twofold.config.internal_topics import CLUSTER_METADATA
from twofold.connections.connection import Address, Connection
from twofold.connections.link import BrokerLink
from twofold.connections.waiting import Backoff, Deadline
from twofold.controller.delta import ImageDelta, full_delta
from twofold.controller.image import MetadataImage
from twofold.controller.records import MetadataRecord, UnsupportedRecord, decode_all
from twofold.controller.replay import InconsistentRecord
from twofold.machine.schema import MalformedRecord
from twofold.metadata_log.snapshots import SnapshotId, decode_snapshot
from twofold.quorum.loader import CommittedBatch, MetadataLoader, Publication
from twofold.runtime.api import Runtime
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    CorruptMessage,
    FencedLeaderEpoch,
    InconsistentClusterId,
    KafkaError,
    NetworkException,
    NotLeaderOrFollower,
    error_for,
)
from twofold.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from twofold.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshot,
    TopicSnapshot,
)
from twofold.wire.messages.fetch_snapshot import SnapshotId as WireSnapshotId

METADATA_TOPIC_ID = UUID(int=1)
MAX_WAIT_MS = 500
MAX_BYTES = 1024 * 1024
FETCH, FETCH_SNAPSHOT = KEYS["Fetch"], KEYS["FetchSnapshot"]
PAUSE = Backoff(20, 250)
_UNREADABLE = (UnsupportedRecord, MalformedRecord, InconsistentRecord)

Subscriber: TypeAlias = Callable[[ImageDelta, MetadataImage], None]

log = logging.getLogger(__name__)


class MetadataObserver:
    def __init__(
        self, runtime: Runtime, controllers: Controllers, *, node_id: int, directory_id: UUID, cluster_id: str
    ) -> None:
        self.failure: MetadataUnusable | None = None
        self.on_failure: Callable[[KafkaError], None] | None = None
        self.high_watermark = -1
        self._runtime = runtime
        self._controllers = controllers
        self._node_id = node_id
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._tail = MetadataTail()
        self._loader = MetadataLoader()
        self._subscribers: list[Subscriber] = []
        self._moved = Signal(runtime)
        self._link: BrokerLink | None = None
        self._failures = 0
        self._last_error: KafkaError | None = None

    @property
    def image(self) -> MetadataImage:
        return self._loader.image

    @property
    def end_offset(self) -> int:
        """Of what was fetched, committed or not."""
        return self._tail.end_offset

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every new image, beginning with all that is known now."""
        self._subscribers.append(subscriber)
        if self.image.offset >= 0:
            subscriber(full_delta(self.image), self.image)

    async def caught_up(self, timeout_s: float, *, offset: int | None = None) -> None:
        """Return when the image has reached what is committed, or an offset; else raise why it has not."""
        deadline = Deadline(self._runtime.clock, timeout_s * 1000, "initial.broker.registration.timeout.ms")
        while not self._has_reached(offset):
            if self.failure is not None:
                raise self.failure
            if not await self._moved.wait(deadline.remaining_s()):
                raise deadline.gave_up(
                    f"reading the metadata from the controllers at {self._controllers.bootstrap_text}",
                    self._last_error,
                )

    def _has_reached(self, offset: int | None) -> bool:
        if offset is not None:
            return self.image.offset >= offset
        return self.high_watermark >= 0 and self.image.offset >= self.high_watermark - 1

    async def run(self) -> None:
        """Follow until cancelled, or until there is nothing more to be followed."""
        try:
            while self.failure is None:
                await self._step()
        finally:
            self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close(NetworkException("the observer was stopped"))
            self._link = None

    async def _step(self) -> None:
        leader = self._controllers.leader
        try:
            connection = await self._connect(leader)
            answer = await self._fetch(connection)
            is_progress = await self._take(connection, leader, answer)
        except ClusterAuthorizationFailed as error:
            if self.high_watermark >= 0:  # it was allowed before: the rules are being changed
                await self._failed(leader, error)
            else:
                self._give_up(
                    "the controllers do not let this broker read the metadata: its user needs ClusterAction on the "
                    "cluster, or belongs into super.users of the controllers (listener.name.*.sasl.jaas.config)"
                )
        except KafkaError as error:
            await self._failed(leader, error)
        except _UNREADABLE as error:
            self._give_up(
                f"a metadata record after offset {self.image.offset} cannot be read: {error}. Was it written at a "
                "level that this version of Twofold does not know? Use a newer one, or lower metadata.version"
            )
        except LostRecords as error:
            self._give_up(f"{error}: were the controllers restored from older copies? Start this broker anew")
        else:
            if is_progress:
                self._failures, self._last_error = 0, None
            else:
                await self._failed(None, None)

    async def _connect(self, leader: Leader | None) -> Connection:
        address = self._controllers.next_bootstrap() if leader is None else leader.address
        if self._link is None or self._link.address != address or leader is None:
            self.close()
            self._link = self._controllers.link(address)
        return await self._link.connect(
            Deadline(self._runtime.clock, self._controllers.options.request_timeout_ms, "request.timeout.ms")
        )

    async def _failed(self, leader: Leader | None, error: KafkaError | None) -> None:
        if error is not None:
            if str(error) != str(self._last_error):
                log.info("the metadata cannot be fetched, and is tried again: %s", error)
            self._last_error = error
        self._controllers.forget(leader)
        self._failures += 1
        await self._runtime.timers.sleep(PAUSE.delay_s(self._failures, self._runtime.random))

    def _give_up(self, why: str) -> None:
        self.failure = MetadataUnusable(why)
        self._moved.fire()
        if self.on_failure is not None:
            self.on_failure(self.failure)

    async def _fetch(self, connection: Connection) -> FetchResponse:
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=self._controllers.epoch,
            fetch_offset=self._tail.end_offset,
            last_fetched_epoch=self._tail.last_epoch,
            log_start_offset=0,
            partition_max_bytes=MAX_BYTES,
            replica_directory_id=self._directory_id,
            high_watermark=max(0, self.high_watermark),
        )
        request = FetchRequest(
            cluster_id=self._cluster_id,
            replica_id=self._node_id,
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=-1),
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=0,
            max_bytes=MAX_BYTES,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=CLUSTER_METADATA, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            forgotten_topics_data=(),
        )
        timeout_ms = MAX_WAIT_MS + self._controllers.options.request_timeout_ms
        response: FetchResponse = await connection.request(request, FETCH, timeout_ms=timeout_ms)
        return response

    async def _take(self, connection: Connection, leader: Leader | None, answer: FetchResponse) -> bool:
        """Act on an answer; whether the next fetch may follow at once."""
        if answer.error_code == InconsistentClusterId.code:
            self._give_up(f"{connection.label} does not belong to the cluster {self._cluster_id}")
            return True
        if answer.error_code != NONE:
            raise error_for(answer.error_code)(f"{connection.label} refused a fetch of the metadata")
        row = next((row for topic in answer.responses for row in topic.partitions), None)
        if row is None:
            raise NetworkException(f"{connection.label} told nothing of the metadata: is it a controller?")
        known = self._controllers.learn(
            row.current_leader.leader_id,
            row.current_leader.leader_epoch,
            endpoint_of(row.current_leader.leader_id, answer.node_endpoints),
        )
        if row.error_code in (FencedLeaderEpoch.code, NotLeaderOrFollower.code):
            if not known and leader is not None:
                self._controllers.forget(leader)
            return known
        if row.error_code != NONE:
            raise error_for(row.error_code)(f"{connection.label} refused a fetch of the metadata")
        if leader is None and self._controllers.leader is None:
            # It leads, and such an answer names no endpoint.
            self._controllers.learn(row.current_leader.leader_id, row.current_leader.leader_epoch, self._address)
        if row.diverging_epoch.end_offset >= 0 and row.diverging_epoch.epoch >= 0:
            self._tail.truncate(row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
        elif row.snapshot_id.end_offset >= 0 and row.snapshot_id.epoch >= 0:
            await self._load_snapshot(connection, SnapshotId(row.snapshot_id.end_offset, row.snapshot_id.epoch))
        else:
            self._take_records(row)
        return True

    @property
    def _address(self) -> Address | None:
        return None if self._link is None else self._link.address

    def _take_records(self, row: PartitionData) -> None:
        if row.records:
            self._tail.accept(bytes(row.records))
        self.high_watermark = max(self.high_watermark, row.high_watermark)
        committed = self._tail.commit(self.high_watermark)
        for publication in self._loader.load(map(_decoded, committed)):
            self._publish(publication)
        self._moved.fire()

    async def _load_snapshot(self, connection: Connection, snapshot_id: SnapshotId) -> None:
        data = await self._fetch_snapshot(connection, snapshot_id)
        try:
            snapshot = await self._runtime.blocking(decode_snapshot, data)
        except CorruptMessage as error:
            raise CorruptMessage(f"the snapshot {snapshot_id.file_name} of {connection.label}: {error}") from error
        last_offset = snapshot_id.end_offset - 1
        records: list[MetadataRecord] = [
            record for _, record in decode_all((last_offset, value) for value in snapshot.values)
        ]
        publication = self._loader.load_snapshot(records, last_offset)
        self._tail.restart(snapshot_id.end_offset, snapshot_id.epoch)
        log.info("the metadata was loaded from the snapshot %s of %s", snapshot_id.file_name, connection.label)
        self._publish(publication)
        self._moved.fire()

    async def _fetch_snapshot(self, connection: Connection, snapshot_id: SnapshotId) -> bytes:
        data = bytearray()
        while True:
            request = FetchSnapshotRequest(
                cluster_id=self._cluster_id,
                replica_id=self._node_id,
                max_bytes=MAX_BYTES,
                topics=[TopicSnapshot(name=CLUSTER_METADATA, partitions=[self._slice(snapshot_id, len(data))])],
            )
            answer: FetchSnapshotResponse = await connection.request(request, FETCH_SNAPSHOT)
            row = next((row for topic in answer.topics for row in topic.partitions), None)
            code = answer.error_code if row is None or answer.error_code != NONE else row.error_code
            if code != NONE or row is None:
                raise NetworkException(
                    f"{connection.label} did not send the snapshot {snapshot_id.file_name}: {error_for(code).name}"
                )
            if row.position != len(data) or not row.unaligned_records:
                raise CorruptMessage(f"{connection.label} sent another slice of {snapshot_id.file_name} than was asked")
            data += row.unaligned_records
            if len(data) >= row.size:
                return bytes(data)

    def _slice(self, snapshot_id: SnapshotId, position: int) -> PartitionSnapshot:
        return PartitionSnapshot(
            partition=0,
            current_leader_epoch=self._controllers.epoch,
            snapshot_id=WireSnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch),
            position=position,
            replica_directory_id=self._directory_id,
        )

    def _publish(self, publication: Publication) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(publication.delta, publication.image)
            except Exception:
                log.exception("a subscriber failed on the image at offset %d", publication.image.offset)


def _decoded(batch: MetadataBatch) -> CommittedBatch:
    return CommittedBatch(decode_all(enumerate(batch.values, batch.base_offset)), batch.end_offset - 1, batch.size)
