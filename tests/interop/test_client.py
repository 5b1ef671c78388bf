"""The clients against real servers: Twofold, and Apache Kafka where it can be had."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from kits.client.topics import becomes, create_topic
from kits.processes.server import TwofoldServer
from twofold.client import (
    Admin,
    AlterOperation,
    ConfigChange,
    ConfigResource,
    Consumer,
    LoopThread,
    NewTopic,
    OffsetSpec,
    Producer,
    ResourceType,
    TopicPartition,
)
from twofold.connections.errors import BrokerUnreachable
from twofold.runtime.real import run
from twofold.wire.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicException,
    MessageTooLarge,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.interop

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request: pytest.FixtureRequest) -> str:
    """The address of a running server."""
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


def on_admin(server: str, story: Callable[[Admin], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Admin(bootstrap_servers=server) as admin:
            await story(admin)

    run(main())


def new_topic(server: str, partitions: int = 1, **configs: str) -> str:
    async def create() -> str:
        async with Admin(bootstrap_servers=server) as admin:
            return await create_topic(admin, partitions, **configs)

    return run(create())


async def read_all(server: str, topic: str, count: int, **options: Any) -> list[Any]:
    async with Consumer(bootstrap_servers=server, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in await consumer.partitions_for(topic)])
        records: list[Any] = []
        while len(records) < count:
            batch = await consumer.poll(10_000)
            assert batch, f"only {len(records)} of {count} records came"
            records += batch
        return records


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_return_whole_and_in_order(server: str, codec: str, idempotent: bool) -> None:
    topic = new_topic(server, 2)

    async def main() -> None:
        options: Any = {"compression_type": codec, "enable_idempotence": idempotent}
        async with Producer(bootstrap_servers=server, **options) as producer:
            deliveries = [
                await producer.send(
                    topic, b"%d" % number, key=b"k", partition=1, timestamp_ms=1_000 + number, headers=[("h", b"\xff")]
                )
                for number in range(2_000)
            ]
            await producer.send(topic, None, key=b"tombstone", partition=0, headers=[("none", None)])
            await producer.flush()
            assert [(await delivery).offset for delivery in deliveries] == list(range(2_000))
        records = await read_all(server, topic, 2_001)
        one = [record for record in records if record.partition == 1]
        assert [(r.offset, r.timestamp, r.value) for r in one] == [(n, 1_000 + n, b"%d" % n) for n in range(2_000)]
        assert one[0].headers == (("h", b"\xff"),)
        (tombstone,) = (record for record in records if record.partition == 0)
        assert tombstone[4:7] == (b"tombstone", None, (("none", None),))

    run(main())


def test_keys_go_where_other_clients_put_them(server: str) -> None:
    topic = new_topic(server, 7)
    keys = [b"", b"a", b"key-1", b"some-longer-key-2", bytes(range(200, 250))]
    theirs: dict[bytes, int] = {}

    def note(error: object, message: Any) -> None:
        assert error is None
        theirs[message.key() or b""] = message.partition()

    other = confluent_kafka.Producer({"bootstrap.servers": server, "partitioner": "murmur2"})
    for key in keys:
        other.produce(topic, b"v", key=key, callback=note)
    assert other.flush(30) == 0

    async def main() -> None:
        async with Producer(bootstrap_servers=server) as producer:
            ours = {key: (await (await producer.send(topic, b"v", key=key))).partition for key in keys}
        assert ours == theirs

    run(main())


def test_what_we_write_librdkafka_reads(server: str) -> None:
    topic = new_topic(server)

    async def main() -> None:
        async with Producer(bootstrap_servers=server, compression_type="zstd") as producer:
            for number in range(500):
                await producer.send(topic, b"%d" % number, headers=[("n", b"%d" % number)])

    run(main())
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(500, timeout=20)
        assert [message.value() for message in messages] == [b"%d" % number for number in range(500)]
        assert messages[7].headers() == [("n", b"7")]
    finally:
        consumer.close()


def test_seek_by_timestamp_and_the_ends(server: str) -> None:
    topic = new_topic(server)
    tp = TopicPartition(topic, 0)
    start = int(time.time() * 1000) - 100_000

    async def main() -> None:
        async with Producer(bootstrap_servers=server) as producer:
            for number in range(100):
                await producer.send(topic, b"%d" % number, timestamp_ms=start + 10 * number)
        async with Consumer(bootstrap_servers=server) as consumer:
            consumer.assign([tp])
            await consumer.seek_to_timestamp(start + 501)
            assert await consumer.position(tp) == 51
            assert (await consumer.poll(10_000, max_records=1))[0].value == b"51"
            await consumer.seek_to_timestamp(start + 10_000_000)
            assert await consumer.position(tp) == 100
            assert (await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])) == ({tp: 0}, {tp: 100})
        async with Admin(bootstrap_servers=server) as admin:
            latest = await admin.list_offsets({tp: OffsetSpec.MAX_TIMESTAMP})
            assert latest[tp][:2] == (99, start + 990)

    run(main())


@pytest.mark.oracle
def test_read_committed_hides_what_was_aborted(oracle: Any) -> None:
    """Against Apache Kafka, which has transactions."""
    topic = new_topic(oracle.bootstrap_servers)
    other = confluent_kafka.Producer(
        {"bootstrap.servers": oracle.bootstrap_servers, "transactional.id": topic, "linger.ms": 0}
    )
    other.init_transactions(30)
    expected = []
    for number in range(20):
        other.begin_transaction()
        for part in range(3):
            other.produce(topic, b"%d-%d" % (number, part))
        other.flush(30)
        if number % 3 == 0:
            other.abort_transaction(30)
        else:
            other.commit_transaction(30)
            expected += [b"%d-%d" % (number, part) for part in range(3)]

    async def main() -> None:
        committed = await read_all(
            oracle.bootstrap_servers, topic, len(expected), isolation_level="read_committed", max_poll_records=7
        )
        assert [record.value for record in committed] == expected
        everything = await read_all(oracle.bootstrap_servers, topic, 60)
        assert len(everything) == 60
        # A fetch that starts inside an aborted transaction knows of it too.
        tp = TopicPartition(topic, 0)
        async with Consumer(bootstrap_servers=oracle.bootstrap_servers, isolation_level="read_committed") as consumer:
            consumer.assign([tp])
            consumer.seek(tp, everything[10].offset)
            values = [record.value for record in await consumer.poll(10_000)]
        assert values == [value for value in expected if value in {record.value for record in everything[10:]}]

    run(main())


def test_topics_live_their_life(server: str) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"

    async def story(admin: Admin) -> None:
        async def listed() -> bool:
            return name in await admin.list_topics()

        async def described() -> tuple[list[int], uuid.UUID | None]:
            description = (await admin.describe_topics([name])).get()[name]
            return list(description.partitions), description.topic_id

        created = await admin.create_topics(
            [NewTopic(name=name, num_partitions=2, configs={"retention.ms": "7777777"})]
        )
        assert created.get()[name][2:] == (2, 1)
        with pytest.raises(TopicAlreadyExists):
            (await admin.create_topics([NewTopic(name=name)])).get()
        await becomes(listed, True)
        (await admin.create_partitions({name: 4})).get()
        with pytest.raises(InvalidPartitions):
            (await admin.create_partitions({name: 3})).get()
        await becomes(described, ([0, 1, 2, 3], created.get()[name].topic_id))
        (await admin.delete_topics([name])).get()
        await becomes(listed, False)
        gone = await admin.describe_topics([name])
        assert isinstance(gone.errors[name], UnknownTopicOrPartition)

    on_admin(server, story)


def test_one_bad_name_does_not_spoil_the_good_ones(server: str) -> None:
    good = f"good-{uuid.uuid4().hex[:8]}"

    async def story(admin: Admin) -> None:
        results = await admin.create_topics([NewTopic(name="bad name"), NewTopic(name=good)])
        assert list(results.values) == [good]
        assert isinstance(results.errors["bad name"], InvalidTopicException)

    on_admin(server, story)


def test_validate_only_creates_nothing(server: str) -> None:
    name = f"dry-{uuid.uuid4().hex[:8]}"

    async def story(admin: Admin) -> None:
        (await admin.create_topics([NewTopic(name=name)], validate_only=True)).get()
        assert name in (await admin.describe_topics([name])).errors

    on_admin(server, story)


def test_configs_are_read_and_changed(server: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, new_topic(server))

    async def story(admin: Admin) -> None:
        async def value() -> tuple[str, str]:
            entries = (await admin.describe_configs([resource], names=["delete.retention.ms"])).get()[resource]
            return str(entries[0].value), entries[0].source

        await becomes(value, ("86400000", "DEFAULT_CONFIG"))
        (await admin.incremental_alter_configs({resource: [ConfigChange("delete.retention.ms", "1234567")]})).get()
        await becomes(value, ("1234567", "DYNAMIC_TOPIC_CONFIG"))
        change = ConfigChange("delete.retention.ms", None, AlterOperation.DELETE)
        (await admin.incremental_alter_configs({resource: [change]})).get()
        await becomes(value, ("86400000", "DEFAULT_CONFIG"))
        with pytest.raises(InvalidConfig):
            (await admin.incremental_alter_configs({resource: [ConfigChange("delete.retention.ms", "soon")]})).get()

    on_admin(server, story)


def test_the_cluster_and_a_brokers_own_settings_are_described(server: str) -> None:
    async def story(admin: Admin) -> None:
        cluster = await admin.describe_cluster()
        (broker,) = cluster.brokers
        assert str(broker.address) == server and len(cluster.cluster_id) == 22
        resource = ConfigResource(ResourceType.BROKER, str(broker.node_id))
        entries = {entry.name: entry.value for entry in (await admin.describe_configs([resource])).get()[resource]}
        assert entries["num.partitions"] == "1"

    on_admin(server, story)


def test_producers_are_described_with_their_last_sequence(server: str) -> None:
    topic = new_topic(server)
    tp = TopicPartition(topic, 0)

    async def story(admin: Admin) -> None:
        async with Producer(bootstrap_servers=server) as producer:
            for _ in range(10):
                await producer.send(topic, b"x")
        (state,) = (await admin.describe_producers([tp])).get()[tp]
        assert (state.producer_epoch, state.last_sequence, state.current_txn_start_offset) == (0, 9, -1)

    on_admin(server, story)


def test_batches_above_the_topics_limit_are_split_until_they_fit(server: str) -> None:
    topic = new_topic(server, max_message_bytes="2000")

    async def main() -> None:
        async with Producer(bootstrap_servers=server, linger_ms=50, batch_size=60_000) as producer:
            deliveries = [await producer.send(topic, b"%03d" % number + b"x" * 300) for number in range(100)]
            await producer.flush()
            assert [(await delivery).offset for delivery in deliveries] == list(range(100))
            with pytest.raises(MessageTooLarge):
                await (await producer.send(topic, b"x" * 3_000))
            assert (await (await producer.send(topic, b"last"))).offset == 100
        values = [record.value[:3] for record in await read_all(server, topic, 101)]
        assert values == [*(b"%03d" % number for number in range(100)), b"las"]

    run(main())


def test_a_topic_is_created_by_the_first_record(server: str) -> None:
    topic = f"auto-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with Producer(bootstrap_servers=server) as producer:
            assert (await (await producer.send(topic, b"x"))).offset == 0

    run(main())
    assert topic in AdminClient({"bootstrap.servers": server}).list_topics(timeout=10).topics


def test_large_records_pass_when_the_limits_allow_it(server: str) -> None:
    topic = new_topic(server, max_message_bytes="20000000")
    value = bytes(5_000_000)

    async def main() -> None:
        async with Producer(bootstrap_servers=server, max_request_size=10_000_000) as producer:
            for _ in range(3):
                await producer.send(topic, value)
        records = await read_all(server, topic, 3)
        assert [len(record.value) for record in records] == [5_000_000] * 3

    run(main())


def test_the_clients_work_from_code_without_asyncio(server: str) -> None:
    topic = new_topic(server)

    async def open_producer() -> Producer:
        return Producer(bootstrap_servers=server)

    with LoopThread() as loop:
        producer = loop.run(open_producer())
        delivery = loop.run(producer.send(topic, b"hello"))
        loop.run(producer.flush())
        assert delivery.done() and delivery.result().offset == 0
        loop.run(producer.close())
        assert loop.run(read_all(server, topic, 1))[0].value == b"hello"


def test_a_producer_survives_the_restart_of_its_broker(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path) as running:
        topic = new_topic(running.bootstrap_servers)

        async def main() -> None:
            async with Producer(bootstrap_servers=running.bootstrap_servers, linger_ms=0) as producer:
                deliveries = []
                for number in range(300):
                    deliveries.append(await producer.send(topic, b"%d" % number))
                    if number in (100, 200):
                        await asyncio.to_thread(running.stop)
                        running.start(wait=False)
                    if number % 10 == 9:
                        await deliveries[-1]
                await producer.flush()
                assert [(await delivery).offset for delivery in deliveries] == list(range(300))

        run(main())


def test_an_address_without_a_broker_is_said_soon() -> None:
    async def main() -> None:
        async with Admin(bootstrap_servers="127.0.0.1:1") as admin:
            await admin.bootstrap(100)

    start = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        run(main())
    assert time.monotonic() - start < 5
