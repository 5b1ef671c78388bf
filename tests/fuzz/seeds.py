"""Where the fuzzer begins: sound inputs of every kind, made by a random source with a fixed seed."""

import dataclasses
import datetime
import io
import struct
import uuid
from functools import cache
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from twofold.broker.network.dispatch import served_apis
from twofold.controller import records as metadata
from twofold.coordinator.group import records as group
from twofold.coordinator.transaction import records as transaction
from twofold.coordinator.transaction.states import State
from twofold.log.indexes.txn_index import AbortedEntry, TxnIndex
from twofold.log.producers.entry import BatchMetadata, ProducerEntry
from twofold.log.producers.snapshots import encode_snapshot
from twofold.log.recovery.epochs import EpochCache
from twofold.metadata_log.quorum_state import QuorumState
from twofold.records.batch import BatchBuilder
from twofold.records.compression import Codec, compress
from twofold.records.control import end_transaction_marker
from twofold.types import ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.apis import APIS
from twofold.wire.compile import FieldInfo, schema_fields
from twofold.wire.schema import schema_of

T0 = 1_600_000_000_000
PRODUCER, EPOCH_1 = ProducerId(7), ProducerEpoch(1)
TOPIC_ID = uuid.UUID("11111111-2222-3333-4444-555555555555")
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
NAMES = ["t", "", "g", "nobody", "ü" * 3, "x" * 300, "cleanup.policy", "__consumer_offsets"]


# --- messages ---


def entity(schema: type, source: Random, *, most: int = 2) -> Any:
    """A random instance of one of kio's classes."""
    return schema(**{field.name: _field(field, source, most) for field in _fields(schema)})


@cache
def _fields(schema: type) -> tuple[FieldInfo, ...]:
    return tuple(schema_fields(schema))


def _field(field: FieldInfo, source: Random, most: int) -> Any:
    if field.tag is not None and field.default is not dataclasses.MISSING and source.random() < 0.5:
        return field.default
    if field.nullable and field.tag is None and source.random() < 0.15:
        return None
    if field.array:
        return tuple(_value(field, source, most) for _ in range(source.randint(0, most)))
    return _value(field, source, most)


def _value(field: FieldInfo, source: Random, most: int) -> Any:
    if field.entity is not None:
        return entity(field.entity, source, most=most)
    kind = field.kind
    if kind in BITS:
        highest = 2 ** BITS[kind] - 1
        return source.choice([0, 1, -1, 2, 7, highest, -highest - 1, source.randint(0, min(1000, highest))])
    if kind in ("uint16", "uint32"):
        return source.choice([0, 1, 9092, 2 ** int(kind[4:]) - 1])
    match kind:
        case "float64":
            return source.choice([0.0, -1.5, 1e300])
        case "string":
            return source.choice(NAMES)
        case "bytes" | "records":
            return source.choice([b"", b"\0\x01\0\0", _small_batch()])
        case "bool":
            return source.random() < 0.5
        case "uuid":
            return source.choice([TOPIC_ID, uuid.UUID(int=1), None if field.nullable else TOPIC_ID])
        case "error_code":
            return source.choice(list(ErrorCode))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(source.choice([0, T0 // 1000]), datetime.UTC)
    return datetime.timedelta(milliseconds=source.choice([0, 1, 100, 30_000, 2**31 - 1]))


@cache
def _small_batch() -> bytes:
    builder = BatchBuilder()
    builder.add(b"k", b"v", T0)
    return builder.build()


def request_frame(
    key: int, version: int, message: Any, *, client_id: str | None = "f", correlation_id: int = 1
) -> bytes:
    """Without its length."""
    name = None if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    return head + (b"\0" if message.__flexible__ else b"") + body(message)


def body(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def every_version() -> list[tuple[int, int]]:
    return [(api.key, version) for api in served_apis() for version in range(api.min_version, api.max_version + 1)]


def requests(rounds: int = 3) -> list[bytes]:
    source = Random(1)
    return [
        request_frame(key, version, entity(schema_of(APIS[key].module, version, "request"), source))
        for key, version in every_version()
        for _ in range(rounds)
    ]


def responses() -> list[bytes]:
    source = Random(2)
    found = []
    for api in APIS.values():
        for version in range(api.min_version, api.spoken_max + 1):
            message = entity(schema_of(api.module, version, "response"), source)
            tags = b"\0" if message.__flexible__ and api.key != 18 else b""
            found.append(bytes((api.key, version)) + struct.pack(">i", 1) + tags + body(message))
    return found


# --- batches ---


def _batch(codec: Codec, **fields: Any) -> bytes:
    builder = BatchBuilder(codec, **fields)
    for number in range(5):
        builder.add(b"key" * number or None, b"value" * 20, T0 + number, (("h", b"x"), ("n", None)))
    return builder.build()


def batches() -> list[bytes]:
    """The first byte says what the target puts right, see there."""
    found = [b"\x00" + _batch(codec) for codec in Codec]
    found += [bytes([1 | codec << 1 | 0x10]) + _batch(Codec.NONE) for codec in Codec]
    found.append(b"\x01" + _batch(Codec.NONE, producer_id=7, producer_epoch=1, base_sequence=3))
    found.append(b"\x01" + _batch(Codec.GZIP, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True))
    return found


def markers() -> list[bytes]:
    return [
        b"\x01"
        + end_transaction_marker(commit=commit, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp_ms=T0)
        for commit in (True, False)
    ]


def compressed() -> list[bytes]:
    plain = b"some text, some text, some more of it" * 20
    found = [bytes([codec]) + compress(codec, plain) for codec in Codec]
    found += [bytes([codec]) + compress(codec, b"\0" * (1 << 21)) for codec in Codec if codec != Codec.NONE]
    found += [bytes([codec]) + 3 * compress(codec, b"twice") for codec in Codec]
    return found


def sections() -> list[bytes]:
    return [struct.pack(">ii", 5, 4) + _batch(Codec.NONE)[61:], struct.pack(">ii", 1, 0) + _small_batch()[61:]]


def segments() -> list[bytes]:
    one = _batch(Codec.NONE)
    return [one, one + _batch(Codec.LZ4), one[:70], one + bytes(100)]


# --- records of logs ---


def _pair(key: bytes, value: bytes | None) -> bytes:
    return b"\xff" + key if value is None else bytes([len(key)]) + key + value


def group_records() -> list[bytes]:
    offset = group.encode_offset_value(group.OffsetValue(42, 3, "mine", T0, topic_id=TOPIC_ID))
    plain = group.encode_offset_value(group.OffsetValue(42, 3, "", T0))
    member = group.MemberValue("m-1", "i", "c", "/10.0.0.1", 1000, 2000, b"\0\1", b"\2")
    value = group.GroupValue("consumer", 4, "range", "m-1", T0, (member,))
    records: list[Any] = [
        group.OffsetRecord("g", "t", 0, offset),
        group.OffsetRecord("g", "t", 7, plain),
        group.OffsetRecord("g", "t", 0, None),
        group.GroupRecord("g", value),
        group.GroupRecord("g", None),
    ]
    return [_pair(group.encode_key(record), group.encode_value(record)) for record in records]


def transaction_records() -> list[bytes]:
    partitions = frozenset([TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 5)])
    values = [
        transaction.TransactionMetadata(PRODUCER, EPOCH_1, 60_000, State.ONGOING, partitions, T0, T0),
        transaction.TransactionMetadata(PRODUCER, EPOCH_1, 60_000, State.EMPTY, last_update_ms=T0),
        transaction.TransactionMetadata(
            PRODUCER, EPOCH_1, 60_000, State.PREPARE_COMMIT, partitions, T0, T0,
            previous_producer_id=ProducerId(3), next_producer_id=ProducerId(9), client_version=2,
            next_producer_epoch=ProducerEpoch(4),
        ),
    ]  # fmt: skip
    key = transaction.encode_key("tx")
    return [_pair(key, transaction.encode_value(value, version)) for value in values for version in (0, 1)]


def metadata_records() -> list[bytes]:
    broker = metadata.RegisterBroker(
        broker_id=1, incarnation_id=TOPIC_ID, broker_epoch=0,
        end_points=(metadata.EndPoint("PLAINTEXT", "h", 9092, 0),),
        features=(metadata.FeatureRange("metadata.version", 1, 20),), rack=None, fenced=True, log_dirs=(TOPIC_ID,),
    )  # fmt: skip
    records: list[Any] = [
        broker,
        metadata.FeatureLevel("metadata.version", 20),
        metadata.BrokerRegistrationChange(broker_id=1, broker_epoch=0, fenced=-1),
        metadata.BeginTransaction("all or nothing"),
        metadata.Topic("t", TOPIC_ID),
        metadata.Partition(
            partition_id=0, topic_id=TOPIC_ID, replicas=(1,), isr=(1,), removing_replicas=(), adding_replicas=(),
            leader=1, leader_epoch=0, partition_epoch=0, directories=(TOPIC_ID,),
        ),
        metadata.EndTransaction(),
        metadata.Config(2, "t", "retention.ms", "1000"),
        metadata.PartitionChange(partition_id=0, topic_id=TOPIC_ID, leader=-1, isr=(1,)),
        metadata.ProducerIds(broker_id=1, broker_epoch=0, next_producer_id=1000),
        metadata.NoOp(),
        metadata.RemoveTopic(TOPIC_ID),
        metadata.UnregisterBroker(broker_id=1, broker_epoch=0),
    ]  # fmt: skip
    framed = [struct.pack(">H", len(raw)) + raw for raw in map(metadata.encode, records)]
    return [b"".join(framed), *framed, b"".join(framed[:6])]


# --- files ---


def snapshots() -> list[bytes]:
    entry = ProducerEntry(PRODUCER, EPOCH_1, 3, T0, 40, (BatchMetadata(3, 42, 2, T0),))
    idle = ProducerEntry(ProducerId(8), ProducerEpoch(0), -1, T0, -1, ())
    return [b"\x01" + encode_snapshot([entry, idle]), b"\x00" + encode_snapshot([])]


def index_files() -> list[bytes]:
    aborted = TxnIndex()
    aborted.append(AbortedEntry(PRODUCER, 100, 120, 110))
    aborted.append(AbortedEntry(ProducerId(8), 121, 130, 121))
    offsets = b"".join(struct.pack(">ii", number * 10, number * 4096) for number in range(1, 6))
    times = b"".join(struct.pack(">qi", T0 + number, number * 10) for number in range(1, 6))
    return [b"\0" + offsets, b"\1" + times, b"\2" + aborted.encode()]


def checkpoints() -> list[bytes]:
    epochs = EpochCache([(0, 0), (3, 100)]).encode()
    properties = b"#\ncluster.id=abc\ndirectory.id=xyz\nnode.id=1\nversion=1\n"
    return [b"\0" + b"0\n1\nt 0 42\n", b"\1" + epochs, b"\2" + properties, b"\3" + QuorumState(3, 1, 1).encode()]
