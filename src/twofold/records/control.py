"""Control records: the markers that end transactions, and the kinds that the metadata log adds.

The key of a control record is two int16: version and type. A reader takes any version from 0 and ignores what follows
the fields it knows. A control batch holds one record, occupies an offset and is never handed to an application.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from twofold.records.batch import BatchBuilder, Buffer, iter_records, read_header
from twofold.wire.errors import InvalidRecord

CONTROL_RECORD_VERSION = 0
END_MARKER_SIZE = 78

_KEY = struct.Struct(">hh")
_END_MARKER_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndMarker(NamedTuple):
    control_type: ControlType
    coordinator_epoch: int

    @property
    def commit(self) -> bool:
        return self.control_type is ControlType.COMMIT


def control_key(control_type: ControlType) -> bytes:
    """The key of a control record of this type."""
    return _KEY.pack(CONTROL_RECORD_VERSION, control_type)


def parse_control_key(key: bytes | None) -> ControlType | None:
    """The type that a control record's key names; None for one that this version does not know (to be skipped)."""
    if key is None or len(key) < _KEY.size:
        raise InvalidRecord(
            f"the key of a control record has {0 if key is None else len(key)} bytes, at least 4 are needed"
        )
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecord(f"the key of a control record has the version {version}")
    return _BY_NUMBER.get(number)


def end_transaction_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The batch that commits or aborts a producer's transaction in one partition."""
    builder = BatchBuilder(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    key = control_key(ControlType.COMMIT if commit else ControlType.ABORT)
    builder.add(key, _END_MARKER_VALUE.pack(CONTROL_RECORD_VERSION, coordinator_epoch), timestamp_ms)
    return builder.build()


def read_control_type(buf: Buffer, position: int = 0) -> ControlType | None:
    """The type of the control batch at `position`; None when unknown, or when compaction left the batch empty."""
    if not read_header(buf, position).is_control:
        raise InvalidRecord(f"the batch at position {position} is not a control batch")
    for record in iter_records(buf, position):
        return parse_control_key(record.key)
    return None


def read_end_marker(buf: Buffer, position: int = 0) -> EndMarker | None:
    """The marker in the control batch at `position`; None when it is of another type or empty."""
    if not read_header(buf, position).is_control:
        raise InvalidRecord(f"the batch at position {position} is not a control batch")
    for record in iter_records(buf, position):
        control_type = parse_control_key(record.key)
        if control_type is not ControlType.ABORT and control_type is not ControlType.COMMIT:
            return None
        return EndMarker(control_type, _coordinator_epoch(record.value))
    return None


def _coordinator_epoch(value: bytes | None) -> int:
    if value is None or len(value) < _END_MARKER_VALUE.size:
        raise InvalidRecord(
            f"the value of a marker has {0 if value is None else len(value)} bytes, at least 6 are needed"
        )
    version, epoch = _END_MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise InvalidRecord(f"the value of a marker has the version {version}")
    return int(epoch)


_BY_NUMBER = {control_type.value: control_type for control_type in ControlType}
