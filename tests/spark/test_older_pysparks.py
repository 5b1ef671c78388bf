"""What stands in for parts of the Python Data Source API that PySpark 4.0 and 4.1 lack, asked as those versions ask.
tools/check_pysparks.py runs the versions themselves."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row
from pyspark.sql.types import StructType

from kits.processes.server import TwofoldServer
from twofold.spark import versions
from twofold.spark.datasource import SCHEMA_WITH_HEADERS
from twofold.spark.errors import OptionError
from twofold.spark.options import read_options
from twofold.spark.source import RangePartition, RefusedStream, UnlimitedStreamReader


def test_a_refused_stream_tells_why_to_a_pyspark_that_asks_without_arguments() -> None:
    refused: Any = RefusedStream(OptionError("maxOffsetsPerTrigger=4 needs PySpark 4.2"))
    for ask in (refused.latestOffset, lambda: refused.latestOffset({}, None), refused.initialOffset):
        with pytest.raises(OptionError, match=r"needs PySpark 4\.2"):
            ask()


@pytest.mark.parametrize("name", [*versions.LIMITS, "MAXOFFSETSPERTRIGGER"])
def test_a_limit_is_refused_where_there_is_no_place_for_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    versions.check_reading({name: "4"}, streaming=True)
    monkeypatch.setattr(versions, "HAS_LIMITS", False)
    versions.check_reading({name: "4"}, streaming=False)
    with pytest.raises(OptionError, match=r"=4 needs PySpark 4\.2 or newer, and this is .*install pyspark>=4\.2"):
        versions.check_reading({name: "4"}, streaming=True)


def test_filters_are_refused_where_a_source_is_not_told_them(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.check_reading({"pushDownFilters": "true"}, streaming=False)
    monkeypatch.setattr(versions, "HAS_FILTERS", False)
    versions.check_reading({"pushDownFilters": "false"}, streaming=False)
    with pytest.raises(OptionError, match=r"pushDownFilters=true needs PySpark 4\.1"):
        versions.check_reading({"pushDownFilters": "true"}, streaming=False)


def test_rows_become_the_batches_that_newer_versions_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "HAS_ARROW_STREAMS", False)
    monkeypatch.setattr(versions, "ROWS_PER_BATCH", 2)
    columns = StructType([SCHEMA_WITH_HEADERS[name] for name in ("key", "value", "offset", "headers")])
    rows = [Row(key=b"k", value=None, offset=number, headers=[Row(key="h", value=b"v")]) for number in range(3)]
    batches = list(versions.as_batches(iter(rows), columns))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == [0, 1, 2]
    assert batches[0].to_pylist()[0]["headers"] == [{"key": "h", "value": b"v"}]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """A topic of ten records, and readers of it."""
    with TwofoldServer(tmp_path) as running:
        send(running.bootstrap_servers, 10)

        def reader(start: str = "earliest") -> UnlimitedStreamReader:
            given = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": "t", "startingOffsets": start}
            return UnlimitedStreamReader(read_options(given, streaming=True))

        yield reader, lambda count: send(running.bootstrap_servers, count)


def send(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(count):
        producer.produce("t", b"x", partition=0)
    assert producer.flush(30) == 0


def planned(reader: UnlimitedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    found = reader.partitions(start, end)
    return [(entry.range.start, entry.range.until) for entry in found if isinstance(entry, RangePartition)]


@pytest.mark.slow
def test_a_new_query_is_asked_for_its_end_first_and_goes_on_from_there(
    make: tuple[Callable[..., UnlimitedStreamReader], Callable[[int], None]], caplog: pytest.LogCaptureFixture
) -> None:
    reader, more = make
    first = reader()
    with caplog.at_level(logging.WARNING):
        end = first.latestOffset()
        start = first.initialOffset()
        assert planned(first, start, end) == [(0, 10)]
        assert first.latestOffset() == end == {"t": {"0": 10}}  # nothing new: Spark compares the two
        more(5)
        assert planned(first, end, first.latestOffset()) == [(10, 15)]
        assert [record.message for record in caplog.records] == [versions.ONE_BATCH]  # once, and no word of a replay
        # Started again before its first batch was done: Spark has the end, and asks for the start.
        again = reader()
        assert planned(again, again.initialOffset(), end) == [(0, 10)]
        assert "the first batch of this query is read again" in caplog.records[-1].message
        assert planned(again, end, again.latestOffset()) == [(10, 15)]


@pytest.mark.slow
def test_rows_that_come_between_the_end_and_the_start_of_a_first_batch_are_for_the_next(
    make: tuple[Callable[..., UnlimitedStreamReader], Callable[[int], None]],
) -> None:
    reader, more = make
    latest = reader("latest")
    end = latest.latestOffset()
    more(3)
    assert planned(latest, latest.initialOffset(), end) == []
    assert planned(latest, end, latest.latestOffset()) == [(10, 13)]
