"""Topic names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.config.names import check_topic_name, collision_key, is_valid_topic
from twofold.wire.errors import InvalidTopicException


@pytest.mark.parametrize("name", ["a", "A9._-", "...", "..a", "__consumer_offsets", "x" * 249])
def test_legal_names(name):
    check_topic_name(name)
    assert is_valid_topic(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is empty"),
        (".", "'.' is a directory"),
        ("..", "'..' is a directory"),
        ("x" * 250, "249"),
        ("a b", "'a b' has other characters"),
        ("a/b", "'a/b' has other characters"),
        ("ü", "'ü' has other characters"),
        ("a\n", "has other characters"),
        ("٣", "has other characters"),
    ],
)
def test_illegal_names_say_why(name, reason):
    assert not is_valid_topic(name)
    with pytest.raises(InvalidTopicException) as caught:
        check_topic_name(name)
    assert reason in str(caught.value)


@given(st.text())
def test_a_name_is_legal_exactly_if_the_check_passes(name):
    try:
        check_topic_name(name)
        passed = True
    except InvalidTopicException:
        passed = False
    assert passed == is_valid_topic(name)


def test_dot_and_underscore_collide():
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b_c")
