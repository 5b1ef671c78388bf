"""What a task reads, without Spark: connections that break, that are old, that are left in the middle of an answer."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes.server import TwofoldServer
from twofold.spark.errors import DataLoss
from twofold.spark.fetch import read_range
from twofold.spark.offsets import EARLIEST, LATEST, Range
from twofold.spark.options import ReadOptions, read_options
from twofold.types import TopicPartition

pytestmark = pytest.mark.slow

COUNT = 5000
WHOLE = Range(TopicPartition("t", 0), EARLIEST, LATEST)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "batch.num.messages": 100})
        for number in range(COUNT):
            producer.produce("t", b"%05d" % number, partition=0)
        assert producer.flush(30) == 0
        yield running


def options_for(broker: TwofoldServer, **settings: str) -> ReadOptions:
    # Small answers, so that there are many.
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    given |= {"kafka.max.partition.fetch.bytes": "4000"}
    return read_options(given | {name.replace("__", "."): value for name, value in settings.items()}, streaming=False)


def numbers(batches: Iterator[object]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]  # type: ignore[attr-defined]


def test_a_range_is_read_once_and_in_order(broker: TwofoldServer) -> None:
    options = options_for(broker)
    assert numbers(read_range(options, WHOLE)) == list(range(COUNT))
    assert numbers(read_range(options, Range(WHOLE.tp, 1234, 1236))) == [1234, 1235]


def test_the_size_of_what_spark_is_given_does_not_depend_on_how_often_is_tried(broker: TwofoldServer) -> None:
    sizes = [
        [batch.num_rows for batch in read_range(options_for(broker, fetchOffset__numRetries=retries), WHOLE)]
        for retries in ("0", "1", "9")
    ]
    assert sum(sizes[0]) == COUNT
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_broker_that_starts_again_does_not_end_the_task(broker: TwofoldServer) -> None:
    rows = read_range(options_for(broker), WHOLE)
    first = next(rows)
    broker.kill()
    broker.start()
    assert numbers(iter([first, *rows])) == list(range(COUNT))


def test_a_connection_that_died_between_tasks_is_replaced(broker: TwofoldServer) -> None:
    options = options_for(broker)
    assert len(numbers(read_range(options, WHOLE))) == COUNT
    broker.kill()
    broker.start()
    assert numbers(read_range(options, WHOLE)) == list(range(COUNT))


def test_an_abandoned_answer_does_not_meet_the_next_task(broker: TwofoldServer) -> None:
    options = options_for(broker)
    for _ in range(3):
        rows = read_range(options, WHOLE)
        assert isinstance(rows, Generator)
        next(rows)
        rows.close()  # the answer after the first is on its way
        assert numbers(read_range(options, Range(WHOLE.tp, 4000, 4003))) == [4000, 4001, 4002]


def test_a_connection_serves_one_task_after_the_other(broker: TwofoldServer) -> None:
    options = options_for(broker)
    numbers(read_range(options, WHOLE))
    before = broker.open_files
    for _ in range(5):
        numbers(read_range(options, WHOLE))
    assert broker.open_files == before


def test_an_end_that_does_not_come_is_loss_after_the_poll_timeout(broker: TwofoldServer) -> None:
    past = Range(WHOLE.tp, COUNT - 2, COUNT + 1)
    with pytest.raises(DataLoss, match=f"from offset {COUNT} to {COUNT + 1}.*the log ends at {COUNT}"):
        numbers(read_range(options_for(broker, kafkaConsumer__pollTimeoutMs="100"), past))
    patient = options_for(broker, kafkaConsumer__pollTimeoutMs="100", failOnDataLoss="false")
    assert numbers(read_range(patient, past)) == [COUNT - 2, COUNT - 1]


def test_a_broker_that_is_gone_ends_the_task_with_its_address(broker: TwofoldServer) -> None:
    options = options_for(broker, kafkaConsumer__pollTimeoutMs="1000")
    rows = read_range(options, WHOLE)
    next(rows)
    broker.kill()
    with pytest.raises(Exception, match=str(broker.port)):
        numbers(rows)
