"""One partition of an internal topic whose leader coordinates: its machine, its log, and the leadership of both.

1. A shard lives for one leadership. It refuses with COORDINATOR_LOAD_IN_PROGRESS until all that the log holds is
   replayed, and with NOT_COORDINATOR from the moment it resigns. Requests that wait then get the same error.
2. Loading goes in slices: other connections are served in between. A read that failed is tried again, from where it
   stopped; content that cannot be true disables the shard (`is_corrupt`), which says NOT_COORDINATOR and is named in
   the log. The other shards serve.
3. What a request wrote is answered when the high watermark has passed it, and with COORDINATOR_NOT_AVAILABLE when that
   takes longer than the shard's commit timeout; it may still become visible later.
4. A decision and its append happen in one turn of the loop, so nothing comes between a check and the record that
   follows from it (KAFKA-15784).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from twofold.broker.partitions.partition import Partition
from twofold.broker.partitions.purgatory import DelayedProduce, Purgatory
from twofold.log.api import AppendResult, Bound
from twofold.machine.runtime import Machine, MachineRuntime, Result
from twofold.records.batch import BatchBuilder, Header, iter_headers
from twofold.runtime.api import Runtime
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CorruptMessage,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    NotCoordinator,
    NotLeaderOrFollower,
    RequestTimedOut,
)

SLICE_RECORDS = 1000
RECORD_OVERHEAD = 32
RETRY_LOAD_S = 1.0

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger(__name__)


class ShardPort(Generic[R]):
    """The partition as the machine sees it: records instead of batches."""

    def __init__(self, find: Callable[[], Partition]) -> None:
        """`find` gives the partition, whose files are created by that."""
        self._find = find
        self._partition: Partition | None = None

    @property
    def partition(self) -> Partition:
        """Looked up when first needed: a partition to which nothing was written has no files."""
        if self._partition is None:
            self._partition = self._find()
            self._partition.log.ensure_open()
        return self._partition

    @property
    def end_offset(self) -> int:
        return (self._partition or self.partition).log.log_end_offset

    @property
    def committed_offset(self) -> int:
        """The last offset that is committed."""
        return (self._partition or self.partition).log.high_watermark - 1

    def append(self, records: Sequence[R], epoch: int) -> int:
        partition = self._partition or self.partition
        if partition.leader_epoch != epoch:
            raise NotLeaderOrFollower(f"{partition} is in leader epoch {partition.leader_epoch}, not {epoch}")
        return self.write(partition, records).last_offset

    def write(self, partition: Partition, records: Sequence[R]) -> AppendResult:
        raise TypeError(f"{type(self).__name__} does not say how its records are written")


def batches_of(
    rows: "Iterator[tuple[bytes, bytes | None]]", builder: Callable[[], BatchBuilder], now_ms: int, limit: int
) -> bytes:
    """Keys and values as batches of at most `limit` bytes each."""
    batches: list[bytes] = []
    current = builder()
    for key, value in rows:
        size = len(key) + len(value or b"") + RECORD_OVERHEAD
        if current.count and current.size_estimate + size > limit:
            batches.append(current.build())
            current = builder()
        current.add(key, value, now_ms)
    batches.append(current.build())
    largest = max(map(len, batches))
    if largest > limit:
        raise MessageTooLarge(f"a record needs a batch of {largest} bytes and max.message.bytes={limit}")
    return b"".join(batches)


class CoordinatorShard(Generic[S, R]):
    topic: str
    # Acts on the effects of a decision whose records are committed, where decisions have effects.
    run_effects: Callable[[Sequence[Any]], None] | None = None

    def __init__(
        self,
        index: int,
        epoch: int,
        machine: Machine[S, R],
        port: ShardPort[R],
        runtime: Runtime,
        purgatory: Purgatory,
        *,
        commit_timeout_ms: int,
    ) -> None:
        self.index = index
        self.epoch = epoch
        self.is_active = False
        self.is_corrupt = False
        self.load_time_ms = 0.0
        self._port = port
        self._runtime = runtime
        self._purgatory = purgatory
        self._commit_timeout_s = commit_timeout_ms / 1000
        self._inactive: KafkaError = CoordinatorLoadInProgress(f"{self} is being loaded")
        self.machine = MachineRuntime(
            machine, port, runtime.clock, inactive=self._inactive, run_effects=self.run_effects
        )

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def partition(self) -> Partition:
        return self._port.partition

    @property
    def state(self) -> S:
        """The newest state, committed or not; what others may see is `committed`."""
        return self.machine.state

    @property
    def committed(self) -> S:
        return self.machine.committed

    def check_active(self) -> None:
        if not self.is_active:
            raise type(self._inactive)(self._inactive.message)

    # --- what a kind of shard adds ---

    def decode_batch(self, data: bytes, at: int, header: Header) -> Iterator[tuple[int, R]]:
        """The records of a batch with their offsets; MalformedRecord where they are none."""
        raise TypeError(f"{type(self).__name__} does not say how its records are read")

    def replayed(self, entries: Sequence[tuple[int, R]]) -> None:
        """A slice of the log was loaded."""

    async def loaded(self) -> None:
        """All is loaded, and nothing is answered yet."""

    def activated(self) -> None:
        """All is loaded and the shard leads."""

    def as_coordinator_error(self, error: KafkaError) -> KafkaError:
        """What a client gets for an error of the log."""
        return error

    # --- loading ---

    def open_empty(self) -> None:
        """Nothing was ever written to the partition."""
        self._activate()

    async def load(self, read_bytes: int) -> None:
        """Replay the log, then serve."""
        started = self._runtime.clock.monotonic()
        offset = -1
        count = 0
        while True:
            try:
                for behind, entries in self.slices(offset, read_bytes):
                    if self.is_resigned:
                        return
                    self.machine.replay(entries)
                    self.machine.show()
                    self.replayed(entries)
                    offset = behind
                    count += len(entries)
                    await self._runtime.timers.sleep(0)
                await self.loaded()
                break
            except (ValueError, CorruptMessage, InvalidRecord) as error:
                self.is_corrupt = True
                log.error("%s is corrupt behind offset %d and stays disabled: %s", self, offset, error)
                self.resign(NotCoordinator(f"{self} cannot be loaded: {error}"))
                return
            except (KafkaError, OSError) as error:
                log.error("%s cannot be read behind offset %d, will be tried again: %s", self, offset, error)
                await self._runtime.timers.sleep(RETRY_LOAD_S)
        if not self.is_resigned:
            self.load_time_ms = (self._runtime.clock.monotonic() - started) * 1000
            self._activate()
            log.info("%s: loaded %d records in %.0f ms", self, count, self.load_time_ms)

    def _activate(self) -> None:
        self.machine.become_leader(self.epoch)
        self.is_active = True
        self.activated()

    def slices(self, offset: int, read_bytes: int) -> Iterator[tuple[int, list[tuple[int, R]]]]:
        """Records in the order of the log from `offset` on, with the offset behind them. Also what is not committed:
        as the leader of a new epoch this broker will commit it."""
        partition_log = self._port.partition.log
        offset = max(offset, partition_log.log_start_offset)
        end = partition_log.log_end_offset
        entries: list[tuple[int, R]] = []
        while offset < end:
            data = partition_log.read(offset, read_bytes, Bound.LOG_END).records
            if not data:
                break
            for at, header in iter_headers(data):
                entries.extend(self.decode_batch(data, at, header))
                offset = header.next_offset
                if len(entries) >= SLICE_RECORDS:
                    yield offset, entries
                    entries = []
        if entries:
            yield offset, entries

    # --- resigning ---

    @property
    def is_resigned(self) -> bool:
        return isinstance(self._inactive, NotCoordinator)

    def resign(self, error: KafkaError) -> None:
        """Stop coordinating. Requests that wait, and all later ones, get `error`."""
        self.is_active = False
        self._inactive = error
        self.machine.resign(error)

    # --- writing ---

    def write(self, handler: Callable[[S, int], Result[R, T]]) -> "asyncio.Future[T]":
        """Decide and append now; the future is done when the response may be seen.

        With one replica it is done when this returns. What is wrong already is raised.
        """
        if not self.is_active:
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
                future.set_exception(self.as_coordinator_error(late))
            if produce.waiting and self.is_active:
                # The request was answered with a timeout. What it wrote is shown once it is safe.
                self._await_commit(partition, offset, future)

        self._purgatory.park_produce([(partition, offset)], self._commit_timeout_s, on_done)
