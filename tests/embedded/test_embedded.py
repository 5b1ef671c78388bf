"""The broker for tests: quick groups, `async with`, restarts on the same port, topics."""

import asyncio
import gc
import socket
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from twofold.embedded import Broker
from twofold.errors import KafkaError

KAFKAS_DELAY_S = 3.0  # group.initial.rebalance.delay.ms


def produce(broker: Broker, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def values(broker: Broker, topic: str, count: int, group: str = "g") -> list[bytes | None]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, 20)]
    finally:
        consumer.close()


def setting(broker: Broker, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return str(admin.describe_configs([resource])[resource].result(20)[name].value)


def test_the_first_message_of_a_new_group_does_not_wait_for_more_members() -> None:
    with Broker() as broker:
        produce(broker, "orders", "first")
        took_s: list[float] = []
        while len(took_s) < 3 and min(took_s, default=KAFKAS_DELAY_S) >= KAFKAS_DELAY_S:  # perhaps the machine is busy
            began = time.monotonic()
            assert values(broker, "orders", 1, f"group-{len(took_s)}") == [b"first"]
            took_s.append(time.monotonic() - began)
        assert min(took_s) < KAFKAS_DELAY_S


def test_a_setting_of_the_user_is_stronger_than_that_for_tests() -> None:
    with Broker(settings={"group.initial.rebalance.delay.ms": 250}) as broker:
        assert setting(broker, "group.initial.rebalance.delay.ms") == "250"


def test_the_address_of_a_broker_on_ipv6_is_one_that_clients_take() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Broker(host="::1") as broker:
        assert broker.bootstrap_servers == f"[::1]:{broker.port}"
        broker.create_topic("orders")
        stock = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert "orders" in stock.list_topics(timeout=30).topics


def test_async_with_runs_a_broker_beside_the_loop() -> None:
    async def story() -> None:
        async with Broker() as broker:
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
            consumer = AIOKafkaConsumer(
                "orders", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
            )
            broker.create_topic("orders")
            await producer.start()
            await consumer.start()
            await producer.send_and_wait("orders", b"from a loop")
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"from a loop"
            await producer.stop()
            await consumer.stop()
            data = Path(broker.data)
        assert not data.exists()

    asyncio.run(story())


def test_a_restart_keeps_the_ports_that_were_chosen_and_the_data() -> None:
    with Broker(metrics="127.0.0.1:0") as broker:
        produce(broker, "orders", "before")
        before = (broker.bootstrap_servers, broker.metrics_url, broker.data)
        broker.restart()
        assert (broker.bootstrap_servers, broker.metrics_url, broker.data) == before
        produce(broker, "orders", "after")
        assert values(broker, "orders", 2) == [b"before", b"after"]


def test_a_broker_that_was_stopped_goes_on_and_one_that_was_closed_begins_anew() -> None:
    broker = Broker()
    broker.start()
    port, data = broker.port, Path(broker.data)
    broker.create_topic("orders")
    broker.stop()
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.port
    broker.start()
    assert (broker.port, broker.data) == (port, str(data))
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        broker.create_topic("orders")
    broker.close()
    assert not data.exists()
    with broker:
        assert broker.port == port
        broker.create_topic("orders")


def test_temporary_data_goes_with_an_object_that_was_not_closed() -> None:
    broker = Broker()
    broker.start()
    data = Path(broker.data)
    broker.stop()
    assert data.exists()
    del broker
    gc.collect()
    assert not data.exists()


def test_a_stock_producer_survives_an_outage_of_the_broker() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "reconnect.backoff.max.ms": 200, "log_level": 0}
        )
        producer.produce("orders", "before")
        assert producer.flush(20) == 0
        with broker.stopped():
            producer.produce("orders", "during")
            assert producer.flush(0.2) == 1
        assert producer.flush(20) == 0
        assert values(broker, "orders", 2) == [b"before", b"during"]


def test_a_topic_is_created_with_its_partitions_and_configuration() -> None:
    with Broker(settings={"num.partitions": 2}) as broker:
        broker.create_topic("orders", partitions=5, config={"cleanup.policy": "compact", "retention.ms": 1000})
        broker.create_topic("payments")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = admin.list_topics(timeout=20).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"orders": 5, "payments": 2}
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        config = admin.describe_configs([resource])[resource].result(20)
        assert (config["cleanup.policy"].value, config["retention.ms"].value) == ("compact", "1000")


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("orders", {}, "TOPIC_ALREADY_EXISTS"),
        ("no spaces", {}, "INVALID_TOPIC_EXCEPTION"),
        ("none", {"partitions": 0}, "INVALID_PARTITIONS"),
        ("wrong", {"config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_created_is_an_error_with_its_name(
    twofold_session_broker: Broker, name: str, arguments: dict[str, int], error: str
) -> None:
    if not AdminClient({"bootstrap.servers": twofold_session_broker.bootstrap_servers}).list_topics(timeout=20).topics:
        twofold_session_broker.create_topic("orders")
    with pytest.raises(KafkaError, match=error):
        twofold_session_broker.create_topic(name, **arguments)  # type: ignore[arg-type]
