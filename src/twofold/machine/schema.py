"""Kafka's message encoding for records that are kept in logs: a NamedTuple per record type and a table of its fields.

    class Topic(NamedTuple):
        name: str
        topic_id: UUID

    TOPIC = Schema(Topic, name=STRING, topic_id=UUID_)

The keywords are the fields in the order of the wire. A field may exist from some version on (`since`) or be tagged
(`tagged`); one that a version lacks is not written and reads as its default. All versions read into the same class.
Tuples, because a start replays a record for each of 100,000 partitions and because a process that starts in 0.3 s
cannot spend a tenth of that on making classes.

1. Bytes that do not hold what the version promises raise `MalformedRecord`, and nothing else does.
2. Tagged fields are written in the order of their tags, and only where they differ from their default; unknown tags
   are skipped.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from twofold.records.varint import encode_uvarint

T = TypeVar("T", bound=tuple[Any, ...])
Write: TypeAlias = Callable[[bytearray, Any], None]
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Step: TypeAlias = Callable[[bytes, int, list[Any]], int]

LAST_VERSION = 0x7FFF
ZERO_UUID = UUID(int=0)
_new_tuple = tuple.__new__


class MalformedRecord(ValueError):
    """A record's bytes are not what its type and version promise."""


class Kind(NamedTuple):
    """A wire type: how a value is appended to a buffer and read from one (value and the position after it)."""

    write: Write
    read: Read
    code: str = ""  # of `struct`, where the size is fixed
    since: int = 0
    tag: int | None = None


def since(version: int, kind: Kind) -> Kind:
    """A field that exists from `version` on."""
    return kind._replace(since=version)


def tagged(tag: int, kind: Kind, *, since: int = 0) -> Kind:
    """An optional field; it takes its default from the class."""
    return kind._replace(tag=tag, since=since)


def _fixed(code: str) -> Kind:
    layout = struct.Struct(">" + code)
    pack, unpack, size = layout.pack, layout.unpack_from, layout.size

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return unpack(data, position)[0], position + size

    return Kind(write, read, code)


BOOL, INT8, INT16, INT32, INT64 = map(_fixed, "?bhiq")
UINT16, FLOAT64 = map(_fixed, "Hd")


def _read_size(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of up to 32 bits."""
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRecord(f"a length at byte {position} is longer than 32 bits")


def _slice(data: bytes, position: int, size: int) -> bytes:
    found = data[position : position + size]
    if len(found) != size:
        raise MalformedRecord(f"{size} bytes are announced at byte {position} and {len(found)} are there")
    return found


def _null(position: int, nullable: bool) -> tuple[None, int]:
    if nullable:
        return None, position
    raise MalformedRecord(f"null at byte {position} where it is not allowed")


def _sized(to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any], *, nullable: bool) -> Kind:
    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            out.append(0)
            return
        encoded = to_bytes(value)
        out += encode_uvarint(len(encoded) + 1)
        out += encoded

    def read(data: bytes, position: int) -> tuple[Any, int]:
        size, position = _read_size(data, position)
        if size == 0:
            return _null(position, nullable)
        return from_bytes(_slice(data, position, size - 1)), position + size - 1

    return Kind(write, read)


STRING = _sized(str.encode, bytes.decode, nullable=False)
NULLABLE_STRING = _sized(str.encode, bytes.decode, nullable=True)
BYTES = _sized(bytes, bytes, nullable=False)


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    """The same few ids stand in every partition record, and making one costs more than the rest of the record."""
    return UUID(bytes=data)


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.int.to_bytes(16)


def _read_uuid(data: bytes, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(data):
        raise MalformedRecord(f"an id at byte {position} of {len(data)} is cut off")
    return _uuid(data[position:end]), end


UUID_ = Kind(_write_uuid, _read_uuid)


@lru_cache(maxsize=4096)
def _packed(code: str, numbers: tuple[Any, ...]) -> bytes:
    """A compact array of numbers: the same few stand in every partition record."""
    return encode_uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}{code}", *numbers)


@lru_cache(maxsize=4096)
def _unpacked(code: str, data: bytes) -> tuple[Any, ...]:
    """The numbers of an array; alike ones are one tuple."""
    return tuple(number for (number,) in struct.iter_unpack(">" + code, data))


def array(kind: Kind, *, nullable: bool = False) -> Kind:
    """A compact array, as a tuple."""
    write_item, read_item, code = kind.write, kind.read, kind.code
    width = struct.calcsize(">" + code) if code else 0

    def write(out: bytearray, value: Any) -> None:
        if not value:
            out.append(0 if value is None and nullable else 1)
        elif code:
            out += _packed(code, tuple(value))
        else:
            out += encode_uvarint(len(value) + 1)
            for item in value:
                write_item(out, item)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        count, position = _read_size(data, position)
        if count == 1:
            return (), position
        if count == 0:
            return _null(position, nullable)
        end = position + (count - 1) * (width or 1)
        if end > len(data):
            raise MalformedRecord(f"{count - 1} items are announced at byte {position} of {len(data)}")
        if code:
            return _unpacked(code, data[position:end]), end
        found = []
        for _ in range(count - 1):
            value, position = read_item(data, position)
            found.append(value)
        return tuple(found), position

    return Kind(write, read)


def nested(cls: type[tuple[Any, ...]], **fields: Kind) -> Kind:
    """A structure inside another one, the same in all versions."""
    schema = Schema(cls, **fields)

    def write(out: bytearray, value: Any) -> None:
        schema.write(out, value, LAST_VERSION)

    def read(data: bytes, position: int) -> tuple[Any, int]:
        return schema.read(data, position, LAST_VERSION)

    return Kind(write, read)


class _Plan(NamedTuple):
    """What one version reads and writes; fields are positions in the tuple."""

    steps: list[Step]
    untagged: list[tuple[int, Write]]
    tagged: dict[int, tuple[int, Kind]]


class Schema(Generic[T]):
    """Reads and writes one record type, any version, in the flexible encoding."""

    def __init__(self, cls: type[T], **fields: Kind) -> None:
        self.cls = cls
        names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        defaults: dict[str, Any] = cls._field_defaults  # type: ignore[attr-defined]
        if set(names) != set(fields):
            raise TypeError(f"{cls.__name__} has the fields {names}, its schema {tuple(fields)}")
        self._defaults = [defaults.get(name) for name in names]
        self._fields = [(names.index(name), kind) for name, kind in fields.items()]
        self._plans: dict[int, _Plan] = {}

    def _plan(self, version: int) -> _Plan:
        present = [(index, kind) for index, kind in self._fields if kind.since <= version]
        untagged = [(index, kind) for index, kind in present if kind.tag is None]
        by_tag = sorted((kind.tag, index, kind) for index, kind in present if kind.tag is not None)
        plan = _Plan(
            _steps(untagged),
            [(index, kind.write) for index, kind in untagged],
            {tag: (index, kind) for tag, index, kind in by_tag},
        )
        self._plans[version] = plan
        return plan

    def write(self, out: bytearray, value: T, version: int) -> None:
        plan = self._plans.get(version) or self._plan(version)
        for index, write in plan.untagged:
            write(out, value[index])
        present = [
            (tag, kind, value[index])
            for tag, (index, kind) in plan.tagged.items()
            if value[index] != self._defaults[index]
        ]
        out += encode_uvarint(len(present))
        for tag, kind, item in present:
            encoded = bytearray()
            kind.write(encoded, item)
            out += encode_uvarint(tag) + encode_uvarint(len(encoded)) + encoded

    def read(self, data: bytes, position: int, version: int) -> tuple[T, int]:
        plan = self._plans.get(version) or self._plan(version)
        values = self._defaults.copy()
        try:
            for step in plan.steps:
                position = step(data, position, values)
            count = data[position]
            if count:
                position = _read_tagged(data, position, plan.tagged, values)
            else:
                position += 1
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise MalformedRecord(f"{self.cls.__name__} version {version} breaks off: {error}") from None
        return _new_tuple(self.cls, values), position


def _read_tagged(data: bytes, position: int, tagged: dict[int, tuple[int, Kind]], values: list[Any]) -> int:
    count, position = _read_size(data, position)
    for _ in range(count):
        tag, position = _read_size(data, position)
        size, position = _read_size(data, position)
        content = _slice(data, position, size)
        position += size
        if tag in tagged:
            index, kind = tagged[tag]
            values[index], end = kind.read(content, 0)
            if end != size:
                raise MalformedRecord(f"tag {tag} claims {size} bytes and its value has {end}")
    return position


def _steps(fields: list[tuple[int, Kind]]) -> list[Step]:
    """One step per field, or per run of fields of fixed size."""
    steps: list[Step] = []
    run: list[tuple[int, Kind]] = []
    for index, kind in fields:
        if kind.code:
            run.append((index, kind))
            continue
        if run:
            steps.append(_fixed_step(run))
            run = []
        steps.append(_step(index, kind.read))
    if run:
        steps.append(_fixed_step(run))
    return steps


def _step(index: int, read: Read) -> Step:
    def step(data: bytes, position: int, values: list[Any]) -> int:
        values[index], position = read(data, position)
        return position

    return step


def _fixed_step(run: list[tuple[int, Kind]]) -> Step:
    indexes = [index for index, _ in run]
    layout = struct.Struct(">" + "".join(kind.code for _, kind in run))
    unpack, size = layout.unpack_from, layout.size

    def step(data: bytes, position: int, values: list[Any]) -> int:
        for index, value in zip(indexes, unpack(data, position), strict=True):
            values[index] = value
        return position + size

    return step
