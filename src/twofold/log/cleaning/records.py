"""What compaction keeps of a batch, and how it writes that.

1. A record that is kept keeps its bytes. Its deltas stay right because base offset and base timestamp of its batch
   stay; only where a delete horizon takes the place of the base timestamp are the time deltas written anew.
2. Keys are compared by themselves when short, by a digest of 16 bytes when not; the two cannot meet, because a key that
   stands for itself is shorter than a digest.
"""

from collections.abc import Iterator
from hashlib import blake2s
from itertools import islice

from twofold.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    Header,
    assemble,
    records_section,
)
from twofold.records.compression import Codec, compress
from twofold.records.spans import Span, iter_spans
from twofold.records.varint import ENCODED, decode_varint, encode_varint
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

DIGEST_SIZE = 16
ENTRY_BYTES = 224  # about what Python takes for a digest, an offset and their places in a dict and a set
LIVE_STEP = 10_000


def section_of(header: Header, buffer: bytes, at: int) -> bytes:
    """The records of a batch, uncompressed."""
    if header.attributes & CODEC_MASK:
        return records_section(buffer, at, header)
    return buffer[at + HEADER_SIZE : at + LOG_OVERHEAD + header.batch_length]


class OffsetMap:
    """The newest offset of each key between the first dirty offset and `end`, within a bound of memory."""

    __slots__ = ("end", "limit", "live", "offsets", "skipped", "start")

    def __init__(self, start: int, memory_bytes: float) -> None:
        self.offsets: dict[bytes, int] = {}
        self.live: set[int] = set()
        self.skipped: set[int] = set()
        self.limit = max(1, int(memory_bytes / ENTRY_BYTES))
        self.start = self.end = start

    def add(self, header: Header, section: bytes) -> bool:
        """Take a batch in; False when the bound was met inside of it, and `end` tells where."""
        offsets, limit, start = self.offsets, self.limit, self.start
        for span in iter_spans(header, section):
            key, offset = span.key, span.offset
            if key is None or offset < start:
                continue
            name = key if len(key) < DIGEST_SIZE else blake2s(key, digest_size=DIGEST_SIZE).digest()
            if len(offsets) >= limit and name not in offsets:
                self.end = offset
                return False
            offsets[name] = offset
        return True

    def skip(self, header: Header) -> bool:
        """Leave a batch of an aborted transaction out; False when the bound is met."""
        if len(self.skipped) >= self.limit:
            self.end = max(self.end, header.base_offset)
            return False
        self.skipped.add(header.base_offset)
        return True

    def seal(self) -> Iterator[None]:
        """No more keys: note which offsets are live, in steps that a thread can make without holding up others."""
        values = iter(self.offsets.values())
        while step := list(islice(values, LIVE_STEP)):
            self.live.update(step)
            yield

    def covers(self, header: Header) -> bool:
        """Whether all records of a batch went through the map, so that the live ones are known by their offsets."""
        if header.base_offset in self.skipped:
            return False
        return self.start <= header.base_offset and header.next_offset <= self.end

    def is_dead(self, header: Header) -> bool:
        """Whether none of the records of a batch that it covers is live; they need not be looked at."""
        return self.live.isdisjoint(range(header.base_offset, header.next_offset))

    def newest(self, key: bytes) -> int:
        """-1 for a key that is not in the map."""
        name = key if len(key) < DIGEST_SIZE else blake2s(key, digest_size=DIGEST_SIZE).digest()
        return self.offsets.get(name, -1)


def select(header: Header, section: bytes, offset_map: OffsetMap, now_ms: int) -> list[Span]:
    """The records that stay: the newest of each key, and tombstones until the batch's delete horizon."""
    drops_tombstones = header.has_delete_horizon and header.base_timestamp <= now_ms
    if offset_map.covers(header):
        live = offset_map.live
        return [
            span
            for span in iter_spans(header, section)
            if span.offset in live and not (span.is_tombstone and drops_tombstones)
        ]
    kept: list[Span] = []
    end, newest = offset_map.end, offset_map.newest
    for span in iter_spans(header, section):
        if span.offset < end:
            if span.key is None or span.offset < newest(span.key):
                continue
            if span.is_tombstone and drops_tombstones:
                continue
        kept.append(span)
    return kept


def rewrite(header: Header, section: bytes, kept: list[Span], horizon_ms: int | None) -> bytes:
    """The batch with only these records, under the same codec; with `horizon_ms` they may go from that time on.

    Base and last offset stay, and with them the sequence numbers.
    """
    base_timestamp, attributes = header.base_timestamp, header.attributes
    times = [base_timestamp + decode_varint(section, span.time_at, bits=64)[0] for span in kept]
    if horizon_ms is None:
        data = b"".join([section[span.start : span.end] for span in kept])
    else:
        data = b"".join([_retimed(section, span, time - horizon_ms) for span, time in zip(kept, times, strict=True)])
        base_timestamp, attributes = horizon_ms, attributes | DELETE_HORIZON
    codec = header.codec
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if header.is_log_append_time else max(times),
        count=len(kept),
    )
    return assemble(changed, data if codec == Codec.NONE else compress(codec, data))


def _retimed(section: bytes, span: Span, delta: int) -> bytes:
    _, after = decode_varint(section, span.time_at, bits=64)
    time = ENCODED[delta] if 0 <= delta < len(ENCODED) else encode_varint(delta)
    body = section[span.time_at - 1 : span.time_at] + time + section[after : span.end]
    return encode_varint(len(body)) + body


def placeholder(header: Header) -> bytes:
    """A batch that has the offsets of another one and says nothing else: no records, no producer, no transaction."""
    no_producer = header._replace(
        attributes=header.attributes & LOG_APPEND_TIME,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )
    return emptied(no_producer)


def emptied(header: Header) -> bytes:
    """The header of a batch without its records, for what it says about its producer and about offsets."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    changed = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD, attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0
    )
    return assemble(changed, b"")
