"""AddPartitionsToTxn and EndTxn by hand, in the versions that most clients send: two of the three requests of every
transaction.

Other versions, and whatever does not read as it should, are left to `twofold.wire.codec`; a test compares the results.
"""

import struct

from twofold.broker.network.context import Buffer, Frame
from twofold.wire import codec
from twofold.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from twofold.wire.messages.end_txn import EndTxnRequest

ADD_PARTITIONS, END = 24, 26
FLEXIBLE_SINCE = 3  # both of them

_length = struct.Struct(">h").unpack_from
_producer = struct.Struct(">qh")
_count = struct.Struct(">i").unpack_from
_TOPIC_HEAD = struct.Struct(">ih")  # partitions of the topic before, or topics; then the length of a name
_ANSWER_HEAD = struct.Struct(">iiii")  # length, correlation id, throttle time, topics
_ROW = struct.Struct(">ih")
_END_ANSWER = struct.Struct(">iiih")


def decode_end_txn(frame: Buffer, version: int, position: int) -> EndTxnRequest:
    if version < FLEXIBLE_SINCE:
        try:
            size = _length(frame, position)[0]
            start = position + 2
            end = start + size
            producer_id, epoch = _producer.unpack_from(frame, end)
            if size >= 0:
                return EndTxnRequest(
                    transactional_id=str(frame[start:end], "utf-8"),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    committed=frame[end + 10] != 0,
                )
        except (struct.error, IndexError, UnicodeDecodeError):
            pass  # its own error is the better one
    request: EndTxnRequest = codec.decode_request(END, version, bytes(frame), position)
    return request


def encode_end_txn(correlation_id: int) -> Frame:
    """The success of a version before 3."""
    return Frame([_END_ANSWER.pack(10, correlation_id, 0, 0)])


def decode_add_partitions(frame: Buffer, version: int, position: int) -> AddPartitionsToTxnRequest:
    if version < FLEXIBLE_SINCE:
        try:
            known = _one_topic(frame, position)
        except (struct.error, UnicodeDecodeError):
            known = None
        if known is not None:
            return known
    request: AddPartitionsToTxnRequest = codec.decode_request(ADD_PARTITIONS, version, bytes(frame), position)
    return request


def _one_topic(frame: Buffer, position: int) -> AddPartitionsToTxnRequest | None:
    """A request with partitions of one topic; None for all others."""
    size = _length(frame, position)[0]
    start = position + 2
    end = start + size
    producer_id, epoch = _producer.unpack_from(frame, end)
    topics, name_size = _TOPIC_HEAD.unpack_from(frame, end + 10)
    name_start = end + 16
    name_end = name_start + name_size
    count = _count(frame, name_end)[0]
    if topics != 1 or size < 0 or name_size < 0 or count < 0:
        return None
    indexes = struct.unpack_from(f">{count}i", frame, name_end + 4)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=str(frame[start:end], "utf-8"),
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=(
            AddPartitionsToTxnTopic(name=str(frame[name_start:name_end], "utf-8"), partitions=indexes),
        ),
    )


def encode_added(correlation_id: int, topic: AddPartitionsToTxnTopic) -> Frame:
    """The success of a version before 3, for partitions of one topic."""
    name = topic.name.encode()
    out = bytearray(_ANSWER_HEAD.size)
    out += _length_and(name)
    out += _pack_count(len(topic.partitions))
    for index in topic.partitions:
        out += _ROW.pack(index, 0)
    _ANSWER_HEAD.pack_into(out, 0, len(out) - 4, correlation_id, 0, 1)
    return Frame([out])


_pack_length = struct.Struct(">h").pack
_pack_count = struct.Struct(">i").pack


def _length_and(raw: bytes) -> bytes:
    return _pack_length(len(raw)) + raw
