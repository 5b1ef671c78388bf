"""What must hold of transactions at every moment, learnt by watching every append and every load of a coordinator.

1.  Of an id at most one record is not yet committed, and each follows from the one before it: PREPARE_COMMIT leads to
    COMPLETE_COMMIT and nowhere else; an epoch never goes down; a producer id belongs to one transactional id.
2.  Transactional data enters a partition only while the coordinator's committed record says that the partition is part
    of that very transaction (or while its abort is on the way there).
3.  A marker says what the committed decision says, under its epoch, also where a power cut took it and it is written
    again. Its epochs and its coordinator epochs never go down in a partition, and without a transaction in between it
    only repeats itself.
4.  COMPLETE comes after the marker of every partition is safe.
5.  LSO <= the first open transaction, LSO <= high watermark <= log end; none of them goes back.
6.  A coordinator that was loaded is a replay of its log, each time the same; and the log has what was appended.
7.  Epoch 32767 is for markers only.
8.  What a client is told of the end of a transaction is decided, and committed.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from sim.broker.watch import Violation, Watch, check_bounds, require
from sim.transactions.history import EPOCH_MAX
from sim.transactions.log import LogTruth, Marker
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from twofold.coordinator.transaction.records import TransactionMetadata, decode
from twofold.coordinator.transaction.state import TransactionMachine, TransactionsState
from twofold.coordinator.transaction.states import State
from twofold.log.appending.writer import BatchWriter
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.records.batch import Header, iter_headers, iter_records
from twofold.records.control import read_end_marker
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.types import TopicPartition

METADATA = "__cluster_metadata"
INTERNAL = (TRANSACTION_STATE, CONSUMER_OFFSETS)
BIG_READ = 1 << 20

_ENDED = {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
# Not the broker's own table: this one was written from the KIPs.
LEGAL: dict[State | None, set[State | None]] = {
    None: {State.EMPTY},
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, None},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, None},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, None},
}
PREPARED = {State.PREPARE_COMMIT: True, State.PREPARE_ABORT: False}


def must(condition: object, *parts: object) -> None:
    """`require`, with a text that is put together only when it is needed: this is asked at every append."""
    if not condition:
        raise Violation(" ".join(map(str, parts)))


class Known(NamedTuple):
    """The newest record of an id."""

    value: TransactionMetadata | None
    offset: int
    log: PartitionLog
    before: TransactionMetadata | None
    """What the record before it said."""

    @property
    def committed(self) -> bool:
        return self.offset < self.log.high_watermark


class Decision(NamedTuple):
    commit: bool
    offset: int
    log: PartitionLog


class TxnWatch(Watch):
    """`compacted`: the internal topics are cleaned, so their files are not all that was appended. `blind`: it follows
    what happens and finds fault with nothing, to see what the clients find out for themselves."""

    def __init__(self, *, compacted: bool = False, blind: bool = False) -> None:
        super().__init__()
        self.compacted = compacted
        self.blind = blind
        self.known: dict[str, Known] = {}
        self.ids: dict[int, str] = {}
        """Which transactional id has a producer id."""
        self.mortal: set[str] = set()
        """Topics that are deleted while transactions write to them: such a partition needs no marker."""
        self.loads = 0
        self.on_record: Callable[[], None] = lambda: None
        """Called after every record of a transactional id."""
        self.transitions: dict[str, int] = {}
        self._decisions: dict[tuple[int, int], Decision] = {}
        self._truths: dict[TopicPartition, LogTruth] = {}
        self._owners: dict[TopicPartition, PartitionLog] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        for owner, name, replacement in (
            (TransactionShard, "activated", self._activated),
            (PartitionLog, "advance_high_watermark", self._advance),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement(getattr(owner, name))))
        return self

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        self._owners.clear()

    def truth(self, tp: TopicPartition) -> LogTruth:
        return self._truths.get(tp) or LogTruth(tp)

    def check_told(self, identity: tuple[int, int], is_tv2: bool, commit: bool) -> None:
        """Somebody was told how the transaction of this producer ended."""
        if self.blind:
            return
        producer_id, epoch = identity
        found = self._decisions.get((producer_id, epoch + 1 if is_tv2 else epoch))
        what = "commit" if commit else "abort"
        require(found is not None and found.commit == commit, f"{identity} was told {what}, decided is {found}")
        assert found is not None
        require(found.offset < found.log.high_watermark, f"{identity} was told {what} before that was committed")

    # Appends

    def _write(self, original: Any) -> Any:
        modelled = super()._write(original)

        def write(writer: BatchWriter, data: Any, *args: Any, **options: Any) -> Any:
            log = writer._context.log
            topic = log.topic_partition.topic
            if topic == METADATA:
                return modelled(writer, data, *args, **options)
            written = bytes(data)
            with self.noting():
                self._follow(log)
                self._check_before(log, written)
            write_it = modelled if self.follows(topic) else original
            result = write_it(writer, data, *args, **options)
            with self.noting():
                self._appended(log, written)
                self._check_stable(log)
            if topic == TRANSACTION_STATE:
                self.on_record()
            return result

        return write

    def follows(self, topic: str) -> bool:
        """Whether the files of a topic are all that was ever appended to it."""
        return not (self.compacted and topic in INTERNAL)

    def _follow(self, log: PartitionLog) -> None:
        """Know what a log holds that is seen for the first time since it was opened."""
        tp = log.topic_partition
        if self._owners.get(tp) is log:
            return
        self._owners[tp] = log
        truth = self._truths[tp] = LogTruth(tp)
        self.known = {name: known for name, known in self.known.items() if known.log.topic_partition != tp}
        for batch in batches_on_disk(log._context.environment.disk, log.directory):
            truth.add(batch)
            if tp.topic == TRANSACTION_STATE:
                for offset, transactional_id, value in decoded(batch):
                    self._note(transactional_id, value, offset, log)

    def _check_before(self, log: PartitionLog, data: bytes) -> None:
        if self.blind:
            return
        tp = log.topic_partition
        if tp.topic == TRANSACTION_STATE:
            for _, transactional_id, value in decoded(data):
                self._check_transition(transactional_id, value)
            return
        for position, header in iter_headers(data):
            if header.is_control and (marker := read_end_marker(data, position)) is not None:
                self._check_marker(log, header, marker.commit, marker.coordinator_epoch)
            elif header.is_transactional:
                self._check_data(log, header)

    def _appended(self, log: PartitionLog, data: bytes) -> None:
        tp = log.topic_partition
        for position, header in iter_headers(data):
            stamped = data[position : position + header.size]
            self._truths[tp].add(stamped)
            if tp.topic == TRANSACTION_STATE:
                for offset, transactional_id, value in decoded(stamped):
                    self._note(transactional_id, value, offset, log)
                    name = "removed" if value is None else value.state.name
                    self.transitions[name] = self.transitions.get(name, 0) + 1

    def _note(self, transactional_id: str, value: TransactionMetadata | None, offset: int, log: PartitionLog) -> None:
        before = self.known.get(transactional_id)
        self.known[transactional_id] = Known(value, offset, log, before.value if before is not None else None)
        if value is not None:
            owner = self.ids.setdefault(value.producer_id, transactional_id)
            must(owner == transactional_id, "producer id", value.producer_id, "is of", owner, "and", transactional_id)
            if value.state in PREPARED:
                decision = Decision(PREPARED[value.state], offset, log)
                self._decisions[value.producer_id, value.producer_epoch] = decision

    # What an append may be

    def _check_transition(self, transactional_id: str, new: TransactionMetadata | None) -> None:
        known = self.known.get(transactional_id)
        old = known.value if known is not None else None
        text = (transactional_id, ":", old, "is followed by", new)
        must(known is None or known.committed, *text, "while the first is not committed")
        must((new and new.state) in LEGAL[old and old.state], *text)
        if new is None:
            return
        markers_only = new.state in PREPARED or new.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        must(0 <= new.producer_epoch < EPOCH_MAX or markers_only, *text)
        if old is None:
            return
        same = old.producer_id == new.producer_id
        must(new.producer_epoch >= old.producer_epoch if same else new.producer_epoch == 0, *text)
        if new.state in PREPARED:
            must(same and new.partitions == old.partitions, *text)
        if old.state in PREPARED:
            self._check_complete(old, new, text)
        if new.state is State.ONGOING:
            must(same and new.producer_epoch == old.producer_epoch, *text)
            must(old.state is not State.ONGOING or new.partitions >= old.partitions, *text)
            must(new.partitions, *text)

    def _check_complete(self, old: TransactionMetadata, new: TransactionMetadata, text: tuple[object, ...]) -> None:
        must(not new.partitions, *text)
        must(new.producer_id in (old.producer_id, old.next_producer_id), *text)
        for tp in sorted(old.partitions):
            if tp.topic in self.mortal:
                continue
            log = self._owners.get(tp)
            marker = self._last_marker(tp, old.producer_id)
            must(
                marker is not None
                and (marker.producer_epoch, marker.commit) == (old.producer_epoch, PREPARED[old.state]),
                *text, "and there is no marker in", tp, "but", marker,
            )  # fmt: skip
            assert marker is not None
            must(log is None or marker.offset < log.high_watermark, *text, "and the marker in", tp, "is not safe yet")

    def _entry(self, producer_id: int, *what: object) -> tuple[str, Known, TransactionMetadata]:
        transactional_id = self.ids.get(producer_id)
        must(transactional_id is not None, *what, "and no transactional id has that producer id")
        assert transactional_id is not None
        known = self.known[transactional_id]
        must(known.value is not None, *what, "and", transactional_id, "was removed")
        assert known.value is not None
        return transactional_id, known, known.value

    def _check_data(self, log: PartitionLog, header: Header) -> None:
        tp = log.topic_partition
        what = (tp, log, "data of producer", header.producer_id, "epoch", header.producer_epoch)
        transactional_id, known, value = self._entry(header.producer_id, *what)
        text = (*what, "in a transaction that does not know it:", transactional_id, "is", known)
        must(value.producer_id == header.producer_id and tp in value.partitions, *text)
        if not known.committed:
            # The next record of the transaction is on its way; what counts is the one before it.
            must(known.before is not None and tp in known.before.partitions, *text)
        if value.state is State.PREPARE_ABORT:
            last = self._last_marker(tp, header.producer_id)
            must(last is None or last.producer_epoch < value.producer_epoch or not value.client_version, *text)
            must(header.producer_epoch in (value.producer_epoch, value.producer_epoch - 1), *text)
            return
        must(value.state is State.ONGOING and value.producer_epoch == header.producer_epoch, *text)

    def _last_marker(self, tp: TopicPartition, producer_id: int) -> Marker | None:
        return self.truth(tp).last_markers.get(producer_id)

    def _check_marker(self, log: PartitionLog, header: Header, commit: bool, coordinator_epoch: int) -> None:
        tp = log.topic_partition
        what = (log, "gets commit =", commit, "of producer", header.producer_id, "epoch", header.producer_epoch)
        transactional_id, known, value = self._entry(header.producer_id, *what)
        text = (*what, "and", transactional_id, "is", known)
        is_open = any(block.producer_id == header.producer_id for block in self.truth(tp).open_blocks)
        if value.state in PREPARED and value[:2] == (header.producer_id, header.producer_epoch):
            must(known.committed, *text)
            must(PREPARED[value.state] == commit, *text)
            must(tp in value.partitions, *text)
        else:
            # A power cut took it: what was decided is written again, where the transaction is still open.
            decided = self._decisions.get((header.producer_id, header.producer_epoch))
            must(decided is not None and decided.commit == commit and is_open, *text, "decided was", decided)
        last = self._last_marker(tp, header.producer_id)
        if last is None:
            return
        must(coordinator_epoch >= last.coordinator_epoch, *what, "with a coordinator epoch that is less than of", last)
        must(header.producer_epoch >= last.producer_epoch, *what, "after", last)
        if header.producer_epoch == last.producer_epoch and value.client_version >= 2:
            must(not is_open and last.commit == commit, *what, "again, after", last)

    # Bounds

    def _check_stable(self, log: PartitionLog) -> None:
        if self.blind:
            return
        check_bounds(log)
        first = self.truth(log.topic_partition).first_open_offset
        stable = log.last_stable_offset
        must(stable <= first, log, "has the last stable offset", stable, "and a transaction is open from", first, "on")

    def _advance(self, original: Any) -> Any:
        def advance(log: PartitionLog, offset: int) -> Any:
            before = (log.last_stable_offset, log.high_watermark)
            result = original(log, offset)
            if self._owners.get(log.topic_partition) is log:
                with self.noting():
                    self._check_stable(log)
                    after = (log.last_stable_offset, log.high_watermark)
                    must(after[0] >= before[0] and after[1] >= before[1], log, "LSO, HW from", before, "to", after)
            return result

        return advance

    # Loads

    def _adopt_loaded(self, log: PartitionLog, manager: LogManager) -> None:
        if self.follows(log.topic_partition.topic):
            super()._adopt_loaded(log, manager)

    def _activated(self, original: Any) -> Any:
        def activated(shard: TransactionShard) -> Any:
            with self.noting():
                self._check_loaded(shard)
            self.loads += 1
            return original(shard)

        return activated

    def _check_loaded(self, shard: TransactionShard) -> None:
        if self.blind:
            return
        before = {name: known for name, known in self.known.items() if self._is_of(known, shard)}
        if shard._port._partition is None:
            told = sorted(name for name, known in before.items() if known.committed)
            require(not told, f"{shard}: nothing was loaded, known are {told}")
            self.known = {name: known for name, known in self.known.items() if name not in before}
            return
        states = []
        for _ in range(2):
            machine = TransactionMachine(check=True)
            state = machine.initial()
            for _, entries in shard.slices(-1, BIG_READ):
                state = machine.apply_all(state, entries)
            states.append(state)
        require(states[0] == states[1], f"{shard}: two loads of one log differ")
        require(shard.state == states[0], f"{shard}: what was loaded is no replay of the log")
        require(shard.committed == states[0], f"{shard}: what is shown is no replay of the log")
        check_derived(f"{shard}", shard.state)
        log = shard._port.partition.log
        self._follow(log)
        for name, known in before.items():
            now = self.known.get(name)
            # A power cut may take what nobody was told.
            require(
                not known.committed or (now is not None and known.offset <= now.offset) or known.value is None,
                f"{shard}: {name} was {known}, loaded is {now}",
            )
        mine = {name: known.value for name, known in self.known.items() if self._is_of(known, shard)}
        loaded = dict(shard.state.entries)
        require({name: value for name, value in mine.items() if value is not None} == loaded, f"{shard}: other ids")

    def _is_of(self, known: Known, shard: TransactionShard) -> bool:
        return known.log.topic_partition == TopicPartition(TRANSACTION_STATE, shard.index)


def check_derived(what: str, state: TransactionsState) -> None:
    """What the coordinator reads off its ids is what they say."""
    ongoing = {name for name, value in state.entries.items() if value.state is State.ONGOING}
    preparing = {name for name, value in state.entries.items() if value.state in PREPARED}
    require(set(state.ongoing) == ongoing, f"{what}: open are {sorted(ongoing)}, known as such {sorted(state.ongoing)}")
    require(
        set(state.preparing) == preparing,
        f"{what}: decided are {sorted(preparing)}, known as such {sorted(state.preparing)}",
    )


def decoded(data: bytes) -> Iterator[tuple[int, str, TransactionMetadata | None]]:
    for position, header in iter_headers(data):
        if not header.is_control:
            for record in iter_records(data, position):
                found = decode(record.key or b"", record.value)
                require(found is not None, f"a record of an unknown kind at {record.offset}")
                assert found is not None
                yield record.offset, found.transactional_id, found.value


def batches_on_disk(disk: Disk, directory: str) -> Iterator[bytes]:
    """In the order of their offsets, also where a cleaner left holes."""
    if not disk.is_dir(directory):
        return
    for name in disk.list(directory):
        if name.endswith(".log") and name[:-4].isdigit():
            data = read_file(disk, f"{directory}/{name}")
            for position, header in iter_headers(data):
                yield data[position : position + header.size]
