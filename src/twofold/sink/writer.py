"""A task's transactions: records in, a participant of the batch's decision out.

1. A transaction is opened by the first record, in a slot that no live process shares, and every one has an epoch of its
   own: it begins with InitProducerId.
2. Until it is prepared it lives by heartbeats (where the broker has them), so that what a dead task left is gone within
   three intervals. To prepare it makes it a two-phase one: from then on only the decision ends it.
3. Nothing is prepared but what is acknowledged, and what the coordinator still has under the identity that wrote it.
   Until then a power cut of the broker may take what was acknowledged; so afterwards, when all is on disk, the leaders
   are asked whether they have it.
4. A transaction without records was never there.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from twofold.client import Admin, TopicMetadata
from twofold.client.parts import (
    NO_TIMEOUT_MS,
    Cluster,
    Coordinators,
    CurrentTransaction,
    Heartbeats,
    ProducerBatch,
    ProducerConfig,
    ProducerIdentity,
    Sender,
    Terms,
    TransactionCalls,
)
from twofold.connections.errors import GaveUp
from twofold.connections.waiting import Backoff, Deadline
from twofold.records.batch import decrement_sequence
from twofold.records.column_batch import EncodedBatch
from twofold.runtime.api import Runtime
from twofold.sink.errors import TaskFailed
from twofold.sink.register import Mode, Participant
from twofold.sink.slots import Slot, Slots, Use
from twofold.sink.steps import Reached, unobserved
from twofold.types import TopicPartition
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    TransactionAbortable,
)

log = logging.getLogger(__name__)

# Answers of InitProducerId after which nothing has changed.
_NOT_DONE = (ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)
ATTEMPTS = 5
PAUSE = Backoff(20, 500)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was agreed with the brokers when the query started, for all of its tasks."""

    mode: Mode
    timeout_ms: int
    heartbeat_interval_ms: int = 0

    @property
    def opening(self) -> Terms:
        """Without heartbeats there is nothing to live by: two-phase from the start."""
        if self.mode is Mode.TWO_PHASE and not self.heartbeat_interval_ms:
            return Terms(NO_TIMEOUT_MS, two_phase=True)
        return Terms(self.timeout_ms, interval_ms=self.heartbeat_interval_ms)

    @property
    def becomes_two_phase(self) -> bool:
        return self.mode is Mode.TWO_PHASE and self.heartbeat_interval_ms > 0


class TaskWriter:
    """Of one process, for one configuration; one transaction after the other. Everything runs on the client's loop."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        config: ProducerConfig,
        slots: Slots,
        reached: Reached = unobserved,
    ) -> None:
        self._runtime = runtime
        self._reached = reached
        self._cluster = cluster
        self._config = config
        self._slots = slots
        self._coordinators = Coordinators(cluster)
        self._calls = TransactionCalls(cluster, self._coordinators)
        self._open = CurrentTransaction("", self._add_partitions_soon, self._on_failure)
        self._sender = Sender(runtime, config, cluster, self._open)
        self._heartbeats: Heartbeats | None = None
        self._adding: asyncio.Task[None] | None = None
        self._error: KafkaError | None = None
        self._slot: Slot | None = None
        self._identity = ProducerIdentity(-1, -1)
        self._conditions: Conditions | None = None

    @property
    def is_open(self) -> bool:
        return self._slot is not None

    async def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.stop()
        await self._sender.close()
        self._coordinators.close()

    async def topic(self, name: str) -> TopicMetadata:
        return await self._cluster.topic(name, self._deadline())

    # One transaction

    async def begin(self, conditions: Conditions, use: Use) -> None:
        """Take an id and an epoch. A failure burns the id."""
        assert self._slot is None, "a task has one transaction"
        self._conditions = conditions
        self._error = None
        deadline = self._deadline()
        for attempt in range(1, ATTEMPTS + 1):
            slot = self._slots.take(use)
            try:
                identity, v2 = await self._init(slot, conditions, deadline)
            except GaveUp:
                self._slots.burn(slot)
                raise
            except KafkaError as error:
                self._slots.burn(slot)
                if attempt == ATTEMPTS or not error.retriable:
                    raise
                log.warning(
                    "%s is given up, because it is not known which process has it: %s", slot.transactional_id, error
                )
                await self._runtime.timers.sleep(self._config.retry_backoff.delay_s(attempt, self._runtime.random))
                continue
            except BaseException:
                self._slots.burn(slot)
                raise
            break
        slot.known()
        self._slot, self._identity = slot, identity
        self._open.transactional_id = slot.transactional_id
        self._open.begin(v2=v2)
        self._sender.accept()
        self._sender.adopt(identity)
        if conditions.heartbeat_interval_ms:
            self._heartbeats = Heartbeats(self._runtime, conditions.heartbeat_interval_ms / 1000, self._beat)
            self._heartbeats.start()
        self._reached("task: opened")

    async def _init(self, slot: Slot, conditions: Conditions, deadline: Deadline) -> tuple[ProducerIdentity, bool]:
        """The answer to one request; asked again only where nothing has changed."""
        failures = 0
        while True:
            try:
                started = await self._calls.init(slot.transactional_id, conditions.opening, deadline, patient=False)
                return started.identity, started.v2
            except _NOT_DONE as error:
                failures += 1
                delay_s = PAUSE.delay_s(failures, self._runtime.random)
                if delay_s >= deadline.remaining_s():
                    raise deadline.gave_up(f"InitProducerId of {slot.transactional_id!r}", error) from error
                await self._runtime.timers.sleep(delay_s)

    async def send(self, topic: str, batches: Iterable[tuple[int, EncodedBatch]]) -> None:
        """Put batches, each with its partition, into the buffer; waits for room. They are sent in this order."""
        assert self._slot is not None, "begin() comes first"
        for partition, batch in batches:
            self._check()
            await put(self._runtime, self._cluster, self._config, self._sender, topic, partition, batch)
            self._check()

    async def prepare(self, partition: int) -> Participant | None:
        """All is acknowledged, and from now on only the decision ends it. None where there was nothing to write."""
        slot, conditions = self._slot, self._conditions
        if slot is None or conditions is None:
            return None
        await self._sender.flush()
        self._check()
        self._reached("task: written")
        self._stop_heartbeats()
        client = self._identity
        if conditions.becomes_two_phase:
            client = await self._make_two_phase(slot)
        participant = Participant(slot.transactional_id, self._identity, client, partition, self._open.v2)
        if conditions.becomes_two_phase:
            try:
                await self._check_kept(slot)
            except KafkaError:
                await self.abort(participant)  # nothing else would end it, now that it is two-phase
                raise
        self._slot = None
        return participant

    async def _make_two_phase(self, slot: Slot) -> ProducerIdentity:
        # Asked as often as it takes: should one that was given up come late, the identity that may end the transaction
        # is another one than this, and the driver that completes the decision finds that out.
        terms = Terms(NO_TIMEOUT_MS, two_phase=True)
        try:
            started = await self._calls.init(slot.transactional_id, terms, self._deadline(), keep=True)
        except KafkaError:
            self._slots.burn(slot)
            raise
        if started.ongoing.identity != self._identity:
            self._slots.burn(slot)
            found = f"{started.ongoing} in its place" if started.ongoing else "none"
            raise TaskFailed(
                f"the coordinator has ended the transaction {self._identity.producer_id}:{self._identity.epoch} of "
                f"{slot.transactional_id!r} and has {found}: it took longer than {self._limits()}, or the batch was "
                "decided without this attempt"
            )
        return started.identity

    async def _check_kept(self, slot: Slot) -> None:
        """Fail for records that the leaders have lost since they acknowledged them. A leader that lost the first of a
        transaction has refused the next."""
        expected = {
            tp: decrement_sequence(queue.sequences.next_sequence, 1)
            for tp, queue in self._sender.backlog.queues.items()
        }
        found = (await Admin.on(self._cluster).describe_producers(expected)).get()
        for tp, last_sequence in expected.items():
            last = [row.last_sequence for row in found[tp] if (row.producer_id, row.producer_epoch) == self._identity]
            if last != [last_sequence]:
                self._slots.burn(slot)
                raise TaskFailed(
                    f"{tp} has lost records of {slot.transactional_id!r} that it had acknowledged: the broker lost its "
                    "power, or its log, while the task wrote. The task has to write them again"
                )

    def _limits(self) -> str:
        conditions = self._conditions
        assert conditions is not None
        silence = (
            f" or was silent for {3 * conditions.heartbeat_interval_ms} ms" if conditions.becomes_two_phase else ""
        )
        return f"transactionTimeoutMs={conditions.timeout_ms}{silence}"

    async def abort(self, participant: Participant | None = None) -> None:
        """Best effort: the next start finds what is left. With a participant, one that was prepared."""
        self._stop_heartbeats()
        slot, self._slot = self._slot, None
        self._sender.refuse(TransactionAbortable("the task failed"))
        if self._adding is not None:
            self._adding.cancel()
        try:
            await self._sender.quiet()
            if participant is not None:
                name, identity = participant.transactional_id, participant.client
            elif slot is not None and self._open.started:
                name, identity = slot.transactional_id, self._identity
            else:
                return
            deadline = self._cluster.deadline(self._config.request_timeout_ms, "kafka.request.timeout.ms")
            await self._calls.end(name, identity, deadline, commit=False, v2=self._open.v2)
        except KafkaError as error:
            log.info("a failed task's transaction is left to the sweep: %s", error)

    # What happens meanwhile

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _on_failure(self, error: KafkaError) -> None:
        self._error = self._error or error
        self._sender.refuse(error)

    def _add_partitions_soon(self) -> None:
        if self._adding is None or self._adding.done():
            self._adding = self._runtime.spawn(self._add_partitions(), name="add partitions to transaction")

    async def _add_partitions(self) -> None:
        try:
            while partitions := self._open.missing():
                self._open.started = True
                name, identity = self._open.transactional_id, self._identity
                await self._calls.add_partitions(name, identity, partitions, self._deadline())
                self._open.add(partitions)
                self._sender.wake()
        except KafkaError as error:
            self._on_failure(error)

    async def _beat(self) -> bool:
        slot, conditions = self._slot, self._conditions
        if slot is None or conditions is None or not self._open.started:
            return True
        try:
            await self._calls.heartbeat(slot.transactional_id, self._identity, conditions.heartbeat_interval_ms)
        except KafkaError as error:
            if error.retriable:
                return False
            log.info("heartbeat of %r: %s", slot.transactional_id, error)
            if self._slot is slot and error.fatal | error.abortable:
                self._on_failure(error)
        return True

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.stop()
            self._heartbeats = None

    def _deadline(self) -> Deadline:
        return self._cluster.deadline(self._config.max_block_ms, "kafka.max.block.ms")


class PlainWriter:
    """Records without transactions: acknowledged when `flush` returns, and perhaps there twice if a task runs again."""

    def __init__(self, runtime: Runtime, cluster: Cluster, config: ProducerConfig) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._config = config
        self._sender = Sender(runtime, config, cluster)
        self._error: BaseException | None = None

    async def close(self) -> None:
        await self._sender.close()

    async def topic(self, name: str) -> TopicMetadata:
        return await self._cluster.topic(name, self._cluster.deadline(self._config.max_block_ms, "kafka.max.block.ms"))

    async def send(self, topic: str, batches: Iterable[tuple[int, EncodedBatch]]) -> None:
        for partition, batch in batches:
            self._check()
            queued = await put(self._runtime, self._cluster, self._config, self._sender, topic, partition, batch)
            queued.done.add_done_callback(self._note)

    async def flush(self) -> None:
        await self._sender.flush()
        self._check()

    def _note(self, done: "asyncio.Future[None]") -> None:
        if not done.cancelled():
            self._error = self._error or done.exception()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


async def put(
    runtime: Runtime,
    cluster: Cluster,
    config: ProducerConfig,
    sender: Sender,
    topic: str,
    partition: int,
    batch: EncodedBatch,
) -> ProducerBatch:
    """A batch into the sender's buffer, when there is room."""
    size = min(batch.size_estimate, config.buffer_memory)  # it may be alone in there
    if not sender.backlog.memory.try_take(size):
        deadline = cluster.deadline(config.delivery_timeout_ms, "kafka.delivery.timeout.ms")
        if not await sender.backlog.memory.take(size, runtime, deadline):
            raise TaskFailed(
                f"no room for {size} bytes within {deadline.timeout_ms:g} ms: records come faster than the brokers "
                f"take them (kafka.buffer.memory={config.buffer_memory})"
            )
    queued = sender.backlog.add_columns(sender.backlog.queue(TopicPartition(topic, partition)), batch)
    queued.reserved = size
    return queued
