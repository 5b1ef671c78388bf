"""The same APIs on a whole broker: what they did is on disk, and the rest of the broker follows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oracle.batches import Record, batch
from oracle.compare import attempts, produce_body
from oracle.driver import Connection
from twofold.embedded import Broker

TOPIC, BROKER = 2, 4
SET = 0


@contextmanager
def connected(data: Path, **settings: str) -> Iterator[Connection]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    with Broker(data=str(data), settings=names) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with Connection(host, int(port)) as connection:
            yield connection


def create(connection: Connection, name: str, **configs: str) -> dict[str, Any]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    row = {"name": name, "num_partitions": 2, "replication_factor": 1, "configs": rows}
    found: dict[str, Any] = connection.ask("CreateTopics", 7, topics=[row], timeout=10000)["topics"][0]
    assert found["error_code"] == 0, found
    return found


def alter(connection: Connection, kind: int, name: str, key: str, value: str) -> None:
    row = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": SET, "value": value}],
    }
    (answer,) = connection.ask("IncrementalAlterConfigs", 1, resources=[row])["responses"]
    assert answer["error_code"] == 0, answer


def value(connection: Connection, kind: int, name: str, key: str) -> tuple[str | None, int]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    (found,) = connection.ask("DescribeConfigs", 4, resources=[row])["results"][0]["configs"]
    return found["value"], found["config_source"]


def produce(connection: Connection, topic: str, size: int) -> int:
    answer = connection.ask("Produce", 7, **produce_body(topic, batch([Record(value=b"x" * size)])))
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


def metadata(connection: Connection, *names: str, create_missing: bool = False) -> list[dict[str, Any]]:
    rows = [{"name": name} for name in names]
    answer = connection.ask("Metadata", 12, topics=rows, allow_auto_topic_creation=create_missing)
    found: list[dict[str, Any]] = answer["topics"]
    return found


def test_topics_configs_and_settings_survive_a_restart(tmp_path):
    with connected(tmp_path) as connection:
        created = create(connection, "t", retention_ms="77")
        alter(connection, TOPIC, "t", "segment.bytes", "2000000")
        alter(connection, BROKER, "", "message.max.bytes", "3000")
    with connected(tmp_path) as connection:
        (found,) = metadata(connection, "t")
        assert (found["error_code"], found["topic_id"], len(found["partitions"])) == (0, created["topic_id"], 2)
        assert value(connection, TOPIC, "t", "retention.ms") == ("77", 1)
        assert value(connection, TOPIC, "t", "segment.bytes") == ("2000000", 1)
        assert value(connection, TOPIC, "t", "max.message.bytes") == ("3000", 3)
        assert value(connection, BROKER, "1", "message.max.bytes") == ("3000", 3)
        assert produce(connection, "t", 5000) == 10
        assert produce(connection, "t", 1000) == 0


def test_partitions_follow_changes_of_topics_and_of_brokers_at_once(tmp_path):
    with connected(tmp_path) as connection:
        create(connection, "t")
        create(connection, "own", max_message_bytes="9000")
        assert produce(connection, "t", 5000) == produce(connection, "own", 5000) == 0
        alter(connection, BROKER, "", "message.max.bytes", "3000")
        assert produce(connection, "t", 5000) == 10
        assert produce(connection, "own", 5000) == 0
        alter(connection, TOPIC, "own", "max.message.bytes", "2000")
        assert produce(connection, "own", 5000) == 10
        alter(connection, BROKER, "1", "message.max.bytes", "6000")
        assert produce(connection, "t", 5000) == 0


def test_producer_ids_are_never_given_twice(tmp_path):
    seen: list[int] = []
    for _ in range(3):
        with connected(tmp_path) as connection:
            for _ in range(5):
                answer = connection.ask("InitProducerId", 4, transactional_id=None, transaction_timeout=1000)
                assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
                seen.append(answer["producer_id"])
    assert len(seen) == 15
    assert sorted(set(seen)) == seen


def test_a_topic_asked_for_is_there_soon_with_the_brokers_defaults(tmp_path):
    with connected(tmp_path, num_partitions="3") as connection:
        (first,) = metadata(connection, "new", create_missing=True)
        assert (first["error_code"], first["topic_id"]) == (3, None)
        for _ in attempts():
            (found,) = metadata(connection, "new")
            if found["error_code"] == 0:
                break
        assert (found["error_code"], len(found["partitions"])) == (0, 3)
        assert produce(connection, "new", 10) == 0


def test_a_deleted_topic_made_again_starts_empty(tmp_path):
    with connected(tmp_path) as connection:
        first = create(connection, "t")
        assert produce(connection, "t", 10) == 0
        answer = connection.ask("DeleteTopics", 6, topics=[{"name": "t", "topic_id": None}], timeout=10000)
        assert answer["responses"][0]["error_code"] == 0
        assert produce(connection, "t", 10) == 3
        second = create(connection, "t")
        assert second["topic_id"] != first["topic_id"]
        answer = connection.ask("Produce", 7, **produce_body("t", batch([Record(value=b"x")])))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


def test_the_coordinators_topics_are_made_when_first_asked_for(tmp_path):
    with connected(tmp_path, offsets_topic_num_partitions="4") as connection:
        for _ in attempts():
            (found,) = connection.ask("FindCoordinator", 6, key_type=0, coordinator_keys=["g"])["coordinators"]
            if found["error_code"] != 15:
                break
        assert (found["error_code"], found["node_id"]) == (0, 1)
        (topic,) = metadata(connection, "__consumer_offsets")
        assert (len(topic["partitions"]), topic["is_internal"]) == (4, True)
        assert value(connection, TOPIC, "__consumer_offsets", "cleanup.policy") == ("compact", 1)
        assert produce(connection, "__consumer_offsets", 10) == 17
