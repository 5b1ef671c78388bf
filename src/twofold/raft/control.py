"""The batch that opens an epoch: who leads it, and in the very first one also who may vote."""

import struct
from uuid import UUID

from twofold.records.batch import BatchBuilder
from twofold.records.control import ControlType, control_key
from twofold.records.varint import encode_uvarint

KRAFT_VERSION = 1  # voters are named by id and directory, and can be changed without a restart
_NO_TAGS = b"\x00"
_RECORD_VERSION = struct.pack(">h", 0)


def leader_change_batch(leader_id: int, directory_id: UUID, *, first: bool, timestamp_ms: int) -> bytes:
    """The control batch of an epoch whose only voter is its leader."""
    builder = BatchBuilder(control=True)
    builder.add(control_key(ControlType.LEADER_CHANGE), _leader_change(leader_id), timestamp_ms)
    if first:
        version = _RECORD_VERSION + struct.pack(">h", KRAFT_VERSION) + _NO_TAGS
        builder.add(control_key(ControlType.KRAFT_VERSION), version, timestamp_ms)
        builder.add(control_key(ControlType.KRAFT_VOTERS), _voters(leader_id, directory_id), timestamp_ms)
    return builder.build()


def _array(items: list[bytes]) -> bytes:
    return encode_uvarint(len(items) + 1) + b"".join(items)


def _leader_change(leader_id: int) -> bytes:
    voter = struct.pack(">i", leader_id) + _NO_TAGS
    return _RECORD_VERSION + struct.pack(">i", leader_id) + _array([voter]) + _array([voter]) + _NO_TAGS


def _voters(voter_id: int, directory_id: UUID) -> bytes:
    supported = struct.pack(">hh", 0, KRAFT_VERSION) + _NO_TAGS
    # No end points: the voters' listener comes with the second voter.
    voter = struct.pack(">i", voter_id) + directory_id.bytes + _array([]) + supported + _NO_TAGS
    return _RECORD_VERSION + _array([voter]) + _NO_TAGS
