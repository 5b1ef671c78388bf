"""One partition of `__consumer_offsets` that this broker leads: its machine, its log, its timer.

1. A shard lives for one leadership. It refuses with COORDINATOR_LOAD_IN_PROGRESS until all that the log holds is
   replayed, and with NOT_COORDINATOR from the moment it resigns; whoever waits then is told the same.
2. Loading goes in slices: other connections are served in between.
3. What a request wrote is answered when the high watermark has passed it, and with COORDINATOR_NOT_AVAILABLE when that
   takes longer than `offsets.commit.timeout.ms`; it may still become visible later.
4. A decision and its append happen in one turn of the loop, so nothing comes between the check of a member and the
   record that follows from it (KAFKA-15784).
5. One timer for all deadlines of the shard.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from twofold.broker.partition import ALL_REPLICAS, Partition
from twofold.broker.purgatory import DelayedProduce, Purgatory
from twofold.coordinator.group.classic import Token
from twofold.coordinator.group.context import GroupConfig, Instant, Outcome
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.offsets import Offsets
from twofold.coordinator.group.records import (
    EndTransaction,
    GroupRecord,
    LogRecord,
    OffsetRecord,
    UnknownRecordType,
    decode,
    encode_key,
    encode_value,
)
from twofold.coordinator.group.state import GroupMachine, GroupsState, told
from twofold.log.api import Bound, Origin
from twofold.machine.runtime import MachineRuntime, Result
from twofold.machine.schema import MalformedRecord
from twofold.records.batch import BatchBuilder, Header, iter_headers, iter_records
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker, read_end_marker
from twofold.runtime.api import Runtime, TimerHandle
from twofold.types import NO_PRODUCER_ID
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    KafkaError,
    MessageTooLarge,
    NotCoordinator,
    NotLeaderOrFollower,
    RequestTimedOut,
)

SLICE_RECORDS = 1000
TICKS_PER_TURN = 100

T = TypeVar("T")
Entry = tuple[int, LogRecord]

log = logging.getLogger(__name__)


class _Port:
    """The partition as the machine sees it: records instead of batches."""

    def __init__(self, find: Callable[[], Partition], runtime: Runtime, codec: Codec) -> None:
        self._find = find
        self._runtime = runtime
        self._codec = codec
        self._partition: Partition | None = None
        self.guard: int | None = None  # of the transaction that the next append belongs to

    @property
    def partition(self) -> Partition:
        """Looked up when first needed: a partition without groups has no files."""
        if self._partition is None:
            self._partition = self._find()
            self._partition.log.ensure_open()
        return self._partition

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    def append(self, records: Sequence[LogRecord], epoch: int) -> int:
        partition = self.partition
        if partition.leader_epoch != epoch:
            raise NotLeaderOrFollower(f"{partition} is in leader epoch {partition.leader_epoch}, not {epoch}")
        first = records[0]
        version = first.transaction_version if type(first) is EndTransaction else 2
        data = self._encode(records)
        result = partition.append(
            data, ALL_REPLICAS, origin=Origin.COORDINATOR, guard=self.guard, transaction_version=version
        )
        return result.last_offset

    def _encode(self, records: Sequence[LogRecord]) -> bytes:
        now_ms = self._runtime.clock.wall_ms()
        first = records[0]
        if type(first) is EndTransaction:
            return end_transaction_marker(
                commit=first.committed,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                coordinator_epoch=first.coordinator_epoch,
                timestamp_ms=now_ms,
            )
        limit = self.partition.log.config.max_message_bytes
        batches: list[bytes] = []
        builder = self._builder(first)
        for record in records:
            assert type(record) is not EndTransaction
            key, value = encode_key(record), encode_value(record)  # type: ignore[arg-type]
            size = len(key) + len(value or b"") + 32
            if builder.count and builder.size_estimate + size > limit:
                batches.append(builder.build())
                builder = self._builder(first)
            builder.add(key, value, now_ms)
        batches.append(builder.build())
        for batch in batches:
            if len(batch) > limit:
                raise MessageTooLarge(
                    f"a record of group {first.group_id} needs {len(batch)} bytes and __consumer_offsets has "  # type: ignore[union-attr]
                    f"max.message.bytes={limit}"
                )
        return b"".join(batches)

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


class GroupShard:
    def __init__(
        self,
        index: int,
        epoch: int,
        find: Callable[[], Partition],
        runtime: Runtime,
        purgatory: Purgatory,
        config: GroupConfig,
        *,
        commit_timeout_ms: int,
        codec: Codec = Codec.NONE,
    ) -> None:
        """`find` gives the partition of `__consumer_offsets`, which is created by that."""
        self.index = index
        self.epoch = epoch
        self.membership = Membership(config, lambda: str(UUID(int=runtime.random.getrandbits(128), version=4)))
        self.offsets = Offsets(config, self.membership)
        self.is_active = False
        self._port = _Port(find, runtime, codec)
        self._runtime = runtime
        self._purgatory = purgatory
        self._commit_timeout_s = commit_timeout_ms / 1000
        loading = CoordinatorLoadInProgress(f"__consumer_offsets-{index} is being loaded")
        self.machine = MachineRuntime(GroupMachine(), self._port, runtime.clock, inactive=loading)
        self._inactive: KafkaError = loading
        self._timer: TimerHandle | None = None
        self._timer_at = 0

    def __str__(self) -> str:
        return f"__consumer_offsets-{self.index}"

    @property
    def state(self) -> GroupsState:
        """The newest state, committed or not; what others may see is `committed`."""
        return self.machine.state

    @property
    def committed(self) -> GroupsState:
        return self.machine.committed

    def check_active(self) -> None:
        if not self.is_active:
            raise type(self._inactive)(self._inactive.message)

    def now(self) -> Instant:
        clock = self._runtime.clock
        return Instant(clock.wall_ms(), int(clock.monotonic() * 1000))

    # --- loading ---

    def open_empty(self) -> None:
        """Nothing was ever written to the partition."""
        self._activate()

    async def load(self, read_bytes: int) -> None:
        """Replay the log, then serve. What cannot be read leaves the shard inactive."""
        started = self._runtime.clock.monotonic()
        count = 0
        try:
            for entries in self._slices(read_bytes):
                if self.is_resigned:
                    return
                self.machine.replay(entries)
                self.machine.show()
                count += len(entries)
                await self._runtime.timers.sleep(0)
        except (KafkaError, MalformedRecord, OSError) as error:
            log.error("%s cannot be loaded, its groups are not served: %s", self, error)
            self.resign(NotCoordinator(f"{self} cannot be loaded: {error}"))
            return
        if not self.is_resigned:
            self._activate()
            seconds = self._runtime.clock.monotonic() - started
            log.info("%s: %d records in %.2f s, %d groups", self, count, seconds, len(self.state.groups))

    def _activate(self) -> None:
        self.machine.become_leader(self.epoch)
        self.is_active = True
        self.run(self.membership.load(self.state, self.now()))

    def _slices(self, read_bytes: int) -> Iterator[list[Entry]]:
        partition_log = self._port.partition.log
        offset, end = partition_log.log_start_offset, partition_log.log_end_offset
        entries: list[Entry] = []
        while offset < end:
            data = partition_log.read(offset, read_bytes, Bound.LOG_END).records
            if not data:
                break
            for at, header in iter_headers(data):
                offset = header.next_offset
                entries.extend(self._entries(data, at, header))
                if len(entries) >= SLICE_RECORDS:
                    yield entries
                    entries = []
        if entries:
            yield entries

    def _entries(self, data: bytes, at: int, header: Header) -> Iterator[Entry]:
        if header.is_control:
            marker = read_end_marker(data, at) if header.count else None
            if marker is not None:
                yield (
                    header.last_offset,
                    EndTransaction(header.producer_id, header.producer_epoch, marker.coordinator_epoch, marker.commit),
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

    # --- resigning ---

    @property
    def is_resigned(self) -> bool:
        return isinstance(self._inactive, NotCoordinator)

    def stop_waiting(self, error: KafkaError) -> None:
        """Nobody waits for other members any more; what is being written is still answered when it is safe."""
        self.is_active = False
        self._inactive = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reply(self.membership.resign(error))

    def resign(self, error: KafkaError) -> None:
        self.stop_waiting(error)
        self.machine.resign(error)

    # --- working ---

    def write(self, handler: Callable[[GroupsState, int], Result[LogRecord, T]]) -> "asyncio.Future[T]":
        """Decide and append now; the future is done when what was decided may be seen."""
        self.check_active()
        future = self.machine.write(handler)
        if not future.done():
            partition = self._port.partition
            self.machine.commit(partition.log.high_watermark - 1)
            if not future.done():
                self._await_commit(partition, partition.log.log_end_offset - 1, future)
        return future

    def _await_commit(self, partition: Partition, offset: int, future: "asyncio.Future[Any]") -> None:
        def on_done(produce: DelayedProduce) -> None:
            self.machine.commit(partition.log.high_watermark - 1)
            if not future.done():
                late = RequestTimedOut(f"{self}: not committed after {self._commit_timeout_s} s")
                future.set_exception(told(late))
            if produce.waiting and self.is_active:
                # Nobody waits for the answer any more, but what was written is to be seen once it is safe.
                self._await_commit(partition, offset, future)

        self._purgatory.park_produce([(partition, offset)], self._commit_timeout_s, on_done)

    def remove(
        self, handler: Callable[[GroupsState, int], Result[LogRecord, None]], group_id: str
    ) -> "asyncio.Future[None]":
        """Write what may end a group, which then needs no place in memory beside the log's state either."""
        future = self.write(handler)
        self.membership.forget(self.state, group_id)
        return future

    def write_in_transaction(
        self, handler: Callable[[GroupsState, int], Result[LogRecord, T]], guard: int | None
    ) -> "asyncio.Future[T]":
        self._port.guard = guard
        try:
            return self.write(handler)
        finally:
            self._port.guard = None

    def start_verification(self, producer_id: int, producer_epoch: int) -> int | None:
        """The guard that the first offsets of a transaction must bring to the log."""
        self.check_active()
        return self._port.partition.log.start_verification(producer_id, producer_epoch, 0)

    def call(self, step: Callable[[GroupsState, Token, Instant], Outcome]) -> "asyncio.Future[Any]":
        """Take a step of the membership for somebody who waits for its answer."""
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
        delay_s = max(0.001, at / 1000 - self._runtime.clock.monotonic())
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
