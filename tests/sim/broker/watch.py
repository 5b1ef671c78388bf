"""What must be on the broker's disk, learnt by watching every append, and what is found there after each start.

1. A batch is certain when its append returned, and in doubt when a crash or an error came in between.
2. After a clean stop or a killed process every certain batch is there, and nothing else but the one in doubt.
3. After a power cut a prefix of that is there, and in it everything below each recovery point that a log ever claimed
   and everything that a clean stop left.
4. In between, at every append: log start <= LSO <= high watermark <= log end, and none of them has moved back.
5. No producer id is handed out twice.
6. The controller's image is a replay of the metadata log, at every start.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self
from unittest.mock import patch
from uuid import UUID

from kits.log.replay import Truth, assert_aborted, assert_epochs, assert_producers, assert_times
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.controller.image import MetadataImage
from twofold.controller.records import decode
from twofold.controller.replay import MetadataMachine
from twofold.log.appending.writer import BatchWriter
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.machine.maps import Map
from twofold.metadata_log.metadata_log import METADATA_PARTITION
from twofold.quorum.controller import Controller
from twofold.records.batch import crc_is_valid, iter_headers, iter_records, read_header
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.types import TopicPartition


class Violation(AssertionError):
    """Something that must hold does not."""


def require(condition: object, text: str) -> None:
    if not condition:
        raise Violation(text)


class LogKey(NamedTuple):
    topic_partition: TopicPartition
    topic_id: UUID | None

    def __str__(self) -> str:
        return f"{self.topic_partition} ({self.topic_id})"


@dataclass(eq=False)
class LogModel:
    """One partition of one topic, as it has to be."""

    key: LogKey
    batches: list[bytes] = field(default_factory=list)
    doubt: bytes = b""
    values: dict[int, bytes] = field(default_factory=dict)
    lost: set[tuple[int, bytes]] = field(default_factory=set)
    """What power cuts took, by offset."""
    cuts: int = 0
    """How many of them took something."""
    durable_to: int = 0
    risk: str = ""
    """The worst that happened since the disk was last looked at: kill or power."""
    owner: PartitionLog | None = None
    bounds: tuple[int, ...] = (0, 0, 0, 0)
    """Log start, LSO, high watermark and log end at the owner's last append."""

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def add(self, data: bytes) -> None:
        for position, header in iter_headers(data):
            require(header.base_offset == self.end, f"{self.key}: {header.base_offset} appended at {self.end}")
            self.batches.append(data[position : position + header.size])
            if not header.is_control:
                self.values.update((record.offset, record.value or b"") for record in iter_records(data, position))

    def crash(self, power_cut: bool) -> None:
        if self.owner is not None:
            self.durable_to = max(self.durable_to, min(self.owner.recovery_point, self.end))
        self.risk = "power" if power_cut or self.risk == "power" else "kill"

    def reconcile(self, found: list[bytes]) -> None:
        """Compare with the disk, and go on from what is there."""
        if self.doubt and found[: len(self.batches)] == self.batches and len(found) > len(self.batches):
            require(found[len(self.batches) :] == [self.doubt], f"{self.key}: nobody appended what is at its end")
            self.add(self.doubt)
        require(
            found == self.batches[: len(found)],
            f"{self.key}: the {len(found)} batches on disk are not the first of the {len(self.batches)} appended",
        )
        if self.risk != "power":
            require(len(found) == len(self.batches), f"{self.key}: ends after {len(found)} of {len(self.batches)}")
        end = read_header(found[-1]).next_offset if found else 0
        require(end >= self.durable_to, f"{self.key}: ends at {end}, {self.durable_to} was on disk ({self.risk})")
        if len(found) < len(self.batches):
            self.cuts += 1
            self._forget_from(end)
        self.batches = found
        if self.risk == "power":
            self.durable_to = end  # what can be read after a cut is on the platter
        self.doubt, self.risk = b"", ""

    def _forget_from(self, end: int) -> None:
        for offset in [offset for offset in self.values if offset >= end]:
            self.lost.add((offset, self.values.pop(offset)))


def stored_batches(disk: Disk, directory: str) -> list[bytes]:
    """The batches in the files of a log, each whole, in an unbroken row."""
    if not disk.is_dir(directory):
        return []
    found: list[bytes] = []
    names = [name for name in disk.list(directory) if name.endswith(".log") and name[:-4].isdigit()]
    for name in names:
        data = read_file(disk, f"{directory}/{name}")
        end = 0
        for position, header in iter_headers(data):
            require(crc_is_valid(data, position, header), f"{directory}/{name}: bad CRC at {position}")
            end = position + header.size
            found.append(data[position:end])
        require(end == len(data), f"{directory}/{name}: a torn batch at {end}")
    headers = [read_header(batch) for batch in found]
    require(not headers or headers[0].base_offset == 0, f"{directory}: the beginning is gone")
    for before, after in pairwise(headers):
        require(before.next_offset == after.base_offset, f"{directory}: a hole before {after.base_offset}")
    return found


def replayed_image(batches: list[bytes]) -> MetadataImage:
    """The image that follows from the metadata log alone."""
    machine = MetadataMachine()
    state = machine.initial()
    for batch in batches:
        if not read_header(batch).is_control:
            records = [(record.offset, decode(record.value or b"")) for record in iter_records(batch)]
            state = machine.apply_all(state, [(offset, record) for offset, record in records if record is not None])
    return state.image


def _said(image: MetadataImage) -> MetadataImage:
    """Without where the registrations stand: one that comes from a snapshot has the offset of the snapshot."""
    return replace(image, brokers=Map({key: replace(row, registered_at=-1) for key, row in image.brokers.items()}))


class Watch:
    """`with Watch() as watch:` around a simulation with one broker."""

    def __init__(self) -> None:
        self.models: dict[LogKey, LogModel] = {}
        self.kept: list[TopicPartition] = []
        """Partitions of topics that nobody deletes."""
        self.producer_ids: set[int] = set()
        self.starts = 0
        self.violations: list[Violation] = []
        self.on_started: Callable[[MetadataImage], None] = lambda image: None
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for owner, name, replacement in (
            (BatchWriter, "write", self._write),
            (BatchWriter, "write_one", self._write),
            (LogManager, "load_step_by_step", self._load),
            (Controller, "start", self._start),
            (ProducerIdBlocks, "take", self._take),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement(getattr(owner, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def model(self, log: PartitionLog) -> LogModel:
        key = LogKey(log.topic_partition, log.topic_id)
        return self.models.setdefault(key, LogModel(key))

    def of(self, topic_partition: TopicPartition) -> Iterator[LogModel]:
        return (model for model in self.models.values() if model.key.topic_partition == topic_partition)

    def crash(self, power_cut: bool) -> None:
        """The broker dies now."""
        for model in self.models.values():
            model.crash(power_cut)
            model.owner = None

    def stopped_cleanly(self) -> None:
        """Everything is on disk of the logs that were seen since the last crash."""
        for model in self.models.values():
            if not model.doubt and not model.risk:
                model.durable_to = model.end

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A broker answers an error of its own with an error code: remember what was wrong."""
        try:
            yield
        except Violation as violation:
            self.violations.append(violation)
            raise

    def adopt(self, log: PartitionLog, disk: Disk) -> LogModel:
        """The model of a log, compared with its files when the log is first seen."""
        model = self.model(log)
        if model.owner is not log:
            model.reconcile(stored_batches(disk, log.directory))
            model.owner, model.bounds = log, (0, 0, 0, 0)
        return model

    # What is patched

    def _write(self, original: Any) -> Any:
        def write(writer: BatchWriter, data: Any, *args: Any, **options: Any) -> Any:
            log = writer._context.log
            with self.noting():
                model = self.adopt(log, log._context.environment.disk)
            model.doubt = bytes(data)
            result = original(writer, data, *args, **options)
            with self.noting():
                model.add(model.doubt)
                model.doubt = b""
                require(model.end == log.log_end_offset, f"{log}: the log end is not {model.end}")
                bounds = check_bounds(log)
                moved_back = any(now < before for now, before in zip(bounds, model.bounds, strict=True))
                require(not moved_back, f"{log}: start, LSO, HW, end went from {model.bounds} to {bounds}")
                model.bounds = bounds
            return result

        return write

    def _load(self, original: Any) -> Any:
        def load(manager: LogManager) -> Iterator[None]:
            yield from original(manager)
            with self.noting():
                for log in manager.logs():
                    if log.is_open:
                        self._adopt_loaded(log, manager)
                for model in self.models.values():
                    if model.key.topic_partition in self.kept and not manager.get(model.key.topic_partition):
                        model.reconcile([])

        return load

    def _adopt_loaded(self, log: PartitionLog, manager: LogManager) -> None:
        known = list(self.of(log.topic_partition))
        if len(known) == 1 and log.topic_id is None:
            known[0].reconcile(stored_batches(manager._disk, log.directory))
            known[0].owner, known[0].bounds = log, (0, 0, 0, 0)
        check_bounds(log)

    def _start(self, original: Any) -> Any:
        async def start(controller: Controller) -> Any:
            result = await original(controller)
            with self.noting():
                model = next(self.of(METADATA_PARTITION))
                replayed = replayed_image(model.batches)
                require(_said(controller.image) == _said(replayed), "the image is no replay of the metadata log")
                self.on_started(controller.image)
            self.starts += 1
            return result

        return start

    def _take(self, original: Any) -> Any:
        def take(ids: ProducerIdBlocks) -> int:
            producer_id: int = original(ids)
            with self.noting():
                require(producer_id not in self.producer_ids, f"producer id {producer_id} is handed out twice")
            self.producer_ids.add(producer_id)
            return producer_id

        return take


def check_derived_state(log: PartitionLog, batches: list[bytes]) -> None:
    """Producers, epochs, aborted transactions and indexes are what a replay of the batches gives."""
    log.ensure_open()
    log.advance_high_watermark(log.log_end_offset)
    truth = Truth(batches)
    assert_producers(log, truth.table)
    assert_epochs(log, truth.epochs)
    assert_aborted(log, truth.aborted)
    for segment in log._segments.all:
        by_position = dict(segment.headers())
        assert_times(segment, list(by_position.values()))
        index = segment.offset_index
        for relative, position in zip(index._offsets, index._positions, strict=True):
            require(
                by_position[position].last_offset == segment.base_offset + relative,
                f"{log}: the index of segment {segment.base_offset} leads {relative} to {position}",
            )


def check_bounds(log: PartitionLog) -> tuple[int, ...]:
    bounds = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset)
    require(list(bounds) == sorted(bounds), f"{log}: start, LSO, HW, end are {bounds}")
    return bounds
