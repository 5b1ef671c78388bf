"""The bytes of `__transaction_state`."""

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.coordinator.transactions import (
    COMPLETE_COMMIT,
    EMPTY,
    NEVER,
    ONGOING,
    PREPARE_COMMIT,
    RECORDED_STATES,
    a_transaction,
    partitions,
)
from twofold.coordinator.transaction.records import (
    Ended,
    NextTerms,
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode_key,
    encode_value,
)
from twofold.machine.schema import MalformedRecord
from twofold.types import TopicPartition

T = 1_700_000_000_000
KEY = encode_key("abc")

# Records that Apache Kafka has written, then one for each field that Kafka 4.3 does not write.
VECTORS = {
    "v0 empty": (
        0,
        TransactionMetadata(7, 0, 60000, EMPTY, last_update_ms=T),
        "0000 0000000000000007 0000 0000ea60 00 ffffffff 0000018bcfe56800 ffffffffffffffff",
    ),
    "v0 ongoing": (
        0,
        TransactionMetadata(7, 0, 60000, ONGOING, partitions("t-0", "t-2"), T + 500, T + 500),
        "0000 0000000000000007 0000 0000ea60 01 00000001 0001 74 00000002 00000000 00000002 0000018bcfe569f4 "
        "0000018bcfe569f4",
    ),
    "v1 prepare commit": (
        1,
        TransactionMetadata(
            7, 1, 60000, PREPARE_COMMIT, partitions("t-0", "t-2"), T + 900, T + 500, 7, client_version=2
        ),
        "0001 0000000000000007 0001 0000ea60 02 02 0274 03 00000000 00000002 00 0000018bcfe56b84 0000018bcfe569f4 "
        "02 00 08 0000000000000007 02 02 0002",
    ),
    "v1 empty": (
        1,
        TransactionMetadata(7, 0, 60000, EMPTY, last_update_ms=T),
        "0001 0000000000000007 0000 0000ea60 00 00 0000018bcfe56800 ffffffffffffffff 00",
    ),
    "v1 complete, rotated, every tag but next": (
        1,
        TransactionMetadata(8, 0, 60000, COMPLETE_COMMIT, frozenset(), T, T, 7, -1, 2, -1, 32766, 5000),
        "0001 0000000000000008 0000 0000ea60 04 01 0000018bcfe56800 0000018bcfe56800 "
        "04 00 08 0000000000000007 02 02 0002 04 02 7ffe 64 04 00001388",
    ),
    "v1 ongoing, opened by a principal": (
        1,
        TransactionMetadata(
            7, 1, 60000, ONGOING, partitions("t-0"), T, T, 7, client_version=2, opened_by="User:J\u00fcrgen"
        ),
        "0001 0000000000000007 0001 0000ea60 01 02 0274 02 00000000 00 0000018bcfe56800 0000018bcfe56800 "
        "03 00 08 0000000000000007 02 02 0002 67 0c 557365723a4ac3bc7267656e",
    ),
    "v1 ongoing, two-phase, kept": (
        1,
        TransactionMetadata(42, 5, NEVER, ONGOING, partitions("t-1"), T, T, 42, 73, 2, 6),
        "0001 000000000000002a 0005 7fffffff 01 02 0274 02 00000001 00 0000018bcfe56800 0000018bcfe56800 "
        "04 00 08 000000000000002a 01 08 0000000000000049 02 02 0002 03 02 0006",
    ),
    "v1 ongoing, two-phase, kept by a producer with a timeout and heartbeats, the one before was committed": (
        1,
        TransactionMetadata(
            42, 5, NEVER, ONGOING, partitions("t-1"), T, T, 42, 73, 2, 6, -1, 0, Ended(42, 4, 1), NextTerms(30000, 1000)
        ),
        "0001 000000000000002a 0005 7fffffff 01 02 0274 02 00000001 00 0000018bcfe56800 0000018bcfe56800 "
        "06 00 08 000000000000002a 01 08 0000000000000049 02 02 0002 03 02 0006 "
        "65 0b 000000000000002a 0004 01 66 08 00007530 000003e8",
    ),
    "v1 ongoing, two-phase, with the id of one of its topics": (
        1,
        TransactionMetadata(
            42, 5, NEVER, ONGOING, partitions("t-1", "u-0"), T, T, 42, topic_ids=frozenset({("u", UUID(int=9))})
        ),
        "0001 000000000000002a 0005 7fffffff 01 03 0274 02 00000001 00 0275 02 00000000 "
        "01 64 10 00000000000000000000000000000009 0000018bcfe56800 0000018bcfe56800 01 00 08 000000000000002a",
    ),
}


@pytest.mark.parametrize("case", VECTORS)
def test_values_are_these_bytes(case):
    version, value, text = VECTORS[case]
    data = bytes.fromhex(text)
    assert encode_value(value, version).hex() == data.hex()
    assert decode(KEY, data) == TransactionRecord("abc", value)


def test_keys_are_these_bytes():
    assert bytes.fromhex("0000 0003 616263") == KEY
    assert decode(KEY, None) == TransactionRecord("abc", None)
    assert decode(encode_key("ключ"), None) == TransactionRecord("ключ", None)
    assert decode(encode_key(""), None) == TransactionRecord("", None)


names = st.text(min_size=1, max_size=20)
ids = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 32767)
found_partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["t", "orders", "x" * 249]), st.integers(0, 2**31 - 1)), max_size=300
)
timeouts = st.integers(1, NEVER)
times = st.integers(-1, 2**62)


@st.composite
def transactions(draw):
    state = draw(st.sampled_from(RECORDED_STATES))
    return TransactionMetadata(
        draw(ids),
        draw(epochs),
        draw(timeouts),
        state,
        frozenset() if state is EMPTY else draw(found_partitions),
        draw(times),
        draw(times),
        draw(ids),
        draw(ids),
        draw(st.sampled_from([0, 1, 2, 3])),
        draw(epochs),
        draw(epochs),
        draw(st.integers(0, NEVER)),
        draw(st.none() | st.builds(Ended, ids, epochs, st.integers(-128, 127))),
        draw(st.none() | st.builds(NextTerms, timeouts, st.integers(0, NEVER))),
    )


@given(names, found_partitions, st.sampled_from(["t", "orders", "x" * 249]), st.uuids())
def test_the_id_of_a_topic_is_written_with_it_and_read(name, found, topic, topic_id):
    found |= {TopicPartition(topic, 0)}
    value = a_transaction(ONGOING)._replace(partitions=found, topic_ids=frozenset({(topic, topic_id)}))
    assert decode(encode_key(name), encode_value(value, 1)) == TransactionRecord(name, value)
    plain = value._replace(topic_ids=frozenset())
    assert len(encode_value(value, 1)) == len(encode_value(plain, 1)) + 18


@given(names, transactions())
def test_what_is_written_is_read(name, value):
    assert decode(encode_key(name), encode_value(value, 1)) == TransactionRecord(name, value)
    kept = value._replace(
        previous_producer_id=-1,
        next_producer_id=-1,
        client_version=0,
        next_producer_epoch=-1,
        last_producer_epoch=-1,
        heartbeat_interval_ms=0,
        last_two_phase=None,
        next_terms=None,
    )
    assert decode(encode_key(name), encode_value(value, 0)) == TransactionRecord(name, kept)


@given(transactions(), st.randoms(use_true_random=False))
def test_the_same_value_is_always_the_same_bytes(value, random):
    shuffled = list(value.partitions)
    random.shuffle(shuffled)
    again = value._replace(partitions=frozenset(shuffled))
    assert encode_value(again, 1) == encode_value(value, 1)


def test_many_partitions_and_long_names():
    value = a_transaction(
        ONGOING, of=(TopicPartition(topic, index) for topic in ("t" * 200, "u") for index in range(300))
    )
    for version in (0, 1):
        found = decode(KEY, encode_value(value, version))
        assert found is not None and found.value is not None and found.value.partitions == value.partitions


def test_the_timeout_of_the_kip_is_read_as_the_one_that_is_written():
    data = bytearray(encode_value(a_transaction(ONGOING, timeout_ms=NEVER), 1))
    data[12:16] = b"\xff\xff\xff\xff"
    found = decode(KEY, bytes(data))
    assert found is not None and found.value is not None and found.value.timeout_ms == NEVER


# --- what is not known yet, and what is wrong ---


def test_load_unknown_types():
    """Keys and values of versions to come are passed over."""
    assert decode(bytes.fromhex("0001 0003 616263"), None) is None
    assert decode(bytes.fromhex("7fff"), b"anything") is None
    assert decode(KEY, bytes.fromhex("0002")) is None
    assert decode(KEY, bytes.fromhex("ffff 00")) is None


def test_unknown_tags_are_passed_over():
    plain = encode_value(TransactionMetadata(7, 0, 60000, ONGOING, partitions("t-0"), T, T), 1)
    expected = decode(KEY, plain)
    # Tag 5 with three bytes, tag 300 with none; and one on the topic.
    assert decode(KEY, plain[:-1] + bytes.fromhex("02 05 03 aabbcc ac02 00")) == expected
    topic = bytes.fromhex("02 0274 02 00000000 00")
    assert plain.count(topic) == 1
    assert decode(KEY, plain.replace(topic, bytes.fromhex("02 0274 02 00000000 01 07 01 ff"))) == expected


def test_partitions_of_an_empty_transaction_are_ignored():
    data = encode_value(TransactionMetadata(7, 0, 60000, ONGOING, partitions("t-0"), T, T), 1)
    found = decode(KEY, data[:16] + b"\x00" + data[17:])
    assert found is not None and found.value is not None
    assert (found.value.state, found.value.partitions) == (EMPTY, frozenset())


@pytest.mark.parametrize("status", [-1, 6, 7, 8, 100])
def test_a_status_that_no_record_can_have_is_malformed(status):
    data = bytearray(encode_value(a_transaction(ONGOING), 1))
    data[16] = status & 0xFF
    with pytest.raises(MalformedRecord, match=f"the status {status}"):
        decode(KEY, bytes(data))


@pytest.mark.parametrize(
    "key", ["", "00", "0000", "000000", "0000 0004 616263", "0000 0002 616263", "0000 ffff", "0000 0001 ff"]
)
def test_keys_that_lie_are_malformed(key):
    with pytest.raises(MalformedRecord):
        decode(bytes.fromhex(key), None)


LIES = {
    "no version": "",
    "half a version": "00",
    "null partitions in an open transaction, v0": "0000 0000000000000007 0000 0000ea60 01 ffffffff" + "00" * 16,
    "null partitions in an open transaction, v1": "0001 0000000000000007 0000 0000ea60 01 00" + "00" * 17,
    "too many topics, v0": "0000 0000000000000007 0000 0000ea60 01 7fffffff" + "00" * 16,
    "too many topics, v1": "0001 0000000000000007 0000 0000ea60 01 ffffffff0f" + "00" * 17,
    "a negative number of topics": "0000 0000000000000007 0000 0000ea60 01 fffffffe" + "00" * 16,
    "a negative length of a name": "0000 0000000000000007 0000 0000ea60 01 00000001 ffff" + "00" * 24,
    "a negative number of partitions": "0000 0000000000000007 0000 0000ea60 01 00000001 0001 74 ffffffff" + "00" * 16,
    "too many partitions": "0001 0000000000000007 0000 0000ea60 01 02 0274 ffffffff0f" + "00" * 24,
    "a topic without a name": "0001 0000000000000007 0000 0000ea60 01 02 00 02 00000000 00" + "00" * 17,
    "null partitions of a topic": "0001 0000000000000007 0000 0000ea60 01 02 0274 00 00" + "00" * 17,
    "a name that is not UTF-8": "0001 0000000000000007 0000 0000ea60 01 02 02ff 02 00000000 00" + "00" * 17,
    "an overlong varint": "0001 0000000000000007 0000 0000ea60 01 ffffffffffff" + "00" * 17,
    "a tag of the wrong size": "0001 0000000000000007 0000 0000ea60 00 00" + "00" * 16 + "01 00 02 0007",
    "a tag that reaches too far": "0001 0000000000000007 0000 0000ea60 00 00" + "00" * 16 + "01 09 7f 00",
    "the usual tags with a size that lies": "0001 0000000000000007 0000 0000ea60 00 00"
    + "00" * 16
    + "03 00 08 0000000000000007 02 02 0002 04 03 0005",
    "the usual tag with a size that lies": "0001 0000000000000007 0000 0000ea60 00 00"
    + "00" * 16
    + "01 00 07 "
    + "00" * 8,
    "how the last one ended, with a byte too few": "0001 0000000000000007 0000 0000ea60 00 00"
    + "00" * 16
    + "01 65 0a 0000000000000007 0001",
    "too few tags": "0001 0000000000000007 0000 0000ea60 00 00" + "00" * 16 + "02 02 02 0002",
}


@pytest.mark.parametrize("case", LIES)
def test_values_that_lie_are_malformed(case):
    with pytest.raises(MalformedRecord):
        decode(KEY, bytes.fromhex(LIES[case]))


@given(transactions(), st.integers(0, 1), st.data())
def test_a_value_that_breaks_off_is_malformed(value, version, data):
    whole = encode_value(value, version)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRecord):
        decode(KEY, whole[:size])


@given(st.binary(max_size=40), st.binary(max_size=120))
def test_any_bytes_are_read_or_malformed(key, value):
    for first, second in ((key, value), (KEY, value), (KEY, b"\x00\x01" + value), (KEY, b"\x00\x00" + value)):
        with contextlib.suppress(MalformedRecord):
            decode(first, second)
