"""One partition of `__transaction_state` that this broker leads: transactional ids on a coordinator's shard.

1. An id is pending while a record of it is not committed and while the markers of its transaction are under way. A
   request about a pending id gets CONCURRENT_TRANSACTIONS.
2. Markers begin when the decision (PREPARE_COMMIT, PREPARE_ABORT) is committed, after the client was answered. The
   completion is written when the last marker is safe. A decided transaction is completed whatever happens: the shard
   tries a failed write again, and a coordinator that loads the partition sends the markers of all that is decided.
3. The last sign of life of a producer with heartbeats, and the cause of an abort, are known here and not in the log. A
   coordinator that has just loaded gives every producer a new start. Signs of life and the beginnings of transactions
   are moments of the attention clock: while the broker cannot listen, no transaction grows older.
4. Every transition is logged at debug level, with id, producer id, epoch and partitions.
5. After an unclean end markers may be missing (`broker.missing_markers`): an id is pending until its own are there.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from twofold.broker.coordinators.shard import CoordinatorShard, ShardPort, batches_of
from twofold.broker.coordinators.transactions.effects import TransactionCounts, run
from twofold.broker.coordinators.transactions.markers import MarkerSender
from twofold.broker.coordinators.transactions.missing_markers import ShardRepairs
from twofold.broker.network.attention import AttentionClock
from twofold.broker.network.quiet import QuietLog
from twofold.broker.partitions.partition import ALL_REPLICAS, Partition
from twofold.broker.partitions.purgatory import Purgatory
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.coordinator import Coordinator, Decision
from twofold.coordinator.transaction.effects import Effect
from twofold.coordinator.transaction.heartbeats import AbortCause
from twofold.coordinator.transaction.records import (
    NEVER_MS,
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode_key,
    encode_value,
)
from twofold.coordinator.transaction.state import TransactionMachine, TransactionsState, as_coordinator_error
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.coordinator.transaction.transitions import is_two_phase
from twofold.log.api import AppendResult, Origin
from twofold.machine.runtime import Result
from twofold.records.batch import BatchBuilder, Header, iter_records
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError

RETRY_S = 0.1

Decide: TypeAlias = "Callable[[TransactionMetadata | None, int, bool], Decision]"
"""(entry, now_ms, pending) -> what to write and to answer."""

log = logging.getLogger(__name__)


class TransactionPort(ShardPort[TransactionRecord]):
    def __init__(self, find: Callable[[], Partition], runtime: Runtime, value_version: Callable[[], int]) -> None:
        super().__init__(find)
        self._runtime = runtime
        self._value_version = value_version

    def write(self, partition: Partition, records: Sequence[TransactionRecord]) -> AppendResult:
        version = self._value_version()
        if len(records) == 1:
            transactional_id, value = records[0]
            if value is not None:
                encoded, durable = encode_value(value, version), value.timeout_ms == NEVER_MS
                return partition.append_record(encode_key(transactional_id), encoded, durable=durable)
        rows = (
            (encode_key(transactional_id), None if value is None else encode_value(value, version))
            for transactional_id, value in records
        )
        data = batches_of(rows, BatchBuilder, self._runtime.clock.wall_ms(), partition.log.config.max_message_bytes)
        durable = any(value is not None and value.timeout_ms == NEVER_MS for _, value in records)
        return partition.append(data, ALL_REPLICAS, origin=Origin.COORDINATOR, durable=durable)


class TransactionShard(CoordinatorShard[TransactionsState, TransactionRecord]):
    topic = TRANSACTION_STATE

    def __init__(
        self,
        index: int,
        epoch: int,
        find: Callable[[], Partition],
        runtime: Runtime,
        attention: AttentionClock,
        purgatory: Purgatory,
        coordinator: Coordinator,
        markers: MarkerSender,
        counts: TransactionCounts,
        audit: QuietLog,
        *,
        value_version: Callable[[], int],
        commit_timeout_ms: int,
        repairs: ShardRepairs | None = None,
    ) -> None:
        port = TransactionPort(find, runtime, value_version)
        machine = TransactionMachine(check=True, counts=coordinator.config.max_open > 0)
        super().__init__(index, epoch, machine, port, runtime, purgatory, commit_timeout_ms=commit_timeout_ms)
        self._coordinator = coordinator
        self._markers = markers
        self._counts = counts
        self._audit = audit
        self._repairs = repairs  # until the shard is active
        self._held: dict[str, int] = {}  # how many repairs an id waits for
        self._decided: list[
            tuple[str, TransactionMetadata]
        ] = []  # committed in this turn, their markers are to be sent
        self._settling: dict[str, list[asyncio.Future[None]]] = {}
        self._attention = attention
        self.begun_ms: dict[str, int] = {}  # when the open transactions began, on the attention clock
        self.signs_ms: dict[str, int] = {}  # of life, on the same clock; of open transactions with an interval
        self.causes: dict[str, AbortCause] = {}  # of the last abort, of ids with an interval
        self.machine.on_committed(self._committed)

    def as_coordinator_error(self, error: KafkaError) -> KafkaError:
        return as_coordinator_error(error)

    def run_effects(self, effects: Sequence[Effect]) -> None:
        run(effects, self, self._counts, self._audit)

    # --- loading and resigning ---

    def decode_batch(self, data: bytes, at: int, header: Header) -> Iterator[tuple[int, TransactionRecord]]:
        if header.is_control:
            return
        for record in iter_records(data, at):
            decoded = decode(record.key or b"", record.value)
            if decoded is None:
                log.warning("%s: the record at offset %d is of an unknown kind, passed over", self, record.offset)
            else:
                yield record.offset, decoded

    def replayed(self, entries: Sequence[tuple[int, TransactionRecord]]) -> None:
        if self._repairs is not None:
            self._repairs.replayed(entries)

    async def loaded(self) -> None:
        """What a killed process left unsynced is answered from now on as if it were safe: make it so."""
        partition_log = self.partition.log
        if partition_log.recovery_point < partition_log.log_end_offset:
            await partition_log.sync()

    def activated(self) -> None:
        repairs, self._repairs = self._repairs, None
        if repairs is not None:
            repairs.begin(self)  # first: what is decided looks like an orphan when its markers have been written
        entries = self.state.entries
        for transactional_id in self.state.preparing:
            self._send_markers(transactional_id, entries[transactional_id])
        for transactional_id in self.state.ongoing:
            self._follow(transactional_id, entries[transactional_id])

    def resign(self, error: KafkaError) -> None:
        super().resign(error)
        self._decided.clear()
        self.begun_ms.clear()
        self.signs_ms.clear()
        self._markers.purge(self.index)
        for transactional_id in list(self._settling):
            self._release(transactional_id)

    # --- deciding ---

    def is_pending(self, transactional_id: str, entry: TransactionMetadata | None) -> bool:
        if (entry is not None and entry.state in PREPARING) or transactional_id in self._held:
            return True
        return self.machine.committed.entries.get(transactional_id) is not entry

    def decide(self, transactional_id: str, decide: Decide) -> "asyncio.Future[Decision]":
        """Decide on the id as it is committed, knowing whether more of it is on its way: no answer rests on what may be
        reverted. The future is done when the decision is committed; a refusal is raised."""

        def handler(state: TransactionsState, now_ms: int) -> "Result[TransactionRecord, Decision]":
            newest = state.entries.get(transactional_id)
            pending = self.is_pending(transactional_id, newest)
            entry = self.machine.committed.entries.get(transactional_id) if pending else newest
            decision = decide(entry, now_ms, pending)
            value = decision.value
            records = () if value is None else (TransactionRecord(transactional_id, value),)
            return Result(records, decision, False, decision.effects)

        return self.write(handler)

    # --- what follows from a decision ---

    def _committed(
        self, old: TransactionsState, new: TransactionsState, offset: int, records: Sequence[TransactionRecord]
    ) -> None:
        if not self.is_active:
            return  # loading: only what the whole log says counts
        if log.isEnabledFor(logging.DEBUG):
            self._log_transitions(old, records)
        for transactional_id, value in records:
            self._follow(transactional_id, value)
            if value is not None and value.state in PREPARING:
                if not self._decided:
                    # In the next turn: the client is answered first.
                    asyncio.get_running_loop().call_soon(self._send_decided)
                self._decided.append((transactional_id, value))
            elif self._settling:
                self._release(transactional_id)

    def _send_decided(self) -> None:
        decided, self._decided = self._decided, []
        for transactional_id, value in decided:
            self._send_markers(transactional_id, value)

    def _send_markers(self, transactional_id: str, value: TransactionMetadata) -> None:
        self._markers.send(
            self.index, self.epoch, transactional_id, value, partial(self._complete, transactional_id, value)
        )

    def _complete(self, transactional_id: str, prepared: TransactionMetadata) -> None:
        """Every marker is safe: write that the transaction is over, as often as it takes."""

        def handler(state: TransactionsState, now_ms: int) -> "Result[TransactionRecord, None]":
            entry = state.entries.get(transactional_id)
            if entry is not prepared:
                return Result((), None)
            return Result((TransactionRecord(transactional_id, self._coordinator.complete(entry, now_ms)),), None)

        if not self.is_active:
            return
        try:
            written = self.write(handler)
        except KafkaError as error:
            log.warning("%s: the end of the transaction of %s is not written yet: %s", self, transactional_id, error)
            self._runtime.timers.call_later(RETRY_S, partial(self._complete, transactional_id, prepared))
        else:
            if not written.done():
                written.add_done_callback(_ignore)  # in the log, and shown once it is safe, however long that takes

    def _log_transitions(self, old: TransactionsState, records: Sequence[TransactionRecord]) -> None:
        for transactional_id, value in records:
            before = old.entries.get(transactional_id)
            was = "none" if before is None else before.state.wire_name
            if value is None:
                log.debug("%s: %s: %s -> removed", self, transactional_id, was)
                continue
            log.debug(
                "%s: %s: %s -> %s, producer %d epoch %d, partitions %s",
                self, transactional_id, was, value.state.wire_name, value.producer_id, value.producer_epoch,
                ", ".join(map(str, sorted(value.partitions))) or "none",
            )  # fmt: skip

    # --- signs of life ---

    @property
    def now_ms(self) -> int:
        """On a clock that never goes back, and stands still while the broker cannot listen."""
        return self._attention.now_ms

    def _follow(self, transactional_id: str, value: TransactionMetadata | None) -> None:
        """Know how old a transaction is, and expect signs of life, from its beginning to its end."""
        is_open = value is not None and value.state is State.ONGOING
        if value is not None and is_open:
            if transactional_id not in self.begun_ms:
                age_ms = max(0, self._runtime.clock.wall_ms() - value.start_ms)  # not 0 where it was loaded
                self.begun_ms[transactional_id] = self.now_ms - age_ms
        else:
            self.begun_ms.pop(transactional_id, None)
        if value is not None and is_open and value.heartbeat_interval_ms and not is_two_phase(value):
            self.signs_ms.setdefault(transactional_id, self.now_ms)
        elif self.signs_ms:
            self.signs_ms.pop(transactional_id, None)
        if self.causes and (value is None or is_open or value.state is State.EMPTY):
            self.causes.pop(transactional_id, None)

    def age_ms(self, transactional_id: str) -> int:
        """How long an open transaction has been open while the broker listened; 0 where none is."""
        begun_ms = self.begun_ms.get(transactional_id)
        return 0 if begun_ms is None else self.now_ms - begun_ms

    def note_sign_of_life(self, transactional_id: str) -> None:
        if transactional_id in self.signs_ms:
            self.signs_ms[transactional_id] = self.now_ms

    def remember_cause(self, transactional_id: str, cause: AbortCause) -> None:
        self.causes[transactional_id] = cause

    # --- waiting for an id ---

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        """Return when nothing of the id is under way, or when the time is up."""
        if not self.is_active or not self.is_pending(transactional_id, self.state.entries.get(transactional_id)):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._settling.setdefault(transactional_id, [])
        waiting.append(future)
        timer = self._runtime.timers.call_later(timeout_s, partial(_end, future))
        try:
            await future
        finally:
            timer.cancel()
            if future in waiting:
                waiting.remove(future)
                if not waiting and self._settling.get(transactional_id) is waiting:
                    del self._settling[transactional_id]

    def hold(self, transactional_id: str) -> None:
        """Let nothing be decided about an id until `let_go` was called as often."""
        self._held[transactional_id] = self._held.get(transactional_id, 0) + 1

    def let_go(self, transactional_id: str) -> None:
        left = self._held.pop(transactional_id, 0) - 1
        if left > 0:
            self._held[transactional_id] = left
        elif self._settling:
            self._release(transactional_id)

    def _release(self, transactional_id: str) -> None:
        for future in self._settling.pop(transactional_id, ()):
            _end(future)


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _ignore(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
