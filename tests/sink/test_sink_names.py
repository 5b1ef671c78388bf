"""Names of a sink: whose an id is, and which prefixes a topic's name can begin with."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.sink import names

PREFIXES = st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True)
PROCESSES = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
SLOTS = st.integers(0, 10**6)


@given(PREFIXES, PREFIXES, PROCESSES, SLOTS)
def test_an_id_belongs_to_its_own_prefix_and_to_no_other(prefix: str, other: str, process: str, slot: int) -> None:
    name = names.task_id(prefix, process, slot)
    assert names.is_task_id(prefix, name)
    assert names.is_task_id(other, name) == (other == prefix)


@pytest.mark.parametrize(
    ("prefix", "other"), [("a", "a.b"), ("a.b", "a"), ("a", "ab"), ("a.b", "axb"), ("a-b", "a.b"), ("a", "A")]
)
def test_prefixes_that_look_alike_do_not_match_each_other(prefix: str, other: str) -> None:
    name = names.task_id(other, "0123abcd", 0)
    assert not names.is_task_id(prefix, name)
    assert re.fullmatch(names.task_pattern(prefix), name) is None


@given(PREFIXES, st.text(max_size=30))
def test_a_pattern_matches_what_is_an_id_of_its_prefix(prefix: str, text: str) -> None:
    for name in (text, f"{prefix}|{text}", names.task_id(prefix, "00000000", 7), names.driver_id(prefix)):
        is_matched = re.fullmatch(names.task_pattern(prefix), name, re.ASCII) is not None
        assert is_matched == names.is_task_id(prefix, name)


def test_the_driver_is_no_task() -> None:
    assert not names.is_task_id("a", names.driver_id("a"))


@pytest.mark.parametrize("rest", ["", "x|0", "0123abcd", "0123abcd|", "0123abcd|-1", "0123ABCD|0", "0123abcd|0|0"])
def test_what_is_not_shaped_like_an_id_is_none(rest: str) -> None:
    assert not names.is_task_id("a", f"a|{rest}")


@pytest.mark.parametrize("prefix", ["", "a b", "a|b", "a/b", "ä", "x" * 201, "a\n"])
def test_a_prefix_that_no_topic_can_begin_with_is_refused_by_its_setting(prefix: str) -> None:
    with pytest.raises(ValueError, match="transactionalIdPrefix"):
        names.check_prefix(prefix)


@given(PREFIXES)
def test_a_prefix_of_letters_digits_and_marks_is_taken(prefix: str) -> None:
    assert names.check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "location", ["/data/q", "/data/q/", "file:/data/q", "file:///data/q", "file:/data/q//", "file://///data/q"]
)
def test_every_way_to_write_a_local_path_is_the_same_checkpoint(location: str) -> None:
    assert names.prefix_of_checkpoint(location) == names.prefix_of_checkpoint("/data/q")


@pytest.mark.parametrize("location", ["/data/Q", "/data/q2", "/data", "s3://bucket/data/q", "hdfs://n/data/q", "/"])
def test_other_checkpoints_have_other_prefixes(location: str) -> None:
    prefix = names.prefix_of_checkpoint(location)
    assert prefix != names.prefix_of_checkpoint("/data/q")
    assert names.check_prefix(prefix) == prefix
