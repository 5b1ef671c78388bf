"""Requests that are well typed and senseless: Hypothesis over kio's schemas, with a taste for the ends of ranges."""

import datetime
import struct
import uuid
from functools import cache
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from fuzz import seeds
from oracle.batches import Record, batch, idempotent, old_message
from twofold.wire.apis import APIS
from twofold.wire.compile import FieldInfo, schema_fields
from twofold.wire.schema import schema_of

TOPICS = ("t", "compacted", "zstd", "__consumer_offsets", "__transaction_state", "__cluster_metadata")
GROUPS = ("g", "h")
OTHER_NAMES = ("", "nobody", "tx", "consumer", "range", "m-1", "i-1", ".", "..", "a/b", "ü\0", "x" * 249, "x" * 32767)
CONFIGS = ("cleanup.policy", "retention.ms", "compact", "delete", "1", "-1", "abc", "max.message.bytes")
NAMES = (*TOPICS, *GROUPS, *OTHER_NAMES, *CONFIGS)
FEATURES = ("transaction.version", "metadata.version", "group.version")
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TIMES = (0, 1, 100, 6_000, 2**31 - 1)
KNOWN_ID = uuid.UUID("00000000-0000-4000-8000-00000000beef")
"""Stands for the id of topic `t`, which is known only when the node runs."""


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A record batch in which a few fields lie."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from((b"", b"\0", bytes(61), old_message(0), old_message(1), batch(1) + batch(1))))
    if kind == 1:
        return draw(bombs())
    if kind == 2:
        return idempotent(draw(st.sampled_from((0, 1, 7, 2**63 - 1))), draw(st.sampled_from((0, 1, 5, 2**31 - 1))))
    lies = draw(st.lists(st.sampled_from(LIES), max_size=3, unique_by=lambda lie: lie[0]))
    fields = {name: draw(st.sampled_from(values)) for name, values in lies}
    whole = batch(
        [Record(key=draw(st.sampled_from((None, b"", b"k")))) for _ in range(draw(st.integers(1, 4)))], **fields
    )
    cut = draw(st.integers(0, 12))
    return whole[:-cut] if cut and kind == 3 else whole


NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 5, 2**31 - 1)
LONGS = (-(2**63), -2, -1, 0, 1, 7, 1_600_000_000_000, 2**62, 2**63 - 1)
LIES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("base_offset", LONGS),
    ("length", NUMBERS),
    ("leader_epoch", NUMBERS),
    ("magic", (-1, 0, 1, 2, 3, 127)),
    ("crc", (0, 2**32 - 1)),
    ("attributes", (1, 2, 3, 4, 5, 7, 8, 0x10, 0x20, 0x30, 0x40, -1, 0x7FFF)),
    ("last_offset_delta", NUMBERS),
    ("base_timestamp", LONGS),
    ("max_timestamp", LONGS),
    ("producer_id", LONGS),
    ("producer_epoch", (-(2**15), -1, 0, 1, 2**15 - 1)),
    ("base_sequence", NUMBERS),
    ("count", NUMBERS),
    ("payload", (b"", b"\0", b"\xff" * 40, b"\x0e\0\0\0\x01\x01\0", bytes(1000))),
)


@st.composite
def bombs(draw: st.DrawFn) -> bytes:
    """A small batch that unpacks, or claims to unpack, to very much."""
    codec = draw(st.integers(1, 4))
    count = draw(st.sampled_from((1, 1_000_000, 2**31 - 1)))
    return batch(1, attributes=codec, payload=bomb(codec), count=count, last_offset_delta=count - 1)


@cache
def bomb(codec: int, megabytes: int = 16) -> bytes:
    """Zeroes; of snappy and of single zstd frames a claim of 10 GB, which is cheaper than to make them."""
    import cramjam

    if codec == 1:
        return bytes(cramjam.gzip.compress(bytes(megabytes << 20)))
    if codec == 2:
        return b"\x80\xc8\xaf\xa0\x25" + b"\0" * 1000  # 10 GB, says the length in front
    if codec == 3:
        return bytes(cramjam.lz4.compress(bytes(megabytes << 20)))
    runs = b"".join(struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\0" for _ in range(80_000))  # 10 GB of runs
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + runs + b"\x01\0\0"


@cache
def entities(schema: type) -> st.SearchStrategy[Any]:
    return st.builds(schema, **{field.name: _field(field) for field in schema_fields(schema)})


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    one = _value(field)
    value = _array(one) if field.array else one
    if field.nullable and field.tag is None:
        return st.one_of(value, value, st.none())
    return st.one_of(st.just(field.default), value) if field.tag is not None else value


def _array(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(one, max_size=3).map(tuple)
    same = st.tuples(one, st.sampled_from((2, 2, 50))).map(lambda drawn: (drawn[0],) * drawn[1])
    return st.one_of(few, few, few, same)


def _value(field: FieldInfo) -> st.SearchStrategy[Any]:
    if field.entity is not None:
        return entities(field.entity)
    kind = field.kind
    if kind in BITS:
        highest = 2 ** BITS[kind] - 1
        edges = st.sampled_from((0, 0, 1, 1, -1, -2, 2, 5, highest, -highest - 1))
        return st.one_of(edges, edges, st.integers(-highest - 1, highest))
    if kind in ("uint16", "uint32"):
        return st.sampled_from((0, 1, 2 ** int(kind[4:]) - 1))
    return _other(field, kind)


def _other(field: FieldInfo, kind: str) -> st.SearchStrategy[Any]:
    match kind:
        case "float64":
            return st.sampled_from((0.0, -1.0, float("inf"), 5e-324))
        case "string":
            return st.sampled_from(_names_for(field.name))
        case "records":
            return batches()
        case "bytes":
            return st.one_of(st.binary(max_size=40), st.sampled_from((b"", b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff")))
        case "bool":
            return st.booleans()
        case "uuid":
            return st.sampled_from((KNOWN_ID, KNOWN_ID, uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)))
        case "error_code":
            return st.sampled_from(list(ErrorCode))
        case "datetime_i64":
            return st.just(datetime.datetime.fromtimestamp(0, datetime.UTC))
    return st.sampled_from(TIMES).map(lambda ms: datetime.timedelta(milliseconds=ms))


def _names_for(field: str) -> tuple[str, ...]:
    """What exists comes more often, or little more than refusals would be tried."""
    if "topic" in field:
        return TOPICS * 4 + OTHER_NAMES
    if "group" in field and "instance" not in field:
        return GROUPS * 6 + OTHER_NAMES
    if "transactional" in field:
        return ("tx",) * 12 + OTHER_NAMES
    if "feature" in field:
        return FEATURES * 4 + OTHER_NAMES
    return NAMES


@st.composite
def requests(draw: st.DrawFn, versions: tuple[tuple[int, int], ...] | None = None) -> tuple[int, int, Any]:
    """(API key, version, body): every version that is served is as likely as every other."""
    key, version = draw(st.sampled_from(versions or _every_version()))
    return key, version, draw(entities(schema_of(APIS[key].module, version, "request")))


@cache
def _every_version() -> tuple[tuple[int, int], ...]:
    return tuple(seeds.every_version())


client_ids = st.sampled_from((None, "", "f", "ü", "c" * 32767))
