"""The hand-written codec of AddPartitionsToTxn and EndTxn says what the general one says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.broker.codec import transactions as txn_codec
from twofold.wire import codec
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from twofold.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

ids = st.text(max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)
shorts = st.integers(-(2**15), 2**15 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
topics = st.lists(
    st.builds(lambda name, rows: AddPartitionsToTxnTopic(name=name, partitions=tuple(rows)), ids, st.lists(ints)),
    max_size=3,
)
DECODERS = {24: txn_codec.decode_add_partitions, 26: txn_codec.decode_end_txn}


def body(message: Any, key: int, version: int) -> tuple[bytes, int]:
    frame = bytes(codec.encode_request(message, key, version, 7, "c"))[4:]
    return frame, codec.decode_request_header(frame).body_offset


def both(frame: bytes, key: int, version: int, position: int) -> tuple[Any, Any]:
    results = []
    for decode in (DECODERS[key], lambda f, v, p: codec.decode_request(key, v, f, p)):
        try:
            results.append(decode(frame, version, position))
        except codec.Undecodable:
            results.append(codec.Undecodable)
    return results[0], results[1]


@given(st.integers(0, 5), ids, longs, shorts, st.booleans(), st.data())
def test_end_txn_is_read_as_by_the_general_codec_also_when_cut_off(version, name, producer_id, epoch, commit, data):
    message = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=commit)
    frame, position = body(message, 26, version)
    assert both(frame, 26, version, position) == (message, message)
    for buffer in (memoryview(frame), bytearray(frame)):
        assert txn_codec.decode_end_txn(buffer, version, position) == message
    cut = frame[: data.draw(st.integers(position, len(frame)))]
    ours, theirs = both(cut, 26, version, position)
    assert ours == theirs


@given(st.integers(0, 3), ids, longs, shorts, topics, st.data())
def test_add_partitions_is_read_as_by_the_general_codec_also_when_cut_off(
    version, name, producer_id, epoch, rows, data
):
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=tuple(rows),
    )
    frame, position = body(message, 24, version)
    assert both(frame, 24, version, position) == (message, message)
    cut = frame[: data.draw(st.integers(position, len(frame)))]
    ours, theirs = both(cut, 24, version, position)
    assert ours == theirs


@given(st.sampled_from([24, 26]), st.integers(0, 2), st.binary(max_size=80))
def test_bytes_that_mean_nothing_are_refused_as_by_the_general_codec(key, version, noise):
    ours, theirs = both(noise, key, version, 0)
    assert ours == theirs


def test_batches_of_transactions_are_left_to_the_general_codec():
    one = AddPartitionsToTxnTransaction(transactional_id="t", producer_id=1, producer_epoch=2, topics=())
    message = AddPartitionsToTxnRequest(transactions=(one,))
    for version in (4, 5):
        frame, position = body(message, 24, version)
        assert txn_codec.decode_add_partitions(frame, version, position) == message


@pytest.mark.parametrize("version", range(txn_codec.FLEXIBLE_SINCE))
def test_successes_are_written_as_by_the_general_codec(version):
    assert bytes(txn_codec.encode_end_txn(99).parts[0]) == bytes(
        codec.encode_response(EndTxnResponse(error_code=0), 26, version, 99)
    )
    for name, indexes in (("t", (0,)), ("überschall", (5, 3, 4)), ("", ())):
        rows = [AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=0) for index in indexes]
        expected = AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[AddPartitionsToTxnTopicResult(name=name, results_by_partition=rows)]
        )
        topic = AddPartitionsToTxnTopic(name=name, partitions=indexes)
        assert bytes(txn_codec.encode_added(99, topic).parts[0]) == bytes(
            codec.encode_response(expected, 24, version, 99)
        )
