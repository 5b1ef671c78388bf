"""Patterns of topics on the broker: what is accepted and refused was tried on Apache Kafka."""

import sys
from importlib.util import find_spec

import pytest

from twofold.coordinator.group.patterns import check, matching

needs_re2 = pytest.mark.skipif(find_spec("re2") is None, reason="patterns need the extra [re2]")

NAMES = ("orders", "orders-1", "my-orders", "Orders", "__consumer_offsets", "a.b", "axb", "a1")

ACCEPTED = {
    "orders": {"orders"},  # the whole name
    "orders.*": {"orders", "orders-1"},
    "(?i)ORDERS": {"orders", "Orders"},
    "(?P<all>orders)": {"orders"},
    "(?<all>orders)": {"orders"},
    r"a\pN": {"a1"},
    "[[:alpha:]]+": {"orders", "Orders", "axb"},
    r"\Qa.b\E": {"a.b"},
    r"a\.b\z": {"a.b"},
    "a{1000}": set(),
    "__.*": {"__consumer_offsets"},  # internal topics too
    r"\Q\C\E": set(),
    r"\\C": set(),
}
REFUSED = ["(", "a(?=b)", "a(?!b)", "(?<=a)b", r"(a)\1", "a++", "(?>a)", r"a\Z", r"a\C", r"\\\C", "(?x)a", "a{1001}"]


@needs_re2
@pytest.mark.parametrize("regex", ACCEPTED)
def test_a_pattern_matches_whole_names(regex: str) -> None:
    assert check(regex) is None
    assert matching(regex, NAMES) == ACCEPTED[regex]


@needs_re2
@pytest.mark.parametrize("regex", REFUSED)
def test_what_apache_kafka_refuses_is_refused_with_a_reason(regex: str) -> None:
    assert check(regex)


@needs_re2
def test_nested_repetitions_are_bounded() -> None:
    """Apache Kafka's RE2J takes this one."""
    assert check("(a{1000}){1000}") == "invalid repetition size: {1000}"


def test_without_re2_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr("twofold.extras.find_spec", lambda name: None)
    assert "[re2]" in str(check("orders"))
