"""The records of `__transaction_state`: keys and values as Apache Kafka 4.3 reads and writes them.

1. A key is an int16 version, which is 0, and the transactional id. A value begins with its version: 1, which is
   flexible, where transaction.version is at least 1, else 0, which has no place for tagged fields.
2. The partitions are null exactly for EMPTY. They and their topics are written in order, so that the same value is
   always the same bytes.
3. Tags 0 to 3 are Kafka's (previous and next producer id, the client's transaction.version, next epoch). Tag 4 is the
   last epoch, tag 100 the heartbeat interval, tag 101 how the last two-phase transaction of the id ended, tag 102 the
   terms that count after a kept transaction, tag 103 the principal that opened the transaction; readers pass over tags
   they do not know. A tag that says what would be assumed without it is not written. A topic of a two-phase
   transaction has a tag of its own, 100 with the topic's id, so that a topic that was deleted and created anew is known
   to be another.
4. The reader logs keys and values of unknown versions and passes them over. Bytes that do
   not hold what their version promises raise `MalformedRecord`, and nothing else does.
5. A million of them are read when a broker starts, so this is written by hand: a value without partitions takes two
   calls of `struct`.
"""

import struct
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias
from uuid import UUID

from twofold.coordinator.transaction.states import RECORDED, State
from twofold.machine.schema import MalformedRecord
from twofold.records.varint import decode_uvarint, encode_uvarint
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import InvalidRecord

KEY_VERSION = 0

# The timeout of a two-phase transaction, which has none (KIP-939 says -1; Kafka writes this).
NEVER_MS = 0x7FFF_FFFF
NO_TIMEOUT_OF_THE_KIP = -1

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

TopicIds: TypeAlias = frozenset[tuple[str, UUID]]
NO_TOPIC_IDS: TopicIds = frozenset()


class Ended(NamedTuple):
    """How a two-phase transaction ended: its pair while it was open, which is what a prepared state names, and the
    number of an `Ending`. A number of a newer version is kept as it is."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    ending: int


class NextTerms(NamedTuple):
    """What a producer has asked for."""

    timeout_ms: int
    heartbeat_interval_ms: int


class TransactionMetadata(NamedTuple):
    """What is known of a transactional id. Never changed; every transition makes a new one."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    last_update_ms: int = NO_TIMESTAMP
    start_ms: int = NO_TIMESTAMP
    # The client's producer id before: a retry of the request that changed it comes under the old one.
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    # The client's producer id after this transaction; with an epoch, its id already now (a kept transaction).
    next_producer_id: ProducerId = NO_PRODUCER_ID
    client_version: int = 0  # the transaction.version of the client that drives the transaction
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    heartbeat_interval_ms: int = 0
    last_two_phase: Ended | None = None  # stays until the id expires, so that a stored state can be asked about
    next_terms: NextTerms | None = None  # of the client that keeps a transaction; they count when that is complete
    opened_by: str = ""  # the principal, while the transaction is not complete; "" for a client that did not log in
    topic_ids: TopicIds = NO_TOPIC_IDS  # of an open two-phase transaction: which topics they were


class TransactionRecord(NamedTuple):
    """An id and what is known of it; None removes it."""

    transactional_id: str
    value: TransactionMetadata | None


_new_tuple = tuple.__new__

_KEY = struct.Struct(">hh")
_HEAD = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, status
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TIMES = struct.Struct(">qq")
_HEAD_SIZE = _HEAD.size
_TIMES_SIZE = _TIMES.size

# A tag, the size of its value, the value.
_LONG_TAG = struct.Struct(">bbq")
_ONE_LONG_TAG = struct.Struct(">bbbq")
_SHORT_TAG = struct.Struct(">bbh")
_INT_TAG = struct.Struct(">bbi")
_ENDED_TAG = struct.Struct(">bbqhb")
_TERMS_TAG = struct.Struct(">bbii")
_ENDED = struct.Struct(">qhb")
_TERMS = struct.Struct(">ii")

PREVIOUS_PRODUCER_ID = 0
NEXT_PRODUCER_ID = 1
CLIENT_VERSION = 2
NEXT_PRODUCER_EPOCH = 3
LAST_PRODUCER_EPOCH = 4
HEARTBEAT_INTERVAL = 100
LAST_TWO_PHASE = 101
NEXT_TERMS = 102
OPENED_BY = 103

TOPIC_ID = 100  # of a topic
_TOPIC_ID_TAG = bytes((1, TOPIC_ID, 16))  # the number of tags, the tag, the size of its value

# Previous and next producer id, the client's version, next and last epoch, heartbeat interval, last two-phase
# transaction, next terms, principal.
Tags: TypeAlias = tuple[int, int, int, int, int, int, Ended | None, NextTerms | None, str]
NO_TAGS: Tags = (NO_PRODUCER_ID, NO_PRODUCER_ID, 0, NO_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, 0, None, None, "")
# The forms that nearly all values have: the number of tags, then tag and size of each, around the values.
_ONE_FORM, _THREE_FORM = b"\x01\x00\x08", b"\x03\x00\x08"
_CLIENT_VERSION_TAG, _LAST_EPOCH_TAG = b"\x02\x02", b"\x04\x02"
_THREE_TAGS = struct.Struct(">3sq2sh2sh")

_STATES: tuple[State | None, ...] = tuple(state if state in RECORDED else None for state in State)

# Of a transaction under TV1: all that can be tagged, but for the previous producer id.
_USUAL_TAGS = (NO_PRODUCER_ID, 0, NO_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, 0, None, None, "")

# --- writing ---


def encode_key(transactional_id: str) -> bytes:
    raw = transactional_id.encode()
    return _KEY.pack(KEY_VERSION, len(raw)) + raw


def encode_value(value: TransactionMetadata, version: int) -> bytes:
    (producer_id, epoch, timeout_ms, state, partitions, last_update_ms, start_ms, *_) = value
    head = _HEAD.pack(version, producer_id, epoch, timeout_ms, state)
    times = _TIMES.pack(last_update_ms, start_ms)
    if version:
        if state is State.EMPTY:
            middle = b"\x00"
        else:
            middle = _flexible_partitions(partitions, value.topic_ids) if partitions else b"\x01"
        return b"".join((head, middle, times, _tags(value)))
    if state is State.EMPTY:
        middle = b"\xff\xff\xff\xff"
    else:
        middle = _old_partitions(partitions)
    return b"".join((head, middle, times))


def _by_topic(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    if len(partitions) == 1:
        ((topic, partition),) = partitions
        return [(topic, [partition])]
    grouped = groupby(sorted(partitions), key=itemgetter(0))
    return [(topic, [partition for _, partition in rows]) for topic, rows in grouped]


@lru_cache(maxsize=1024)
def _flexible_partitions(partitions: frozenset[TopicPartition], topic_ids: TopicIds) -> bytes:
    topics = _by_topic(partitions)
    ids = dict(topic_ids)
    out = bytearray(encode_uvarint(len(topics) + 1))
    for topic, indexes in topics:
        raw = topic.encode()
        count = len(indexes)
        out += encode_uvarint(len(raw) + 1)
        out += raw
        out += encode_uvarint(count + 1)
        out += _INT32.pack(indexes[0]) if count == 1 else struct.pack(f">{count}i", *indexes)
        if topic in ids:
            out += _TOPIC_ID_TAG
            out += ids[topic].bytes
        else:
            out.append(0)
    return bytes(out)


def _old_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    out = bytearray(_INT32.pack(len(topics)))
    for topic, indexes in topics:
        raw = topic.encode()
        out += _INT16.pack(len(raw))
        out += raw
        out += struct.pack(f">{len(indexes) + 1}i", len(indexes), *indexes)
    return bytes(out)


def _tags(value: TransactionMetadata) -> bytes:
    """The tagged fields, in the order of their tags, after their number."""
    if value[8:-1] == _USUAL_TAGS and value.previous_producer_id != NO_PRODUCER_ID:
        return _ONE_LONG_TAG.pack(1, PREVIOUS_PRODUCER_ID, 8, value.previous_producer_id)
    fields = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        fields.append(_LONG_TAG.pack(PREVIOUS_PRODUCER_ID, 8, value.previous_producer_id))
    if value.next_producer_id != NO_PRODUCER_ID:
        fields.append(_LONG_TAG.pack(NEXT_PRODUCER_ID, 8, value.next_producer_id))
    if value.client_version:
        fields.append(_SHORT_TAG.pack(CLIENT_VERSION, 2, value.client_version))
    if value.next_producer_epoch != NO_PRODUCER_EPOCH:
        fields.append(_SHORT_TAG.pack(NEXT_PRODUCER_EPOCH, 2, value.next_producer_epoch))
    if value.last_producer_epoch != NO_PRODUCER_EPOCH:
        fields.append(_SHORT_TAG.pack(LAST_PRODUCER_EPOCH, 2, value.last_producer_epoch))
    if value.heartbeat_interval_ms:
        fields.append(_INT_TAG.pack(HEARTBEAT_INTERVAL, 4, value.heartbeat_interval_ms))
    if value.last_two_phase is not None:
        fields.append(_ENDED_TAG.pack(LAST_TWO_PHASE, _ENDED.size, *value.last_two_phase))
    if value.next_terms is not None:
        fields.append(_TERMS_TAG.pack(NEXT_TERMS, _TERMS.size, *value.next_terms))
    if value.opened_by:
        raw = value.opened_by.encode()
        fields.append(bytes((OPENED_BY,)) + encode_uvarint(len(raw)) + raw)
    return bytes((len(fields),)) + b"".join(fields)


# --- reading ---


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """A record of the log; None for a key or a value of an unknown version."""
    try:
        if key[:2] != b"\x00\x00":
            _INT16.unpack_from(key)
            return None
        size = _KEY.unpack_from(key)[1]
        if len(key) != 4 + size:
            raise MalformedRecord(f"the key {key.hex()} announces {size} bytes and holds {len(key) - 4}")
        transactional_id = key[4:].decode()
        if value is None:
            return TransactionRecord(transactional_id, None)
        decoded = _decode_value(value)
    except (struct.error, IndexError, UnicodeDecodeError, InvalidRecord) as error:
        text = "null" if value is None else value.hex()
        raise MalformedRecord(f"the record with the key {key.hex()} and the value {text} breaks off: {error}") from None
    return None if decoded is None else _new_tuple(TransactionRecord, (transactional_id, decoded))


def _decode_value(data: bytes) -> TransactionMetadata | None:
    if data[:2] != b"\x00\x01" and data[:2] != b"\x00\x00":
        _INT16.unpack_from(data)
        return None
    version, producer_id, epoch, timeout_ms, status = _HEAD.unpack_from(data)
    state = _STATES[status] if 0 <= status < len(_STATES) else None
    if state is None:
        raise MalformedRecord(f"the status {status} of producer id {producer_id} is none that a record can have")
    if timeout_ms == NO_TIMEOUT_OF_THE_KIP:
        timeout_ms = NEVER_MS
    topic_ids = NO_TOPIC_IDS
    if not version:
        partitions, at = _read_old(data)
    elif data[_HEAD_SIZE] < 2:  # null or none
        partitions, at = (NO_PARTITIONS if data[_HEAD_SIZE] else None), _HEAD_SIZE + 1
    else:
        partitions, topic_ids, at = _read_flexible(data)
    if state is State.EMPTY:
        partitions = NO_PARTITIONS
    elif partitions is None:
        raise MalformedRecord(f"producer id {producer_id} is in state {state.wire_name} and its partitions are null")
    last_update_ms, start_ms = _TIMES.unpack_from(data, at)
    tags = _read_tags(data, at + _TIMES_SIZE) if version else NO_TAGS
    head = (producer_id, epoch, timeout_ms, state, partitions, last_update_ms, start_ms)
    return _new_tuple(TransactionMetadata, (*head, *tags, topic_ids))


@lru_cache(maxsize=10_000)
def _topic(raw: bytes) -> str:
    """The same few topics stand in very many values."""
    return raw.decode()


def _indexes(data: bytes, at: int, count: int) -> tuple[int, ...]:
    if count < 0 or at + 4 * count > len(data):
        raise MalformedRecord(f"{count} partitions are announced at byte {at} of {len(data)}")
    return struct.unpack_from(f">{count}i", data, at)


def _read_flexible(data: bytes) -> tuple[frozenset[TopicPartition], TopicIds, int]:
    found: list[TopicPartition] = []
    ids: list[tuple[str, UUID]] = []
    topics, at = decode_uvarint(data, _HEAD_SIZE)
    if topics > len(data):
        raise MalformedRecord(f"{topics} topics are announced in {len(data)} bytes")
    for _ in range(topics - 1):
        size, at = (data[at], at + 1) if data[at] < 0x80 else decode_uvarint(data, at)
        raw = data[at : at + size - 1]
        if size == 0 or len(raw) != size - 1:
            raise MalformedRecord(f"the name of a topic at byte {at} breaks off")
        at += size - 1
        topic = _topic(raw)
        count, at = (data[at], at + 1) if data[at] < 0x80 else decode_uvarint(data, at)
        if count == 2:
            found.append(TopicPartition(topic, _INT32.unpack_from(data, at)[0]))
        else:
            found += [TopicPartition(topic, index) for index in _indexes(data, at, count - 1)]
        at += 4 * (count - 1)
        if data[at] == 0:
            at += 1
        else:
            at = _read_topic_tags(data, at, topic, ids)
    return frozenset(found), frozenset(ids) if ids else NO_TOPIC_IDS, at


def _read_old(data: bytes) -> tuple[frozenset[TopicPartition] | None, int]:
    at = _HEAD_SIZE
    topics = _INT32.unpack_from(data, at)[0]
    at += 4
    if topics <= 0:
        if topics < -1:
            raise MalformedRecord(f"{topics} topics are announced")
        return (NO_PARTITIONS if topics == 0 else None), at
    if topics > len(data):
        raise MalformedRecord(f"{topics} topics are announced in {len(data)} bytes")
    found: list[TopicPartition] = []
    for _ in range(topics):
        size = _INT16.unpack_from(data, at)[0]
        at += 2
        raw = data[at : at + size] if size >= 0 else b""
        if len(raw) != size:
            raise MalformedRecord(f"the name of a topic at byte {at} breaks off")
        at += size
        count = _INT32.unpack_from(data, at)[0]
        at += 4
        indexes = _indexes(data, at, count)
        at += 4 * count
        topic = _topic(raw)
        found += [TopicPartition(topic, index) for index in indexes]
    return frozenset(found), at


def _read_topic_tags(data: bytes, at: int, topic: str, ids: list[tuple[str, UUID]]) -> int:
    count, at = decode_uvarint(data, at)
    for _ in range(count):
        tag, at = decode_uvarint(data, at)
        size, at = decode_uvarint(data, at)
        end = at + size
        if end > len(data):
            raise MalformedRecord(f"a tagged field of {size} bytes reaches beyond the {len(data)} that are there")
        if tag == TOPIC_ID:
            if size != 16:
                raise MalformedRecord(f"the id of topic {topic!r} has {size} bytes")
            ids.append((topic, UUID(bytes=data[at:end])))
        at = end
    return at


_SIZES = {
    PREVIOUS_PRODUCER_ID: 8,
    NEXT_PRODUCER_ID: 8,
    CLIENT_VERSION: 2,
    NEXT_PRODUCER_EPOCH: 2,
    LAST_PRODUCER_EPOCH: 2,
    HEARTBEAT_INTERVAL: 4,
    LAST_TWO_PHASE: _ENDED.size,
    NEXT_TERMS: _TERMS.size,
}


def _read_tags(data: bytes, at: int) -> Tags:
    size = len(data) - at
    if size == 1 and not data[at]:
        return NO_TAGS
    if size == _THREE_TAGS.size:
        form, previous_id, second, client_version, third, last_epoch = _THREE_TAGS.unpack_from(data, at)
        if form == _THREE_FORM and second == _CLIENT_VERSION_TAG and third == _LAST_EPOCH_TAG:
            return previous_id, NO_PRODUCER_ID, client_version, NO_PRODUCER_EPOCH, last_epoch, 0, None, None, ""
    elif size == 11 and data[at : at + 3] == _ONE_FORM:
        previous_id = _INT64.unpack_from(data, at + 3)[0]
        return previous_id, NO_PRODUCER_ID, 0, NO_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, 0, None, None, ""
    return _read_any_tags(data, at)


def _read_any_tags(data: bytes, at: int) -> Tags:
    previous_id = next_id = NO_PRODUCER_ID
    next_epoch = last_epoch = NO_PRODUCER_EPOCH
    client_version = interval_ms = 0
    opened_by = ""
    ended: Ended | None = None
    terms: NextTerms | None = None
    count, at = decode_uvarint(data, at)
    for _ in range(count):
        tag, at = decode_uvarint(data, at)
        size, at = decode_uvarint(data, at)
        end = at + size
        if end > len(data) or _SIZES.get(tag, size) != size:
            raise MalformedRecord(f"tag {tag} with {size} bytes at byte {at} of {len(data)}")
        if tag == PREVIOUS_PRODUCER_ID:
            previous_id = _INT64.unpack_from(data, at)[0]
        elif tag == CLIENT_VERSION:
            client_version = _INT16.unpack_from(data, at)[0]
        elif tag == LAST_PRODUCER_EPOCH:
            last_epoch = _INT16.unpack_from(data, at)[0]
        elif tag == NEXT_PRODUCER_ID:
            next_id = _INT64.unpack_from(data, at)[0]
        elif tag == NEXT_PRODUCER_EPOCH:
            next_epoch = _INT16.unpack_from(data, at)[0]
        elif tag == HEARTBEAT_INTERVAL:
            interval_ms = _INT32.unpack_from(data, at)[0]
        elif tag == LAST_TWO_PHASE:
            ended = Ended._make(_ENDED.unpack_from(data, at))
        elif tag == NEXT_TERMS:
            terms = NextTerms._make(_TERMS.unpack_from(data, at))
        elif tag == OPENED_BY:
            opened_by = data[at:end].decode()
        at = end
    return previous_id, next_id, client_version, next_epoch, last_epoch, interval_ms, ended, terms, opened_by
