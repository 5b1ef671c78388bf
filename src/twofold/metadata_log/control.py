"""The control records of the metadata log and its snapshots: the leader, the voters, where a snapshot begins and ends.

Their values are Kafka's messages in the flexible encoding, each beginning with its own version. What follows the fields
of version 0 (tagged fields, fields of a later version) is ignored when reading.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from twofold.records.batch import BatchBuilder
from twofold.records.control import ControlType, control_key
from twofold.records.varint import decode_uvarint, encode_uvarint
from twofold.wire.errors import InvalidRecord

KRAFT_VERSION = 1  # voters are named by id and directory, and can be changed without a restart
STATIC_VOTERS = 0  # the kraft.version of a log that says nothing: voters are in controller.quorum.voters
_NO_TAGS = b"\x00"
_RECORD_VERSION = struct.pack(">h", 0)


class VoterEndPoint(NamedTuple):
    """Where a voter listens for the other voters."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A node with a vote. The same node with another directory is another voter."""

    voter_id: int
    directory_id: UUID
    end_points: tuple[VoterEndPoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = KRAFT_VERSION


def leader_change_batch(leader_id: int, voters: Sequence[Voter], *, first: bool, timestamp_ms: int) -> bytes:
    """The control batch of an epoch; the very first one of a log also names the voters."""
    builder = BatchBuilder(control=True)
    voter_ids = [voter.voter_id for voter in voters]
    builder.add(control_key(ControlType.LEADER_CHANGE), _leader_change(leader_id, voter_ids), timestamp_ms)
    if first:
        add_voters(builder, KRAFT_VERSION, voters, timestamp_ms)
    return builder.build()


def add_voters(builder: BatchBuilder, kraft_version: int, voters: Iterable[Voter], timestamp_ms: int) -> None:
    """Add the two records that name the voters of a log or a snapshot."""
    builder.add(control_key(ControlType.KRAFT_VERSION), encode_kraft_version(kraft_version), timestamp_ms)
    builder.add(control_key(ControlType.KRAFT_VOTERS), encode_voters(voters), timestamp_ms)


def encode_kraft_version(kraft_version: int) -> bytes:
    return _RECORD_VERSION + struct.pack(">h", kraft_version) + _NO_TAGS


def decode_kraft_version(value: bytes | None) -> int:
    return _Reader(value, "KRaftVersion").int16()


def encode_snapshot_header(last_contained_timestamp_ms: int) -> bytes:
    return _RECORD_VERSION + struct.pack(">q", last_contained_timestamp_ms) + _NO_TAGS


def decode_snapshot_header(value: bytes | None) -> int:
    """The time of the last record that the snapshot stands for."""
    return _Reader(value, "SnapshotHeader").int64()


def encode_snapshot_footer() -> bytes:
    return _RECORD_VERSION + _NO_TAGS


def encode_voters(voters: Iterable[Voter]) -> bytes:
    return _RECORD_VERSION + _array([_voter(voter) for voter in voters]) + _NO_TAGS


def decode_voters(value: bytes | None) -> tuple[Voter, ...]:
    reader = _Reader(value, "Voters")
    return tuple(_read_voter(reader) for _ in range(reader.count()))


def _array(items: list[bytes]) -> bytes:
    return encode_uvarint(len(items) + 1) + b"".join(items)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return encode_uvarint(len(encoded) + 1) + encoded


def _leader_change(leader_id: int, voter_ids: Sequence[int]) -> bytes:
    voters = _array([struct.pack(">i", voter_id) + _NO_TAGS for voter_id in voter_ids])
    granting = _array([struct.pack(">i", leader_id) + _NO_TAGS])
    return _RECORD_VERSION + struct.pack(">i", leader_id) + voters + granting + _NO_TAGS


def _voter(voter: Voter) -> bytes:
    end_points = [
        _string(at.name) + _string(at.host) + struct.pack(">H", at.port) + _NO_TAGS for at in voter.end_points
    ]
    supported = struct.pack(">hh", voter.min_kraft_version, voter.max_kraft_version) + _NO_TAGS
    return struct.pack(">i", voter.voter_id) + voter.directory_id.bytes + _array(end_points) + supported + _NO_TAGS


def _read_voter(reader: "_Reader") -> Voter:
    voter_id = reader.int32()
    directory_id = UUID(bytes=reader.take(16))
    end_points = tuple(_read_end_point(reader) for _ in range(reader.count()))
    low, high = reader.int16(), reader.int16()
    reader.skip_tags()
    reader.skip_tags()
    return Voter(voter_id, directory_id, end_points, low, high)


def _read_end_point(reader: "_Reader") -> VoterEndPoint:
    name, host = reader.string(), reader.string()
    port = int.from_bytes(reader.take(2))
    reader.skip_tags()
    return VoterEndPoint(name, host, port)


class _Reader:
    """A position in a control record's value; InvalidRecord where the bytes run out."""

    __slots__ = ("_at", "_data", "_name")

    def __init__(self, value: bytes | None, name: str) -> None:
        self._data = value or b""
        self._name = name
        self._at = 0
        self.int16()  # the record's own version: fields are only ever added behind

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise InvalidRecord(f"a {self._name} record of {len(self._data)} bytes breaks off at {self._at}")
        self._at += size
        return found

    def _signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def int16(self) -> int:
        return self._signed(2)

    def int32(self) -> int:
        return self._signed(4)

    def int64(self) -> int:
        return self._signed(8)

    def _unsigned(self) -> int:
        try:
            value, self._at = decode_uvarint(self._data, self._at)
        except IndexError:
            raise InvalidRecord(f"a {self._name} record of {len(self._data)} bytes breaks off at {self._at}") from None
        return value

    def count(self) -> int:
        count = self._unsigned() - 1
        if not 0 <= count <= len(self._data):
            raise InvalidRecord(f"a {self._name} record of {len(self._data)} bytes announces {count} items")
        return count

    def string(self) -> str:
        return self.take(self.count()).decode(errors="replace")

    def skip_tags(self) -> None:
        for _ in range(self._unsigned()):
            self._unsigned()
            self.take(self._unsigned())
