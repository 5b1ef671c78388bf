"""What the tests of the columnar codec share; run as a script, decoding of damaged batches beside forbidden memory."""

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from twofold.records.batch import BatchBuilder, Record, iter_headers, iter_records, read_header, stamp
from twofold.records.columnar import Decoder
from twofold.records.columnar_arrays import HEADERS_TYPE, Backend
from twofold.records.columnar_compiled import Compiled
from twofold.records.columnar_loading import load
from twofold.records.columnar_plain import Plain
from twofold.records.compression import Codec
from twofold.wire.errors import CorruptMessage

BACKENDS: dict[str, Backend] = {"compiled": load(), "plain": Plain()}
assert isinstance(BACKENDS["compiled"], Compiled), "numba is missing or does not work here: the tests need it"
Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def arrow(rows: Sequence[Row]) -> dict[str, Any]:
    """The arguments of Columns; the columns are slices, as they often are."""
    headers = [[{"key": key, "value": value} for key, value in row[3]] or None for row in rows]
    columns = {
        "keys": pa.array([b"before", *(row[0] for row in rows), None], pa.binary()),
        "values": pa.array([None, *(row[1] for row in rows), b"after"], pa.binary()),
        "timestamps": pa.array([0, *(row[2] for row in rows), 0], pa.int64()),
        "headers": pa.array([[{"key": "before", "value": None}], *headers, []], HEADERS_TYPE),
    }
    return {name: column.slice(1, len(rows)) for name, column in columns.items()}


def one_by_one(rows: Sequence[Row], **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for key, value, timestamp, headers in rows:
        builder.add(key, value, timestamp, headers)
    return builder.build()


def in_log(*batches: bytes | bytearray, base_offset: int = 0) -> bytes:
    """Batches one after the other as a leader stores them."""
    log = bytearray()
    for batch in batches:
        copy = bytearray(batch)
        stamp(copy, 0, base_offset=base_offset, leader_epoch=4)
        base_offset += read_header(copy).last_offset_delta + 1
        log += copy
    return bytes(log)


def records_of(log: bytes) -> list[Record]:
    return [record for position, _ in iter_headers(log) for record in iter_records(log, position)]


def rows_of(decoded: Any) -> list[Record]:
    """Arrow rows as records; a timestamp is rounded down to the milliseconds that it was."""
    return [
        Record(
            offset,
            timestamp // 1000,
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for key, value, offset, timestamp, headers in zip(
            decoded["key"].to_pylist(),
            decoded["value"].to_pylist(),
            decoded["offset"].to_pylist(),
            decoded["timestamp"].view(pa.int64()).to_pylist(),
            decoded["headers"].to_pylist() if "headers" in decoded.schema.names else [None] * len(decoded),
            strict=True,
        )
    ]


def outcome(log: bytes | memoryview, backend: Backend, **options: Any) -> list[Any] | str:
    """All that decoding gives, or that it refuses."""
    decoder = Decoder("topic", 3, include_headers=True, check_crcs=False, backend=backend, chunk_bytes=200)
    try:
        return [(_as_lists(rows), next_offset) for rows, next_offset in decoder.decode(log, **options)]
    except CorruptMessage:
        return "corrupt"


def _as_lists(rows: Any) -> dict[str, list[Any]]:
    rows.validate(full=True)
    timestamps = rows["timestamp"].view(pa.int64())  # more than a datetime can say
    return {**rows.drop_columns("timestamp").to_pydict(), "timestamp": timestamps.to_pylist()}


def some_batch(random: random.Random, codec: Codec) -> bytes:
    def data() -> bytes | None:
        return None if random.random() < 0.2 else random.randbytes(random.choice((0, 1, 5, 70, 300)))

    rows: list[Row] = [
        (
            data(),
            data(),
            random.randrange(2**41),
            tuple((f"h{index}", data()) for index in range(random.randrange(3))),
        )
        for _ in range(random.randrange(1, 8))
    ]
    return in_log(one_by_one(rows, codec=codec), base_offset=random.randrange(1000))


def damaged(random: random.Random, log: bytes) -> bytes:
    """Some bytes changed, mostly after the header, and sometimes a few cut off or put in with the length corrected."""
    data = bytearray(log)
    for _ in range(random.choice((1, 1, 2, 5))):
        position = random.randrange(61, len(data)) if random.random() < 0.8 else random.randrange(17, 61)
        data[position] = random.choice((random.randrange(256), 0, 1, 0x7F, 0x80, 0xFF))
    if random.random() < 0.3:
        cut = random.randrange(61, len(data))
        data[cut : cut + random.randrange(4)] = random.randbytes(random.randrange(4))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return bytes(data)


def damaged_logs(seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for index in range(count):
        # Compressed bytes that were changed seldom decompress to anything: mostly plain ones.
        codec = Codec(index % 5) if index % 4 == 0 else Codec.NONE
        yield damaged(chance, some_batch(chance, codec))


def decode_beside_forbidden_memory(seed: int, count: int) -> None:
    """Each log ends where memory ends: one byte read after it kills the process."""
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 8 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + 7 * page), ctypes.c_size_t(page), 0) == 0
    view = memoryview(pages)
    decoder = Decoder("topic", 3, include_headers=True, check_crcs=False, backend=BACKENDS["compiled"])
    for log in damaged_logs(seed, count):
        view[7 * page - len(log) : 7 * page] = log
        with suppress(CorruptMessage):
            for _ in decoder.decode(view[7 * page - len(log) : 7 * page]):
                pass
    print("survived", count)


if __name__ == "__main__":
    decode_beside_forbidden_memory(int(sys.argv[1]), int(sys.argv[2]))
