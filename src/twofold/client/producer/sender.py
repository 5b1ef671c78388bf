"""Takes batches from the partitions' queues to their leaders and their fate back to the callers.

One task decides what goes out; connecting, metadata and producer ids are fetched beside it and wake it when they
arrive, so that one slow broker does not hold up the others. Order and numbering are `sequences`' business.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.client.errors import DeliveryTimeout, TransactionAborted
from twofold.client.producer.accumulator import BufferMemory, PartitionQueue, ProducerBatch
from twofold.client.producer.produce_frame import FIRST_VERSION as FIRST_IN_PIECES
from twofold.client.producer.produce_frame import produce_body
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions.current import CurrentTransaction
from twofold.connections.connection import Connection
from twofold.connections.errors import ClientClosed, NoAnswer
from twofold.connections.waiting import spawn_shared
from twofold.records.batch import BatchBuilder
from twofold.records.column_batch import EncodedBatch
from twofold.runtime.api import Runtime, TimerHandle
from twofold.types import NO_SEQUENCE, TopicId, TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    ConcurrentTransactions,
    CorruptMessage,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    error_for,
    raise_for,
)
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from twofold.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

log = logging.getLogger(__name__)

Rows = dict[str, list[tuple[int, bytes | bytearray]]]
Ids = dict[str, TopicId | None]

PRODUCE = KEYS["Produce"]
LAST_VERSION_WITH_NAMES = 12
EXPIRY_CHECK_S = 1.0
# Retriable answers after which the broker certainly does not have the batch. All others leave that open: also
# NOT_LEADER_OR_FOLLOWER, which a leader answers that lost its place while it waited for the replicas.
_NOT_APPENDED = (ConcurrentTransactions, CorruptMessage, NotEnoughReplicas)
# The markers of the transaction before are written in milliseconds.
_CONCURRENT_PAUSE_S = 0.02


class Sender:
    """Owned by one producer, on whose loop everything here runs.

    With a transaction, identities come from outside (`adopt`), and the first failure fails everything that is not on
    its way yet: the transaction can only be aborted then.
    """

    def __init__(
        self, runtime: Runtime, config: ProducerConfig, cluster: Cluster, transaction: CurrentTransaction | None = None
    ) -> None:
        self.memory = BufferMemory(config.buffer_memory)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.identity: ProducerIdentity | None = None
        self.generation = 0  # of the queues: with a new identity there are new ones
        self.complete_bytes = 0  # of batches that became complete since the task last ran
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._transaction = transaction
        self._refusal: KafkaError | None = None
        self._quiet: list[asyncio.Future[None]] = []
        self._linger_s = config.linger_ms / 1000
        self._level = config.compression_level
        self._ready: dict[TopicPartition, None] = {}
        self._lingering: deque[tuple[float, PartitionQueue]] = deque()
        self._in_flight: dict[int, int] = {}
        self._flushing = 0
        self._identity_task: asyncio.Task[None] | None = None
        self._connecting: dict[int, asyncio.Task[object]] = {}
        self._waking: TimerHandle | None = None
        self._waking_at = float("inf")
        self._expiry_timer: TimerHandle | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self._task = runtime.spawn(self._run(), name="producer")

    # The producer's side

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(tp)
        if queue is None:
            limit = self._config.max_in_flight_requests_per_connection
            queue = self.queues[tp] = PartitionQueue(tp, idempotent=self._config.idempotent, max_unacked=limit)
        return queue

    def open_batch(self, queue: PartitionQueue) -> ProducerBatch:
        """A new batch at the end of the queue; the one before it, if any, is complete."""
        config = self._config
        transactional = self._transaction is not None
        builder = BatchBuilder(config.codec, transactional=transactional, level=self._level)
        batch = self._append(queue, builder)
        if self._linger_s and not self._flushing:
            self._lingering.append((batch.created + self._linger_s, queue))
            self._wake_at(batch.created + self._linger_s)
        else:
            self.mark_ready(queue)
        return batch

    def add_columns(self, queue: PartitionQueue, columns: EncodedBatch) -> ProducerBatch:
        """A batch that is complete from the start."""
        columns.transactional = self._transaction is not None
        batch = self._append(queue, columns)
        self.mark_complete(queue, columns.size_estimate)
        return batch

    def _append(self, queue: PartitionQueue, builder: BatchBuilder | EncodedBatch) -> ProducerBatch:
        if queue.waiting:
            self.mark_complete(queue, queue.waiting[-1].builder.size_estimate)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch = ProducerBatch(queue.tp, builder, self._runtime.clock.monotonic(), done)
        queue.waiting.append(batch)
        self._watch_expiry()
        return batch

    def take_back(self, queue: PartitionQueue, batch: ProducerBatch, size: int) -> None:
        """A record could not be added: neither its bytes stay reserved nor the batch that was opened for it."""
        self.memory.give_back(size)
        if batch.count == 0:
            queue.waiting.remove(batch)

    def mark_complete(self, queue: PartitionQueue, size: int) -> None:
        """The last batch of the queue takes no more records."""
        self.complete_bytes += size
        self.mark_ready(queue)

    def mark_ready(self, queue: PartitionQueue) -> None:
        self._ready[queue.tp] = None
        self._wake.set()

    async def flush(self) -> None:
        """Send everything that was given before this call, and wait for its fate."""
        self._flushing += 1
        try:
            batches = [batch for queue in self.queues.values() for batch in queue.incomplete()]
            for queue in self.queues.values():
                if not queue.idle:
                    self.mark_ready(queue)
            for batch in batches:
                await batch.finished()
        finally:
            self._flushing -= 1

    # The transaction's side

    def adopt(self, identity: ProducerIdentity) -> None:
        """Number records from 0 under another identity. Everything sent before has its fate."""
        if identity != self.identity:
            assert not any(queue.incomplete() for queue in self.queues.values())
            self.identity = identity
            self.queues.clear()
            self.generation += 1
            self._ready.clear()
            self._lingering.clear()

    def refuse(self, error: KafkaError) -> None:
        """Fail what is not on its way, and what is on its way unless it succeeds now. Until `accept`."""
        self._refusal = error
        for queue in self.queues.values():
            for batch in queue.incomplete():
                if not batch.on_wire:
                    self._fail(queue, batch, error)
            queue.waiting.clear()

    def accept(self) -> None:
        self._refusal = None

    async def quiet(self) -> None:
        """Wait until no request is in flight."""
        while any(self._in_flight.values()):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet.append(waiter)
            await waiter

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        """Stop; whatever is not acknowledged fails."""
        self._closed = True
        tasks = [self._task, *self._connecting.values()]
        if self._identity_task is not None:
            tasks.append(self._identity_task)
        for task in tasks:
            task.cancel()
        for timer in (self._waking, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        error = ClientClosed("the producer was closed before the record was acknowledged")
        for queue in self.queues.values():
            for batch in queue.incomplete():
                self._finish(batch, error)
            queue.waiting.clear()
            queue.sequences.unacked.clear()
        self._in_flight.clear()
        self._tell_quiet()
        await asyncio.wait(tasks)

    def _tell_quiet(self) -> None:
        waiters, self._quiet = self._quiet, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Deciding what to send

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.complete_bytes = 0
            self._end_linger()
            self._drain()

    def _end_linger(self) -> None:
        now = self._runtime.clock.monotonic()
        while self._lingering and self._lingering[0][0] <= now:
            _, queue = self._lingering.popleft()
            if queue.waiting:
                self._ready[queue.tp] = None
        if self._lingering:
            self._wake_at(self._lingering[0][0])

    def _drain(self) -> None:
        """Send as much as brokers, order and limits allow. Partitions that must wait stay marked."""
        if not self._ready or not self._has_identity():
            return
        by_leader: dict[int, list[PartitionQueue]] = {}
        for tp in list(self._ready):
            queue = self.queues[tp]
            if not self._has_work(queue):
                del self._ready[tp]
                continue
            if self._transaction is not None and not self._transaction.admits(tp):
                continue
            leader = self._leader(queue)
            if leader is not None:
                by_leader.setdefault(leader, []).append(queue)
        for node_id, queues in by_leader.items():
            connection = self._connection(node_id)
            while connection is not None and self._takes_more(connection, node_id):
                batches = self._choose(queues)
                if not batches:
                    break
                self._send(connection, node_id, batches)

    def _takes_more(self, connection: Connection, node_id: int) -> bool:
        if self._config.required_acks == 0:
            # Nothing is in flight without answers: the socket's buffer is the bound.
            return not connection.closed and connection.check_writable(self._wake.set)
        return self._in_flight.get(node_id, 0) < self._config.max_in_flight_requests_per_connection

    def _has_work(self, queue: PartitionQueue) -> bool:
        """Whether anything could be sent now or when what is in the way is gone."""
        sequences = queue.sequences
        if sequences.wants_identity():
            if self._transaction is None:
                self._renumber(queue)
            elif sequences.forgotten and self.identity is not None and self._refusal is None:
                sequences.start_anew(self.identity)
        if any(not batch.on_wire for batch in sequences.unacked):
            return True
        return bool(queue.waiting) and self._is_due(queue)

    def _is_due(self, queue: PartitionQueue) -> bool:
        if self._flushing or len(queue.waiting) > 1 or not self._linger_s:
            return True
        batch = queue.waiting[0]
        if batch.fill >= self._config.batch_size:
            return True
        return self._runtime.clock.monotonic() >= batch.created + self._linger_s

    def _renumber(self, queue: PartitionQueue) -> None:
        """A number of this partition will never be used: start again at 0, under an epoch that it has not seen."""
        for batch in queue.sequences.untold():
            message = f"{batch.tp}: the broker lost records before these, or no longer tells whether it has these"
            self._fail(queue, batch, OutOfOrderSequenceNumber(message))
        if self.identity is not None and self.identity == queue.sequences.identity:
            self.identity = self.identity.bumped()
        if self.identity is not None:
            queue.sequences.start_anew(self.identity)
        else:
            self._has_identity()

    def _leader(self, queue: PartitionQueue) -> int | None:
        """The leader of a partition whose pause is over; without one, metadata is on its way."""
        now = self._runtime.clock.monotonic()
        if now < queue.not_before:
            self._wake_at(queue.not_before)
            return None
        row = self._cluster.cache.leader(queue.tp)
        if row is None:
            self._pause(queue)
            self._refresh_metadata()
            return None
        return row.leader

    def _choose(self, queues: Iterable[PartitionQueue]) -> list[ProducerBatch]:
        """At most one batch of each partition, together at most `max_request_size`."""
        chosen: list[ProducerBatch] = []
        size = 0
        for queue in queues:
            batch = self._next_batch(queue)
            if batch is None:
                continue
            if chosen and size + batch.size > self._config.max_request_size:
                break
            size += batch.size
            chosen.append(batch)
            if queue.waiting and queue.waiting[0] is batch:
                queue.waiting.popleft()
            queue.sequences.on_sent(batch, self.identity)
            # A partition that was sent now goes to the end of the line: a request too small for all is fair to all.
            self._ready.pop(queue.tp, None)
            self._ready[queue.tp] = None
        return chosen

    def _next_batch(self, queue: PartitionQueue) -> ProducerBatch | None:
        sequences = queue.sequences
        retry = sequences.next_retry()
        if retry is not None:
            return retry
        if queue.waiting and self._is_due(queue) and sequences.may_send_new(self.identity):
            return queue.waiting[0]
        return None

    # Sending

    def _send(self, connection: Connection, node_id: int, batches: list[ProducerBatch]) -> None:
        acks = self._config.required_acks
        try:
            version, rows, ids = self._laid_out(connection, batches)
            transactional_id = None if self._transaction is None else self._transaction.transactional_id
            timeout_ms = self._config.request_timeout_ms
            if acks != 0 and version >= FIRST_IN_PIECES:
                body = produce_body(version, transactional_id, acks, timeout_ms, rows, ids)
                answer = connection.send_body(body, PRODUCE, version)
            else:
                request = ProduceRequest(
                    transactional_id=transactional_id,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    topic_data=_topic_data(rows, ids),
                )
                if acks == 0:
                    connection.send_without_answer(request, PRODUCE, version=version)
                    self._on_all(batches, None)
                    return
                answer = connection.send(request, PRODUCE, version=version)
        except KafkaError as error:
            self._on_all(batches, error)
            return
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        answer.add_done_callback(lambda future: self._on_answer(future, node_id, batches))

    def _laid_out(self, connection: Connection, batches: list[ProducerBatch]) -> tuple[int, Rows, Ids]:
        """Version, batches by topic and partition, ids of the topics."""
        rows: Rows = {}
        for batch in batches:
            batch.attempts += 1
            rows.setdefault(batch.tp.topic, []).append((batch.tp.partition, batch.build()))
        known = {name: self._cluster.cache.topic(name) for name in rows}
        ids = {name: None if topic is None else topic.topic_id for name, topic in known.items()}
        by_id = all(topic_id is not None for topic_id in ids.values())
        at_most = None if by_id else LAST_VERSION_WITH_NAMES
        if self._transaction is None:
            version = connection.version(PRODUCE, at_most=at_most)
        else:
            version = self._transaction.produce_version(connection, at_most)
        return version, rows, ids

    def _on_answer(self, future: "asyncio.Future[ProduceResponse]", node_id: int, batches: list[ProducerBatch]) -> None:
        if self._closed:
            return
        self._in_flight[node_id] -= 1
        if self._quiet and not any(self._in_flight.values()):
            # Told after the fates below: a future's waiter runs in a later turn of the loop.
            self._tell_quiet()
        error = future.exception()
        if error is not None:
            assert isinstance(error, KafkaError)
            self._on_all(batches, error)
            return
        by_partition = {batch.tp: batch for batch in batches}
        for topic in future.result().responses:
            name = topic.name or self._cluster.cache.name_of(topic.topic_id)
            for row in topic.partition_responses:
                batch = by_partition.pop(TopicPartition(name or "", row.index), None)
                if batch is not None:
                    self._on_result(batch, row)
        # What the broker left out, or named by an id that is not known any more, has no known outcome.
        self._on_all(by_partition.values(), _unanswered(node_id))

    def _on_all(self, batches: Iterable[ProducerBatch], error: KafkaError | None) -> None:
        for batch in batches:
            if error is None:
                self._on_success(batch, -1, -1)
            else:
                self._on_error(batch, error)
        self._wake.set()

    def _on_result(self, batch: ProducerBatch, row: PartitionProduceResponse) -> None:
        if row.error_code == 0 or row.error_code == DuplicateSequenceNumber.code:
            self._on_success(batch, row.base_offset, row.log_append_time_ms)
            return
        message = row.error_message or f"partition {batch.tp}"
        if row.record_errors:
            first = row.record_errors[0]
            message += f" (record {first.batch_index} of the batch: {first.batch_index_error_message})"
        if row.error_code == UnknownProducerId.code:
            acked = self.queues[batch.tp].last_acked_offset
            message += f": acknowledged up to offset {acked}, and the log begins at {row.log_start_offset}"
        self._on_error(batch, error_for(row.error_code)(message), row.log_start_offset)

    # Fates

    def _on_success(self, batch: ProducerBatch, base_offset: int, append_time: int) -> None:
        queue = self.queues[batch.tp]
        for implied in queue.sequences.on_acknowledged(batch):
            self._release(implied)
            implied.succeed(-1, -1)  # where, the broker does not tell any more
        queue.failures = 0
        queue.not_before = 0.0
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.count - 1)
        self._release(batch)
        batch.succeed(base_offset, append_time)
        self._after(queue)

    def _on_error(self, batch: ProducerBatch, error: KafkaError, log_start: int = -1) -> None:
        queue = self.queues[batch.tp]
        sequences = queue.sequences
        if batch.done.done():
            # Given up while it was on its way: only the numbering still had to know.
            batch.on_wire = False
        elif self._refusal is not None:
            self._fail(queue, batch, error)
        elif isinstance(error, MessageTooLarge) and batch.count > 1:
            self._split(queue, batch)
        elif isinstance(error, OutOfOrderSequenceNumber) and sequences.is_gap_explained(batch):
            sequences.on_out_of_order(batch)
            self._give_up_or_pause(queue, batch, error)
        elif isinstance(error, UnknownProducerId) and self._may_start_anew(queue, batch, log_start):
            if log_start < 0:
                sequences.on_refused(batch)
            else:
                log.warning("%s does not know producer id and epoch %s any more: %s", batch.tp, batch.identity, error)
                sequences.on_forgotten(batch)
            self._give_up_or_pause(queue, batch, error)
        elif error.retriable:
            if isinstance(error, _NOT_APPENDED):
                sequences.on_refused(batch)
            else:
                sequences.on_unknown(batch)
            if not isinstance(error, ConcurrentTransactions):
                self._refresh_metadata()
            self._give_up_or_pause(queue, batch, error)
        else:
            if self._transaction is None and isinstance(error, InvalidProducerEpoch):
                self.identity = None  # the broker does not know this one: only a new producer id helps
            self._fail(queue, batch, error)
        self._after(queue)

    def _may_start_anew(self, queue: PartitionQueue, batch: ProducerBatch, log_start: int) -> bool:
        """Whether a broker that does not know our producer id any more can be given the batch under a new number.

        It has forgotten the id with the records that it deleted, or it has lost them. A transaction goes on only in the
        first case, because records that were lost may be its own.
        """
        if log_start < 0:
            return True  # the leader is moving: the next answer says more
        return not batch.in_doubt and (self._transaction is None or queue.last_acked_offset < log_start)

    def _after(self, queue: PartitionQueue) -> None:
        if not queue.idle:
            self._ready[queue.tp] = None
            self._wake.set()

    def _give_up_or_pause(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        if batch.attempts > self._config.retries:
            self._fail(queue, batch, error)
        elif self._is_expired(batch):
            self._expire(queue, batch, error)
        elif isinstance(error, ConcurrentTransactions):
            queue.not_before = self._runtime.clock.monotonic() + _CONCURRENT_PAUSE_S
            self._wake_at(queue.not_before)
        else:
            self._pause(queue)

    def _pause(self, queue: PartitionQueue) -> None:
        queue.failures += 1
        delay_s = self._config.retry_backoff.delay_s(queue.failures, self._runtime.random)
        queue.not_before = self._runtime.clock.monotonic() + delay_s
        self._wake_at(queue.not_before)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        log.debug("%s: a batch of %d bytes is too large for the broker, sending halves", batch.tp, batch.size)
        queue.sequences.split(batch, batch.halves())
        if not batch.done.done():
            batch.done.set_result(None)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        queue.sequences.on_failed(batch)
        self._finish(batch, error)
        transaction = self._transaction
        if transaction is not None:
            transaction.lost_numbers = transaction.lost_numbers or batch.base_sequence != NO_SEQUENCE
            if self._refusal is None:
                transaction.on_failure(error)

    def _finish(self, batch: ProducerBatch, error: KafkaError) -> None:
        if not batch.done.done():
            level = logging.DEBUG if isinstance(error, TransactionAborted) else logging.WARNING
            log.log(level, "%d records for %s were not delivered: %s", batch.count, batch.tp, error)
            self._release(batch)
            batch.fail(error)

    def _release(self, batch: ProducerBatch) -> None:
        self.memory.give_back(batch.reserved)
        batch.reserved = 0

    # Time

    def _is_expired(self, batch: ProducerBatch) -> bool:
        age_ms = (self._runtime.clock.monotonic() - batch.created) * 1000
        return age_ms >= self._config.delivery_timeout_ms

    def _expire(self, queue: PartitionQueue, batch: ProducerBatch, last: KafkaError | None = None) -> None:
        age_ms = (self._runtime.clock.monotonic() - batch.created) * 1000
        reason = f": {last}" if last is not None else ""
        row = self._cluster.cache.leader(batch.tp)
        leader = "no leader is known" if row is None else f"its leader is broker {row.leader}"
        self._fail(
            queue,
            batch,
            DeliveryTimeout(
                f"{batch.count} records for {batch.tp} ({leader}) were not acknowledged within {age_ms:.0f} ms "
                f"(delivery_timeout_ms={self._config.delivery_timeout_ms}) and {batch.attempts} attempts{reason}"
            ),
        )

    def _watch_expiry(self) -> None:
        if self._expiry_timer is None and not self._closed:
            delay_s = min(EXPIRY_CHECK_S, self._config.delivery_timeout_ms / 1000)
            self._expiry_timer = self._runtime.timers.call_later(delay_s, self._check_expiry)

    def _check_expiry(self) -> None:
        self._expiry_timer = None
        for queue in self.queues.values():
            for batch in queue.incomplete():
                if self._is_expired(batch):
                    if batch in queue.waiting:
                        queue.waiting.remove(batch)
                    self._expire(queue, batch)
                    self._after(queue)
        if any(not queue.idle for queue in self.queues.values()):
            self._watch_expiry()

    def _wake_at(self, moment: float) -> None:
        """Wake the task then, or earlier."""
        if moment >= self._waking_at or self._closed:
            return
        if self._waking is not None:
            self._waking.cancel()
        self._waking_at = moment
        delay_s = max(0.0, moment - self._runtime.clock.monotonic())
        self._waking = self._runtime.timers.call_later(delay_s, self._on_wake_timer)

    def _on_wake_timer(self) -> None:
        self._waking = None
        self._waking_at = float("inf")
        self._wake.set()

    # What sending needs

    def _connection(self, node_id: int) -> Connection | None:
        """The open connection; without one, it is on its way."""
        try:
            link = self._cluster.link(node_id)
        except KafkaError:
            self._refresh_metadata()
            return None
        if link.connection is not None:
            return link.connection
        if node_id not in self._connecting:
            task = spawn_shared(
                self._runtime,
                link.connect(self._cluster.deadline(self._config.delivery_timeout_ms, "delivery_timeout_ms")),
                name=f"producer connects to {node_id}",
            )
            self._connecting[node_id] = task
            task.add_done_callback(lambda done: self._on_connected(done, node_id))
        return None

    def _on_connected(self, done: "asyncio.Task[object]", node_id: int) -> None:
        self._connecting.pop(node_id, None)
        if not done.cancelled() and done.exception() is not None:
            # The link pauses before the next attempt; meanwhile the leader may have moved.
            self._refresh_metadata()
        self._wake.set()

    def _refresh_metadata(self) -> None:
        if not self._closed:
            self._cluster.refresh_soon().add_done_callback(lambda _: self._wake.set())

    def _has_identity(self) -> bool:
        """Whether batches can be numbered; without a producer id, one is on its way."""
        if self.identity is not None or not self._config.idempotent:
            return True
        if self._transaction is not None:
            return False  # the transaction brings one
        if self._identity_task is None and not self._closed:
            self._identity_task = self._runtime.spawn(self._fetch_identity(), name="init producer id")
        return False

    async def _fetch_identity(self) -> None:
        deadline = self._cluster.deadline(self._config.delivery_timeout_ms, "delivery_timeout_ms")
        try:
            self.identity = await self._cluster.retry("InitProducerId", lambda: self._init_producer_id(), deadline)
        except KafkaError as error:
            for queue in self.queues.values():
                for batch in queue.incomplete():
                    self._fail(queue, batch, error)
                queue.waiting.clear()
        finally:
            self._identity_task = None
            self._wake.set()

    async def _init_producer_id(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        deadline = self._cluster.deadline()
        response: InitProducerIdResponse = await self._cluster.request(None, request, "InitProducerId", deadline)
        raise_for(response.error_code, "InitProducerId was refused")
        return ProducerIdentity(response.producer_id, response.producer_epoch)


def _topic_data(rows: Rows, ids: Ids) -> list[TopicProduceData]:
    return [
        TopicProduceData(
            name=name,
            topic_id=ids[name],
            partition_data=[PartitionProduceData(index=index, records=batch) for index, batch in partitions],
        )
        for name, partitions in rows.items()
    ]


def _unanswered(node_id: int) -> KafkaError:
    return NoAnswer(f"broker {node_id} left a partition out of its answer to Produce")
