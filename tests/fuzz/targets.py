"""What is fuzzed: functions that take bytes from anywhere, and the only errors that they may raise.

Each target runs one input and returns, or raises what nobody expects: that is a crash. The same targets are run with
coverage feedback by `make fuzz`, and with a fixed seed by `test_fuzz_targets`. Findings are kept in
`test_fuzz_regressions`.
"""

import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, NoReturn

from kio.serial import entity_reader

from fuzz import seeds
from twofold.broker.network.context import CloseConnection, Peer
from twofold.broker.network.dispatch import Dispatcher, Handler
from twofold.controller import records as metadata_records
from twofold.controller.replay import InconsistentRecord, MetadataMachine
from twofold.coordinator.group import records as group_records
from twofold.coordinator.transaction import records as transaction_records
from twofold.log.directory.identity import DataDirectoryError, parse_meta_properties
from twofold.log.indexes.offset_index import CorruptIndex, OffsetIndex
from twofold.log.indexes.time_index import TimeIndex
from twofold.log.indexes.txn_index import TxnIndex
from twofold.log.producers.snapshots import CorruptProducerSnapshot, decode_snapshot, encode_snapshot
from twofold.log.recovery.checkpoints import decode_offsets
from twofold.log.recovery.epochs import CorruptCheckpoint, EpochCache
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.scan import iter_checked as scan_checked
from twofold.log.segments.scan import iter_headers as scan_headers
from twofold.machine.schema import MalformedRecord
from twofold.metadata_log.errors import CorruptQuorumState
from twofold.metadata_log.quorum_state import read_quorum_state
from twofold.records.batch import Header, compute_crc, iter_records, parse_records, read_header
from twofold.records.client_batch_checks import recompress, validate_client_batch
from twofold.records.columnar import Decoder
from twofold.records.compression import Codec, compress, decompress
from twofold.records.control import read_control_type, read_end_marker
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.entries import WITHOUT_END, compile_walk
from twofold.wire.errors import CorruptMessage, InvalidRecord, InvalidRequest, KafkaError
from twofold.wire.schema import schema_of

LIMIT = 1 << 20
NOW_MS = 1_700_000_000_000
HEADER_BYTES = 61
UNREADABLE = (CorruptMessage, InvalidRecord)


class Target(NamedTuple):
    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    weight: int = 1  # its share of the time


# --- requests and responses ---


class _Undone(Dispatcher):
    """Decodes every request, and lets its API say in its own form that it was refused."""

    __slots__ = ()

    def _load(self, api_key: int) -> Handler:
        handler = super()._load(api_key)

        def refuse(broker: object, context: object, request: object) -> NoReturn:
            raise InvalidRequest("refused")

        handler.handle = refuse
        return handler


def _no_task(*_: object, **__: object) -> Any:
    raise AssertionError("nothing is started for a request that is refused")


class _Logged(logging.Handler):
    """What the dispatcher logs as an error is a crash."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        raise AssertionError(record.getMessage()) from error

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


_LOGGER = logging.getLogger("twofold.broker.network.dispatch")
_LOGGED = _Logged(logging.ERROR)
_NO_SERVICES: Any = None
_DISPATCHER = _Undone(_NO_SERVICES, _no_task, lambda: 0.0)
_PEER = Peer("10.0.0.1", 4711, "PLAINTEXT")


def request(data: bytes) -> None:
    """A frame without its length, as the server hands it on."""
    _LOGGER.addHandler(_LOGGED)
    try:
        for frame in (data, memoryview(bytearray(data))):
            with suppress(CloseConnection):
                _DISPATCHER.dispatch(_PEER, frame)
    finally:
        _LOGGER.removeHandler(_LOGGED)


def request_round_trip(data: bytes) -> None:
    """What was decoded and encoded again stays as it is from then on."""
    try:
        header = codec.decode_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or not api.serves(header.version):
            return
        message = codec.decode_request(header.api_key, header.version, data, header.body_offset)
    except codec.Undecodable:
        return
    _same_end(header.api_key, header.version, "request", data, header.body_offset)
    again = bytes(codec.encode_request(message, header.api_key, header.version, 1, None))[4:]
    header = codec.decode_request_header(again)
    message = codec.decode_request(header.api_key, header.version, again, header.body_offset)
    assert codec.encode_request(message, header.api_key, header.version, 1, None)[4:] == again


@cache
def _readers(key: int, version: int, kind: str) -> tuple[Callable[..., Any], Callable[..., int]]:
    schema: Any = schema_of(APIS[key].module, version, kind)
    return entity_reader(schema), compile_walk(schema)


def _same_end(key: int, version: int, kind: str, data: bytes, offset: int) -> None:
    """The walk that goes before kio's reader must take the same way: what it does not see it cannot refuse."""
    read, walk = _readers(key, version, kind)
    with suppress(KeyError):  # an unknown tag
        size = read(data, offset)[1]
        assert walk(data, offset, [WITHOUT_END]) == offset + size


def response(data: bytes) -> None:
    """An answer of a hostile broker: API key and version, then the frame without its length."""
    if len(data) < 2:
        return
    api = APIS.get(data[0])
    if api is None or not api.min_version <= data[1] <= api.spoken_max:
        return
    frame = data[2:]
    with suppress(codec.Undecodable):
        codec.decode_response(data[0], data[1], frame)
        flexible = codec.is_flexible(data[0], data[1]) and data[0] != 18
        if not flexible or frame[4:5] == b"\0":
            _same_end(data[0], data[1], "response", frame, 5 if flexible else 4)


# --- batches ---


def _repaired(data: bytes) -> bytearray | None:
    """The first byte says what is put right behind the fuzzer's back, which would hardly ever find a good CRC.

    Bit 0: length and CRC. Bits 1 to 3: a codec to compress the records with, 0 and above 4 leave them. Bit 4: the count
    of the header becomes that of the last offset delta.
    """
    if len(data) < 1 + HEADER_BYTES:
        return bytearray(data[1:]) if data else None
    flags, batch = data[0], bytearray(data[1:])
    wanted = flags >> 1 & 7
    if 0 < wanted <= Codec.ZSTD:
        batch[HEADER_BYTES:] = compress(wanted, bytes(batch[HEADER_BYTES:]))
        batch[22] = batch[22] & 0xF8 | wanted
    if flags & 0x10:
        (last_delta,) = struct.unpack_from(">i", batch, 23)
        if last_delta < 2**31 - 1:
            struct.pack_into(">i", batch, 57, last_delta + 1)
    if flags & 1:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        struct.pack_into(">I", batch, 17, compute_crc(batch, 0, len(batch)))
    return batch


def batch(data: bytes) -> None:
    """A batch from a producer, on a topic that looks into it and on one that does not."""
    buf = _repaired(data)
    if buf is None:
        return
    for compacted in (False, True):
        for kind in ("CreateTime", "LogAppendTime"):
            with suppress(KafkaError):
                header = validate_client_batch(
                    buf,
                    max_message_bytes=1 << 20,
                    compacted=compacted,
                    now_ms=NOW_MS,
                    timestamp_type=kind,
                    before_max_ms=1 << 40,
                    after_max_ms=3_600_000,
                    limit=LIMIT,
                )
                assert 0 < header.size <= len(buf)
                if compacted:
                    assert sum(1 for _ in iter_records(buf, limit=LIMIT)) == header.count
    for wanted in (Codec.NONE, Codec.LZ4):
        with suppress(*UNREADABLE):
            again = recompress(buf, wanted, limit=LIMIT)
            assert list(iter_records(again, limit=LIMIT)) == list(iter_records(buf, limit=LIMIT))
    with suppress(*UNREADABLE):
        list(iter_records(buf, limit=LIMIT))


def control(data: bytes) -> None:
    """A batch that says of itself that it is a marker."""
    buf = _repaired(data)
    if buf is None:
        return
    if len(buf) > 22:
        buf[22] |= 0x20
    for read in (read_end_marker, read_control_type):
        with suppress(*UNREADABLE):
            read(buf)


_DECODER: list[Decoder] = []


def columns(data: bytes) -> None:
    """Fetched batches into Arrow columns; whoever reads them record by record must agree."""
    buf = _repaired(data)
    if buf is None:
        return
    if not _DECODER:
        from twofold.records.columnar_plain import Plain

        _DECODER.append(Decoder("t", 0, backend=Plain(), limit=LIMIT))
    with suppress(*UNREADABLE):
        rows = sum(len(decoded.rows) for decoded in _DECODER[0].decode(bytes(buf), start_offset=0))
        assert rows <= len(buf) + LIMIT


def compressed(data: bytes) -> None:
    """Codec in the first byte; whatever the bytes claim, the result is no larger than the limit."""
    if data:
        with suppress(InvalidRecord):
            assert len(decompress(data[0] % 6, data[1:], limit=LIMIT)) <= LIMIT


def records_section(data: bytes) -> None:
    """Records without their batch: count and timestamps in front."""
    if len(data) < 8:
        return
    count, delta = struct.unpack_from(">ii", data)
    header = Header._make((0, 0, 0, 2, 0, 0, delta, NOW_MS, NOW_MS, -1, -1, -1, count))
    with suppress(*UNREADABLE):
        assert sum(1 for _ in parse_records(header, data[8:])) == count


# --- records of our own logs ---


def _split(data: bytes) -> tuple[bytes, bytes | None]:
    """A key and a value: the length of the key in the first byte; 255 for a value that is null."""
    if not data:
        return b"", None
    if data[0] == 255:
        return data[1:], None
    return data[1 : 1 + data[0]], data[1 + data[0] :]


def group_record(data: bytes) -> None:
    with suppress(MalformedRecord, group_records.UnknownRecordType):
        key, value = _split(data)
        record = group_records.decode(key, value)
        if isinstance(record, group_records.OffsetRecord) and record.value is not None:
            group_records.decode_offset_value(record.value)
        if isinstance(record, group_records.GroupRecord) and record.value is not None:
            again = group_records.encode_value(record)
            assert group_records.decode(group_records.encode_key(record), again) == record


def transaction_record(data: bytes) -> None:
    with suppress(MalformedRecord):
        key, value = _split(data)
        record = transaction_records.decode(key, value)
        if record is not None and record.value is not None:
            transaction_records.encode_value(record.value, 1)


_MACHINE = MetadataMachine()


def metadata_record(data: bytes) -> None:
    """Records with their lengths (two bytes) in front, replayed from nothing."""
    entries: list[tuple[int, metadata_records.MetadataRecord]] = []
    position = 0
    while position + 2 <= len(data) and len(entries) < 64:
        (size,) = struct.unpack_from(">H", data, position)
        value = data[position + 2 : position + 2 + size]
        position += 2 + size
        with suppress(MalformedRecord, metadata_records.UnsupportedRecord):
            record = metadata_records.decode(value)
            if record is not None:
                assert metadata_records.decode(metadata_records.encode(record)) is not None
                entries.append((len(entries), record))
    with suppress(InconsistentRecord):
        _MACHINE.apply_all(_MACHINE.initial(), entries)


# --- files ---


def snapshot(data: bytes) -> None:
    """`.snapshot`; with the first byte odd its CRC is put right."""
    if not data:
        return
    raw = bytearray(data[1:])
    if data[0] & 1 and len(raw) >= 6:
        import crc32c

        struct.pack_into(">I", raw, 2, crc32c.crc32c(bytes(raw[6:])))
    with suppress(CorruptProducerSnapshot):
        entries = decode_snapshot(bytes(raw))
        assert len(decode_snapshot(encode_snapshot(entries))) == len(entries)


def index_files(data: bytes) -> None:
    if not data:
        return
    kind, raw = data[0] % 3, data[1:]
    with suppress(CorruptIndex):
        if kind == 0:
            index = OffsetIndex.parse(100, raw, 1 << 20)
            index.lookup(150)
            index.encode()
        elif kind == 1:
            times = TimeIndex.parse(100, raw)
            times.lookup(NOW_MS)
            times.encode()
        else:
            aborted = TxnIndex.parse(raw, 100)
            assert aborted.encode() == raw


class _Bytes:
    """A file of the runtime, as far as a scan reads one."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def segment(data: bytes) -> None:
    """The bytes of a `.log` file: the walk over its headers, and that of a recovery."""
    for scan in (scan_headers, scan_checked):
        with suppress(InvalidBatch, *UNREADABLE):
            for _ in scan(_Bytes(data), 0, len(data)):  # type: ignore[arg-type]
                pass


class _OneFile:
    """A disk with one file, under every name."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self, path: str, *_: object, **__: object) -> "_OneFile":
        return self

    def size(self, *_: object) -> int:
        return len(self.data)

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]

    def close(self) -> None:
        pass

    def __enter__(self) -> "_OneFile":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def checkpoints(data: bytes) -> None:
    if not data:
        return
    kind, raw = data[0] % 4, data[1:]
    with suppress(CorruptCheckpoint, CorruptQuorumState, DataDirectoryError):
        if kind == 0:
            decode_offsets(raw)
        elif kind == 1:
            EpochCache.decode(raw)
        elif kind == 2:
            parse_meta_properties("meta.properties", raw, 1)
        else:
            read_quorum_state(_OneFile(raw), "/data")  # type: ignore[arg-type]


def first_header(data: bytes) -> Header | None:
    with suppress(*UNREADABLE):
        return read_header(data)
    return None


TARGETS: dict[str, Target] = {
    "request": Target(request, seeds.requests, 4),
    "request_round_trip": Target(request_round_trip, seeds.requests, 2),
    "response": Target(response, seeds.responses, 1),
    "batch": Target(batch, seeds.batches, 3),
    "columns": Target(columns, seeds.batches, 2),
    "control": Target(control, seeds.markers),
    "compressed": Target(compressed, seeds.compressed, 2),
    "records_section": Target(records_section, seeds.sections),
    "group_record": Target(group_record, seeds.group_records),
    "transaction_record": Target(transaction_record, seeds.transaction_records),
    "metadata_record": Target(metadata_record, seeds.metadata_records, 2),
    "snapshot": Target(snapshot, seeds.snapshots),
    "index_files": Target(index_files, seeds.index_files),
    "segment": Target(segment, seeds.segments),
    "checkpoints": Target(checkpoints, seeds.checkpoints),
}
