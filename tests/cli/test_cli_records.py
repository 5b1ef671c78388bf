"""Records as text: templates, JSON lines, and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.processes import commands
from twofold.cli.common import CliError
from twofold.cli.records.formats import json_line, parse_json_line, plain, template, unescape
from twofold.client import ConsumerRecord
from twofold.embedded import Broker

RECORD = ConsumerRecord("t", 2, 41, 1_700_000_000_000, b"key", b"value", (("a", b"1"), ("b", None)), 0)

payloads = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))
names = st.text(st.characters(codec="utf-8"), max_size=8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t/%p/%o %k=%s\n", b"t/2/41 key=value\n"),
        (r"%T %K %S %h", b"1700000000000 3 5 a=1,b="),
        (r"100%%\t\x41\\\0", b"100%\tA\\\0"),
        ("täxt", "täxt".encode()),
        ("", b""),
    ],
)
def test_templates_use_kcats_letters(text: str, expected: bytes) -> None:
    assert template(text)(RECORD) == expected


@pytest.mark.parametrize("text", ["%q", "ends with %", r"\q", "%"])
def test_what_a_template_does_not_know_is_named(text: str) -> None:
    with pytest.raises(CliError, match="is not known"):
        template(text)


def test_null_keys_and_values_have_the_size_minus_one() -> None:
    assert template("%K %S[%k%s]")(RECORD._replace(key=None, value=None)) == b"-1 -1[]"


def test_the_plain_form_is_the_value_or_the_key_and_the_value() -> None:
    assert plain(None)(RECORD) == b"value\n"
    assert plain(r"\t")(RECORD) == b"key\tvalue\n"


def test_separators_may_be_escaped_and_may_hold_percent_signs() -> None:
    assert unescape(r"%\t\x00%s") == b"%\t\x00%s"


@given(payloads, payloads, st.lists(st.tuples(names, payloads), max_size=3), st.integers(0, 2**40))
def test_json_lines_carry_every_record_there_and_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    record = ConsumerRecord("t", 0, 1, timestamp, key, value, tuple(headers), 0)
    line = json_line(record)
    assert line.count(b"\n") == 1
    back = parse_json_line(line, 1)
    assert (back.key, back.value, back.headers, back.timestamp_ms) == (key, value, tuple(headers), timestamp)


def test_bytes_that_are_not_text_are_in_base64() -> None:
    fields = json.loads(json_line(RECORD._replace(value=b"\xff\x00")))
    assert fields["value_base64"] == "/wA=" and "value" not in fields


@pytest.mark.parametrize(
    "line", [b"no json", b"[1]", b'{"value_base64": "%%"}', b'{"headers": [{"value": "x"}]}', b'{"timestamp": "x"}']
)
def test_a_line_that_is_no_record_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(CliError, match="line 7 of the input is not a record in JSON"):
        parse_json_line(line, 7)


def test_values_that_are_json_themselves_are_kept_as_json() -> None:
    assert parse_json_line(b'{"value": {"a": 1}}', 1).value == b'{"a": 1}'


def test_produce_gives_a_record_up_after_the_time_that_the_user_allows() -> None:
    """The process is waited for half as long as a producer tries by itself."""
    with Broker() as broker:
        broker.create_topic("orders")
        broker.faults.fail_next("Produce", "KAFKA_STORAGE_ERROR", times=None)
        done = commands.run("produce", "orders", "--timeout", "1", server=broker.bootstrap_servers, stdin="first\n")
    assert done.returncode == 1 and "1 record was not written to orders" in done.stderr
    assert "KAFKA_STORAGE_ERROR" in done.stderr, done.stderr
