"""One partition of `__consumer_offsets` that this broker leads: groups and offsets on a coordinator's shard.

1. Deadlines of members are not in the log: a shard that has loaded gives every member a whole session. They are moments
   of the attention clock: while the broker cannot listen, no session and no rebalance runs out.
2. One timer for all deadlines of the shard.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from twofold.broker.coordinators.shard import CoordinatorShard, ShardPort, batches_of
from twofold.broker.network.attention import AttentionClock
from twofold.broker.partitions.partition import ALL_REPLICAS, Partition
from twofold.broker.partitions.purgatory import Purgatory
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.group.classic import Token
from twofold.coordinator.group.context import GroupConfig, Instant, Outcome
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.offsets import Offsets
from twofold.coordinator.group.records import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    TransactionEnd,
    UnknownRecordType,
    decode,
    encode_key,
    encode_value,
)
from twofold.coordinator.group.state import GroupMachine, GroupsState, as_coordinator_error
from twofold.log.api import AppendResult, Origin
from twofold.machine.runtime import Result
from twofold.records.batch import BatchBuilder, Header, iter_records
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker, read_end_marker
from twofold.runtime.api import Runtime, TimerHandle
from twofold.types import NO_PRODUCER_ID
from twofold.wire.errors import KafkaError

TICKS_PER_TURN = 100

T = TypeVar("T")

log = logging.getLogger(__name__)


class GroupPort(ShardPort[LogRecord]):
    def __init__(self, find: Callable[[], Partition], runtime: Runtime, codec: Codec) -> None:
        super().__init__(find)
        self._runtime = runtime
        self._codec = codec
        # Of the transaction that the next append belongs to.
        self.guard: int | None = None
        self.durable = False

    def write(self, partition: Partition, records: Sequence[LogRecord]) -> AppendResult:
        first = records[0]
        by_hand = type(first) is TransactionEnd and first.by_hand
        return partition.append(
            self._encode(partition, records),
            ALL_REPLICAS,
            origin=Origin.ADMINISTRATOR if by_hand else Origin.COORDINATOR,
            guard=self.guard,
            durable=self.durable,
            transaction_version=first.transaction_version if type(first) is TransactionEnd else 2,
        )

    def _encode(self, partition: Partition, records: Sequence[LogRecord]) -> bytes:
        now_ms = self._runtime.clock.wall_ms()
        first = records[0]
        if type(first) is TransactionEnd:
            return end_transaction_marker(
                commit=first.committed,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                coordinator_epoch=first.coordinator_epoch,
                timestamp_ms=now_ms,
            )
        rows = ((encode_key(record), encode_value(record)) for record in records)  # type: ignore[arg-type]
        return batches_of(rows, lambda: self._builder(first), now_ms, partition.log.config.max_message_bytes)

    def _builder(self, first: LogRecord) -> BatchBuilder:
        if type(first) is OffsetRecord and first.producer_id != NO_PRODUCER_ID:
            return BatchBuilder(
                self._codec,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        return BatchBuilder(self._codec, base_sequence=0)


class GroupShard(CoordinatorShard[GroupsState, LogRecord]):
    topic = CONSUMER_OFFSETS
    _port: GroupPort

    def __init__(
        self,
        index: int,
        epoch: int,
        find: Callable[[], Partition],
        runtime: Runtime,
        attention: AttentionClock,
        purgatory: Purgatory,
        config: GroupConfig,
        *,
        commit_timeout_ms: int,
        codec: Codec = Codec.NONE,
    ) -> None:
        """`find` gives the partition of `__consumer_offsets`, which is created by that."""
        port = GroupPort(find, runtime, codec)
        super().__init__(index, epoch, GroupMachine(), port, runtime, purgatory, commit_timeout_ms=commit_timeout_ms)
        self.membership = Membership(config, lambda: str(UUID(int=runtime.random.getrandbits(128), version=4)))
        self.offsets = Offsets(config, self.membership)
        self._attention = attention
        self._timer: TimerHandle | None = None
        self._timer_at = 0

    def now(self) -> Instant:
        return Instant(self._runtime.clock.wall_ms(), self._attention.now_ms)

    def as_coordinator_error(self, error: KafkaError) -> KafkaError:
        return as_coordinator_error(error)

    # --- loading and resigning ---

    def activated(self) -> None:
        self.run(self.membership.load(self.state, self.now()))

    def decode_batch(self, data: bytes, at: int, header: Header) -> Iterator[tuple[int, LogRecord]]:
        if header.is_control:
            marker = read_end_marker(data, at) if header.count else None
            if marker is not None:
                yield (
                    header.last_offset,
                    TransactionEnd(header.producer_id, header.producer_epoch, marker.coordinator_epoch, marker.commit),
                )
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in iter_records(data, at):
            try:
                decoded = decode(record.key, record.value, producer_id, header.producer_epoch)
            except UnknownRecordType as error:
                log.warning("%s: the record at offset %d is passed over: %s", self, record.offset, error)
                continue
            if decoded is not None:
                yield record.offset, decoded

    def stop_waiting(self, error: KafkaError) -> None:
        """Answer all requests that wait for other members. What is being written is still answered when it is safe."""
        self.is_active = False
        self._inactive = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reply(self.membership.resign(error))

    def resign(self, error: KafkaError) -> None:
        self.stop_waiting(error)
        super().resign(error)

    # --- working ---

    def remove(
        self, handler: Callable[[GroupsState, int], Result[LogRecord, None]], group_id: str
    ) -> "asyncio.Future[None]":
        """Write what may end a group, which then needs no place in memory beside the log's state either."""
        future = self.write(handler)
        self.membership.forget(self.state, group_id)
        return future

    def write_in_transaction(
        self,
        handler: Callable[[GroupsState, int], Result[LogRecord, T]],
        guard: int | None = None,
        *,
        durable: bool = False,
    ) -> "asyncio.Future[T]":
        self._port.guard, self._port.durable = guard, durable
        try:
            return self.write(handler)
        finally:
            self._port.guard, self._port.durable = None, False

    def call(self, step: Callable[[GroupsState, Token, Instant], Outcome]) -> "asyncio.Future[Any]":
        """Take a step of the membership; the future is its answer."""
        self.check_active()
        token: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.run(step(self.state, token, self.now()))
        return token

    def run(self, outcome: Outcome) -> None:
        """Give the answers, write the records and go on from there."""
        self._reply(outcome)
        if outcome.records:
            records = outcome.records
            try:
                future = self.write(lambda state, now: Result(records, None))
            except KafkaError as error:
                log.warning("%s: %d records were not written: %s", self, len(records), error)
                self._continue(outcome, error)
            else:
                if future.done():
                    self._written(outcome, future)
                else:
                    future.add_done_callback(partial(self._written, outcome))
        self._arm()

    def _reply(self, outcome: Outcome) -> None:
        for token, response in outcome.replies:
            if not token.done():
                token.set_result(response)

    def _written(self, outcome: Outcome, future: "asyncio.Future[None]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None and not isinstance(error, KafkaError):
            raise error
        self._continue(outcome, error)
        if error is None:
            for record in outcome.records:
                if type(record) is GroupRecord:
                    self.membership.forget(self.state, record.group_id)

    def _continue(self, outcome: Outcome, error: KafkaError | None) -> None:
        if outcome.then is not None and self.is_active:
            self.run(outcome.then(error, self.now()))

    # --- time ---

    def _arm(self) -> None:
        at = self.membership.deadlines.next_at
        if at is None or not self.is_active or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        # Not less than a step of our clock: a timer that fires a rounding error too early would find nothing due, again
        # and again.
        delay_s = max(0.001, at / 1000 - self._attention.monotonic())
        self._timer_at = at
        self._timer = self._runtime.timers.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        for _ in range(TICKS_PER_TURN):
            outcome = self.membership.tick(self.state, self.now())
            if outcome is None:
                break
            self.run(outcome)
        self._arm()
