"""Streams that start again, after a crash of their first batch or with the other format; what transactions hold back.
With TWOFOLD_LONG=1 Spark's own connector is asked the same."""

import pytest
from connector import when_long
from spark_kit import Kit

COMMITTED = {"kafka.isolation.level": "read_committed"}


# The start of the first batch


def test_a_first_batch_that_failed_is_read_again_from_its_own_start(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.send(topic, range(5), partition=0)
    failed = kit.fail(subscribe=topic, startingOffsets="latest")
    assert failed.logged(0)[topic] == {"0": 5}
    kit.send(topic, range(5, 8), partition=0)  # latest is later now
    assert kit.run(subscribe=topic, startingOffsets="latest").values == [5, 6, 7]


def test_the_start_of_a_first_batch_that_failed_is_that_of_the_option_as_it_is_now(kit: Kit) -> None:
    """Spark's own connector keeps the start in a file of the checkpoint, whose place a Python source is not told."""
    topic = kit.topic(1)
    kit.send(topic, range(5), partition=0)
    kit.fail(subscribe=topic, startingOffsets={topic: {"0": 2}})
    kit.send(topic, range(5, 8), partition=0)
    again = kit.run(subscribe=topic, startingOffsets={topic: {"0": 1}})
    assert again.values == ([1, 2, 3, 4, 5, 6, 7] if kit.form == "twofold" else [2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_checkpoint_has_what_sparks_own_connector_writes_from_the_first_batch_on(kit: Kit, start: str) -> None:
    topic = kit.topic(2)
    kit.send(topic, range(4))
    first = kit.run(subscribe=topic, startingOffsets=start)
    assert first.logged(0) == {topic: {"0": 2, "1": 2}}
    assert first.values == (list(range(4)) if start == "earliest" else [])
    kit.send(topic, range(4, 6))
    second = kit.run(subscribe=topic, startingOffsets=start)
    assert second.logged(1) == {topic: {"0": 3, "1": 3}}
    assert second.values == [4, 5]


# Transactions


def test_a_stream_stops_at_an_open_transaction_and_goes_on_after_it(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.transaction(topic, range(3))
    producer = kit.open_transaction(topic, [3, 4])
    kit.send(topic, [5], partition=0)
    query = kit.start(kit.stream(subscribe=topic, startingOffsets="earliest", **COMMITTED))
    assert query.process() == [0, 1, 2]
    assert query.logged(0)[topic] == {"0": 4}  # three records and their marker: where the open transaction begins
    producer.commit_transaction(60)
    assert query.process() == [0, 1, 2, 3, 4, 5]
    kit.transaction(topic, [99], commit=False)
    kit.transaction(topic, [6])
    assert query.process() == list(range(7))
    assert query.logged(query.last_batch) == {topic: {"0": kit.watermarks(topic)[1]}}


def test_a_batch_of_nothing_but_aborted_records_is_empty_and_passes(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.transaction(topic, range(100, 103), commit=False)
    first = kit.run(subscribe=topic, startingOffsets="earliest", **COMMITTED)
    assert first.rows == []
    assert first.logged(0)[topic] == {"0": 4}
    kit.transaction(topic, [1])
    assert kit.run(subscribe=topic, **COMMITTED).values == [1]


# Checkpoints of both


@when_long
def test_a_checkpoint_of_sparks_own_connector_is_continued_and_handed_back(ours: Kit) -> None:
    theirs = Kit(ours.spark, ours.bootstrap_servers, "kafka", ours.directory)
    topic = ours.topic()
    ours.send(topic, range(4))
    assert theirs.run(subscribe=topic, startingOffsets="earliest").values == [0, 1, 2, 3]
    ours.send(topic, range(4, 8))
    assert ours.run(subscribe=topic).values == [4, 5, 6, 7]
    ours.send(topic, range(8, 12))
    assert theirs.run(subscribe=topic).values == [8, 9, 10, 11]


@when_long
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_checkpoint_of_ours_is_continued_by_sparks_own_connector_after_any_batch(ours: Kit, batches: int) -> None:
    theirs = Kit(ours.spark, ours.bootstrap_servers, "kafka", ours.directory)
    topic = ours.topic()
    for number in range(batches):
        rows = range(4 * number, 4 * number + 4)
        ours.send(topic, rows)
        assert ours.run(subscribe=topic, startingOffsets="earliest").values == list(rows)
    ours.send(topic, range(100, 104))
    assert theirs.run(subscribe=topic).values == [100, 101, 102, 103]
    ours.send(topic, range(104, 108))
    assert ours.run(subscribe=topic).values == [104, 105, 106, 107]


@when_long
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_of_ours_that_failed_is_read_by_sparks_own_connector(ours: Kit, start: str) -> None:
    theirs = Kit(ours.spark, ours.bootstrap_servers, "kafka", ours.directory)
    topic = ours.topic(1)
    ours.send(topic, range(4), partition=0)
    ours.fail(subscribe=topic, startingOffsets=start)
    ours.send(topic, range(4, 6), partition=0)
    expected = range(6) if start == "earliest" else range(4, 6)
    found = theirs.run(subscribe=topic, startingOffsets=start, failOnDataLoss="false")
    assert found.values == list(expected)
