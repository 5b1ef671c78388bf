"""The records of the metadata log: what they hold and how they are framed.

1. A frame is the frame version (1), the record type and its version as unsigned varints, then the record.
2. What is written has the versions that Apache Kafka writes at the metadata.version that holds, so that its tools, and
   software that knows no newer level, read our log. What is read may have any version that Kafka knows.
3. What a level cannot carry is left out or refused (`levels.py`), and is not in the image either: an image is the same
   before and after it was read back.
4. A record that this software does not know stops the start, unless the image without it is the same: skipping the
   rest would silently forget a decision.
"""

import logging
import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from twofold.controller.kept_records import KEPT, DelegationToken, RemoveDelegationToken
from twofold.controller.levels import (
    CORDONED_LOG_DIRECTORIES,
    DELEGATION_TOKENS,
    ELIGIBLE_LEADER_REPLICAS,
    LOG_DIRECTORIES,
    METADATA_VERSION,
    NEWEST,
    OLDEST,
    SCRAM_CREDENTIALS,
    TRANSACTIONS,
    ZOOKEEPER_MIGRATION,
    describe,
)
from twofold.controller.quota_records import QUOTAS, ClientQuota
from twofold.controller.security.records import (
    SECURITY,
    AccessControlEntry,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    UserScramCredential,
)
from twofold.machine.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID_,
    MalformedRecord,
    Schema,
    array,
    nested,
    since,
    tagged,
)
from twofold.records.varint import decode_uvarint
from twofold.wire.errors import InvalidRecord, UnsupportedVersion

FRAME_VERSION = 1
NO_LEADER = -1
LEADER_UNCHANGED = -2
STATE_UNCHANGED = -1
RECOVERED = 0

log = logging.getLogger(__name__)


class EndPoint(NamedTuple):
    """Where a broker listens."""

    name: str
    host: str
    port: int
    security_protocol: int


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker can work with."""

    name: str
    min_supported_version: int
    max_supported_version: int


class RegisterBroker(NamedTuple):
    """A broker introduced itself, or came back as another incarnation."""

    broker_id: int
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[EndPoint, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] = ()
    is_migrating_zk_broker: bool = False


class UnregisterBroker(NamedTuple):
    """A broker left for good."""

    broker_id: int
    broker_epoch: int


class Topic(NamedTuple):
    """A topic exists; its partitions follow as records of their own."""

    name: str
    topic_id: UUID


class Partition(NamedTuple):
    """A partition and everything about it."""

    partition_id: int
    topic_id: UUID
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


class Config(NamedTuple):
    """One configuration of a resource; a null value takes it away."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class PartitionChange(NamedTuple):
    """What changed in a partition; what is not given stays."""

    partition_id: int
    topic_id: UUID
    isr: tuple[int, ...] | None = None
    leader: int = LEADER_UNCHANGED
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = STATE_UNCHANGED
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    directories: tuple[UUID, ...] | None = None


class RemoveTopic(NamedTuple):
    """A topic, its partitions and its configurations are gone."""

    topic_id: UUID


class FeatureLevel(NamedTuple):
    """The level at which a feature is finalized; 0 switches it off."""

    name: str
    feature_level: int


class ProducerIds(NamedTuple):
    """A block of producer ids was given to a broker; the next one starts at `next_producer_id`."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class BrokerRegistrationChange(NamedTuple):
    """What changed in a registration; -1 and 1 answer no and yes, 0 leaves it as it is."""

    broker_id: int
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0
    log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] | None = None


class NoOp(NamedTuple):
    """Nothing; it shows that the controller is alive."""


class BeginTransaction(NamedTuple):
    """What follows counts only once the transaction ends."""

    name: str | None = None


class EndTransaction(NamedTuple):
    """Everything since the beginning of the transaction counts, at once."""


class AbortTransaction(NamedTuple):
    """Nothing since the beginning of the transaction ever counts."""

    reason: str | None = None


class ClearElr(NamedTuple):
    """The eligible leader replicas of a topic, or of all where it has no name, count no longer."""

    topic_name: str


MetadataRecord: TypeAlias = (
    RegisterBroker
    | UnregisterBroker
    | Topic
    | Partition
    | Config
    | PartitionChange
    | RemoveTopic
    | FeatureLevel
    | ProducerIds
    | BrokerRegistrationChange
    | NoOp
    | BeginTransaction
    | EndTransaction
    | AbortTransaction
    | ClearElr
    | AccessControlEntry
    | RemoveAccessControlEntry
    | UserScramCredential
    | RemoveUserScramCredential
    | DelegationToken
    | RemoveDelegationToken
    | ClientQuota
)


class RecordType(NamedTuple):
    """A row of the table: the number of a record type, its wire form, the versions that are known."""

    key: int
    max_version: int
    schema: Schema[Any]
    version_for: Callable[[Any, int], int]  # of a record that a level can carry


def _row(
    key: int, cls: type[Any], version: int, version_for: Callable[[Any, int], int] | None = None, **fields: Any
) -> RecordType:
    return RecordType(key, version, Schema(cls, **fields), version_for or (lambda record, level: version))


def _by_level(*since: int) -> Callable[[Any, int], int]:
    """The versions of a type whose version n is written from the n-th level on."""
    versions = [sum(level >= first for first in since) - 1 for level in range(NEWEST + 1)]
    return lambda record, level: versions[level]


def _registration_change_version(record: BrokerRegistrationChange, level: int) -> int:
    """The lowest that can carry the change, as Kafka chooses."""
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


_INTS, _IDS = array(INT32), array(UUID_)
_MAYBE_INTS, _MAYBE_IDS = array(INT32, nullable=True), array(UUID_, nullable=True)
_END_POINT = nested(EndPoint, name=STRING, host=STRING, port=UINT16, security_protocol=INT16)
_FEATURE = nested(FeatureRange, name=STRING, min_supported_version=INT16, max_supported_version=INT16)

_ROWS = (
    _row(
        0, RegisterBroker, 4, _by_level(0, OLDEST, ZOOKEEPER_MIGRATION, LOG_DIRECTORIES, CORDONED_LOG_DIRECTORIES),
        broker_id=INT32, is_migrating_zk_broker=since(2, BOOL), incarnation_id=UUID_, broker_epoch=INT64,
        end_points=array(_END_POINT), features=array(_FEATURE), rack=NULLABLE_STRING, fenced=BOOL,
        in_controlled_shutdown=since(1, BOOL), log_dirs=tagged(0, _IDS, since=3),
        cordoned_log_dirs=tagged(1, _IDS, since=4),
    ),
    _row(1, UnregisterBroker, 0, broker_id=INT32, broker_epoch=INT64),
    _row(2, Topic, 0, name=STRING, topic_id=UUID_),
    _row(
        3, Partition, 2, _by_level(OLDEST, LOG_DIRECTORIES, ELIGIBLE_LEADER_REPLICAS),
        partition_id=INT32, topic_id=UUID_, replicas=_INTS, isr=_INTS, removing_replicas=_INTS, adding_replicas=_INTS,
        leader=INT32, leader_recovery_state=tagged(0, INT8), leader_epoch=INT32, partition_epoch=INT32,
        directories=since(1, _IDS), eligible_leader_replicas=tagged(1, _MAYBE_INTS, since=2),
        last_known_elr=tagged(2, _MAYBE_INTS, since=2),
    ),
    _row(4, Config, 0, resource_type=INT8, resource_name=STRING, name=STRING, value=NULLABLE_STRING),
    _row(
        5, PartitionChange, 2, _by_level(OLDEST, LOG_DIRECTORIES, ELIGIBLE_LEADER_REPLICAS),
        partition_id=INT32, topic_id=UUID_, isr=tagged(0, _MAYBE_INTS), leader=tagged(1, INT32),
        replicas=tagged(2, _MAYBE_INTS), removing_replicas=tagged(3, _MAYBE_INTS),
        adding_replicas=tagged(4, _MAYBE_INTS), leader_recovery_state=tagged(5, INT8),
        eligible_leader_replicas=tagged(6, _MAYBE_INTS, since=2), last_known_elr=tagged(7, _MAYBE_INTS, since=2),
        directories=tagged(8, _MAYBE_IDS, since=1),
    ),
    _row(9, RemoveTopic, 0, topic_id=UUID_),
    _row(12, FeatureLevel, 0, name=STRING, feature_level=INT16),
    _row(15, ProducerIds, 0, broker_id=INT32, broker_epoch=INT64, next_producer_id=INT64),
    _row(
        17, BrokerRegistrationChange, 3, _registration_change_version,
        broker_id=INT32, broker_epoch=INT64, fenced=tagged(0, INT8), in_controlled_shutdown=tagged(1, INT8, since=1),
        log_dirs=tagged(2, _IDS, since=2), cordoned_log_dirs=tagged(3, _MAYBE_IDS, since=3),
    ),
    _row(20, NoOp, 0),
    _row(23, BeginTransaction, 0, name=tagged(0, NULLABLE_STRING)),
    _row(24, EndTransaction, 0),
    _row(25, AbortTransaction, 0, reason=tagged(0, NULLABLE_STRING)),
    _row(28, ClearElr, 0, topic_name=STRING),
    *(
        RecordType(key, 0, Schema(cls, **fields), lambda record, level: 0)
        for key, cls, fields in (*KEPT, *SECURITY, *QUOTAS)
    ),
)  # fmt: skip
# Records of neighbouring partitions differ only in the number of the partition, which comes first in both types: so one
# of them is read and written for all.
_NUMBER_AT, _NUMBER_END = 3, 7
_pack_number = struct.Struct(">i").pack
_new_record = tuple.__new__

_BY_KEY = {row.key: row for row in _ROWS}
_BY_CLASS: dict[type, RecordType] = {row.schema.cls: row for row in _ROWS}

# Without consequence for the image: the state of a migration that cannot happen here, and where controllers listen.
_IGNORABLE = {21: "ZkMigrationState", 27: "RegisterController", 29: "UnregisterController"}
_KNOWN_ELSEWHERE = {7: "FenceBroker", 8: "UnfenceBroker"}  # of releases before 3.3


class FieldSince(NamedTuple):
    """A field that a record has from a level on."""

    name: str
    level: int
    is_harmless: bool  # to leave it out where the level does not have it, whatever it says
    default: Any


def _since(cls: type[Any], **levels: int) -> tuple[FieldSince, ...]:
    return tuple(
        FieldSince(name, level, level == LOG_DIRECTORIES, cls._field_defaults[name]) for name, level in levels.items()
    )


_TYPES_SINCE: dict[type, int] = {
    BeginTransaction: TRANSACTIONS,
    EndTransaction: TRANSACTIONS,
    AbortTransaction: TRANSACTIONS,
    ClearElr: ELIGIBLE_LEADER_REPLICAS,
    UserScramCredential: SCRAM_CREDENTIALS,
    RemoveUserScramCredential: SCRAM_CREDENTIALS,
    DelegationToken: DELEGATION_TOKENS,
    RemoveDelegationToken: DELEGATION_TOKENS,
}
_ELR = {"eligible_leader_replicas": ELIGIBLE_LEADER_REPLICAS, "last_known_elr": ELIGIBLE_LEADER_REPLICAS}
_DIRS = {"log_dirs": LOG_DIRECTORIES, "cordoned_log_dirs": CORDONED_LOG_DIRECTORIES}
_FIELDS_SINCE: dict[type, tuple[FieldSince, ...]] = {
    RegisterBroker: _since(RegisterBroker, is_migrating_zk_broker=ZOOKEEPER_MIGRATION, **_DIRS),
    BrokerRegistrationChange: _since(BrokerRegistrationChange, **_DIRS),
    Partition: _since(Partition, directories=LOG_DIRECTORIES, **_ELR),
    PartitionChange: _since(PartitionChange, directories=LOG_DIRECTORIES, **_ELR),
}


@cache
def _fields_above(metadata_version: int) -> dict[type, tuple[FieldSince, ...]]:
    """By record type, the fields that a level does not have yet."""
    above = {
        cls: tuple(field for field in fields if metadata_version < field.level) for cls, fields in _FIELDS_SINCE.items()
    }
    return {cls: fields for cls, fields in above.items() if fields}


class UnsupportedRecord(Exception):
    """The log holds something that this software can neither apply nor ignore."""


def fitted(record: MetadataRecord, metadata_version: int) -> MetadataRecord:
    """The record as it is read back at a level: without the fields that the level does not have."""
    for field in _fields_above(metadata_version).get(type(record), ()):
        if getattr(record, field.name) != field.default:
            record = record._replace(**{field.name: field.default})
    return record


def encode(record: MetadataRecord, metadata_version: int = NEWEST) -> bytes:
    """The record in a frame, in the version of the level; UnsupportedVersion for what cannot be written at it."""
    cls = type(record)
    row = _BY_CLASS[cls]
    if metadata_version < NEWEST:
        _check_writable(record, metadata_version)
        record = fitted(record, metadata_version)
    version = row.version_for(record, metadata_version)
    out = bytearray((FRAME_VERSION, row.key, version))  # all below 128, where a varint is the byte itself
    row.schema.write(out, record, version)
    return bytes(out)


def encode_all(records: Iterable[MetadataRecord], metadata_version: int) -> list[bytes]:
    """The records in frames, beginning at a level; one that is set on the way holds for those behind it."""
    values: list[bytes] = []
    alike: tuple[type, tuple[Any, ...], bytes, bytes] | None = (
        None  # class and fields, bytes before and after the number
    )
    for record in records:
        cls = type(record)
        if isinstance(record, (Partition, PartitionChange)):
            if alike is not None and cls is alike[0] and record[1:] == alike[1]:
                values.append(alike[2] + _pack_number(record.partition_id) + alike[3])
                continue
            value = encode(record, metadata_version)
            alike = cls, record[1:], value[:_NUMBER_AT], value[_NUMBER_END:]
        else:
            value = encode(record, metadata_version)
            alike = None
            if isinstance(record, FeatureLevel) and record.name == METADATA_VERSION:
                metadata_version = record.feature_level
        values.append(value)
    return values


def _check_writable(record: MetadataRecord, metadata_version: int) -> None:
    cls = type(record)
    if metadata_version < _TYPES_SINCE.get(cls, OLDEST):
        raise _unwritable(cls.__name__, metadata_version, _TYPES_SINCE[cls])
    for field in _fields_above(metadata_version).get(cls, ()):
        if not field.is_harmless and getattr(record, field.name):
            raise _unwritable(f"{field.name} of {cls.__name__}", metadata_version, field.level)


def _unwritable(what: str, metadata_version: int, needed: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"nothing was changed: {METADATA_VERSION} {describe(metadata_version)} cannot hold {what}: upgrade it to "
        f"{describe(needed)} or newer"
    )


def decode(value: bytes) -> MetadataRecord | None:
    """The record in a frame; None for one that may be skipped."""
    try:
        frame_version, position = decode_uvarint(value, 0)
        key, position = decode_uvarint(value, position)
        version, position = decode_uvarint(value, position)
    except (IndexError, InvalidRecord) as error:
        raise MalformedRecord(f"a frame of {len(value)} bytes names no record type: {error}") from None
    if frame_version != FRAME_VERSION:
        raise UnsupportedRecord(f"frame version {frame_version}, only {FRAME_VERSION} is known")
    row = _BY_KEY.get(key)
    if row is None:
        _skip_or_refuse(key)
        return None
    cls = row.schema.cls
    if version > row.max_version:
        raise UnsupportedRecord(f"metadata record {cls.__name__} of version {version}, known is {row.max_version}")
    record, end = row.schema.read(value, position, version)
    if end != len(value):
        raise MalformedRecord(f"{len(value) - end} bytes follow a metadata record {cls.__name__}")
    return record  # type: ignore[no-any-return]


def decode_all(entries: Iterable[tuple[int, bytes]]) -> list[tuple[int, MetadataRecord]]:
    """The records in numbered frames, without those that may be skipped."""
    found: list[tuple[int, MetadataRecord]] = []
    head, tail = b"", b""  # the bytes before and after the number of a partition
    alike: tuple[Any, ...] = ()  # the fields after it
    cls: type[Any] = PartitionChange
    for offset, value in entries:
        if alike and value[_NUMBER_END:] == tail and value[:_NUMBER_AT] == head:
            number = int.from_bytes(value[_NUMBER_AT:_NUMBER_END], signed=True)
            found.append((offset, _new_record(cls, (number, *alike))))
            continue
        record = decode(value)
        if record is None:
            continue
        found.append((offset, record))
        if isinstance(record, (Partition, PartitionChange)) and value[1] < 0x80 and value[2] < 0x80:
            cls, head, tail, alike = type(record), value[:_NUMBER_AT], value[_NUMBER_END:], record[1:]
    return found


def _skip_or_refuse(key: int) -> None:
    if key not in _IGNORABLE:
        raise UnsupportedRecord(f"metadata record {_KNOWN_ELSEWHERE.get(key, 'of an unknown kind')} (type {key})")
    log.debug("metadata record %s (type %d) is skipped: it has no meaning here", _IGNORABLE[key], key)
