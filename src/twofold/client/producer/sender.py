"""Takes batches from the partitions' queues to their leaders and their fate back to the callers.

One task decides what goes out. It never waits for a broker: what is missing is fetched beside it and wakes it, so that
one slow broker does not hold up the others. The parts, one module each:

    Backlog          what is not acknowledged, by partition, and which partitions want a look
    Leaders          leaders and connections
    IdentitySource   producer id and epoch
    ProduceRequests  batches as a request, rows of its answer
    BatchFates       what becomes of a batch
    InFlight         how many requests are under way
    Waking           wakes the task, at once or at a moment

Order and numbering within a partition are the business of `sequences`.
"""

import asyncio
from collections.abc import Iterable

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.client.producer.accumulator import PartitionQueue, ProducerBatch
from twofold.client.producer.backlog import Backlog
from twofold.client.producer.fates import BatchFates
from twofold.client.producer.identity import IdentitySource
from twofold.client.producer.in_flight import InFlight
from twofold.client.producer.leaders import Leaders
from twofold.client.producer.produce_request import ProduceRequests
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.producer.waking import Waking
from twofold.client.transactions.current import CurrentTransaction
from twofold.connections.connection import Connection
from twofold.connections.errors import ClientClosed, NoAnswer
from twofold.runtime.api import Runtime, TimerHandle
from twofold.wire.errors import KafkaError, OutOfOrderSequenceNumber
from twofold.wire.messages.produce import ProduceResponse

EXPIRY_CHECK_S = 1.0


class Sender:
    """Owned by one producer, on whose loop everything here runs.

    With a transaction, identities come from outside (`adopt`), and the first failure fails everything that is not on
    its way yet: the transaction can only be aborted then.
    """

    def __init__(
        self, runtime: Runtime, config: ProducerConfig, cluster: Cluster, transaction: CurrentTransaction | None = None
    ) -> None:
        transactional = transaction is not None
        self._runtime = runtime
        self._config = config
        self._transaction = transaction
        self._waking = waking = Waking(runtime)
        self.backlog = Backlog(runtime, config, waking, transactional=transactional, on_batch=self._watch_expiry)
        self._leaders = Leaders(runtime, config, cluster, waking)
        self._identities = IdentitySource(
            runtime, config, cluster, waking, transactional=transactional, on_failure=self._on_no_identity
        )
        self._fates = BatchFates(runtime.clock, config, self.backlog, self._leaders, self._identities, transaction)
        self._requests = ProduceRequests(config, cluster.cache, transaction)
        self._in_flight = InFlight()
        self._expiry_timer: TimerHandle | None = None
        self._closed = False
        self._task = runtime.spawn(self._run(), name="producer")

    async def flush(self) -> None:
        """Send everything that was given before this call, and wait for its fate."""
        await self.backlog.flush()

    async def close(self) -> None:
        """Stop; whatever is not acknowledged fails."""
        self._closed = True
        tasks = [self._task, *self._leaders.close(), *self._identities.close()]
        for task in tasks:
            task.cancel()
        self._waking.close()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._fates.close(ClientClosed("the producer was closed before the record was acknowledged"))
        self._in_flight.clear()
        await asyncio.wait(tasks)

    # The transaction's side

    def adopt(self, identity: ProducerIdentity) -> None:
        """Number records from 0 under another identity. Everything sent before has its fate."""
        if identity != self._identities.current:
            self.backlog.start_anew()
            self._identities.current = identity

    def refuse(self, error: KafkaError) -> None:
        """Fail what is not on its way, and what is on its way unless it succeeds now. Until `accept`."""
        self._fates.refuse(error)

    def accept(self) -> None:
        self._fates.accept()

    async def quiet(self) -> None:
        """Wait until no request is in flight."""
        await self._in_flight.none_left()

    def wake(self) -> None:
        """Look again: a partition was added to the transaction."""
        self._waking.now()

    # Deciding what to send

    async def _run(self) -> None:
        while True:
            await self._waking.wait()
            self._drain(self.backlog.ready())

    def _drain(self, ready: list[PartitionQueue]) -> None:
        """Send as much as brokers, order and limits allow. Partitions that must wait stay marked."""
        if not ready or not self._identities.may_number():
            return
        by_leader: dict[int, list[PartitionQueue]] = {}
        for queue in ready:
            if not self._has_work(queue):
                self.backlog.unmark(queue)
                continue
            if self._transaction is not None and not self._transaction.admits(queue.tp):
                continue
            leader = self._leader(queue)
            if leader is not None:
                by_leader.setdefault(leader, []).append(queue)
        for node_id, queues in by_leader.items():
            connection = self._leaders.connection(node_id)
            while connection is not None and self._takes_more(connection, node_id):
                batches = self._choose(queues)
                if not batches:
                    break
                self._send(connection, node_id, batches)

    def _takes_more(self, connection: Connection, node_id: int) -> bool:
        if self._config.required_acks == 0:
            # Nothing is in flight without answers: the socket's buffer is the bound.
            return not connection.closed and connection.check_writable(self._waking.now)
        return self._in_flight.count(node_id) < self._config.max_in_flight_requests_per_connection

    def _has_work(self, queue: PartitionQueue) -> bool:
        """Whether anything could be sent now or when what is in the way is gone."""
        sequences = queue.sequences
        if sequences.wants_identity():
            identity = self._identities.current
            if self._transaction is None:
                self._renumber(queue)
            elif sequences.forgotten and identity is not None and self._fates.refusal is None:
                sequences.start_anew(identity)
        if any(not batch.on_wire for batch in sequences.unacked):
            return True
        return bool(queue.waiting) and self.backlog.is_due(queue)

    def _renumber(self, queue: PartitionQueue) -> None:
        """A number of this partition will never be used: start again at 0, under an epoch that it has not seen."""
        for batch in queue.sequences.untold():
            message = f"{batch.tp}: the broker lost records before these, or no longer tells whether it has these"
            self._fates.fail(queue, batch, OutOfOrderSequenceNumber(message))
        identity = self._identities.other_than(queue.sequences.identity)
        if identity is not None:
            queue.sequences.start_anew(identity)

    def _leader(self, queue: PartitionQueue) -> int | None:
        """The leader of a partition whose pause is over; without one, metadata is on its way."""
        if self.backlog.is_pausing(queue):
            return None
        leader = self._leaders.leader(queue.tp)
        if leader is None:
            self.backlog.pause(queue)
            self._leaders.refresh()
        return leader

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
            queue.sequences.on_sent(batch, self._identities.current)
            self.backlog.move_to_end(queue)
        return chosen

    def _next_batch(self, queue: PartitionQueue) -> ProducerBatch | None:
        sequences = queue.sequences
        retry = sequences.next_retry()
        if retry is not None:
            return retry
        if queue.waiting and self.backlog.is_due(queue) and sequences.may_send_new(self._identities.current):
            return queue.waiting[0]
        return None

    # Sending

    def _send(self, connection: Connection, node_id: int, batches: list[ProducerBatch]) -> None:
        try:
            answer = self._requests.send(connection, batches)
        except KafkaError as error:
            self._on_error(batches, error)
            return
        if answer is None:
            for batch in batches:
                self._fates.on_success(batch, -1, -1)
            self._waking.now()
            return
        self._in_flight.sent(node_id)
        answer.add_done_callback(lambda future: self._on_answer(future, node_id, batches))

    def _on_answer(self, future: "asyncio.Future[ProduceResponse]", node_id: int, batches: list[ProducerBatch]) -> None:
        if self._closed:
            return
        self._in_flight.answered(node_id)
        error = future.exception()
        if error is not None:
            assert isinstance(error, KafkaError)
            self._on_error(batches, error)
            return
        matched, left_out = self._requests.match(future.result(), batches)
        for batch, row in matched:
            self._fates.on_row(batch, row)
        self._on_error(left_out, NoAnswer(f"broker {node_id} left a partition out of its answer to Produce"))

    def _on_error(self, batches: Iterable[ProducerBatch], error: KafkaError) -> None:
        for batch in batches:
            self._fates.on_error(batch, error)
        self._waking.now()

    def _on_no_identity(self, error: KafkaError) -> None:
        self._fates.fail_all(error, on_wire=True)

    # Time

    def _watch_expiry(self) -> None:
        if self._expiry_timer is None and not self._closed:
            delay_s = min(EXPIRY_CHECK_S, self._config.delivery_timeout_ms / 1000)
            self._expiry_timer = self._runtime.timers.call_later(delay_s, self._check_expiry)

    def _check_expiry(self) -> None:
        self._expiry_timer = None
        self._fates.expire_overdue()
        if not self.backlog.is_idle():
            self._watch_expiry()
