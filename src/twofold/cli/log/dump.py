"""Which kind a file of a data folder is, and what is in it: rows, one after the other.

1. The name tells the kind, and the name of the folder whose log it is. What is being deleted or compacted
   (`.deleted`, `.cleaned`, `.swap`) is what it was.
2. Files are only read, and never whole but for the small ones.
3. Whatever the bytes are, it ends with rows; what is wrong is a row as well (`damage`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from twofold.cli.log import decoders as log_decoders
from twofold.cli.log import files as log_files
from twofold.cli.log.batches import BatchDamage, DumpedBatch, FileBatches
from twofold.cli.log.decoders import Decoder, UndecodedRecord, control_row
from twofold.cli.log.files import Unreadable
from twofold.cli.log.values import Row, plain
from twofold.log.producers import times as producer_times
from twofold.log.recovery import checkpoints
from twofold.metadata_log.snapshots import BOOTSTRAP_FILE
from twofold.records.batch import HEADER_SIZE, Header, Record, parse_records
from twofold.records.compression import MAX_DECOMPRESSED_BYTES, Codec, decompress
from twofold.wire.errors import InvalidRecord

MOST_REASON_LETTERS = 300


class FileKind(StrEnum):
    RECORDS = "records"
    TRANSACTION_STATE = "transaction-state"
    CONSUMER_OFFSETS = "consumer-offsets"
    METADATA = "metadata"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TXN_INDEX = "txn-index"
    PRODUCERS = "producer-snapshot"
    PRODUCER_TIMES = "producer-times"
    LEADER_EPOCHS = "leader-epochs"
    OFFSETS = "offset-checkpoint"
    TEXT = "text"


DECODERS: dict[FileKind, Decoder] = {
    FileKind.RECORDS: log_decoders.as_bytes,
    FileKind.TRANSACTION_STATE: log_decoders.transaction_state,
    FileKind.CONSUMER_OFFSETS: log_decoders.consumer_offsets,
    FileKind.METADATA: log_decoders.metadata,
}
_SMALL: dict[FileKind, Callable[[Path, int], Iterator[Row]]] = {
    FileKind.OFFSET_INDEX: log_files.offset_index_rows,
    FileKind.TIME_INDEX: log_files.time_index_rows,
    FileKind.TXN_INDEX: log_files.txn_index_rows,
    FileKind.PRODUCERS: log_files.snapshot_rows,
    FileKind.PRODUCER_TIMES: log_files.producer_time_rows,
    FileKind.LEADER_EPOCHS: log_files.leader_epoch_rows,
    FileKind.OFFSETS: log_files.checkpoint_rows,
    FileKind.TEXT: log_files.line_rows,
}
_BY_TOPIC = {
    "__transaction_state": FileKind.TRANSACTION_STATE,
    "__consumer_offsets": FileKind.CONSUMER_OFFSETS,
    "__cluster_metadata": FileKind.METADATA,
}
_BY_SUFFIX = {
    ".checkpoint": FileKind.METADATA,
    ".index": FileKind.OFFSET_INDEX,
    ".timeindex": FileKind.TIME_INDEX,
    ".txnindex": FileKind.TXN_INDEX,
    ".snapshot": FileKind.PRODUCERS,
}
_BY_NAME = {
    "leader-epoch-checkpoint": FileKind.LEADER_EPOCHS,
    producer_times.FILE: FileKind.PRODUCER_TIMES,
    **dict.fromkeys(
        (
            checkpoints.RECOVERY_POINTS,
            checkpoints.HIGH_WATERMARKS,
            checkpoints.LOG_STARTS,
            checkpoints.CLEANED_OFFSETS,
        ),
        FileKind.OFFSETS,
    ),
    **dict.fromkeys(
        (
            checkpoints.META_PROPERTIES,
            checkpoints.PARTITION_METADATA,
            checkpoints.CLEAN_SHUTDOWN,
            "quorum-state",
            "committed-offset",
        ),
        FileKind.TEXT,
    ),
}
_PASSING = re.compile(r"\.(deleted|cleaned|swap)$")
_FOLDER = re.compile(r"(.+)-\d+(\.[0-9a-f]{32}-(delete|future|stray))?")
_BASE = re.compile(r"\d{20}(?=\.)")
_SEGMENT = re.compile(r"\d{20}[.-]")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show of each file."""

    records: bool = False
    from_offset: int = 0
    limit: int | None = None
    max_bytes: int = 200
    kind: FileKind | None = None


def kind_of(path: Path) -> FileKind | None:
    """By the name of the file, and for a segment by that of its folder."""
    name = _PASSING.sub("", path.name)
    if name in _BY_NAME:
        return _BY_NAME[name]
    suffix = Path(name).suffix
    if suffix == ".log":
        folder = _FOLDER.fullmatch(path.resolve().parent.name)
        return _BY_TOPIC.get(folder[1], FileKind.RECORDS) if folder else FileKind.RECORDS
    return _BY_SUFFIX.get(suffix)


def files_of(directory: Path, *, partitions: bool = True) -> list[Path]:
    """What can be dumped of a folder: its files in the order of their names, then those of the partitions in it."""
    inside = sorted(directory.iterdir())
    files = [path for path in inside if path.is_file() and _belongs_to_a_log(path)]
    for path in inside:
        if partitions and path.is_dir() and _FOLDER.fullmatch(path.name):
            files += files_of(path, partitions=False)
    return files


def _belongs_to_a_log(path: Path) -> bool:
    """Not everything that ends with .log is a segment."""
    named = path.name in _BY_NAME or path.name == BOOTSTRAP_FILE
    return named or (_SEGMENT.match(path.name) is not None and kind_of(path) is not None)


def dump_file(path: Path, wanted: DumpOptions, advance: Callable[[int], None]) -> Iterator[Row]:
    """The rows of a file; OSError where it cannot be read."""
    size = path.stat().st_size
    kind = wanted.kind or kind_of(path) or FileKind.RECORDS
    yield {"what": "file", "path": str(path), "kind": kind.value, "size": size}
    base = _BASE.match(path.name)
    # A snapshot of the metadata is a little log of its own, from offset 0 on.
    base_offset = int(base[0]) if base and ".checkpoint" not in path.name else 0
    if kind in _SMALL:
        yield from _dump_small(_SMALL[kind](path, base_offset), wanted)
        advance(size)
    else:
        yield from _dump_segment(path, size, base_offset, DECODERS[kind], wanted, advance)


def _dump_small(rows: Iterator[Row], wanted: DumpOptions) -> Iterator[Row]:
    shown = 0
    try:
        for row in rows:
            is_entry = row["what"] != "damage"
            if is_entry and _last_offset(row) < wanted.from_offset:
                continue
            if is_entry and shown == wanted.limit:
                return
            shown += is_entry
            yield row
    except Unreadable as error:
        yield log_files.damage(0, str(error))


def _last_offset(row: Row) -> int:
    """Of an entry that has a place in the log; others are always asked for."""
    if row["what"] == "entry":
        return int(row["offset"])
    return int(row["last_offset"]) if row["what"] == "aborted" else 1 << 63


def _dump_segment(
    path: Path, size: int, base_offset: int, decode: Decoder, wanted: DumpOptions, advance: Callable[[int], None]
) -> Iterator[Row]:
    shown = 0
    with open(path, "rb", buffering=1 << 20) as file:
        reader = FileBatches(file, size, base_offset=base_offset, from_offset=wanted.from_offset, advance=advance)
        for found in reader.read():
            if isinstance(found, BatchDamage):
                yield _damage(found.position, found.reason) | {"resumes_at": found.resumes_at}
                continue
            if shown == wanted.limit:
                return
            shown += 1
            yield from _batch_rows(found, decode, wanted)


def _damage(position: int, reason: str) -> Row:
    return log_files.damage(position, reason[:MOST_REASON_LETTERS])


def _batch_rows(batch: DumpedBatch, decode: Decoder, wanted: DumpOptions) -> Iterator[Row]:
    header = batch.header
    row = _batch_row(batch)
    controls: list[tuple[Record, Row]] = []
    failure: Row | None = None
    if header.is_control:
        try:
            controls = [(record, control_row(record, wanted.max_bytes)) for record in records_of(batch)]
        except (InvalidRecord, UndecodedRecord) as error:
            failure = _damage(batch.position, f"the control batch at offset {header.base_offset}: {error}")
        row["control"] = [control["type"] for _, control in controls]
        if len(controls) == 1 and "coordinator_epoch" in controls[0][1]:
            row |= {"control": controls[0][1]["type"], "coordinator_epoch": controls[0][1]["coordinator_epoch"]}
    yield row
    if failure is not None:
        yield failure
    if not wanted.records:
        return
    if header.is_control:
        for record, control in controls:
            yield {"what": "control", "offset": record.offset, "timestamp": record.timestamp} | control
    else:
        yield from _record_rows(batch, decode, wanted)


def _record_rows(batch: DumpedBatch, decode: Decoder, wanted: DumpOptions) -> Iterator[Row]:
    try:
        for record in records_of(batch):
            if record.offset >= wanted.from_offset:
                yield from _record_row(batch, record, decode, wanted.max_bytes)
    except InvalidRecord as error:
        yield _damage(batch.position, f"the batch at offset {batch.header.base_offset}: {error}")


def _record_row(batch: DumpedBatch, record: Record, decode: Decoder, most: int) -> Iterator[Row]:
    failure: Row | None = None
    try:
        key, value = decode(record, most)
    except UndecodedRecord as error:
        key, value = log_decoders.as_bytes(record, most)
        failure = _damage(batch.position, f"the record at offset {record.offset}: {error}")
    row: Row = {"what": "record", "offset": record.offset, "timestamp": record.timestamp, "key": key, "value": value}
    # A list in JSON, because names may come twice.
    yield row | {"headers": [{"name": name, "value": plain(data, most)} for name, data in record.headers]}
    if failure is not None:
        yield failure


def records_of(batch: DumpedBatch) -> Iterator[Record]:
    """InvalidRecord, on the way, where they are not what the header says."""
    section = memoryview(batch.data)[HEADER_SIZE:]
    return parse_records(batch.header, decompress(batch.header.codec, section, limit=MAX_DECOMPRESSED_BYTES))


def _batch_row(batch: DumpedBatch) -> Row:
    header = batch.header
    return {
        "what": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "position": batch.position,
        "size": header.size,
        "crc": "right" if batch.crc_is_right else "wrong",
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": None,
        "compression": _codec_name(header),
        # Compaction puts it into the base timestamp.
        "delete_horizon_ms": header.base_timestamp if header.has_delete_horizon else None,
    }


def _codec_name(header: Header) -> str:
    with suppress(ValueError):
        return Codec(header.codec).name.lower()
    return f"unknown ({header.codec})"
