"""Batch queries: what is read, from where, up to where. With TWOFOLD_LONG=1 Spark's own connector is asked the same."""

import os
from datetime import UTC, datetime
from typing import Any

import pytest
from connector import when_long
from spark_kit import OLD_MS, Kit

SCHEMA = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]
HEADERS = ("headers", "array<struct<key:string,value:binary>>")


@pytest.fixture
def twenty(kit: Kit) -> str:
    """0 to 19 in two partitions, the even ones in partition 0, a second between each."""
    topic = kit.topic(retention_ms="-1")
    kit.send(
        topic,
        ({"value": b"%d" % n, "partition": n % 2, "timestamp": OLD_MS + n * 1000} for n in range(20)),
    )
    return topic


# What a row has


def test_schema_is_that_of_sparks_own_connector(kit: Kit) -> None:
    topic = kit.topic()
    assert kit.batch(subscribe=topic).dtypes == SCHEMA
    assert kit.batch(subscribe=topic, includeHeaders="true").dtypes == [*SCHEMA, HEADERS]


def test_a_row_has_all_of_its_record(kit: Kit) -> None:
    topic = kit.topic(1, retention_ms="-1")
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    kit.send(topic, [{"key": b"k", "value": b"\x00v", "partition": 0, "timestamp": OLD_MS + 7, "headers": headers}])
    (row,) = kit.batch(subscribe=topic, includeHeaders="true").collect()
    assert (row.key, row.value, row.topic, row.partition, row.offset) == (b"k", b"\x00v", topic, 0, 0)
    assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(OLD_MS / 1000, UTC).replace(microsecond=7000)
    assert row.timestampType == 0
    assert [(header.key, header.value) for header in row.headers] == headers


def test_null_and_empty_are_different_in_keys_values_and_headers(kit: Kit) -> None:
    topic = kit.topic(1)
    sent = [(None, None), (b"", b""), (None, b"v"), (b"k", None)]
    kit.send(topic, [{"key": key, "value": value, "partition": 0} for key, value in sent])
    rows = kit.batch(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == sent
    assert [row.headers for row in rows] == [None] * 4  # null, not empty, where a record has none


def test_timestamp_type_tells_which_side_set_the_time(kit: Kit) -> None:
    topic = kit.topic(1, message_timestamp_type="LogAppendTime")
    kit.send(topic, [{"value": b"1", "partition": 0, "timestamp": OLD_MS}])
    (row,) = kit.batch(subscribe=topic).collect()
    assert row.timestampType == 1
    assert row.timestamp.year > 2024


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(kit: Kit, codec: str) -> None:
    topic = kit.topic(1)
    values = [b"%06d" % n * 20 for n in range(3000)]
    settings: dict[str, Any] = {"compression.type": codec}
    kit.send(topic, ({"value": value, "partition": 0} for value in values), **settings)
    rows = kit.batch(subscribe=topic).orderBy("offset").collect()
    assert [row.value for row in rows] == values
    middle = kit.batch(subscribe=topic, startingOffsets={topic: {"0": 1500}}, endingOffsets={topic: {"0": 1503}})
    assert [row.value for row in middle.orderBy("offset").collect()] == values[1500:1503]


def test_a_record_of_ten_megabytes_is_read(kit: Kit) -> None:
    topic = kit.topic(1, max_message_bytes="20000000")
    value = os.urandom(10_000_000)
    kit.send(topic, [{"value": b"before", "partition": 0}, {"value": value, "partition": 0}])
    kit.send(topic, [{"value": b"after", "partition": 0}])
    rows = kit.batch(subscribe=topic).orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"before", value, b"after"]


# Where it starts and ends


def test_everything_is_read_by_default(kit: Kit, twenty: str) -> None:
    assert kit.values(subscribe=twenty) == list(range(20))
    assert kit.values(subscribe=twenty, startingOffsets="EARLIEST", endingOffsets="Latest") == list(range(20))


def test_offsets_are_chosen_by_partition(kit: Kit, twenty: str) -> None:
    starting, ending = {twenty: {"0": 8, "1": -2}}, {twenty: {"0": -1, "1": 2}}
    assert kit.values(subscribe=twenty, startingOffsets=starting, endingOffsets=ending) == [1, 3, 16, 18]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": OLD_MS + 15_000}, [15, 16, 17, 18, 19]),
        ({"startingTimestamp": OLD_MS + 5_000, "endingTimestamp": OLD_MS + 9_000}, [5, 6, 7, 8]),
        pytest.param({"startingTimestamp": -2, "endingTimestamp": OLD_MS + 2_000}, [0, 1], marks=when_long),
        pytest.param({"startingTimestamp": -1}, [], marks=when_long),
        pytest.param({"startingOffsets": "earliest", "startingTimestamp": OLD_MS + 18_000}, [18, 19], marks=when_long),
        pytest.param({"endingTimestamp": OLD_MS + 500_000}, list(range(20)), marks=when_long),
        ({"startingTimestamp": OLD_MS + 500_000, "startingOffsetsByTimestampStrategy": "latest"}, []),
    ],
)
def test_timestamps_choose_offsets(kit: Kit, twenty: str, options: dict[str, object], expected: list[int]) -> None:
    assert kit.values(subscribe=twenty, **options) == expected


def test_timestamps_are_chosen_by_partition(kit: Kit, twenty: str) -> None:
    starting = {twenty: {"0": OLD_MS + 17_000, "1": OLD_MS + 19_000}}
    assert kit.values(subscribe=twenty, startingOffsetsByTimestamp=starting) == [18, 19]
    ending = {twenty: {"0": OLD_MS + 3_000, "1": OLD_MS}}
    assert kit.values(subscribe=twenty, endingOffsetsByTimestamp=ending) == [0, 2]


def test_a_start_at_the_end_reads_nothing(kit: Kit, twenty: str) -> None:
    assert kit.values(subscribe=twenty, startingOffsets={twenty: {"0": 10, "1": 10}}) == []


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"startingOffsets": "latest"}, marks=when_long),
        pytest.param({"startingOffsets": {"TOPIC": {"0": -1, "1": 0}}}, marks=when_long),
        pytest.param({"endingOffsets": "earliest"}, marks=when_long),
        pytest.param({"endingOffsets": {"TOPIC": {"0": -2, "1": 1}}}, marks=when_long),
        {"startingOffsets": {"TOPIC": {"0": 1}}},
        pytest.param({"startingOffsets": {"TOPIC": {"0": 1, "1": 1, "2": 1}}}, marks=when_long),
        pytest.param(
            {"startingOffsets": {"TOPIC": {"0": 8, "1": 8}}, "endingOffsets": {"TOPIC": {"0": 3, "1": 9}}},
            marks=when_long,
        ),
        pytest.param(
            {"startingOffsets": {"TOPIC": {"0": 1, "1": 1}}, "endingOffsets": {"TOPIC": {"0": 9}}}, marks=when_long
        ),
        {"startingOffsets": {"TOPIC": {"0": 18, "1": 18}}, "failOnDataLoss": "false"},
        pytest.param({"startingOffsetsByTimestamp": {"TOPIC": {"0": OLD_MS}}}, marks=when_long),
        {"startingTimestamp": OLD_MS + 500_000},
        pytest.param({"startingTimestamp": "soon"}, marks=when_long),
        pytest.param({"startingOffsets": "the beginning"}, marks=when_long),
        pytest.param({"minPartitions": "0"}, marks=when_long),
        pytest.param({"maxRecordsPerPartition": "-1"}, marks=when_long),
        pytest.param({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, marks=when_long),
        pytest.param({"failOnDataLoss": "maybe"}, marks=when_long),
        pytest.param({"subscribe": " , "}, marks=when_long),
        pytest.param({"subscribePattern": ".*"}, marks=when_long),
        pytest.param({"kafka__auto__offset__reset": "earliest"}, marks=when_long),
        pytest.param({"kafka__key__deserializer": "x"}, marks=when_long),
        pytest.param({"kafka__value__deserializer": "x"}, marks=when_long),
        pytest.param({"kafka__enable__auto__commit": "true"}, marks=when_long),
        pytest.param({"kafka__interceptor__classes": "x"}, marks=when_long),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(kit: Kit, twenty: str, options: dict[str, object]) -> None:
    def named(value: object) -> object:
        return {twenty: value["TOPIC"]} if isinstance(value, dict) else value

    chosen = {"subscribe": twenty, **{name: named(value) for name, value in options.items()}}
    with pytest.raises(Exception):  # noqa: B017  each format has its own kind
        kit.values(**chosen)


# Which topics


def test_several_topics_are_read_together(kit: Kit) -> None:
    first, second = kit.topic(), kit.topic(1)
    kit.send(first, range(4))
    kit.send(second, range(4, 6), partition=0)
    assert kit.values(subscribe=f"{first}, {second},") == list(range(6))


def test_assigned_partitions_that_do_not_exist_are_dropped(kit: Kit, twenty: str) -> None:
    assert kit.values(assign={twenty: [1, 7]}) == list(range(1, 20, 2))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("NAME-a.*", ["-a1", "-a2"], marks=when_long),
        pytest.param(r"NAME\.c", [".c"], marks=when_long),
        pytest.param("NAME-[ab]", ["-a1", "-a2", "-b"], marks=when_long),
        (r"^NAME-\p{Alpha}$", ["-b"]),
        pytest.param(r"NAME\Q.c\E", [".c"], marks=when_long),
        ("(?i)name-B", ["-b"]),
        pytest.param(r"NAME-\w\d", ["-a1", "-a2"], marks=when_long),
        ("NAME-zzz", []),
    ],
)
def test_a_pattern_matches_anywhere_in_a_name(kit: Kit, pattern: str, expected: list[str]) -> None:
    name = kit.topic().replace("t", "p")
    for suffix in ("-a1", "-a2", "-b", ".c"):
        kit.send(kit.topic(1, f"{name}{suffix}"), [1], partition=0)
    pattern = pattern.replace("NAME", name).replace("name", name.upper())
    found = {row.topic for row in kit.batch(subscribePattern=pattern).collect()}
    assert found == {name + suffix for suffix in expected}


# Tasks


def test_partitions_are_divided_among_tasks(kit: Kit, twenty: str) -> None:
    def tasks(**options: object) -> int:
        frame = kit.batch(subscribe=twenty, **options)
        assert sorted(int(row.value) for row in frame.collect()) == list(range(20))
        return int(frame.rdd.getNumPartitions())

    exact = {
        "startingOffsets": {twenty: {"0": 0, "1": 0}},
        "endingOffsets": {twenty: {"0": 10, "1": 10}},
    }
    assert tasks() == 2
    assert tasks(minPartitions=5) == 6
    assert tasks(minPartitions=9, maxRecordsPerPartition=3) == 8
    assert tasks(maxRecordsPerPartition=3, **exact) == 8


def test_a_frame_that_is_used_again_sees_what_came_since(kit: Kit) -> None:
    topic = kit.topic()
    kit.send(topic, range(10))
    frame, divided = kit.batch(subscribe=topic), kit.batch(subscribe=topic, minPartitions=5)
    assert [len(frame.collect()), len(divided.collect())] == [10, 10]
    kit.send(topic, range(10, 20))
    assert [len(frame.collect()), len(divided.collect())] == [20, 20]


# Transactions


def test_read_committed_shows_what_was_committed_and_nothing_else(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.transaction(topic, range(3))
    kit.transaction(topic, range(100, 103), commit=False)
    kit.send(topic, range(3, 6), partition=0)
    kit.transaction(topic, range(6, 9))
    producer = kit.open_transaction(topic, range(200, 203))
    kit.send(topic, [300], partition=0)
    assert kit.values(subscribe=topic, kafka__isolation__level="read_committed") == list(range(9))
    uncommitted = kit.values(subscribe=topic, kafka__isolation__level="read_uncommitted")
    assert uncommitted == [*range(9), 100, 101, 102, 200, 201, 202, 300]
    producer.abort_transaction(60)
    assert kit.values(subscribe=topic, kafka__isolation__level="read_committed") == [*range(9), 300]


def test_read_committed_is_the_default_of_ours(ours: Kit) -> None:
    topic = ours.topic(1)
    ours.transaction(topic, range(3))
    ours.transaction(topic, range(100, 103), commit=False)
    producer = ours.open_transaction(topic, [200])
    assert ours.values(subscribe=topic) == [0, 1, 2]
    producer.abort_transaction(60)


def test_tasks_that_begin_inside_a_transaction_know_whether_it_was_aborted(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.transaction(topic, range(100, 130), commit=False)
    kit.transaction(topic, range(30))
    frame = kit.batch(subscribe=topic, minPartitions=8, kafka__isolation__level="read_committed")
    assert frame.rdd.getNumPartitions() == 8
    assert sorted(int(row.value) for row in frame.collect()) == list(range(30))


# Loss


def test_records_that_are_gone_end_the_query_or_are_stepped_over(kit: Kit) -> None:
    topic = kit.topic_that_lost(5)
    kit.send(topic, range(5, 20), partition=0)
    assert kit.values(subscribe=topic) == list(range(5, 20))
    start = {topic: {"0": 2}}
    with pytest.raises(Exception, match=r"(?i)data\s?loss|data may have been lost|out of range"):
        kit.values(subscribe=topic, startingOffsets=start)
    assert kit.values(subscribe=topic, startingOffsets=start, failOnDataLoss="false") == list(range(5, 20))
    gone = {"startingOffsets": {topic: {"0": 1}}, "endingOffsets": {topic: {"0": 4}}}
    assert kit.values(subscribe=topic, failOnDataLoss="false", **gone) == []


def test_an_end_past_the_log_is_waited_for_and_then_counts_as_loss(kit: Kit, twenty: str) -> None:
    past: dict[str, Any] = {"startingOffsets": {twenty: {"0": 8, "1": 8}}, "endingOffsets": {twenty: {"0": 12, "1": 9}}}
    past["kafkaConsumer.pollTimeoutMs"] = 1000
    with pytest.raises(Exception, match=r"(?i)offset"):
        kit.values(subscribe=twenty, **past)
    assert kit.values(subscribe=twenty, failOnDataLoss="false", **past) == [16, 17, 18]


# What is not there


def test_a_topic_that_does_not_exist_is_an_error_that_names_it(ours: Kit) -> None:
    with pytest.raises(Exception, match="t-that-is-not-there"):
        ours.values(subscribe="t-that-is-not-there", fetchOffset__retryIntervalMs=10)


def test_a_broker_that_cannot_be_reached_is_named(ours: Kit) -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1\b"):
        ours.values(subscribe="t", kafka__bootstrap__servers="127.0.0.1:1", fetchOffset__retryIntervalMs=10)
