"""The syntax of .properties files."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.config.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a : 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t= 1", {"a": "1"}),
        ("  a=1", {"a": "1"}),
        ("a=1  ", {"a": "1  "}),
        ("a==1", {"a": "=1"}),
        ("a = = 1", {"a": "= 1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("# c=1\n  ! d=2\na=1", {"a": "1"}),
        ("# c \\\na=1", {"a": "1"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\n2", {"a": "1\\2"}),
        ("a=x\\", {"a": "x"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("path=C\\:\\\\data", {"path": "C:\\data"}),
        ("a=\\t\\n\\r\\f\\z", {"a": "\t\n\r\fz"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://:9092,CONTROLLER://:9093", {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text, values):
    assert parse_properties(text) == values


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\uzzzz", "a=1\nb=\\u"])
def test_a_broken_escape_names_its_line(text):
    with pytest.raises(ValueError, match="line 2"):
        parse_properties(text)


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if not c.isalnum() or ord(c) > 127 else c for c in text)


_BASIC = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@given(st.dictionaries(_BASIC.filter(bool), _BASIC))
def test_what_is_escaped_comes_back(values):
    text = "\n".join(f"{escaped(key)} = {escaped(value)}" for key, value in values.items())
    assert parse_properties(text) == values


@given(st.text())
def test_any_text_is_read_or_refused_as_a_value_error(text):
    with suppress(ValueError):
        assert all(isinstance(value, str) for value in parse_properties(text).values())
