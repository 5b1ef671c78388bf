"""The hand-written codecs of Produce and Fetch say the same as the generated ones, in every version."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.broker.codec import fetch as fetch_codec
from twofold.broker.codec import produce as produce_codec
from twofold.records.batch import Buffer
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.errors import KafkaError
from twofold.wire.messages import fetch, produce

PRODUCE, FETCH = 0, 1
TOPIC_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
nonnegative32 = st.integers(0, 2**31 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
produce_versions = st.integers(APIS[PRODUCE].min_version, APIS[PRODUCE].max_version)
fetch_versions = st.integers(APIS[FETCH].min_version, APIS[FETCH].max_version)


def whole(records: Buffer | KafkaError | None) -> bytes | None:
    assert not isinstance(records, KafkaError), "the codec does not look at records"
    return None if records is None else bytes(records)


def unframe(frame):
    data = b"".join(bytes(part) for part in frame.parts)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


@given(
    produce_versions,
    st.none() | texts,
    st.integers(-(2**15), 2**15 - 1),
    int32,
    st.lists(st.tuples(texts, st.lists(st.tuples(int32, st.none() | st.binary(max_size=300)), max_size=4)), max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_produce_requests_are_read_as_the_generated_reader_does(version, transactional_id, acks, timeout_ms, topics):
    message = produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                topic_id=TOPIC_ID,
                partition_data=[produce.PartitionProduceData(index=i, records=r) for i, r in partitions],
            )
            for name, partitions in topics
        ],
    )
    frame = bytes(codec.encode_request(message, PRODUCE, version, 7, "client"))[4:]
    request = produce_codec.decode_request(frame, version, codec.decode_request_header(frame).body_offset)
    assert request[:3] == (transactional_id, acks, timeout_ms)
    found = [(key, [(i, whole(r)) for i, r in rows]) for key, rows in request.topics]
    assert found == [(TOPIC_ID.bytes if version >= 13 else name, rows) for name, rows in topics]


@given(produce_versions, st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_produce_request_is_undecodable_and_nothing_worse(version, data):
    message = produce.ProduceRequest(
        transactional_id="t",
        acks=-1,
        timeout_ms=1,
        topic_data=[
            produce.TopicProduceData(
                name="topic",
                topic_id=TOPIC_ID,
                partition_data=[produce.PartitionProduceData(index=1, records=b"r" * 200)],
            )
        ],
    )
    frame = bytearray(codec.encode_request(message, PRODUCE, version, 7, "c")[4:])
    offset = codec.decode_request_header(bytes(frame)).body_offset
    cut = data.draw(st.integers(offset, len(frame)))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(offset, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        request = produce_codec.decode_request(frame[:cut], version, offset)
    except codec.Undecodable:
        return
    for _, partitions in request.topics:
        for _, records in partitions:
            assert len(whole(records) or b"") <= cut


row_errors = st.lists(st.tuples(int32, st.none() | texts), max_size=3)
produce_rows = st.builds(
    produce_codec.ProduceRow, int32, st.integers(-1, 120), int64, int64, int64, row_errors, st.none() | texts,
    st.none() | st.tuples(nonnegative32, int32),
)  # fmt: skip
endpoints = st.lists(st.builds(produce_codec.Endpoint, int32, texts, int32, st.none() | texts), max_size=3)


@given(
    produce_versions,
    int32,
    st.lists(st.tuples(texts, st.lists(produce_rows, max_size=3)), max_size=3),
    endpoints,
)
@settings(max_examples=100, deadline=None)
def test_produce_responses_are_written_as_the_generated_writer_does(version, correlation_id, topics, nodes):
    # What a row without an error has to say is known: no messages and no other leader.
    plain = produce_codec.ProduceRow
    topics = [(name, [row if row.error_code else plain(*row[:5]) for row in rows]) for name, rows in topics]
    keyed = [(TOPIC_ID.bytes if version >= 13 else name, rows) for name, rows in topics]
    frame = produce_codec.encode_response(correlation_id, version, keyed, nodes)
    message = produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=name,
                topic_id=TOPIC_ID,
                partition_responses=[
                    produce.PartitionProduceResponse(
                        index=row.partition,
                        error_code=row.error_code,
                        base_offset=row.base_offset,
                        log_append_time_ms=row.log_append_time_ms,
                        log_start_offset=row.log_start_offset,
                        record_errors=[
                            produce.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m)
                            for i, m in row.record_errors
                        ],
                        error_message=row.error_message,
                        current_leader=produce.LeaderIdAndEpoch(
                            leader_id=row.current_leader[0], leader_epoch=row.current_leader[1]
                        )
                        if row.current_leader
                        else produce.LeaderIdAndEpoch(),
                    )
                    for row in rows
                ],
            )
            for name, rows in topics
        ],
        node_endpoints=[produce.NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port, rack=n.rack) for n in nodes],
    )
    expected = codec.encode_response(message, PRODUCE, version, correlation_id)[4:]
    assert unframe(frame) == bytes(expected)


fetch_rows = st.builds(
    fetch_codec.FetchRow, int32, st.integers(-1, 120), int64, int64, int64,
    st.none() | st.lists(st.tuples(int64, int64), max_size=3).map(tuple),
    st.binary(max_size=200) | st.integers(1000, 5000).map(bytes),
    st.none() | st.tuples(nonnegative32, int64), st.none() | st.tuples(nonnegative32, int32),
)  # fmt: skip


@given(
    fetch_versions,
    int32,
    st.integers(-1, 120),
    int32,
    st.lists(st.tuples(texts, st.lists(fetch_rows, max_size=3)), max_size=3),
    endpoints,
)
@settings(max_examples=100, deadline=None)
def test_fetch_responses_are_written_as_the_generated_writer_does(
    version, correlation_id, error_code, session_id, topics, nodes
):
    keyed = [(TOPIC_ID if version >= 13 else name, rows) for name, rows in topics]
    frame = fetch_codec.encode_response(
        correlation_id, version, keyed, error_code=error_code, session_id=session_id, endpoints=nodes
    )
    message = fetch.FetchResponse(
        error_code=error_code,
        session_id=session_id,
        responses=[
            fetch.FetchableTopicResponse(
                topic=name,
                topic_id=TOPIC_ID,
                partitions=[expected_fetch_row(row) for row in rows],
            )
            for name, rows in topics
        ],
        node_endpoints=[fetch.NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port, rack=n.rack) for n in nodes],
    )
    expected = codec.encode_response(message, FETCH, version, correlation_id)[4:]
    assert unframe(frame) == bytes(expected)


def expected_fetch_row(row):
    leader = row.current_leader or (-1, -1)
    epoch = row.diverging_epoch or (-1, -1)
    aborted = row.aborted
    return fetch.PartitionData(
        partition_index=row.partition,
        error_code=row.error_code,
        high_watermark=row.high_watermark,
        last_stable_offset=row.last_stable_offset,
        log_start_offset=row.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [fetch.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
        records=row.records,
        diverging_epoch=fetch.EpochEndOffset(epoch=epoch[0], end_offset=epoch[1]),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
    )


@pytest.mark.parametrize("size", [0, fetch_codec.INLINE_BYTES - 1, fetch_codec.INLINE_BYTES, 100_000])
def test_large_records_are_handed_on_without_a_copy(size):
    records = bytes(size)
    frame = fetch_codec.encode_response(1, 12, [("t", [fetch_codec.FetchRow(0, records=records)])])
    assert any(part is records for part in frame.parts) == (size >= fetch_codec.INLINE_BYTES)
