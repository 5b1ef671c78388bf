"""The blocking consumer in the hands of hostile applications: threads, listeners, interrupts, forks."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import twofold
from twofold import RebalanceListener
from twofold.client.consumer.group.member import GroupMember
from twofold.client.errors import IllegalConsumerCall, InstanceFenced, WokenUp
from twofold.embedded import Broker

PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """One partition with the numbers 0 to 19."""
    name = str(request.node.name)[:200].replace("[", "-").replace("]", "")
    broker.create_topic(name, partitions=1)
    with twofold.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(name, b"%d" % number)
    return name


def member(broker: Broker, topic: str, listener: RebalanceListener | None = None, **options: Any) -> twofold.Consumer:
    consumer = twofold.Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )
    consumer.subscribe([topic], listener=listener)
    return consumer


def read(consumer: twofold.Consumer, count: int = 20) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        polled = consumer.poll(PATIENCE_MS)
        assert polled
        found += [record.offset for record in polled]
    return found


def test_a_close_that_is_refused_closes_nothing(broker: Broker, topic: str) -> None:
    with member(broker, topic) as consumer:
        read(consumer)
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                consumer.poll(PATIENCE_MS)
            except BaseException as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()

        def pause_for_ever() -> None:
            while True:
                consumer.pause()

        with pytest.raises(IllegalConsumerCall):
            pause_for_ever()
        with pytest.raises(IllegalConsumerCall, match="another thread"):
            consumer.close()
        consumer.wakeup()
        waiting.join()
        assert [type(error) for error in ended] == [WokenUp]
        assert consumer.poll(0) == []


class Calling(RebalanceListener):
    def __init__(self, call: str) -> None:
        self.consumer: twofold.Consumer | None = None
        self.call = call
        self.raised: list[IllegalConsumerCall] = []

    def on_partitions_assigned(self, partitions: Any) -> None:
        assert self.consumer is not None
        try:
            getattr(self.consumer, self.call)()
        except IllegalConsumerCall as error:
            self.raised.append(error)


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe"])
def test_a_listener_must_not_poll_close_or_unsubscribe(broker: Broker, topic: str, call: str) -> None:
    listener = Calling(call)
    with member(broker, topic, listener) as consumer:
        listener.consumer = consumer
        assert read(consumer) == list(range(20))
        (raised,) = listener.raised
        assert f"must not call {call}()" in str(raised)


class Interrupting(RebalanceListener):
    def __init__(self) -> None:
        self.calls = 0

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt


def test_an_interrupt_in_a_listener_ends_the_poll_and_the_next_one_goes_on(broker: Broker, topic: str) -> None:
    listener = Interrupting()
    with member(broker, topic, listener) as consumer:
        with pytest.raises(KeyboardInterrupt):
            read(consumer)
        assert read(consumer) == list(range(20))
        assert listener.calls == 1


def test_a_loop_yields_nothing_of_its_batch_after_the_partitions_went(broker: Broker, topic: str) -> None:
    """Another consumer takes the instance id over while the loop works on a record."""
    options: dict[str, Any] = {"group_instance_id": "one", "heartbeat_interval_ms": 50}
    with member(broker, topic, **options) as consumer:
        group, records = consumer._core._group, iter(consumer)
        assert isinstance(group, GroupMember)
        assert next(records).offset == 0
        with member(broker, topic, **options) as successor:
            assert read(successor) == list(range(20))
        while group.membership.has_generation:
            assert consumer.subscription == {topic}  # until a heartbeat was answered
        with pytest.raises(InstanceFenced):
            next(records)


def test_a_loop_joins_a_rebalance_in_the_middle_of_its_batch(broker: Broker, topic: str) -> None:
    with member(broker, topic, partition_assignment_strategy="cooperative-sticky") as consumer:
        group = consumer._core._group
        assert isinstance(group, GroupMember)
        seen: list[int] = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 1:
                group.membership.request_rejoin("what a heartbeat says")
            else:
                assert not group.membership.rejoin_reason, "no poll has begun the round"
            if len(seen) == 20:
                break
        assert seen == list(range(20))


def test_a_forked_process_is_told_to_make_a_consumer_of_its_own(broker: Broker, topic: str) -> None:
    with member(broker, topic) as consumer:
        read(consumer)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0)
                os.write(writing, b"it polled")
            except IllegalConsumerCall as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as told:
            assert b"forked" in told.read()
        assert consumer.poll(0) == []
