"""What members of the classic protocol carry inside their requests: subscriptions and assignments of type "consumer".

Versions 0 to 3: owned partitions come with 1, a generation with 2, a rack with 3. A newer version is read as 3.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from twofold.coordinator.group.consumer.records import Partitions
from twofold.coordinator.group.consumer.surroundings import GroupSurroundings

NEWEST = 3


class MalformedEmbedded(ValueError):
    """The bytes are no subscription or assignment."""


class ClassicSubscription(NamedTuple):
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None = None


class ClassicAssignment(NamedTuple):
    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes = b""


class _Reader:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(">" + code, self._data, self._at)
        self._at += struct.calcsize(">" + code)
        return int(value)

    def count(self) -> int:
        count = self.number("i")
        if count < 0 or count > len(self._data):
            raise MalformedEmbedded(f"{count} entries in {len(self._data)} bytes")
        return count

    def taken(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise MalformedEmbedded(f"{size} bytes are announced and {len(found)} are there")
        self._at += size
        return found

    def text(self) -> str:
        return self.taken(self.number("h")).decode()

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count()):
            topic = self.text()
            indexes = tuple(self.number("i") for _ in range(self.count()))
            found[topic] = (*found.get(topic, ()), *indexes)
        return found


def version_of(data: bytes) -> int:
    try:
        version = int(struct.unpack_from(">h", data)[0])
    except struct.error as error:
        raise MalformedEmbedded(str(error)) from None
    if version < 0:
        raise MalformedEmbedded(f"version {version}")
    return min(version, NEWEST)


def read_subscription(data: bytes) -> ClassicSubscription:
    version = version_of(data)
    reader = _Reader(data)
    try:
        reader.number("h")
        topics = tuple(sorted({reader.text() for _ in range(reader.count())}))
        size = reader.number("i")
        if size > 0:
            reader.taken(size)
        owned = reader.partitions() if version >= 1 else {}
        if version >= 2:
            reader.number("i")
        rack_size = reader.number("h") if version >= 3 else -1
        rack = reader.taken(rack_size).decode() if rack_size >= 0 else None
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedEmbedded(str(error)) from None
    return ClassicSubscription(topics, owned, rack)


def read_assignment(data: bytes) -> ClassicAssignment:
    if not data:
        return ClassicAssignment({})
    version_of(data)
    reader = _Reader(data)
    try:
        reader.number("h")
        partitions = reader.partitions()
        size = reader.number("i")
        return ClassicAssignment(partitions, reader.taken(size) if size > 0 else b"")
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedEmbedded(str(error)) from None


def write_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    out = bytearray(struct.pack(">hi", version, len(partitions)))
    for topic in sorted(partitions):
        raw, indexes = topic.encode(), sorted(partitions[topic])
        out += struct.pack(">h", len(raw)) + raw + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out + struct.pack(">i", -1))


def by_name(partitions: Mapping[UUID, Iterable[int]], cluster: GroupSurroundings) -> dict[str, Iterable[int]]:
    """Without topics that are gone."""
    named = {cluster.topic_name(topic_id): found for topic_id, found in partitions.items()}
    return {name: found for name, found in named.items() if name is not None}


def by_id(partitions: Mapping[str, tuple[int, ...]], cluster: GroupSurroundings) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for name, indexes in partitions.items():
        topic = cluster.topic(name)
        if topic is not None:
            found[topic.topic_id] = frozenset(indexes)
    return found
