"""The walk over keys and the parser of records read the same bytes."""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.records.batch import BatchBuilder, Header, parse_records, read_header, records_section
from twofold.records.spans import iter_spans
from twofold.wire.errors import InvalidRecord

LENGTHS = st.sampled_from((0, 1, 63, 64, 200, 8_191, 8_192, 9_000))
FIELD = st.none() | LENGTHS.map(bytes)
RECORD = st.tuples(FIELD, FIELD, st.integers(-(2**40), 2**40), st.integers(1, 20_000))


def outcome(walk: Callable[[Header, bytes], Iterator[Any]], header: Header, section: bytes) -> list[Any] | str:
    try:
        return list(walk(header, section))
    except InvalidRecord:
        return "refused"


def made(rows: list[tuple[bytes | None, bytes | None, int, int]]) -> tuple[Header, bytes]:
    builder = BatchBuilder(base_offset=1_000)
    delta = -1
    for key, value, time, step in rows:
        delta += step
        builder.add(key, value, time, [("h", b"1")] if step % 2 else (), delta)
    batch = builder.build()
    header = read_header(batch)
    return header, bytes(records_section(batch, 0, header))


@given(rows=st.lists(RECORD, min_size=1, max_size=8))
@settings(deadline=None)
def test_spans_are_the_records_that_the_parser_finds(
    rows: list[tuple[bytes | None, bytes | None, int, int]],
) -> None:
    header, section = made(rows)
    spans = list(iter_spans(header, section))
    records = list(parse_records(header, section))
    assert [(span.offset, span.key, span.is_tombstone) for span in spans] == [
        (record.offset, record.key, record.value is None) for record in records
    ]
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == len(section)


@given(rows=st.lists(RECORD, min_size=1, max_size=3), cut=st.integers(1, 60), more=st.binary(max_size=3))
@settings(deadline=None)
def test_a_section_that_is_cut_or_too_long_is_refused_by_both(
    rows: list[tuple[bytes | None, bytes | None, int, int]], cut: int, more: bytes
) -> None:
    header, section = made(rows)
    for damaged in (section[:-cut], section + more + b"\0"):
        assert outcome(iter_spans, header, damaged) == outcome(parse_records, header, damaged) == "refused"
