"""Streams: which batches there are, what a checkpoint has, what happens when topics change. With TWOFOLD_LONG=1 Spark's
own connector is asked the same."""

import json
import shutil
from typing import Any

import pytest
from connector import when_long
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import spark_partition_id
from spark_kit import OLD_MS, Kit, Query


@pytest.fixture
def twenty(kit: Kit) -> str:
    topic = kit.topic(retention_ms="-1")
    kit.send(
        topic,
        ({"value": b"%d" % n, "partition": n % 2, "timestamp": OLD_MS + n * 1000} for n in range(20)),
    )
    return topic


def offsets_of(query: Query, batch: int) -> dict[str, dict[str, int]]:
    """Without what our first batch remembers."""
    return {topic: offsets for topic, offsets in query.logged(batch).items() if not topic.startswith(":")}


# Where it starts


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ({}, []),
        pytest.param({"startingOffsets": "latest"}, [], marks=when_long),
        pytest.param({"startingOffsets": "earliest"}, list(range(20)), marks=when_long),
        pytest.param({"startingOffsets": {"TOPIC": {"0": 8, "1": -1}}}, [16, 18], marks=when_long),
        ({"startingOffsets": {"TOPIC": {"0": 9, "1": -2}}}, [1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19]),
        ({"startingTimestamp": OLD_MS + 17_000}, [17, 18, 19]),
        pytest.param(
            {"startingOffsetsByTimestamp": {"TOPIC": {"0": OLD_MS + 18_000, "1": OLD_MS + 17_000}}},
            [17, 18, 19],
            marks=when_long,
        ),
        pytest.param(
            {"startingTimestamp": OLD_MS + 500_000, "startingOffsetsByTimestampStrategy": "LATEST"}, [], marks=when_long
        ),
        pytest.param({"startingTimestamp": -2}, list(range(20)), marks=when_long),
        pytest.param({"startingTimestamp": -1}, [], marks=when_long),
        pytest.param({"startingOffsets": "earliest", "endingTimestamp": 1}, list(range(20)), marks=when_long),
    ],
    ids=str,
)
def test_a_new_query_starts_where_its_options_say(
    kit: Kit, twenty: str, starting: dict[str, Any], expected: list[int]
) -> None:
    chosen: dict[str, Any] = {
        name: {twenty: value["TOPIC"]} if isinstance(value, dict) else value for name, value in starting.items()
    }
    query = kit.run(subscribe=twenty, **chosen)
    assert query.values == expected
    assert query.batches == [len(expected)]  # the first batch is one even when it is empty
    assert offsets_of(query, 0) == {twenty: {"0": 10, "1": 10}}


def test_a_stream_goes_on_with_what_comes(kit: Kit) -> None:
    topic = kit.topic()
    kit.send(topic, range(4))
    query = kit.start(kit.stream(subscribe=topic, startingOffsets="earliest"))
    assert query.process() == list(range(4))
    kit.send(topic, range(4, 8))
    assert query.process() == list(range(8))
    progress = query.query.lastProgress["sources"][0]
    assert json.loads(str(progress["endOffset"]).replace("'", '"')) == {topic: {"0": 4, "1": 4}}
    assert json.loads(str(progress["latestOffset"]).replace("'", '"')) == {topic: {"0": 4, "1": 4}}


def test_a_query_that_starts_again_goes_on_where_it_was(kit: Kit, twenty: str) -> None:
    first = kit.run(subscribe=twenty, startingOffsets={twenty: {"0": 5, "1": 10}})
    assert first.values == [10, 12, 14, 16, 18]
    kit.send(twenty, range(20, 24))
    second = kit.run(subscribe=twenty, startingOffsets="latest")
    assert second.values == [20, 21, 22, 23]
    assert second.logged(1) == {twenty: {"0": 12, "1": 12}}  # nothing but what Spark's own connector writes
    assert kit.run(subscribe=twenty).values == []


# How much a batch takes


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"maxOffsetsPerTrigger": 7}, [6, 6, 6, 2]),
        pytest.param(
            {"maxOffsetsPerTrigger": 1, "startingOffsets": {"TOPIC": {"0": 8, "1": 8}}}, [2, 2], marks=when_long
        ),
        ({"maxOffsetsPerTrigger": 6, "startingOffsets": {"TOPIC": {"0": 9, "1": 0}}}, [6, 5]),
        pytest.param({"maxOffsetsPerTrigger": 0}, [0], marks=when_long),
        pytest.param({"minOffsetsPerTrigger": 100}, [20], marks=when_long),
        ({"maxOffsetsPerTrigger": 15, "minOffsetsPerTrigger": 15}, [14]),
        pytest.param({"maxOffsetsPerTrigger": 1000}, [20], marks=when_long),
    ],
    ids=str,
)
def test_limits_of_a_batch(kit: Kit, twenty: str, options: dict[str, Any], batches: list[int]) -> None:
    chosen: dict[str, Any] = {"startingOffsets": "earliest"} | {
        name: {twenty: value["TOPIC"]} if isinstance(value, dict) else value for name, value in options.items()
    }
    assert kit.run(subscribe=twenty, **chosen).batches == batches


@when_long
def test_a_trigger_for_once_takes_everything(kit: Kit, twenty: str) -> None:
    frame = kit.stream(subscribe=twenty, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    query = kit.start(frame, once=True)
    query.query.awaitTermination(60)
    assert query.batches == [20]


def test_a_batch_is_held_back_until_there_is_enough(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, [0], partition=0)
    query = kit.start(kit.stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=3))
    kit.wait_for(lambda: query.values == [0])
    kit.send(topic, [1], partition=0)
    assert query.process() == [0]
    kit.send(topic, [2, 3], partition=0)
    kit.wait_for(lambda: query.values == [0, 1, 2, 3])


def test_a_batch_is_not_held_back_longer_than_the_delay(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, [0], partition=0)
    frame = kit.stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=3, maxTriggerDelay="2s")
    query = kit.start(frame)
    kit.wait_for(lambda: query.values == [0])
    kit.send(topic, [1], partition=0)
    kit.wait_for(lambda: query.values == [0, 1])


def test_what_is_available_now_does_not_grow_while_it_is_read(kit: Kit, twenty: str) -> None:
    frame = kit.stream(subscribe=twenty, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    query = kit.start(frame, availableNow=True)
    kit.wait_for(lambda: bool(query.batches))
    kit.send(twenty, range(20, 24))
    query.query.awaitTermination(60)
    assert query.values == list(range(20))
    assert kit.run(subscribe=twenty).values == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"minPartitions": 9, "maxRecordsPerPartition": 3}, 8),
        pytest.param({}, 2, marks=when_long),
        pytest.param({"minPartitions": 5}, 6, marks=when_long),
        pytest.param({"maxRecordsPerPartition": 3}, 8, marks=when_long),
    ],
    ids=str,
)
def test_batches_are_divided_among_tasks(kit: Kit, twenty: str, options: dict[str, Any], tasks: int) -> None:
    frame = kit.stream(subscribe=twenty, startingOffsets="earliest", **options).withColumn("task", spark_partition_id())
    query = kit.start(frame)
    assert query.process() == list(range(20))
    assert len({row.task for row in query.rows}) == tasks


def test_only_assigned_partitions_are_read(kit: Kit, twenty: str) -> None:
    query = kit.run(assign={twenty: [1, 7]}, startingOffsets="earliest")
    assert query.values == list(range(1, 20, 2))
    assert offsets_of(query, 0) == {twenty: {"1": 10}}


def test_a_stream_shows_of_a_record_what_a_batch_query_shows(kit: Kit) -> None:
    topic = kit.topic(1)
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    kit.send(
        topic,
        [
            {"key": b"k", "value": b"1", "partition": 0, "timestamp": OLD_MS + 7, "headers": headers},
            {"key": None, "value": None, "partition": 0},
            {"key": b"", "value": b"", "partition": 0},
        ],
    )
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    rows = sorted(kit.run(**options).rows, key=lambda row: row.offset)
    assert rows == kit.batch(**options).orderBy("offset").collect()
    assert [row.headers is None for row in rows] == [False, True, True]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": {"TOPIC": {"0": 1}}},
        pytest.param({"startingTimestamp": OLD_MS + 500_000}, marks=when_long),
        pytest.param({"startingOffsetsByTimestamp": {"TOPIC": {"0": OLD_MS}}}, marks=when_long),
        pytest.param({"endingOffsets": "latest"}, marks=when_long),
        pytest.param({"endingOffsetsByTimestamp": {"TOPIC": {"0": OLD_MS, "1": OLD_MS}}}, marks=when_long),
        pytest.param({"maxOffsetsPerTrigger": "many"}, marks=when_long),
        pytest.param({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, marks=when_long),
    ],
    ids=str,
)
def test_a_stream_that_makes_no_sense_is_refused(kit: Kit, twenty: str, options: dict[str, Any]) -> None:
    chosen: dict[str, Any] = {
        name: {twenty: value["TOPIC"]} if isinstance(value, dict) else value for name, value in options.items()
    }
    with pytest.raises(Exception):  # noqa: B017  each format has its own kind, and its own time
        kit.run(subscribe=twenty, **chosen)


# Topics that change


def test_partitions_that_are_added_are_read_from_their_start(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, [0], partition=0)
    query = kit.start(kit.stream(subscribe=topic))
    assert query.process() == []
    kit.grow(topic, 3)
    kit.send(topic, [1], partition=1)
    kit.send(topic, [2], partition=2)
    kit.send(topic, [3], partition=0)
    kit.wait_for(lambda: query.values == [1, 2, 3])
    query.stop()
    kit.send(topic, [4], partition=2)
    assert kit.run(subscribe=topic).values == [4]


@when_long
def test_partitions_that_are_added_share_the_limit(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, range(4), partition=0)
    assert kit.run(subscribe=topic, startingOffsets="earliest").values == list(range(4))
    kit.grow(topic, 2)
    kit.send(topic, range(4, 8), partition=0)
    kit.send(topic, range(8, 12), partition=1)
    query = kit.run(subscribe=topic, maxOffsetsPerTrigger=4)
    assert query.batches == [4, 4]
    assert query.values == list(range(4, 12))


@when_long
def test_topics_that_match_later_are_read_from_their_start(kit: Kit) -> None:
    name = kit.topic().replace("t", "p")
    kit.send(kit.topic(1, f"{name}-a"), [0], partition=0)
    query = kit.start(kit.stream(subscribePattern=f"{name}-.*"))
    assert query.process() == []
    kit.send(kit.topic(1, f"{name}-b"), [1], partition=0)
    kit.wait_for(lambda: query.values == [1])


@when_long
def test_a_topic_that_is_taken_out_of_the_query_counts_as_loss(kit: Kit) -> None:
    first, second = kit.topic(1), kit.topic(1)
    kit.send(first, [0], partition=0)
    kit.send(second, [1], partition=0)
    assert kit.run(subscribe=f"{first},{second}", startingOffsets="earliest").values == [0, 1]
    kit.send(first, [2], partition=0)
    shutil.copytree(kit.directory / "q", kit.directory / "copy")
    with pytest.raises(StreamingQueryException, match=r"(?i)gone|no longer|data\s?loss|missed|lost"):
        kit.run(subscribe=first)
    assert kit.run("copy", subscribe=first, failOnDataLoss="false").values == [2]


@pytest.mark.parametrize("fail", [pytest.param("true", marks=when_long), "false"])
def test_a_subscribed_topic_that_is_deleted_ends_the_query(kit: Kit, fail: str) -> None:
    topic = kit.topic(1)
    kit.send(topic, [0], partition=0)
    options = {"failOnDataLoss": fail, "fetchOffset.retryIntervalMs": 10}
    query = kit.start(kit.stream(subscribe=topic, startingOffsets="earliest", **options))
    assert query.process() == [0]
    kit.delete(topic)
    with pytest.raises(StreamingQueryException):
        query.query.awaitTermination(60)


@when_long
def test_a_matching_topic_that_is_deleted_is_loss_or_forgotten(kit: Kit) -> None:
    name = kit.topic().replace("t", "p")
    first, second = kit.topic(1, f"{name}-a"), kit.topic(1, f"{name}-b")
    kit.send(first, [0], partition=0)
    kit.send(second, [1], partition=0)
    options: dict[str, Any] = {"subscribePattern": f"{name}-.*", "fetchOffset.retryIntervalMs": 10}
    assert kit.run(startingOffsets="earliest", **options).values == [0, 1]
    shutil.copytree(kit.directory / "q", kit.directory / "copy")
    kit.delete(second)
    kit.send(first, [2], partition=0)
    with pytest.raises(StreamingQueryException, match=r"(?i)gone|no longer|data\s?loss|missed|lost"):
        kit.run(**options)
    assert kit.run("copy", failOnDataLoss="false", **options).values == [2]


def test_a_topic_that_is_made_anew_and_is_shorter_is_loss_or_silence(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, range(10), partition=0)
    options = {"fetchOffset.retryIntervalMs": 10}
    assert kit.run(subscribe=topic, startingOffsets="earliest").values == list(range(10))
    shutil.copytree(kit.directory / "q", kit.directory / "copy")
    kit.delete(topic)
    kit.topic(1, topic)
    kit.send(topic, range(100, 103), partition=0)
    frame = kit.stream(subscribe=topic, **options)
    with pytest.raises(StreamingQueryException, match=r"(?i)went back|was changed|missed|lost"):
        kit.start(frame).query.processAllAvailable()
    frame = kit.stream(subscribe=topic, failOnDataLoss="false", **options)
    query = kit.start(frame, "copy")
    assert query.process() == []


@when_long
def test_a_topic_that_is_made_anew_and_is_longer_is_read_on_from_the_old_offset(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, range(10), partition=0)
    assert kit.run(subscribe=topic, startingOffsets="earliest").values == list(range(10))
    kit.delete(topic)
    kit.topic(1, topic)
    kit.send(topic, range(100, 112), partition=0)
    assert kit.run(subscribe=topic).values == [110, 111]


def test_records_that_are_gone_end_the_stream_or_are_stepped_over(kit: Kit) -> None:
    topic = kit.topic_that_lost(5)
    kit.send(topic, range(5, 20), partition=0)
    start = {topic: {"0": 2}}
    with pytest.raises(StreamingQueryException, match=r"(?i)data\s?loss|lost|out of range"):
        kit.run(subscribe=topic, startingOffsets=start)
    query = kit.run("other", subscribe=topic, startingOffsets=start, failOnDataLoss="false")
    assert query.values == list(range(5, 20))


@when_long
def test_an_added_partition_that_does_not_start_at_zero_is_loss(kit: Kit) -> None:
    topic = kit.topic_that_lost(3)
    kit.send(topic, [3], partition=0)
    other = kit.topic(1)
    kit.send(other, [0], partition=0)
    assert kit.run(subscribe=other, startingOffsets="earliest").values == [0]
    shutil.copytree(kit.directory / "q", kit.directory / "copy")
    with pytest.raises(StreamingQueryException, match=r"(?i)added"):
        kit.run(subscribe=f"{other},{topic}")
    assert kit.run("copy", subscribe=f"{other},{topic}", failOnDataLoss="false").values == [3]
