"""What the members of a group of consumers tell each other: the bytes inside JoinGroup and SyncGroup.

A subscription has grown by appended fields (owned partitions, then the generation, then the rack), so that a reader of
an older version reads a newer one. We write version 3 and read any.
"""

import struct
from collections.abc import Iterable

from twofold.client.admin.group_model import CONSUMER_PROTOCOL_TYPE, read_assignment
from twofold.client.cluster.metadata import group_by_topic
from twofold.client.consumer.assignors.model import NO_GENERATION, SubscribedMember
from twofold.types import TopicPartition
from twofold.wire.errors import InconsistentGroupProtocol

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

SUBSCRIPTION_VERSION = 3
OWNED_SINCE, GENERATION_SINCE, RACK_SINCE = 1, 2, 3
ASSIGNMENT_VERSION = 3


def encode_subscription(
    topics: Iterable[str],
    *,
    user_data: bytes = b"",
    owned: Iterable[TopicPartition] = (),
    generation: int = NO_GENERATION,
    rack: str | None = None,
) -> bytes:
    names = sorted(topics)
    return b"".join(
        (
            struct.pack(">hi", SUBSCRIPTION_VERSION, len(names)),
            *(_string(name) for name in names),
            _bytes(user_data),
            _partitions(owned),
            struct.pack(">i", generation),
            struct.pack(">h", -1) if rack is None else _string(rack),
        )
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    return struct.pack(">h", ASSIGNMENT_VERSION) + _partitions(partitions) + _bytes(user_data)


def decode_subscription(member_id: str, instance_id: str | None, data: bytes) -> SubscribedMember:
    """InconsistentGroupProtocol names a member whose bytes have another form."""
    try:
        return _subscription(member_id, instance_id, _Reader(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise InconsistentGroupProtocol(f"the subscription of member {member_id!r} cannot be read: {error}") from None


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    partitions = read_assignment(data)
    if partitions is None:
        raise InconsistentGroupProtocol(
            f"the leader of the group sent an assignment of {len(data)} bytes that no consumer can read"
        )
    return partitions


def _subscription(member_id: str, instance_id: str | None, reader: "_Reader") -> SubscribedMember:
    version = reader.int16()
    topics = tuple(reader.string() or "" for _ in range(reader.int32()))
    user_data = reader.block() or b""
    owned: list[TopicPartition] = []
    generation, rack = NO_GENERATION, None
    if version >= OWNED_SINCE:
        for _ in range(reader.int32()):
            topic = reader.string() or ""
            owned += [TopicPartition(topic, reader.int32()) for _ in range(reader.int32())]
    if version >= GENERATION_SINCE:
        generation = reader.int32()
    if version >= RACK_SINCE:
        rack = reader.string()
    return SubscribedMember(member_id, instance_id, topics, tuple(owned), generation, rack, user_data)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", -1) if not data else struct.pack(">i", len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = group_by_topic(sorted(partitions))
    rows = (
        _string(topic) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes) for topic, indexes in topics.items()
    )
    return struct.pack(">i", len(topics)) + b"".join(rows)


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def block(self) -> bytes | None:
        size = self.int32()
        return None if size < 0 else self._take(size)

    def _number(self, form: str, size: int) -> int:
        (number,) = struct.unpack_from(form, self._data, self._position)
        self._position += size
        return int(number)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) < size:
            raise struct.error(f"{size - len(taken)} bytes are missing")
        self._position += size
        return taken
