"""Fetched bytes as rows of Spark's schema."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from twofold.records.batch import Buffer, crc_is_valid, iter_records
from twofold.records.filtering import visible_batches
from twofold.types import TopicPartition
from twofold.wire.errors import CorruptMessage

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))


def decode(
    records: Buffer,
    tp: TopicPartition,
    start: int,
    until: int,
    aborted: Sequence[tuple[int, int]] | None,
    *,
    include_headers: bool,
    check_crcs: bool,
) -> pa.RecordBatch:
    """The rows from offset `start` up to, not including, `until` that a reader may see."""
    rows: list[tuple[Any, ...]] = []
    for position, header, visible in visible_batches(records, aborted):
        if not visible or header.last_offset < start or header.base_offset >= until:
            continue
        if check_crcs and not crc_is_valid(records, position, header):
            raise CorruptMessage(f"the batch at offset {header.base_offset} of {tp} does not match its CRC")
        kind = int(header.is_log_append_time)
        rows += [
            (record.key, record.value, record.offset, record.timestamp * 1000, kind, record.headers or None)
            for record in iter_records(records, position)
            if start <= record.offset < until
        ]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    keys, values, offsets, timestamps, kinds, headers = columns
    arrays = [keys, values, [tp.topic] * len(rows), [tp.partition] * len(rows), offsets, timestamps, kinds]
    schema = SCHEMA
    if include_headers:
        schema = SCHEMA_WITH_HEADERS
        arrays.append([entry and [_header(*pair) for pair in entry] for entry in headers])
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _header(key: str, value: bytes | None) -> dict[str, Any]:
    return {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
