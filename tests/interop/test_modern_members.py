"""Our consumer with `group_protocol="consumer"` (KIP-848) against Twofold.

`make interop` adds Apache Kafka. Each test has a group and a topic of its own, so that they can share a broker whose
timers are short. Members in processes of their own, which crash and are paused, are in `test_groups_modern.py`.
"""

import asyncio
import contextlib
import os
import socket
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle, running_oracle
from twofold import Consumer as BlockingConsumer
from twofold.aio import Admin, Consumer, Producer
from twofold.client.admin.model import NewTopic
from twofold.client.consumer.consumer import RebalanceListener
from twofold.client.consumer.group.listener import Partitions
from twofold.client.errors import CommitFailed, IllegalConsumerCall, InstanceFenced
from twofold.connections.errors import GaveUp
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidRegularExpression, KafkaError, UnsupportedAssignor

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
PARTITIONS = 4
PATIENCE_S = 40.0
LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
Server = Oracle | TwofoldServer


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "oracle":
        with running_oracle(SETTINGS) as oracle:
            yield oracle
    else:
        with TwofoldServer(tmp_path_factory.mktemp("modern"), SETTINGS) as running:
            yield running


class Heard(RebalanceListener):
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self.events.append(("revoked", [tp.partition for tp in partitions]))

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        self.events.append(("assigned", [tp.partition for tp in partitions]))

    def on_partitions_lost(self, partitions: Partitions) -> None:
        self.events.append(("lost", [tp.partition for tp in partitions]))


class Group:
    """A topic, a group, and consumers that are closed at the end."""

    def __init__(self, server: Server, stack: contextlib.AsyncExitStack) -> None:
        self.server = server
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.name = f"g-{uuid.uuid4().hex[:8]}"
        self._stack = stack
        self.read: Counter[bytes] = Counter()
        self.sent = 0

    async def consumer(self, *, listener: RebalanceListener | None = None, **options: Any) -> Consumer:
        consumer = self.unsubscribed(**options)
        consumer.subscribe([self.topic], listener=listener)
        return consumer

    def unsubscribed(self, **options: Any) -> Consumer:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.server.bootstrap_servers,
            "group_id": self.name,
            "group_protocol": "consumer",
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 6000,
        }
        consumer = Consumer(**settings | options)
        self._stack.push_async_callback(consumer.close)
        return consumer

    async def send(self, count: int) -> None:
        async with Producer(bootstrap_servers=self.server.bootstrap_servers) as producer:
            for number in range(count):
                await producer.send(self.topic, b"%d" % (self.sent + number), partition=number % PARTITIONS)
            await producer.flush()
        self.sent += count

    async def settle(self, *consumers: Consumer, until: Callable[[], bool]) -> None:
        """Poll all of them until it is so."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not until():
            assert asyncio.get_running_loop().time() < deadline, [one.assignment for one in consumers]
            for consumer in consumers:
                self.read.update(record.value for record in await consumer.poll(50))

    async def settled(self, *consumers: Consumer) -> None:
        """Every partition has one owner, and each consumer has its share."""

        def is_even() -> bool:
            owned = [tp for consumer in consumers for tp in consumer.assignment]
            sizes = [len(consumer.assignment) for consumer in consumers]
            return len(owned) == len(set(owned)) == PARTITIONS and max(sizes) - min(sizes) <= 1

        await self.settle(*consumers, until=is_even)

    async def evict(self, consumer: Consumer) -> None:
        """The coordinator removes the member: somebody leaves in its name."""
        from twofold.client.consumer.group.modern.member import ModernMember
        from twofold.client.consumer.group.modern.membership import leaving

        member = consumer._group
        assert isinstance(member, ModernMember)
        await member.calls.speak(leaving(member.membership.terms), consumer._cluster.deadline())


def in_group(server: Server, test: Callable[[Group], Awaitable[None]]) -> None:
    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            group = Group(server, stack)
            async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
                await admin.create_topics([NewTopic(group.topic, PARTITIONS)])
            await test(group)

    asyncio.run(run())


def test_members_come_and_go_and_nothing_is_read_twice(server: Server) -> None:
    async def story(group: Group) -> None:
        await group.send(40)
        heard = Heard()
        first = await group.consumer(listener=heard)
        await group.settle(first, until=lambda: len(group.read) == 40)
        assert [kind for kind, _ in heard.events if kind != "assigned"] == []
        assert sorted(n for _, numbers in heard.events for n in numbers) == [0, 1, 2, 3]
        second, third = await group.consumer(), await group.consumer()
        await group.settled(first, second, third)
        assert ("revoked", [2, 3]) in heard.events or len([k for k, _ in heard.events if k == "revoked"]) >= 1
        await group.send(40)
        await group.settle(first, second, third, until=lambda: len(group.read) == 80)
        await second.close()
        await group.settled(first, third)
        await group.send(40)
        await group.settle(first, third, until=lambda: len(group.read) == 120)
        assert set(group.read.values()) == {1}

    in_group(server, story)


def test_a_member_that_was_removed_hears_of_its_loss_and_joins_again(server: Server) -> None:
    async def story(group: Group) -> None:
        heard = Heard()
        await group.send(8)
        consumer = await group.consumer(listener=heard, enable_auto_commit=False)
        await group.settle(consumer, until=lambda: len(group.read) == 8)
        await group.evict(consumer)
        with pytest.raises(CommitFailed):
            await consumer.commit()
        await group.settle(consumer, until=lambda: group.read.total() == 16)
        assert [kind for kind, _ in heard.events][-2:] == ["lost", "assigned"]
        await consumer.commit()
        assert consumer.group_metadata().generation_id > 0

    in_group(server, story)


def test_a_static_member_that_comes_back_has_its_partitions_and_others_keep_theirs(server: Server) -> None:
    async def story(group: Group) -> None:
        heard = Heard()
        first = await group.consumer(listener=heard)
        second = await group.consumer(group_instance_id="one")
        await group.settled(first, second)
        before, told = second.assignment, len(heard.events)
        await second.close()
        again = await group.consumer(group_instance_id="one")
        await group.settled(first, again)
        assert set(again.assignment) == set(before)
        assert heard.events[told:] == []

    in_group(server, story)


def test_a_second_consumer_of_an_instance_is_refused_for_good(server: Server) -> None:
    async def story(group: Group) -> None:
        first = await group.consumer(group_instance_id="one")
        await group.settled(first)
        second = await group.consumer(group_instance_id="one")
        with pytest.raises(InstanceFenced, match="group_instance_id='one'"):
            await group.settle(second, until=lambda: False)
        with pytest.raises(InstanceFenced):
            await second.poll()
        await group.settled(first)

    in_group(server, story)


def test_the_broker_matches_a_pattern(server: Server) -> None:
    async def story(group: Group) -> None:
        await group.send(4)
        consumer = group.unsubscribed()
        consumer.subscribe(pattern=f"{group.topic[:-1]}.")
        await group.settle(consumer, until=lambda: len(group.read) == 4)
        assert consumer.subscription == {group.topic}
        consumer.subscribe([group.topic])
        await group.send(4)
        await group.settle(consumer, until=lambda: len(group.read) == 8)
        assert set(group.read.values()) == {1}

    in_group(server, story)


def test_a_broker_that_takes_connections_and_answers_nothing_ends_no_membership(tmp_path: Path) -> None:
    """As one that is starting, or in trouble: each heartbeat waits for as long as it may."""

    async def story(group: Group) -> None:
        server = group.server
        assert isinstance(server, TwofoldServer)
        await group.send(4)
        consumer = await group.consumer(request_timeout_ms=1000)
        await group.settle(consumer, until=lambda: len(group.read) == 4)
        server.kill()
        with socket.create_server((server.host, server.port)):
            end = asyncio.get_running_loop().time() + 4
            while asyncio.get_running_loop().time() < end:
                with contextlib.suppress(GaveUp):  # of the fetch, which tells why nothing comes
                    await consumer.poll(200)
        server.start()
        await group.send(4)
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while len(group.read) < 8:
            assert asyncio.get_running_loop().time() < end, f"it has read {len(group.read)} of 8 records"
            with contextlib.suppress(GaveUp):
                group.read.update(record.value for record in await consumer.poll(200))
        await consumer.commit()
        assert set(group.read.values()) == {1}

    with TwofoldServer(tmp_path, SETTINGS) as server:
        in_group(server, story)


@pytest.mark.parametrize(
    ("options", "pattern", "error"),
    [({}, "a(?=b)", InvalidRegularExpression), ({"group_remote_assignor": "fair"}, "a", UnsupportedAssignor)],
    ids=["pattern", "assignor"],
)
def test_what_the_broker_does_not_take_is_told(
    server: Server, options: dict[str, Any], pattern: str, error: type[KafkaError]
) -> None:
    async def story(group: Group) -> None:
        consumer = group.unsubscribed(**options)
        consumer.subscribe(pattern=pattern)
        with pytest.raises(error):
            await group.settle(consumer, until=lambda: False)

    in_group(server, story)


def test_a_subscription_that_changes_moves_partitions_of_other_topics_only(server: Server) -> None:
    async def story(group: Group) -> None:
        other = f"{group.topic}-other"
        async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(other, 2)])
        heard = Heard()
        consumer = await group.consumer(listener=heard)
        await group.settled(consumer)
        consumer.subscribe([group.topic, other], listener=heard)
        await group.settle(consumer, until=lambda: len(consumer.assignment) == PARTITIONS + 2)
        consumer.subscribe([other], listener=heard)
        await group.settle(consumer, until=lambda: len(consumer.assignment) == 2)
        assert {tp.topic for tp in consumer.assignment} == {other}
        assert [event for event in heard.events if event[1]] == [
            ("assigned", [0, 1, 2, 3]),
            ("assigned", [0, 1]),
            ("revoked", [0, 1, 2, 3]),
        ]

    in_group(server, story)


def test_a_consumer_that_does_not_poll_leaves_and_comes_back(server: Server) -> None:
    async def story(group: Group) -> None:
        heard = Heard()
        slow = await group.consumer(listener=heard, max_poll_interval_ms=1500)
        await group.settled(slow)
        other = await group.consumer()
        await group.settled(slow, other)
        await group.settle(other, until=lambda: len(other.assignment) == PARTITIONS)  # `slow` is not polled
        await group.settled(slow, other)
        assert "lost" in [kind for kind, _ in heard.events]

    in_group(server, story)


def test_offsets_in_a_transaction_are_fenced_by_the_epoch(server: Server) -> None:
    async def story(group: Group) -> None:
        await group.send(4)
        consumer = await group.consumer(enable_auto_commit=False, isolation_level="read_committed")
        await group.settle(consumer, until=lambda: len(group.read) == 4)
        positions = {tp: await consumer.position(tp) for tp in consumer.assignment}
        async with Producer(
            bootstrap_servers=server.bootstrap_servers, transactional_id=f"tx-{group.name}"
        ) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            await producer.commit_transaction()
            committed = await consumer.committed(positions)
            assert {tp: found.offset for tp, found in committed.items() if found} == positions
            stale = consumer.group_metadata()
            await group.evict(consumer)
            await producer.begin_transaction()
            with pytest.raises(KafkaError):
                await producer.send_offsets_to_transaction(positions, stale)
            await producer.abort_transaction()

    in_group(server, story)


def test_the_blocking_consumer_and_a_broker_without_rebalance_requests(server: Server) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    topic = f"t-{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(topic, 1)])
        async with Producer(bootstrap_servers=server.bootstrap_servers) as producer:
            await producer.send(topic, b"one")

    asyncio.run(make())
    options: dict[str, Any] = {"bootstrap.servers": server.bootstrap_servers, "group.id": group}
    with BlockingConsumer.from_config(
        options | {"group.protocol": "consumer", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe([topic])
        assert next(iter(consumer)).value == b"one"
        consumer.commit()
        committed = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is not None and committed.offset == 1
        with pytest.raises(IllegalConsumerCall):
            consumer.enforce_rebalance()
