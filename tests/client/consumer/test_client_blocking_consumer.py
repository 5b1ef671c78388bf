"""The consumer for code without asyncio, against a broker in this process."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import twofold
import twofold.aio
from twofold import NewTopic, OffsetAndMetadata, RebalanceListener, TopicPartition
from twofold.embedded import Broker
from twofold.errors import ClientClosed, IllegalConsumerCall, KafkaError, WokenUp

PATIENCE_MS = 30_000
MADE_OTHERWISE = {"of"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """Two partitions with the numbers 0 to 9 each."""
    name = str(request.node.name)[:200].replace("[", "-").replace("]", "")
    broker.create_topic(name, partitions=2)
    with twofold.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(10):
            for partition in (0, 1):
                producer.send(name, b"%d" % number, partition=partition)
    return name


def consumer_of(broker: Broker, **options: Any) -> twofold.Consumer:
    return twofold.Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", **options)


def committed(broker: Broker, group: str, topic: str) -> list[int]:
    """What the group has of the two partitions; 0 for nothing."""
    with twofold.Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=group) as asking:
        found = asking.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    return [0 if row is None else row.offset for row in found.values()]


def poll_until(consumer: twofold.Consumer, count: int) -> list[twofold.ConsumerRecord]:
    found: list[twofold.ConsumerRecord] = []
    while len(found) < count:
        polled = consumer.poll(PATIENCE_MS)
        assert polled, f"{len(found)} records of {count} came"
        found += polled
    return found


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_it_has_every_call_of_the_asyncio_client_and_wakeup() -> None:
    assert public(twofold.Consumer) == (public(twofold.aio.Consumer) - MADE_OTHERWISE) | {"wakeup"}


def test_partitions_are_assigned_read_and_sought(broker: Broker, topic: str) -> None:
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(broker) as consumer:
        assert consumer.partitions_for(topic) == [0, 1]
        consumer.assign([one, two])
        assert consumer.assignment == (one, two) and consumer.subscription == frozenset()
        assert len(poll_until(consumer, 20)) == 20
        assert consumer.lag() == {one: 0, two: 0}
        consumer.seek(one, 7)
        consumer.pause(two)
        consumer.seek_to_beginning(two)
        assert [record.value for record in poll_until(consumer, 3)] == [b"7", b"8", b"9"]
        assert consumer.poll(0) == []
        consumer.resume(two)
        consumer.seek(two, OffsetAndMetadata(9))
        assert [record.value for record in poll_until(consumer, 1)] == [b"9"]
        assert consumer.beginning_offsets([one]) == {one: 0} and consumer.end_offsets([two]) == {two: 10}
        assert consumer.offsets_for_times({one: 0})[one].offset == 0
        consumer.seek_to_end(one)
        assert consumer.position(one) == 10
        consumer.seek_to_timestamp(0, one)
        assert consumer.position(one) == 0


class Told(RebalanceListener):
    """What it was told, in which thread; it commits before it loses anything."""

    def __init__(self, consumer: twofold.Consumer) -> None:
        self._consumer = consumer
        self.events: list[tuple[str, int]] = []
        self.threads: set[str] = set()

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._note("assigned", partitions)
        assert set(self._consumer.assignment) >= set(partitions)

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._note("revoked", partitions)
        self._consumer.commit()

    def _note(self, what: str, partitions: tuple[TopicPartition, ...]) -> None:
        self.events.append((what, len(partitions)))
        self.threads.add(threading.current_thread().name)


def test_listeners_run_in_the_calling_thread_and_may_call_the_consumer(broker: Broker, topic: str) -> None:
    with consumer_of(broker, group_id=topic, enable_auto_commit=False) as consumer:
        listener = Told(consumer)
        consumer.subscribe([topic], listener=listener)
        assert consumer.subscription == {topic}
        poll_until(consumer, 20)
        assert consumer.group_metadata().generation_id >= 1
        consumer.enforce_rebalance("to see it")
        while listener.events[-1:] != [("assigned", 2)] or len(listener.events) < 3:
            consumer.poll(100)
    assert listener.events == [("assigned", 2), ("revoked", 2), ("assigned", 2), ("revoked", 2)]
    assert listener.threads == {threading.current_thread().name}
    assert committed(broker, topic, topic) == [10, 10], "the listener's own commit"


def test_what_a_listener_raises_comes_out_of_poll(broker: Broker, topic: str) -> None:
    class Angry(RebalanceListener):
        def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
            raise KeyError("mine")

    with consumer_of(broker, group_id=topic) as consumer:
        consumer.subscribe([topic], listener=Angry())
        with pytest.raises(KeyError, match="mine"):
            poll_until(consumer, 1)
        assert len(poll_until(consumer, 20)) == 20, "and the consumer goes on"


def test_the_callback_of_a_commit_runs_in_the_calling_thread(broker: Broker, topic: str) -> None:
    told: list[tuple[str, int, KafkaError | None]] = []

    def done(offsets: Any, error: KafkaError | None) -> None:
        told.append((threading.current_thread().name, sum(row.offset for row in offsets.values()), error))

    with consumer_of(broker, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        poll_until(consumer, 20)
        consumer.commit_async(callback=done)
        consumer.commit_async()
    assert told == [(threading.current_thread().name, 20, None)]
    assert committed(broker, topic, topic) == [10, 10]


def test_a_commit_of_nothing_is_no_error_before_the_group_is_joined(broker: Broker, topic: str) -> None:
    with consumer_of(broker, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        consumer.commit()
        consumer.poll(0)
        consumer.commit()
        assert len(poll_until(consumer, 20)) == 20


class TestLoops:
    def test_what_the_loop_has_not_got_is_not_committed_when_it_ends(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker, group_id=topic) as consumer:
            consumer.subscribe([topic])
            for seen, _ in enumerate(consumer, 1):
                if seen == 7:
                    break
        assert sum(committed(broker, topic, topic)) == 7
        with consumer_of(broker, group_id=topic) as consumer:
            consumer.subscribe([topic])
            assert len(poll_until(consumer, 13)) == 13

    def test_what_left_the_block_by_an_exception_commits_nothing(self, broker: Broker, topic: str) -> None:
        def work() -> None:
            with consumer_of(broker, group_id=topic) as consumer:
                consumer.subscribe([topic])
                for record in consumer:
                    raise KeyError(record.offset)

        with pytest.raises(KeyError):
            work()
        assert committed(broker, topic, topic) == [0, 0]

    def test_a_commit_in_the_loop_has_what_the_loop_got(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker, group_id=topic, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            for seen, record in enumerate(consumer, 1):
                consumer.commit()
                at = TopicPartition(topic, record.partition)
                assert consumer.committed([at])[at] == OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
                if seen == 4:
                    consumer.commit_async()
                    break
        assert sum(committed(broker, topic, topic)) == 4

    def test_calls_about_positions_see_what_the_loop_has_got(self, broker: Broker, topic: str) -> None:
        at = TopicPartition(topic, 0)
        with consumer_of(broker) as consumer:
            consumer.assign([at])
            values = []
            for record in consumer:
                values.append(int(record.value or b""))
                if record.offset == 3 and values.count(3) == 1:
                    assert consumer.position(at) == 4
                if record.offset == 5 and values.count(5) == 1:
                    consumer.seek(at, 2)
                if record.offset == 9:
                    break
            assert values == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7, 8, 9]

    def test_poll_returns_what_a_loop_has_left(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert next(iter(consumer)).offset == 0
            assert [record.offset for record in poll_until(consumer, 9)] == list(range(1, 10))


class TestInterrupts:
    def test_wakeup_ends_the_poll_that_waits(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            poll_until(consumer, 10)
            waker = threading.Timer(0.2, consumer.wakeup)
            waker.start()
            with pytest.raises(WokenUp):
                consumer.poll(PATIENCE_MS)
            waker.join()
            assert consumer.poll(0) == []

    def test_wakeup_ends_the_next_poll_when_none_waits(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.wakeup()
            with pytest.raises(WokenUp):
                consumer.poll(PATIENCE_MS)
            assert len(poll_until(consumer, 10)) == 10, "no record was lost"

    def test_ctrl_c_ends_a_poll_and_loses_nothing(self, broker: Broker, topic: str) -> None:
        with consumer_of(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            poll_until(consumer, 10)
            for _ in range(3):
                sender = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
                sender.start()
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(PATIENCE_MS)
                sender.join()
            consumer.seek_to_beginning()
            assert len(poll_until(consumer, 10)) == 10

    def test_what_a_poll_had_found_when_it_was_interrupted_comes_with_the_next(
        self, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The interrupt comes when the records are there and the thread has not taken them yet."""
        from twofold.client.consumer.calling import CallingThread, Interrupted

        with consumer_of(broker, group_id=topic) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            run = CallingThread.run

            def interrupted(self: CallingThread, coroutine: Any) -> Any:
                result = run(self, coroutine)
                if isinstance(result, list) and result:
                    raise Interrupted(KeyboardInterrupt(), result)
                return result

            monkeypatch.setattr(CallingThread, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                poll_until(consumer, 1)
            monkeypatch.undo()
            consumer.commit()
            assert committed(broker, topic, topic) == [0, 0]
            assert len(poll_until(consumer, 10)) == 10


def test_one_thread_at_a_time_may_call(broker: Broker, topic: str) -> None:
    with consumer_of(broker) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        poll_until(consumer, 10)
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                consumer.poll(PATIENCE_MS)
            except WokenUp as error:
                ended.append(error)

        other = threading.Thread(target=wait)
        other.start()

        def pause_for_ever() -> None:
            while True:
                consumer.pause()

        with pytest.raises(IllegalConsumerCall, match="another thread is in a call of this consumer"):
            pause_for_ever()
        consumer.wakeup()
        other.join()
        assert len(ended) == 1


def test_a_closed_consumer_says_so_and_its_thread_is_gone(broker: Broker, topic: str) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "twofold-consumer"]

    consumer = twofold.Consumer.from_config({"bootstrap.servers": broker.bootstrap_servers})
    assert threads() == ["twofold-consumer"]
    consumer.close()
    consumer.close()
    consumer.wakeup()
    assert threads() == []
    for call in (lambda: consumer.poll(0), lambda: consumer.assign([]), lambda: consumer.assignment):
        with pytest.raises(ClientClosed):
            call()


def test_settings_are_checked_before_anything_starts() -> None:
    before = threading.active_count()
    with pytest.raises(TypeError, match="group_idd"):
        twofold.Consumer(group_idd="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"did you mean 'group\.id'"):
        twofold.Consumer.from_config({"group.idd": "x"})
    assert threading.active_count() == before


def test_deserializers_and_serializers_are_plain_callables(broker: Broker) -> None:
    with twofold.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("prices", 1)]).get()
    with twofold.Producer(
        bootstrap_servers=broker.bootstrap_servers, key_serializer=str.encode, value_serializer=lambda n: b"%d" % n
    ) as producer:
        producer.send("prices", 42, key="apples")
        producer.send("prices", None, key="berries")
        producer.send_batch("prices", ["cherries", None], (7, None))
    with consumer_of(broker, key_deserializer=bytes.decode, value_deserializer=int) as consumer:
        consumer.assign([TopicPartition("prices", 0)])
        found = [(record.key, record.value) for record in poll_until(consumer, 4)]
    assert found == [("apples", 42), ("berries", None), ("cherries", 7), (None, None)]
