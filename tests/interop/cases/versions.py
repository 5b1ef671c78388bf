"""Every API in every version that is served: a sane request, an answer to its last byte."""

from collections.abc import Callable
from typing import Any

from interop.cases.api_versions import served
from interop.cases.cluster import found
from interop.cases.log_dirs import without_places
from interop.cases.producers import allotted
from oracle.batches import T0, batch
from oracle.compare import Cases, Probe, Topic
from oracle.wire import fit

CASES = Cases("versions")

Body = Callable[[Topic], dict[str, Any]]


def produce(topic: Topic) -> dict[str, Any]:
    row = {"name": topic.name, "topic_id": topic.id, "partition_data": [{"index": 0, "records": batch(2)}]}
    return {"acks": -1, "timeout": 5000, "topic_data": [row]}


def fetch(topic: Topic) -> dict[str, Any]:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000}]
    rows = [{"topic": topic.name, "topic_id": topic.id, "partitions": parts}]
    return {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 100_000, "topics": rows}


def list_offsets(topic: Topic) -> dict[str, Any]:
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "timestamp": T0}]}]
    return {"replica_id": -1, "topics": rows, "timeout": 5000}


def create_topics(topic: Topic) -> dict[str, Any]:
    configs = [{"name": "retention.ms", "value": "5000"}]
    row = {"name": f"{topic.name}.new", "num_partitions": 2, "replication_factor": 1, "configs": configs}
    return {"topics": [row], "timeout": 5000}


def delete_topics(topic: Topic) -> dict[str, Any]:
    return {"topics": [{"name": topic.name}], "topic_names": [topic.name], "timeout": 5000}


def alter_configs(topic: Topic) -> dict[str, Any]:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "5000"}]
    return {"resources": [{"resource_type": 2, "resource_name": topic.name, "configs": configs}]}


def delete_records(topic: Topic) -> dict[str, Any]:
    return {"topics": [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout": 5000}


def replace_configs(topic: Topic) -> dict[str, Any]:
    configs = [{"name": "retention.ms", "value": "5000"}]
    return {"resources": [{"resource_type": 2, "resource_name": topic.name, "configs": configs}]}


REQUESTS: dict[str, tuple[int, int, Body]] = {
    "ApiVersions": (0, 4, lambda _: {"client_software_name": "t", "client_software_version": "1"}),
    "Metadata": (0, 13, lambda topic: {"topics": [{"name": topic.name}], "allow_auto_topic_creation": False}),
    "Produce": (3, 13, produce),
    "Fetch": (4, 18, fetch),
    "ListOffsets": (1, 11, list_offsets),
    "OffsetForLeaderEpoch": (
        2,
        4,
        lambda topic: {"replica_id": -1, "topics": [{"topic": topic.name, "partitions": [{"partition": 0}]}]},
    ),
    "SaslHandshake": (0, 1, lambda _: {"mechanism": "PLAIN"}),
    "SaslAuthenticate": (0, 2, lambda _: {"auth_bytes": b"x"}),
    "InitProducerId": (0, 5, lambda _: {"transactional_id": None, "transaction_timeout": 60000}),
    "CreateTopics": (2, 7, create_topics),
    "CreatePartitions": (0, 3, lambda topic: {"topics": [{"name": topic.name, "count": 2}], "timeout": 5000}),
    "DeleteTopics": (1, 6, delete_topics),
    "DescribeConfigs": (1, 4, lambda topic: {"resources": [{"resource_type": 2, "resource_name": topic.name}]}),
    "IncrementalAlterConfigs": (0, 1, alter_configs),
    "AlterConfigs": (0, 2, replace_configs),
    "ListConfigResources": (0, 1, lambda _: {"resource_types": [4]}),
    "DeleteRecords": (0, 2, delete_records),
    "DescribeTopicPartitions": (0, 0, lambda topic: {"topics": [{"name": topic.name}]}),
    "DescribeLogDirs": (1, 5, lambda topic: {"topics": [{"topic": topic.name, "partitions": [0]}]}),
    "DescribeCluster": (0, 2, lambda _: {}),
    "DescribeProducers": (0, 0, lambda topic: {"topics": [{"name": topic.name, "partition_indexes": [0]}]}),
    "FindCoordinator": (0, 6, lambda _: {"key": "group", "key_type": 0, "coordinator_keys": ["group"]}),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "ApiVersions": {"keep": served},
    "InitProducerId": {"keep": allotted},
    "FindCoordinator": {"until": found},
    "DescribeLogDirs": {"keep": without_places},
}


def one_request(api: str, version: int, body: Body) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        probe.produce(topic.name)
        probe.ask("answer", api, version, fit(api, version, body(topic)), **OPTIONS.get(api, {}))

    return run


for _api, (_first, _last, _body) in REQUESTS.items():
    for _version in range(_first, _last + 1):
        CASES.add(f"{_api}_v{_version}", one_request(_api, _version, _body))
