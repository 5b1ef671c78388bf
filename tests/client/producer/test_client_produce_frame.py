"""Produce requests in pieces have the bytes that the codec would write."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.client.producer.produce_frame import FIRST_VERSION, produce_body
from twofold.wire.apis import APIS, KEYS
from twofold.wire.codec import encode_request
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE = KEYS["Produce"]
HEADER_BYTES = 4 + 10 + len("me") + 1
ROWS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), max_size=3)
TOPICS = st.dictionaries(st.text("abc.", min_size=1, max_size=130), ROWS, max_size=3)


@given(
    version=st.integers(FIRST_VERSION, APIS[PRODUCE].max_version),
    transactional_id=st.none() | st.text(max_size=150),
    acks=st.sampled_from([-1, 1]),
    timeout_ms=st.integers(0, 2**31 - 1),
    topics=TOPICS,
)
@settings(deadline=None)
def test_pieces_are_the_bytes_of_the_codec(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: dict[str, list[tuple[int, bytes]]],
) -> None:
    ids = {name: UUID(int=number + 1) for number, name in enumerate(topics)}
    pieces = produce_body(version, transactional_id, acks, timeout_ms, topics, ids)
    message = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=ids[name],
                partition_data=[PartitionProduceData(index=index, records=batch) for index, batch in rows],
            )
            for name, rows in topics.items()
        ],
    )
    assert b"".join(pieces) == bytes(encode_request(message, PRODUCE, version, 1, "me")[HEADER_BYTES:])


def test_batches_are_not_copied() -> None:
    batch = bytearray(b"a batch")
    assert any(piece is batch for piece in produce_body(12, None, -1, 1_000, {"t": [(0, batch)]}, {}))
