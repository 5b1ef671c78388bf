"""From the batch that a client, a coordinator or a leader sent to the bytes that are stored.

What a client may send is checked before, in `records.client_batch_checks`; here a batch gets its place in the log.
"""

from collections.abc import Iterator
from typing import NamedTuple

from twofold.config.topic import LogConfig
from twofold.log.api import TransactionMarker
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET
from twofold.log.producers.table import Change
from twofold.records.batch import (
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    Buffer,
    Header,
    crc_is_valid,
    iter_headers,
    read_header,
    stamp,
)
from twofold.records.client_batch_checks import recompress
from twofold.records.compression import Codec
from twofold.records.control import (
    END_MARKER_ATTRIBUTES,
    END_MARKER_SIZE,
    EndMarker,
    end_transaction_marker,
    read_end_marker,
)
from twofold.types import NO_SEQUENCE
from twofold.wire.errors import CorruptMessage, InvalidRecord

_new_tuple = tuple.__new__

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class StoredBatch(NamedTuple):
    """A batch at a place of the bytes that are about to be written.

    `base_offset` counts, whatever the header says: a header is parsed once, before the batch has its offset.
    """

    at: int
    header: Header
    base_offset: int
    change: Change | None


def stored_bytes(records: Buffer, header: Header, config: LogConfig) -> tuple[bytearray | memoryview, Header]:
    """A client's batch to be stamped, under the codec that the topic wants.

    A caller that gives a writable view lets it be stamped in place: copying a batch of 1 MB costs as much as all the
    rest of an append.
    """
    if config.compression_type != "producer" and (codec := _CODECS[config.compression_type]) != header.codec:
        with memoryview(records) as view:
            data = bytearray(recompress(view[: header.size], codec, level=_level(config, codec)))
        return data, read_header(data)
    if type(records) is memoryview and not records.readonly:
        return records[: header.size], header
    if len(records) == header.batch_length + 12:
        return bytearray(records), header
    with memoryview(records) as view:
        return bytearray(view[: header.size]), header


def _level(config: LogConfig, codec: Codec) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level if config.compression_gzip_level != -1 else None
    if codec == Codec.ZSTD:
        return config.compression_zstd_level
    return None


def internal_batches(records: Buffer) -> list[tuple[int, Header]]:
    """The batches that the broker itself wrote: they must be complete, and their CRCs right."""
    batches = list(iter_headers(records))
    if not batches:
        raise InvalidRecord(f"{len(records)} bytes to append hold no batch")
    _check_complete(records, batches)
    return batches


def replicated_batches(
    records: Buffer, log_end_offset: int, latest_epoch: int, last_epoch: int | None
) -> list[tuple[int, Header]]:
    """The whole batches that a leader sent, up to the first of an epoch later than `last_epoch`: the leader of that
    epoch is not known here yet. Checked are CRCs, and that offsets and epochs go up."""
    batches = []
    expected = log_end_offset
    for at, header in iter_headers(records):
        if last_epoch is not None and header.leader_epoch > last_epoch:
            break
        if not crc_is_valid(records, at, header):
            raise CorruptMessage(f"the replicated batch at offset {header.base_offset} has a wrong CRC-32C")
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise CorruptMessage(f"a replicated batch begins at offset {header.base_offset}, {expected} is due")
        if header.leader_epoch < latest_epoch:
            raise CorruptMessage(
                f"the replicated batch at offset {header.base_offset} has leader epoch {header.leader_epoch}, the log "
                f"is at {latest_epoch}"
            )
        expected, latest_epoch = header.next_offset, header.leader_epoch
        batches.append((at, header))
    return batches


def pieces(
    batches: list[StoredBatch], end: int, log_end_offset: int, segment_bytes: int
) -> Iterator[tuple[int, int, list[StoredBatch]]]:
    """What is written at once: (from, to, batches). A segment takes a piece whole, so none is larger than one, in bytes
    or in offsets, unless it is a single batch."""
    start, first = 0, 0
    for at in range(1, len(batches) + 1):
        stop = batches[at].at if at < len(batches) else end
        if at < len(batches):
            after = batches[at + 1].at if at + 1 < len(batches) else end
            span = batches[at].header.last_offset - log_end_offset
            if after - start <= segment_bytes and span <= MAX_RELATIVE_OFFSET:
                continue
        yield start, stop, [batch._replace(at=batch.at - start) for batch in batches[first:at]]
        start, first, log_end_offset = stop, at, batches[at - 1].header.next_offset


def _check_complete(records: Buffer, batches: list[tuple[int, Header]]) -> None:
    at, last = batches[-1]
    if at + last.size != len(records):
        raise CorruptMessage(f"{len(records) - at - last.size} bytes follow the last batch to append")
    for at, header in batches:
        if not crc_is_valid(records, at, header):
            raise CorruptMessage(f"the batch at byte {at} has a wrong CRC-32C")


def marker_of(records: Buffer, at: int, header: Header) -> EndMarker | None:
    """The marker in a control batch of a producer; None for all other batches."""
    return read_end_marker(records, at) if header.is_control and header.producer_id >= 0 else None


def marker_batch(
    marker: TransactionMarker, offset: int, leader_epoch: int, now_ms: int, log_append_time: bool
) -> tuple[Header, bytes]:
    """A marker at its place: the header as far as a log looks at it, and the bytes."""
    producer_id, producer_epoch, coordinator_epoch, commit, _, _ = marker
    attributes = END_MARKER_ATTRIBUTES | LOG_APPEND_TIME if log_append_time else END_MARKER_ATTRIBUTES
    header = _new_tuple(
        Header,
        (
            offset,
            END_MARKER_SIZE - LOG_OVERHEAD,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            0,
            now_ms,
            now_ms,
            producer_id,
            producer_epoch,
            NO_SEQUENCE,
            1,
        ),
    )
    return header, end_transaction_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=now_ms,
        base_offset=offset,
        leader_epoch=leader_epoch,
        log_append_time=log_append_time,
    )


def stamp_batch(
    data: bytearray | memoryview,
    at: int,
    header: Header,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None,
) -> None:
    """Give a batch its place; with `append_time_ms` its records get that time, else they keep the producer's."""
    if append_time_ms is not None:
        stamp(
            data,
            at,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            max_timestamp=append_time_ms,
            log_append_time=True,
        )
    elif header.is_log_append_time:
        stamp(data, at, base_offset=base_offset, leader_epoch=leader_epoch, log_append_time=False)
    else:
        stamp(data, at, base_offset=base_offset, leader_epoch=leader_epoch)
