"""The administrator's side of stock clients: deletion of records, replacing configurations, log directories, pages."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka import TopicPartition as PythonPartition
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import KafkaAdminClient

from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop

TIMEOUT_S = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("admin"), {"num.partitions": "3"}) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: TwofoldServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers})


@pytest.fixture(scope="module")
def python(server: TwofoldServer) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
    yield client
    client.close()


def filled(server: TwofoldServer, admin: AdminClient, name: str, records: int = 10, **configs: str) -> str:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, 3, 1, config=settings)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "enable.idempotence": True})
    for number in range(records):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return name


def earliest(server: TwofoldServer, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "watching"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
        return low, high
    finally:
        consumer.close()


def first_record(server: TwofoldServer, topic: str) -> int | None:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "reading", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None and message.error() is None
        return message.offset()
    finally:
        consumer.close()


def test_librdkafka_deletes_records_and_reads_on_from_the_new_start(server: TwofoldServer, admin: AdminClient) -> None:
    topic = filled(server, admin, "rd-delete")
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(TIMEOUT_S).low_watermark == 4
    assert earliest(server, topic) == (4, 10)
    assert first_record(server, topic) == 4
    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(TIMEOUT_S).low_watermark == 10
    assert earliest(server, topic) == (10, 10)


def test_librdkafka_hears_what_cannot_be_deleted(server: TwofoldServer, admin: AdminClient) -> None:
    topic = filled(server, admin, "rd-refused")
    compacted = filled(server, admin, "rd-compacted", 0, cleanup_policy="compact")
    for partition, code in (
        (TopicPartition(topic, 0, 11), "OFFSET_OUT_OF_RANGE"),
        (TopicPartition(compacted, 0, 0), "POLICY_VIOLATION"),
    ):
        with pytest.raises(Exception, match=code):
            admin.delete_records([partition])[partition].result(TIMEOUT_S)


def test_librdkafka_replaces_configurations(server: TwofoldServer, admin: AdminClient) -> None:
    topic = filled(server, admin, "rd-configs", 0, flush_ms="77")
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "1234567"})
    admin.alter_configs([resource])[resource].result(TIMEOUT_S)
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    configs = found.result(TIMEOUT_S)
    assert configs["retention.ms"].value == "1234567"
    assert configs["flush.ms"].value == "9223372036854775807"
    assert configs["retention.ms"].source == 1 and configs["segment.bytes"].synonyms


def test_librdkafka_hears_what_may_be_done(server: TwofoldServer, admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert {operation.name for operation in described.authorized_operations} == {
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
    }  # fmt: skip


def test_kafka_python_deletes_records(server: TwofoldServer, admin: AdminClient, python: KafkaAdminClient) -> None:
    topic = filled(server, admin, "py-delete")
    partition = PythonPartition(topic, 0)
    answer: Any = python.delete_records({partition: 7})
    assert answer[partition]["low_watermark"] == 7
    assert earliest(server, topic) == (7, 10)


def test_kafka_python_reads_log_directories(
    server: TwofoldServer, admin: AdminClient, python: KafkaAdminClient
) -> None:
    topic = filled(server, admin, "py-dirs")
    (answer,) = python.describe_log_dirs({topic: [0, 1]})
    (directory,) = answer["log_dirs"]
    assert directory["error_code"] == 0
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    (row,) = directory["topics"]
    sizes = {partition["partition_index"]: partition["partition_size"] for partition in row["partitions"]}
    assert sizes[0] > 0 and sizes[1] == 0


def test_kafka_python_pages_through_partitions(
    server: TwofoldServer, admin: AdminClient, python: KafkaAdminClient
) -> None:
    topic = filled(server, admin, "py-pages", 0)
    page = python.describe_topic_partitions([topic], response_partition_limit=2)
    assert [row["partition_index"] for row in page["topics"][0]["partitions"]] == [0, 1]
    assert page["next_cursor"] == {"topic_name": topic, "partition_index": 2}
    page = python.describe_topic_partitions([topic], response_partition_limit=2, cursor=page["next_cursor"])
    assert [row["partition_index"] for row in page["topics"][0]["partitions"]] == [2]
    assert page["next_cursor"] is None


def test_kafka_python_replaces_and_lists_configurations(
    server: TwofoldServer, admin: AdminClient, python: KafkaAdminClient
) -> None:
    topic = filled(server, admin, "py-configs", 0)
    resource = PythonResource("TOPIC", topic, configs={"retention.ms": "7654321"})
    assert python.alter_configs([resource], incremental=False) == {"topic": {topic: "OK"}}
    found = python.describe_configs([PythonResource("TOPIC", topic)], include_synonyms=True)
    assert found["topic"][topic]["retention.ms"]["value"] == "7654321"
    resources = python.list_config_resources(["TOPIC", "BROKER"])
    assert topic in resources["topic"] and resources["broker"] == ["1"]


def test_what_was_deleted_stays_deleted_after_kill_nine(tmp_path: Any) -> None:
    with TwofoldServer(tmp_path, {}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        topic = filled(running, admin, "killed")
        partition = TopicPartition(topic, 0, 6)
        assert admin.delete_records([partition])[partition].result(TIMEOUT_S).low_watermark == 6
        running.kill()
        running.start()
        assert earliest(running, topic) == (6, 10)
        assert first_record(running, topic) == 6


def test_aiokafka_deletes_records(server: TwofoldServer, admin: AdminClient) -> None:
    topic = filled(server, admin, "aio-delete")

    async def main() -> dict[Any, int]:
        client = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
        await client.start()
        try:
            return dict(await client.delete_records({PythonPartition(topic, 0): RecordsToDelete(before_offset=5)}))
        finally:
            await client.close()

    assert list(asyncio.run(main()).values()) == [5]
    assert earliest(server, topic) == (5, 10)
