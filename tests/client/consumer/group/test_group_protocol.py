"""The bytes of subscriptions and assignments, in all versions that other clients write."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.client.admin.group_model import read_assignment
from twofold.client.consumer.assignors import SubscribedMember
from twofold.client.consumer.group.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from twofold.types import TopicPartition
from twofold.wire.errors import InconsistentGroupProtocol

names = st.text(min_size=1, max_size=20)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), unique=True, max_size=8)

# As Apache Kafka writes it for topics a and b, user data 01 02, owned a-0 and a-1, generation 7, rack r.
HEAD = bytes.fromhex("00000002 0001 61 0001 62 00000002 0102".replace(" ", ""))
OWNED = bytes.fromhex("00000001 0001 61 00000002 00000000 00000001".replace(" ", ""))
GENERATION = bytes.fromhex("00000007")
RACK = bytes.fromhex("0001 72".replace(" ", ""))
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\0\0" + HEAD, SubscribedMember("m", None, ("a", "b"), user_data=b"\1\2")),
        (b"\0\1" + HEAD + OWNED, SubscribedMember("m", None, ("a", "b"), (A0, A1), user_data=b"\1\2")),
        (b"\0\2" + HEAD + OWNED + GENERATION, SubscribedMember("m", None, ("a", "b"), (A0, A1), 7, None, b"\1\2")),
        (
            b"\0\3" + HEAD + OWNED + GENERATION + RACK,
            SubscribedMember("m", None, ("a", "b"), (A0, A1), 7, "r", b"\1\2"),
        ),
        (
            b"\0\4" + HEAD + OWNED + GENERATION + RACK + b"what is yet to come",
            SubscribedMember("m", None, ("a", "b"), (A0, A1), 7, "r", b"\1\2"),
        ),
    ],
)
def test_subscriptions_of_all_versions_are_read(data: bytes, expected: SubscribedMember) -> None:
    assert decode_subscription("m", None, data) == expected


def test_a_subscription_is_written_as_apache_kafka_writes_it() -> None:
    data = encode_subscription(["b", "a"], user_data=b"\1\2", owned=(A1, A0), generation=7, rack="r")
    assert data == b"\0\3" + HEAD + OWNED + GENERATION + RACK


def test_an_assignment_is_written_as_apache_kafka_writes_it() -> None:
    assert encode_assignment((A1, A0)) == b"\0\3" + OWNED + b"\xff\xff\xff\xff"


@given(st.lists(names, unique=True), partitions, st.binary(max_size=9), st.integers(-1, 9), st.none() | names)
def test_a_subscription_survives_the_way(
    topics: list[str], owned: list[TopicPartition], user_data: bytes, generation: int, rack: str | None
) -> None:
    data = encode_subscription(topics, user_data=user_data, owned=owned, generation=generation, rack=rack)
    found = decode_subscription("m", "i", data)
    assert found == SubscribedMember("m", "i", tuple(sorted(topics)), tuple(sorted(owned)), generation, rack, user_data)


@given(partitions)
def test_an_assignment_survives_the_way(owned: list[TopicPartition]) -> None:
    assert (
        decode_assignment(encode_assignment(owned)) == tuple(sorted(owned)) == read_assignment(encode_assignment(owned))
    )


@pytest.mark.parametrize("size", range(len(HEAD + OWNED + GENERATION + RACK) + 2))
def test_a_subscription_that_is_cut_short_is_an_error_with_the_name_of_the_member(size: int) -> None:
    with pytest.raises(InconsistentGroupProtocol, match="'the member'"):
        decode_subscription("the member", None, (b"\0\3" + HEAD + OWNED + GENERATION + RACK)[:size])


@given(st.binary(max_size=40))
def test_bytes_of_another_form_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(InconsistentGroupProtocol):
        decode_subscription("m", None, data)


def test_no_assignment_is_none_and_garbage_is_an_error() -> None:
    assert decode_assignment(b"") == ()
    with pytest.raises(InconsistentGroupProtocol):
        decode_assignment(struct.pack(">hi", 0, 5))
