"""What a leader checks in the batch that a client sent, before the batch gets an offset.

1. On a topic with `cleanup.policy=delete` the batch stays opaque: header, CRC and count are checked, records are not
   unpacked. On a compacted topic every record is walked, because each needs a key.
2. The order of the checks is that of Apache Kafka, so that a batch with two faults gets the same answer: framing, size,
   CRC, header fields, records.
3. A few kilobytes may claim, and hold, very many records: no more than MAX_RECORDS are unpacked, and no more than
   MAX_RECORD_ERRORS errors are reported.
4. Kafka walks the records and corrects a wrong max timestamp. It is stored here as the client wrote it. Where the
   timestamp type of the batch is not the topic's, the caller corrects it (`log.appending.stamping`).
"""

import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, NoReturn

from twofold.records.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL,
    Buffer,
    Header,
    Record,
    assemble,
    crc_is_valid,
    parse_records,
    read_header,
    records_section,
)
from twofold.records.compression import MAX_DECOMPRESSED_BYTES, Codec, compress
from twofold.types import NO_TIMESTAMP, TopicPartition
from twofold.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
)

LOG_APPEND_TIME = "LogAppendTime"

_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_COUNT = _LENGTH
_COUNT_POSITION = 57
_CODEC_POSITION = 22  # the lower byte of the attributes
_UP_TO_MAGIC = MAGIC_POSITION + 1
_SMALLEST_OLD_LENGTH = 14  # of a message of magic 0: no client ever wrote a shorter one
_SMALLEST_RECORD = 7  # its length, attributes, two deltas, null key, null value, no headers
_EMPTY_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_SHOWN_ERRORS = 3
MAX_RECORDS = 1_000_000  # no client puts more into a batch: it is the highest batch.num.messages of librdkafka
MAX_RECORD_ERRORS = 1000
# A batch whose base or max timestamp is refused is unpacked up to this size, for a better message.
MAX_RECORDS_EXPLAINED = 20_000
MAX_BYTES_EXPLAINED = 4 * 1024 * 1024
# From here on it takes milliseconds to look at the records of a batch: not in the loop.
HEAVY_RECORDS = 2_000
HEAVY_BYTES = 8 * 1024  # compressed
_LAST_CODEC = int(Codec.ZSTD)

RecordErrors = list[tuple[int, str]]


class CheckedBatch(bytes):
    """A batch whose records were looked at already, in a thread: the loop need not do it again."""


class NotOneBatch(InvalidRecord):
    """The bytes are not exactly one batch of magic 2: refused before any log is looked at."""


class TimestampsRejected(InvalidTimestamp):
    """InvalidTimestamp that knows which records of the batch are at fault."""

    def __init__(self, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


def validate_client_batch(
    buf: Buffer,
    *,
    max_message_bytes: int,
    compacted: bool,
    now_ms: int,
    timestamp_type: str,
    before_max_ms: int,
    after_max_ms: int,
    allow_zstd: bool = True,
    topic_partition: TopicPartition | None = None,
    limit: int = MAX_DECOMPRESSED_BYTES,
) -> Header:
    """The header of the one batch in `buf`, or the error that its producer gets.

    `buf` may go on for a few bytes after the batch: only `header.size` bytes are to be appended.
    """
    header = _only_batch(buf, allow_zstd)
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a batch to append must be 0, it is {header.base_offset}")
    if header.batch_length + LOG_OVERHEAD > max_message_bytes:
        raise MessageTooLarge(
            f"the batch has {header.size} bytes, more than max.message.bytes ({max_message_bytes}) allows"
        )
    if not crc_is_valid(buf, 0, header):
        raise CorruptMessage(f"the batch is corrupt: its CRC-32C is not the stored {header.crc:#010x}")
    _check_fields(header)
    earliest, latest = now_ms - before_max_ms, now_ms + after_max_ms
    if compacted and type(buf) is not CheckedBatch:
        window = None if timestamp_type == LOG_APPEND_TIME else Window(earliest, latest)
        _check_records(header, records_section(buf, 0, header, limit=limit), window, topic_partition)
    elif (
        not compacted
        and timestamp_type != LOG_APPEND_TIME
        and not (earliest <= header.base_timestamp <= latest and earliest <= header.max_timestamp <= latest)
    ):
        _check_batch_times(buf, header, Window(earliest, latest), limit)
    return header


def is_heavy(buf: Buffer) -> bool:
    """Whether checking the records of this batch for a compacted topic takes long, by what its header claims."""
    if len(buf) < HEADER_SIZE or buf[MAGIC_POSITION] != MAGIC:
        return False
    count: int = _COUNT.unpack_from(buf, _COUNT_POSITION)[0]
    return count > HEAVY_RECORDS or (len(buf) > HEAVY_BYTES and buf[_CODEC_POSITION] & CODEC_MASK != Codec.NONE)


def _only_batch(buf: Buffer, allow_zstd: bool) -> Header:
    """The framing: exactly one complete batch of magic 2, in a codec that the request may use."""
    size = _batch_size(buf, 0)
    if size is None:
        raise NotOneBatch(f"exactly one record batch is needed, {len(buf)} bytes hold none")
    if buf[MAGIC_POSITION] != MAGIC:
        raise NotOneBatch(f"only record batches of magic 2 are accepted, this one has {buf[MAGIC_POSITION]}")
    if size < HEADER_SIZE:
        raise CorruptMessage(f"a record batch of {size} bytes is shorter than its header of {HEADER_SIZE}")
    header = read_header(buf)
    if not allow_zstd and header.codec == Codec.ZSTD:
        raise UnsupportedCompressionType("zstd needs Produce version 7 or above")
    if size < len(buf) and _batch_size(buf, size) is not None:
        raise NotOneBatch("exactly one record batch is needed, more than one was sent")
    return header


def _batch_size(buf: Buffer, position: int) -> int | None:
    """The size of the batch at `position`, None where no complete batch is; CorruptMessage for what cannot be one."""
    left = len(buf) - position
    if left < LOG_OVERHEAD:
        return None
    length: int = _LENGTH.unpack_from(buf, position + _LENGTH_POSITION)[0]
    if length < _SMALLEST_OLD_LENGTH:
        raise CorruptMessage(f"a batch length of {length} at byte {position} is less than any batch has")
    if left < _UP_TO_MAGIC:
        return None
    if buf[position + MAGIC_POSITION] > MAGIC:
        raise CorruptMessage(f"invalid magic {buf[position + MAGIC_POSITION]} at byte {position}: 2 is known")
    return length + LOG_OVERHEAD if length + LOG_OVERHEAD <= left else None


def _check_fields(header: Header) -> None:
    _, length, _, _, _, attributes, last_offset_delta, _, _, producer_id, _, base_sequence, count = header
    if attributes & CODEC_MASK > _LAST_CODEC:
        raise InvalidRecord(f"unknown compression codec {header.codec}: known are 0 (none) to 4 (zstd)")
    if count <= 0 or last_offset_delta + 1 != count:
        raise InvalidRecord(f"the batch declares {count} records and a last offset delta of {last_offset_delta}")
    if not attributes & CODEC_MASK and count * _SMALLEST_RECORD > length - _EMPTY_BATCH_LENGTH:
        raise InvalidRecord(f"the batch declares {count} records, more than its {header.size} bytes can hold")
    if attributes & CONTROL:
        raise InvalidRecord("control records are the broker's to write, not a client's")
    if producer_id >= 0:
        if base_sequence < 0:
            raise InvalidRecord(f"invalid sequence number {base_sequence} with producer id {producer_id}")
    elif attributes & TRANSACTIONAL:
        raise InvalidRecord(f"a transactional batch needs a producer id, this one has {producer_id}")


# -- times and records ------------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """The timestamps that a topic takes, both ends included; "no timestamp" is always taken."""

    earliest: int
    latest: int

    def refusal(self, timestamp: int, index: int) -> str | None:
        """Why the record at `index` is refused, None if it is not."""
        if self.earliest <= timestamp <= self.latest or timestamp == NO_TIMESTAMP:
            return None
        return (
            f"record {index} has the timestamp {timestamp}, outside of {self.earliest} to {self.latest} "
            "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        )


def _check_batch_times(buf: Buffer, header: Header, window: Window, limit: int) -> None:
    """The opaque check: base and max timestamp stand for those in between, which are not looked at.

    Only a batch that is refused is unpacked, so that its producer learns which records are at fault.
    """
    if window.refusal(header.base_timestamp, 0) is None and window.refusal(header.max_timestamp, 0) is None:
        return
    if header.count > MAX_RECORDS_EXPLAINED:
        raise _out_of_window(header)
    try:
        section = records_section(buf, 0, header, limit=min(limit, MAX_BYTES_EXPLAINED))
    except InvalidRecord:
        raise _out_of_window(header) from None
    refused = (
        (index, reason)
        for index, record in enumerate(consecutive_records(header, section))
        if (reason := window.refusal(record.timestamp, index)) is not None
    )
    errors = list(islice(refused, MAX_RECORD_ERRORS))
    if not errors:
        raise _out_of_window(header)
    _reject(errors, bad_time=True)


def _out_of_window(header: Header) -> TimestampsRejected:
    return TimestampsRejected(
        f"the batch has timestamps from {header.base_timestamp} to {header.max_timestamp}, outside of what "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
    )


def _check_records(
    header: Header, section: bytes, window: Window | None, topic_partition: TopicPartition | None
) -> None:
    where = "" if topic_partition is None else f" ({topic_partition})"
    keyless = f"a compacted topic takes no record without a key{where}"
    errors: RecordErrors = []
    bad_time = False
    for index, record in enumerate(consecutive_records(header, section)):
        if record.key is None:
            errors.append((index, keyless))
        elif window is not None and (reason := window.refusal(record.timestamp, index)):
            errors.append((index, reason))
            bad_time = True
        if len(errors) >= MAX_RECORD_ERRORS:
            break
    if errors:
        _reject(errors, bad_time=bad_time)


def consecutive_records(header: Header, section: bytes) -> Iterator[Record]:
    """The records of a batch that a client wrote: their offset deltas are 0, 1, 2, ..."""
    if header.count > MAX_RECORDS:
        raise InvalidRecord(f"the batch declares {header.count} records, at most {MAX_RECORDS} are unpacked")
    expected = header.base_offset
    for record in parse_records(header, section):
        if record.offset != expected:
            raise InvalidRecord(
                f"a record has the offset delta {record.offset - header.base_offset} where "
                f"{expected - header.base_offset} is due"
            )
        expected += 1
        yield record


def _reject(errors: RecordErrors, *, bad_time: bool) -> NoReturn:
    if bad_time:
        raise TimestampsRejected(f"{len(errors)} records have a timestamp that the topic does not take", tuple(errors))
    shown = ", ".join(f"{index}: {reason}" for index, reason in errors[:_SHOWN_ERRORS])
    raise InvalidRecord(f"{len(errors)} records were refused: {shown}", tuple(errors))


# -- recompression ----------------------------------------------------------------------------------------------------


def recompress(buf: Buffer, codec: Codec, *, level: int | None = None, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The batch at the start of `buf` with its records under another codec; all else stays, to the byte.

    For topics whose `compression.type` is not the producer's. The records are checked on the way: what is unpacked
    anyway is not stored damaged.
    """
    header = read_header(buf)
    section = records_section(buf, 0, header, limit=limit)
    for _ in consecutive_records(header, section):
        pass
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compress(codec, section, level=level))
