"""What becomes of a batch: delivered, tried again, split, or given up with an error that its caller gets."""

import logging

from twofold.client.config import ProducerConfig
from twofold.client.errors import DeliveryTimeout, TransactionAborted
from twofold.client.producer.accumulator import PartitionQueue, ProducerBatch
from twofold.client.producer.backlog import Backlog
from twofold.client.producer.identity import IdentitySource
from twofold.client.producer.leaders import Leaders
from twofold.client.transactions.current import CurrentTransaction
from twofold.runtime.api import Clock
from twofold.types import NO_SEQUENCE
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
)
from twofold.wire.messages.produce import PartitionProduceResponse

log = logging.getLogger(__name__)

# Retriable answers after which the broker certainly does not have the batch. All others leave that open: also
# NOT_LEADER_OR_FOLLOWER, which a leader answers that lost its place while it waited for the replicas.
_NOT_APPENDED = (ConcurrentTransactions, CorruptMessage, NotEnoughReplicas)
# The markers of the transaction before are written in milliseconds.
_CONCURRENT_PAUSE_S = 0.02


class BatchFates:
    """With a transaction, the first failure fails everything that is not on its way yet."""

    def __init__(
        self,
        clock: Clock,
        config: ProducerConfig,
        backlog: Backlog,
        leaders: Leaders,
        identities: IdentitySource,
        transaction: CurrentTransaction | None,
    ) -> None:
        self.refusal: KafkaError | None = None
        self._clock = clock
        self._config = config
        self._backlog = backlog
        self._leaders = leaders
        self._identities = identities
        self._transaction = transaction

    # Answers

    def on_row(self, batch: ProducerBatch, row: PartitionProduceResponse) -> None:
        if row.error_code == 0 or row.error_code == DuplicateSequenceNumber.code:
            self.on_success(batch, row.base_offset, row.log_append_time_ms)
            return
        message = row.error_message or f"partition {batch.tp}"
        if row.record_errors:
            first = row.record_errors[0]
            message += f" (record {first.batch_index} of the batch: {first.batch_index_error_message})"
        if row.error_code == UnknownProducerId.code:
            acked = self._backlog.queues[batch.tp].last_acked_offset
            message += f": acknowledged up to offset {acked}, and the log begins at {row.log_start_offset}"
        self.on_error(batch, error_for(row.error_code)(message), row.log_start_offset)

    def on_success(self, batch: ProducerBatch, base_offset: int, append_time: int) -> None:
        queue = self._backlog.queues[batch.tp]
        for implied in queue.sequences.on_acknowledged(batch):
            self._release(implied)
            implied.succeed(-1, -1)  # where, the broker does not tell any more
        queue.failures = 0
        queue.not_before = 0.0
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.count - 1)
        self._release(batch)
        batch.succeed(base_offset, append_time)
        self._backlog.mark_ready_unless_idle(queue)

    def on_error(self, batch: ProducerBatch, error: KafkaError, log_start: int = -1) -> None:
        queue = self._backlog.queues[batch.tp]
        sequences = queue.sequences
        if batch.done.done():
            # Given up while it was on its way: only the numbering still had to know.
            batch.on_wire = False
        elif self.refusal is not None:
            self.fail(queue, batch, error)
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
                self._leaders.refresh()
            self._give_up_or_pause(queue, batch, error)
        else:
            if self._transaction is None and isinstance(error, InvalidProducerEpoch):
                self._identities.forget()
            self.fail(queue, batch, error)
        self._backlog.mark_ready_unless_idle(queue)

    def _may_start_anew(self, queue: PartitionQueue, batch: ProducerBatch, log_start: int) -> bool:
        """Whether a broker that does not know our producer id any more can be given the batch under a new number.

        It has forgotten the id with the records that it deleted, or it has lost them. A transaction goes on only in the
        first case, because records that were lost may be its own.
        """
        if log_start < 0:
            return True  # the leader is moving: the next answer says more
        return not batch.in_doubt and (self._transaction is None or queue.last_acked_offset < log_start)

    def _give_up_or_pause(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        if batch.attempts > self._config.retries:
            self.fail(queue, batch, error)
        elif self._age_ms(batch) >= self._config.delivery_timeout_ms:
            self._expire(queue, batch, error)
        elif isinstance(error, ConcurrentTransactions):
            self._backlog.pause_for(queue, _CONCURRENT_PAUSE_S)
        else:
            self._backlog.pause(queue)

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        log.debug("%s: a batch of %d bytes is too large for the broker, sending halves", batch.tp, batch.size)
        queue.sequences.split(batch, batch.halves())
        if not batch.done.done():
            batch.done.set_result(None)

    # Giving up

    def fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        queue.sequences.on_failed(batch)
        self._finish(batch, error)
        transaction = self._transaction
        if transaction is not None:
            transaction.lost_numbers = transaction.lost_numbers or batch.base_sequence != NO_SEQUENCE
            if self.refusal is None:
                transaction.on_failure(error)

    def fail_all(self, error: KafkaError, *, on_wire: bool) -> None:
        """Fail everything that is not acknowledged; without `on_wire`, what is on its way may still succeed."""
        for queue in self._backlog.queues.values():
            for batch in queue.incomplete():
                if on_wire or not batch.on_wire:
                    self.fail(queue, batch, error)
            queue.waiting.clear()

    def refuse(self, error: KafkaError) -> None:
        """Fail what is not on its way, and what is on its way unless it succeeds now. Until `accept`."""
        self.refusal = error
        self.fail_all(error, on_wire=False)

    def accept(self) -> None:
        self.refusal = None

    def close(self, error: KafkaError) -> None:
        """The last word on everything that is not acknowledged."""
        for queue in self._backlog.queues.values():
            for batch in queue.incomplete():
                self._finish(batch, error)
            queue.waiting.clear()
            queue.sequences.unacked.clear()

    def _finish(self, batch: ProducerBatch, error: KafkaError) -> None:
        if not batch.done.done():
            level = logging.DEBUG if isinstance(error, TransactionAborted) else logging.WARNING
            log.log(level, "%d records for %s were not delivered: %s", batch.count, batch.tp, error)
            self._release(batch)
            batch.fail(error)

    def _release(self, batch: ProducerBatch) -> None:
        self._backlog.memory.give_back(batch.reserved)
        batch.reserved = 0

    # Time

    def expire_overdue(self) -> None:
        """Give up what was not acknowledged within `delivery_timeout_ms`."""
        for queue in self._backlog.queues.values():
            for batch in queue.incomplete():
                if self._age_ms(batch) >= self._config.delivery_timeout_ms:
                    if batch in queue.waiting:
                        queue.waiting.remove(batch)
                    self._expire(queue, batch)
                    self._backlog.mark_ready_unless_idle(queue)

    def _age_ms(self, batch: ProducerBatch) -> float:
        return (self._clock.monotonic() - batch.created) * 1000

    def _expire(self, queue: PartitionQueue, batch: ProducerBatch, last: KafkaError | None = None) -> None:
        age_ms = self._age_ms(batch)
        reason = f": {last}" if last is not None else ""
        node_id = self._leaders.leader(batch.tp)
        leader = "no leader is known" if node_id is None else f"its leader is broker {node_id}"
        message = (
            f"{batch.count} records for {batch.tp} ({leader}) were not acknowledged within {age_ms:.0f} ms "
            f"(delivery_timeout_ms={self._config.delivery_timeout_ms}) and {batch.attempts} attempts{reason}"
        )
        self.fail(queue, batch, DeliveryTimeout(message))
