"""The table of rights: each API, what it needs, and what it answers without.

1. A row names a request, the rights that suffice for it, and the code that is answered while each of them is missing.
2. `nothing` is what a client without any right is answered; None where the rights are only filters.
3. The same rows are asked of a simulated broker (tests/broker/api) and of Apache Kafka beside Twofold (tests/interop).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from twofold.records.batch import BatchBuilder
from twofold.security.acl_codes import CLUSTER_NAME, AclResourceType, Operation

TOPIC, GROUP, TXN, CLUSTER = (
    AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.TRANSACTIONAL_ID, AclResourceType.CLUSTER,
)  # fmt: skip
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
AUTHORIZATION = frozenset({29, 30, 31, 53})

T, OTHER, DOOMED, G, GONE, X = "t", "other", "doomed", "g", "gone", "x"


class Right(NamedTuple):
    operation: Operation
    kind: AclResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation.name} {self.kind.name} {self.name}"


class Place(Protocol):
    """Where a row is asked: names are made unique, and ids looked up."""

    def name(self, text: str) -> str: ...

    def topic_id(self, text: str) -> UUID: ...

    @property
    def pair(self) -> tuple[int, int]: ...


Body = Callable[[Place], dict[str, Any]]
Look = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Row:
    api: str
    version: int
    body: Body
    rights: Mapping[Right, int | None]
    """Each right that is needed, and the code while only it is missing; None where it only filters."""
    nothing: int | None = None
    """The code without any right; of the first right where not given."""
    seen: Look | None = None
    """What a filter leaves: something without the right, something else with it."""
    label: str = ""
    creates: tuple[str, ...] = field(default=())
    """Topics that the request takes away and needs anew."""
    alone: bool = False
    """The rights are alternatives: each suffices."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Consumer groups that need a member, and the topics that it has."""

    def __str__(self) -> str:
        return f"{self.api} {self.version}{' ' + self.label if self.label else ''}"

    @property
    def denied(self) -> int | None:
        return self.nothing if self.nothing is not None else next(iter(self.rights.values()))


def codes(answer: Any) -> set[int]:
    """All error codes of an answer, at any depth."""
    return set(_codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.endswith("error_code") and isinstance(inner, int):
                yield inner
            else:
                yield from _codes(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _codes(inner)


def records(transactional: bool = False, pair: tuple[int, int] = (-1, -1)) -> bytes:
    sequence = 0 if transactional else -1
    builder = BatchBuilder(
        producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=transactional
    )
    builder.add(b"k", b"v", 0)
    return bytes(builder.build())


def produce(at: Place) -> dict[str, Any]:
    rows = [{"name": at.name(T), "partition_data": [{"index": 0, "records": records()}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}


def produce_in_transaction(at: Place) -> dict[str, Any]:
    rows = [{"name": at.name(T), "partition_data": [{"index": 1, "records": records(True, at.pair)}]}]
    return {"transactional_id": at.name(X), "acks": -1, "timeout": 1000, "topic_data": rows}


def fetch(at: Place, replica_id: int = -1) -> dict[str, Any]:
    partitions = [{"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1}]
    return {
        "replica_id": replica_id, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic": at.name(T), "partitions": partitions}],
    }  # fmt: skip


def list_offsets(at: Place) -> dict[str, Any]:
    rows = [{"partition_index": 0, "timestamp": -1}]
    return {"replica_id": -1, "topics": [{"name": at.name(T), "partitions": rows}]}


def leader_epoch(at: Place) -> dict[str, Any]:
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    return {"replica_id": -1, "topics": [{"topic": at.name(T), "partitions": rows}]}


def metadata(at: Place) -> dict[str, Any]:
    return {"topics": [{"name": at.name(T)}], "allow_auto_topic_creation": False}


def metadata_all(at: Place) -> dict[str, Any]:
    return {"topics": None, "allow_auto_topic_creation": False}


def metadata_by_id(at: Place) -> dict[str, Any]:
    return {"topics": [{"topic_id": at.topic_id(T), "name": None}], "allow_auto_topic_creation": False}


def create_topic(at: Place) -> dict[str, Any]:
    row = {"name": at.name("new"), "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [row], "timeout": 5000, "validate_only": True}


def delete_topic(at: Place) -> dict[str, Any]:
    return {"topic_names": [at.name(DOOMED)], "timeout": 5000}


def delete_topic_by_id(at: Place) -> dict[str, Any]:
    return {"topics": [{"name": None, "topic_id": at.topic_id(DOOMED)}], "timeout": 5000}


def create_partitions(at: Place) -> dict[str, Any]:
    rows = [{"name": at.name(OTHER), "count": 3, "assignments": None}]
    return {"topics": rows, "timeout": 5000, "validate_only": True}


def delete_records(at: Place) -> dict[str, Any]:
    rows = [{"name": at.name(OTHER), "partitions": [{"partition_index": 0, "offset": 0}]}]
    return {"topics": rows, "timeout": 5000}


def describe_configs(kind: int, name: str) -> Body:
    def body(at: Place) -> dict[str, Any]:
        row = {"resource_type": kind, "resource_name": at.name(name) if kind in (2, 32) else name}
        return {"resources": [{**row, "configuration_keys": ["cleanup.policy"]}], "include_synonyms": False}

    return body


def alter_configs(kind: int, name: str, *, incremental: bool) -> Body:
    def body(at: Place) -> dict[str, Any]:
        config: dict[str, Any] = {"name": "retention.ms" if kind == 2 else "log.retention.ms", "value": "-1"}
        if incremental:
            config["config_operation"] = 0
        row = {"resource_type": kind, "resource_name": at.name(name) if kind in (2, 32) else name, "configs": [config]}
        return {"resources": [row], "validate_only": True}

    return body


def find(kind: int, name: str) -> Body:
    return lambda at: {"key": at.name(name), "key_type": kind}


def beat(at: Place) -> dict[str, Any]:
    """Of a member that is none, in a group that is none of its kind."""
    return {
        "group_id": at.name(G), "member_id": "nothing", "member_epoch": 5, "rebalance_timeout": -1,
        "subscribed_topic_names": [at.name(T)], "topic_partitions": None,
    }  # fmt: skip


def reader(group: str, topics: tuple[str, ...]) -> dict[str, Any]:
    """A heartbeat with which a member of a consumer group joins, or joins again."""
    return {
        "group_id": group, "member_id": "reader", "member_epoch": 0, "rebalance_timeout": 60_000,
        "subscribed_topic_names": list(topics), "topic_partitions": [],
    }  # fmt: skip


def has_topics(answer: dict[str, Any], topics: tuple[str, ...]) -> bool:
    """Whether a member that joined has partitions of so many topics."""
    return answer["error_code"] == 0 and len(answer["assignment"]["topic_partitions"]) == len(topics)


def describe_group(name: str) -> Body:
    return lambda at: {"group_ids": [at.name(name)], "include_authorized_operations": False}


def members_shown(answer: dict[str, Any]) -> int:
    return len(answer["groups"][0]["members"])


def of_group(name: str = "group_id", group: str = G, **more: Any) -> Body:
    return lambda at: {name: at.name(group), **more}


def join(at: Place) -> dict[str, Any]:
    # A member id that nothing knows: with the right the group answers 25, and has no new member.
    return {
        "group_id": at.name(G), "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "nothing",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip


def commit_offset(at: Place) -> dict[str, Any]:
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    return {
        "group_id": at.name(G), "generation_id_or_member_epoch": -1, "member_id": "",
        "topics": [{"name": at.name(T), "partitions": rows}],
    }  # fmt: skip


def fetch_offset(at: Place) -> dict[str, Any]:
    return {"group_id": at.name(G), "topics": [{"name": at.name(T), "partition_indexes": [0]}]}


def delete_offset(at: Place) -> dict[str, Any]:
    return {"group_id": at.name(G), "topics": [{"name": at.name(T), "partitions": [{"partition_index": 1}]}]}


def init(two_phase: bool = False) -> Body:
    def body(at: Place) -> dict[str, Any]:
        found: dict[str, Any] = {"transactional_id": at.name("init"), "transaction_timeout": 60_000}
        return {**found, "enable2_pc": True, "keep_prepared_txn": False} if two_phase else found

    return body


def init_null(at: Place) -> dict[str, Any]:
    return {"transactional_id": None, "transaction_timeout": 60_000}


def add_partitions(at: Place) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": at.name(X), "v3_and_below_producer_id": at.pair[0],
        "v3_and_below_producer_epoch": at.pair[1],
        "v3_and_below_topics": [{"name": at.name(T), "partitions": [1]}],
    }  # fmt: skip


def add_partitions_of_brokers(at: Place) -> dict[str, Any]:
    row = {
        "transactional_id": at.name(X), "producer_id": at.pair[0], "producer_epoch": at.pair[1], "verify_only": True,
        "topics": [{"name": at.name(T), "partitions": [1]}],
    }  # fmt: skip
    return {"transactions": [row]}


def of_pair(**more: Any) -> Body:
    def body(at: Place) -> dict[str, Any]:
        named = {key: at.name(value) if key == "group_id" else value for key, value in more.items()}
        return {"transactional_id": at.name(X), "producer_id": at.pair[0], "producer_epoch": at.pair[1], **named}

    return body


def commit_offset_in_transaction(at: Place) -> dict[str, Any]:
    rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    return {
        "transactional_id": at.name(X), "group_id": at.name(G), "producer_id": at.pair[0],
        "producer_epoch": at.pair[1], "generation_id": -1, "member_id": "",
        "topics": [{"name": at.name(T), "partitions": rows}],
    }  # fmt: skip


def markers(at: Place) -> dict[str, Any]:
    row = {
        "producer_id": 987_654, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
        "topics": [{"name": at.name(OTHER), "partition_indexes": [0]}],
    }  # fmt: skip
    return {"markers": [row]}


def describe_producers(at: Place) -> dict[str, Any]:
    return {"topics": [{"name": at.name(T), "partition_indexes": [0]}]}


ACL_FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": "User:none",
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
NEW_ACL = {
    "resource_type": 2, "resource_name": "", "resource_pattern_type": 3, "principal": "User:none", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
FEATURE = {"feature": "none", "max_version_level": 1, "upgrade_type": 1}


def fixed(**body: Any) -> Body:
    return lambda at: body


def cluster(operation: Operation) -> dict[Right, int | None]:
    return {Right(operation, CLUSTER, CLUSTER_NAME): 31}


def group(operation: Operation, name: str = G) -> dict[Right, int | None]:
    return {Right(operation, GROUP, name): 30}


def topic(operation: Operation, name: str = T) -> dict[Right, int | None]:
    return {Right(operation, TOPIC, name): 29}


def txn(operation: Operation, name: str = X) -> dict[Right, int | None]:
    return {Right(operation, TXN, name): 53}


def filtered(*rights: Right) -> dict[Right, int | None]:
    return dict.fromkeys(rights)


def count(name: str) -> Look:
    return lambda answer: len([row for row in answer[name] if row])


ROWS = (
    Row("Produce", 9, produce, topic(WRITE)),
    Row("Produce", 9, produce_in_transaction, txn(WRITE) | topic(WRITE), label="in a transaction"),
    Row("Fetch", 11, fetch, topic(READ)),
    Row("Fetch", 11, lambda at: fetch(at, 7), {Right(ACTION, CLUSTER, CLUSTER_NAME): 29}, label="of a replica"),
    Row("ListOffsets", 1, list_offsets, topic(DESCRIBE)),
    Row("OffsetForLeaderEpoch", 3, leader_epoch, topic(DESCRIBE) | {Right(ACTION, CLUSTER, CLUSTER_NAME): 29},
        alone=True),
    Row("Metadata", 9, metadata, topic(DESCRIBE)),
    Row("Metadata", 12, metadata_by_id, topic(DESCRIBE), label="by id"),
    Row("Metadata", 9, metadata_all, filtered(Right(DESCRIBE, TOPIC, T)), seen=count("topics"), label="of all"),
    Row("DescribeTopicPartitions", 0, lambda at: {"topics": [{"name": at.name(T)}], "response_partition_limit": 9},
        topic(DESCRIBE)),
    Row("CreateTopics", 5, create_topic,
        {Right(CREATE, TOPIC, "new"): 29, Right(DESCRIBE_CONFIGS, TOPIC, "new"): 29}),
    Row("CreateTopics", 4, create_topic, {Right(CREATE, CLUSTER, CLUSTER_NAME): 29}, label="by the cluster's right"),
    Row("DeleteTopics", 5, delete_topic, topic(DELETE, DOOMED), creates=(DOOMED,)),
    Row("DeleteTopics", 6, delete_topic_by_id, topic(DELETE, DOOMED), creates=(DOOMED,), label="by id"),
    Row("DeleteTopics", 5, delete_topic, {Right(DELETE, CLUSTER, CLUSTER_NAME): 29}, creates=(DOOMED,),
        label="by the cluster's right"),
    Row("CreatePartitions", 3, create_partitions, topic(ALTER, OTHER)),
    Row("DeleteRecords", 2, delete_records, topic(DELETE, OTHER)),
    Row("DescribeConfigs", 4, describe_configs(2, T), topic(DESCRIBE_CONFIGS)),
    Row("DescribeConfigs", 4, describe_configs(4, "1"), cluster(DESCRIBE_CONFIGS), label="of a broker"),
    Row("DescribeConfigs", 4, describe_configs(32, G), group(DESCRIBE_CONFIGS), label="of a group"),
    Row("DescribeConfigs", 4, describe_configs(16, "m"), cluster(DESCRIBE_CONFIGS), label="of client metrics"),
    Row("AlterConfigs", 2, alter_configs(2, T, incremental=False), topic(ALTER_CONFIGS)),
    Row("AlterConfigs", 2, alter_configs(4, "1", incremental=False), cluster(ALTER_CONFIGS), label="of a broker"),
    Row("IncrementalAlterConfigs", 1, alter_configs(2, T, incremental=True), topic(ALTER_CONFIGS)),
    Row("IncrementalAlterConfigs", 1, alter_configs(4, "1", incremental=True), cluster(ALTER_CONFIGS),
        label="of a broker"),
    Row("IncrementalAlterConfigs", 1, alter_configs(32, G, incremental=True), group(ALTER_CONFIGS), label="of a group"),
    Row("IncrementalAlterConfigs", 1, alter_configs(16, "m", incremental=True), cluster(ALTER_CONFIGS),
        label="of client metrics"),
    Row("ListConfigResources", 1, fixed(resource_types=[]), cluster(DESCRIBE_CONFIGS)),
    Row("FindCoordinator", 3, find(0, G), group(DESCRIBE), label="of a group"),
    Row("FindCoordinator", 3, find(1, X), txn(DESCRIBE), label="of a transactional id"),
    Row("JoinGroup", 5, join, group(READ)),
    Row("SyncGroup", 3, of_group(generation_id=1, member_id="nothing", assignments=[]), group(READ)),
    Row("Heartbeat", 3, of_group(generation_id=1, member_id="nothing"), group(READ)),
    Row("LeaveGroup", 3, of_group(members=[{"member_id": "nothing", "group_instance_id": None}]), group(READ)),
    Row("ConsumerGroupHeartbeat", 1, beat, group(READ) | topic(DESCRIBE)),
    Row("ConsumerGroupDescribe", 1, describe_group(G), group(DESCRIBE)),
    Row("ConsumerGroupDescribe", 1, describe_group("reads"), group(DESCRIBE, "reads") | topic(DESCRIBE),
        reads={"reads": (T,)}, seen=members_shown, label="with a member"),
    Row("ConsumerGroupDescribe", 0, describe_group("reads both"),
        group(DESCRIBE, "reads both") | topic(DESCRIBE) | topic(DESCRIBE, OTHER), reads={"reads both": (T, OTHER)},
        seen=members_shown, label="with a member that reads two topics"),
    Row("OffsetCommit", 7, commit_offset, group(READ) | topic(READ)),
    Row("OffsetFetch", 7, fetch_offset, group(DESCRIBE) | topic(DESCRIBE)),
    Row("OffsetFetch", 7, of_group(topics=None), group(DESCRIBE) | filtered(Right(DESCRIBE, TOPIC, T)),
        seen=count("topics"), label="of all topics"),
    Row("OffsetDelete", 0, delete_offset, group(DELETE) | topic(READ)),
    Row("DescribeGroups", 5, lambda at: {"groups": [at.name(G)]}, group(DESCRIBE)),
    Row("DeleteGroups", 2, lambda at: {"groups_names": [at.name(GONE)]}, group(DELETE, GONE)),
    Row("ListGroups", 4, fixed(states_filter=[]), filtered(Right(DESCRIBE, GROUP, G)), seen=count("groups")),
    Row("ListGroups", 4, fixed(states_filter=[]), filtered(Right(DESCRIBE, CLUSTER, CLUSTER_NAME)),
        seen=count("groups"), label="by the cluster's right"),
    Row("InitProducerId", 4, init(), txn(WRITE, "init")),
    Row("InitProducerId", 4, init_null,
        {Right(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME): 31, Right(WRITE, TOPIC, "any"): 31}, alone=True,
        label="without an id"),
    Row("AddPartitionsToTxn", 3, add_partitions, txn(WRITE) | topic(WRITE)),
    Row("AddPartitionsToTxn", 4, add_partitions_of_brokers, cluster(ACTION), label="of brokers"),
    Row("AddOffsetsToTxn", 3, of_pair(group_id=G), txn(WRITE) | group(READ)),
    Row("TxnOffsetCommit", 3, commit_offset_in_transaction, txn(WRITE) | group(READ) | topic(READ)),
    Row("WriteTxnMarkers", 1, markers, cluster(ALTER) | cluster(ACTION), alone=True),
    Row("EndTxn", 3, of_pair(committed=True), txn(WRITE)),
    Row("TxnHeartbeat", 0, of_pair(), txn(WRITE)),
    Row("DescribeTransactions", 0, lambda at: {"transactional_ids": [at.name(X)]}, txn(DESCRIBE)),
    Row("ListTransactions", 1, fixed(state_filters=[], producer_id_filters=[], duration_filter=-1),
        filtered(Right(DESCRIBE, TXN, X)), seen=count("transaction_states")),
    Row("DescribeProducers", 0, describe_producers, topic(READ)),
    Row("DescribeAcls", 3, fixed(**ACL_FILTER), cluster(DESCRIBE)),
    Row("CreateAcls", 3, fixed(creations=[NEW_ACL]), cluster(ALTER)),
    Row("DeleteAcls", 3, fixed(filters=[ACL_FILTER]), cluster(ALTER)),
    Row("DescribeUserScramCredentials", 0, fixed(users=[]), cluster(DESCRIBE)),
    Row("AlterUserScramCredentials", 0, fixed(deletions=[{"name": "none", "mechanism": 1}], upsertions=[]),
        cluster(ALTER)),
    Row("DescribeClientQuotas", 1, fixed(components=[], strict=False), cluster(DESCRIBE_CONFIGS)),
    Row("AlterClientQuotas", 1, fixed(
        entries=[{"entity": [{"entity_type": "none", "entity_name": "n"}], "ops": []}], validate_only=True),
        cluster(ALTER_CONFIGS)),
    Row("DescribeCluster", 0, fixed(include_cluster_authorized_operations=True),
        filtered(Right(DESCRIBE, CLUSTER, CLUSTER_NAME)), seen=lambda answer: answer["cluster_authorized_operations"]),
    Row("DescribeQuorum", 2, fixed(topics=[
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]), cluster(DESCRIBE)),
    Row("ElectLeaders", 2, lambda at: {
        "topic_partitions": [{"topic": at.name(T), "partitions": [0]}], "timeout": 5000, "election_type": 0},
        cluster(ALTER)),
    Row("ElectLeaders", 2, fixed(topic_partitions=None, timeout=5000, election_type=0), cluster(ALTER), label="of all"),
    Row("AlterPartitionReassignments", 1, lambda at: {"timeout": 5000, "topics": [
        {"name": at.name(T), "partitions": [{"partition_index": 0, "replicas": [1]}]}]}, cluster(ALTER)),
    Row("ListPartitionReassignments", 0, fixed(timeout=5000, topics=None), cluster(DESCRIBE)),
    Row("AlterReplicaLogDirs", 2, lambda at: {
        "dirs": [{"path": "/nowhere", "topics": [{"name": at.name(T), "partitions": [0]}]}]}, cluster(ALTER)),
    Row("DescribeLogDirs", 4, lambda at: {"topics": [{"topic": at.name(T), "partitions": [0]}]}, cluster(DESCRIBE)),
    Row("UpdateFeatures", 1, fixed(timeout=1000, feature_updates=[FEATURE], validate_only=True), cluster(ALTER)),
)  # fmt: skip

# These ask for nothing: before a client is known, or because the answer is the same for all.
NEEDS_NOTHING = {
    "ApiVersions": "it is asked before a client logs in",
    "SaslHandshake": "it begins a login",
    "SaslAuthenticate": "it is a login",
}
