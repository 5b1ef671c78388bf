"""Settings: Kafka's names and defaults, refused before anything connects."""

from dataclasses import fields
from typing import Any

import pytest

import twofold.client
from twofold.client.config import (
    ClientConfig,
    ClientOptions,
    ConsumerConfig,
    ConsumerOptions,
    ProducerConfig,
    ProducerOptions,
    from_dotted,
    from_keywords,
)
from twofold.connections.connection import Address, parse_addresses

PAIRS = [(ClientConfig, ClientOptions), (ProducerConfig, ProducerOptions), (ConsumerConfig, ConsumerOptions)]


@pytest.mark.parametrize(("config", "options"), PAIRS)
def test_keyword_types_name_exactly_the_settings(config: Any, options: Any) -> None:
    assert {field.name: field.type for field in fields(config)} == _annotations(options)


def _annotations(options: Any) -> dict[str, Any]:
    return dict(options.__annotations__)


def test_dotted_names_and_text_values_mean_the_same_as_keywords() -> None:
    dotted = from_dotted(
        ProducerConfig,
        {"bootstrap.servers": "a:1", "linger.ms": "7", "enable.idempotence": "false", "acks": 1, "client.id": None},
    )
    keywords = from_keywords(
        ProducerConfig,
        {"bootstrap_servers": "a:1", "linger_ms": 7.0, "enable_idempotence": False, "acks": "1", "client_id": None},
    )
    assert dotted == keywords


def test_an_unknown_setting_names_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"'lingerms' \(did you mean 'linger.ms'\?\)"):
        from_dotted(ProducerConfig, {"lingerms": 1})
    with pytest.raises(TypeError, match=r"'isolation' \(did you mean 'isolation_level'\?\)"):
        from_keywords(ConsumerConfig, {"isolation": "read_committed"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"acks": "1", "enable_idempotence": True}, "acks=1 does not go with an idempotent producer"),
        (
            {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True},
            "max_in_flight_requests_per_connection=6",
        ),
        ({"retries": 0, "enable_idempotence": True}, "retries=0"),
        ({"acks": "2"}, "acks='2' is none of all, 1, 0"),
        ({"compression_type": "brotli"}, "compression_type='brotli' is none of none, gzip, snappy, lz4, zstd"),
        ({"delivery_timeout_ms": 1_000}, "delivery_timeout_ms=1000 is less than linger_ms"),
        ({"bootstrap_servers": "nowhere"}, "'nowhere' in bootstrap_servers is not HOST:PORT"),
        ({"linger_ms": -1}, "linger_ms=-1 is negative"),
        ({"compression_zstd_level": 23}, "compression_zstd_level=23 is not between -131072 and 22"),
        ({"compression_gzip_level": 0}, "compression_gzip_level=0 is not between 1 and 9"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_keywords(ProducerConfig, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"acks": 1}, r"acks=1 does not go with transactional_id='t'"),
        ({"acks": "0"}, r"acks=0 does not go with transactional_id='t'"),
        ({"max_in_flight_requests_per_connection": 6}, r"connection=6 does not go with transactional_id='t'"),
        ({"retries": 0}, r"retries=0 does not go with transactional_id='t'"),
        ({"enable_idempotence": False}, r"enable_idempotence=False does not go with transactional_id='t'"),
        ({"transactional_id": ""}, r"transactional_id is empty"),
        ({"transactional_id": None, "transaction_two_phase_commit_enable": True}, r"set transactional_id, too"),
        ({"transactional_id": None, "transaction_heartbeat_interval_ms": 1}, r"set transactional_id, too"),
        ({"transaction_timeout_ms": 0}, r"transaction_timeout_ms=0 leaves a transaction no time"),
        (
            {"transaction_two_phase_commit_enable": True, "transaction_timeout_ms": 60_000},
            r"transaction_timeout_ms=60000 does not go with transaction_two_phase_commit_enable",
        ),
        (
            {"transaction_two_phase_commit_enable": True, "transaction_heartbeat_interval_ms": 1_000},
            r"transaction_heartbeat_interval_ms=1000 does not go with transaction_two_phase_commit_enable",
        ),
        (
            {"transaction_heartbeat_interval_ms": 5_001, "transaction_timeout_ms": 5_000},
            r"transaction_heartbeat_interval_ms=5001 is above transaction_timeout_ms=5000",
        ),
        ({"transaction_heartbeat_interval_ms": 60_001}, r"is above transaction_timeout_ms=60000"),
    ],
)
def test_settings_that_exclude_transactions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_keywords(ProducerConfig, {"transactional_id": "t"} | values)


def test_settings_of_transactions_have_kafkas_names_and_defaults() -> None:
    config = from_dotted(ProducerConfig, {"transactional.id": "t", "transaction.timeout.ms": "1000"})
    assert (config.idempotent, config.transaction_timeout) == (True, 1_000)
    assert ProducerConfig(transactional_id="t").transaction_timeout == 60_000
    assert ProducerConfig(transactional_id="t").transaction_heartbeat_interval_ms == 0, "no heartbeats"
    two_phase = {"transactional.id": "t", "transaction.two.phase.commit.enable": "true"}
    assert from_dotted(ProducerConfig, two_phase).transaction_two_phase_commit_enable
    beating = from_dotted(ProducerConfig, {"transactional.id": "t", "transaction.heartbeat.interval.ms": 60_000})
    assert beating.transaction_heartbeat_interval_ms == 60_000


def test_a_compression_level_counts_for_its_codec_and_only_when_it_was_chosen() -> None:
    assert ProducerConfig(compression_type="zstd", compression_zstd_level=7).compression_level == 7
    assert ProducerConfig(compression_type="lz4", compression_zstd_level=7).compression_level is None
    assert ProducerConfig(compression_type="snappy").compression_level is None


def test_idempotence_gives_way_to_settings_that_exclude_it_unless_it_was_asked_for() -> None:
    assert ProducerConfig().idempotent
    assert not ProducerConfig(acks=1).idempotent
    assert not ProducerConfig(max_in_flight_requests_per_connection=6).idempotent


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (["a:1", "b:2"], r"bootstrap_servers=\['a:1', 'b:2'\] is no text: write 'HOST:PORT,HOST:PORT'"),
        ("http://localhost:9092/", "is an address with http://; write 'localhost:9092'"),
        ("PLAINTEXT://localhost:9092", "is an address with PLAINTEXT://; write 'localhost:9092'"),
        ("a:1,localhost", "'localhost' in bootstrap_servers is not HOST:PORT"),
    ],
)
def test_what_is_no_address_of_a_broker_is_refused_with_what_to_write(servers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProducerConfig(bootstrap_servers=servers)


def test_addresses_may_be_ipv6_and_are_kept_once() -> None:
    assert parse_addresses("a:1, [::1]:2,a:1") == (Address("a", 1), Address("::1", 2))
    assert str(Address("::1", 2)) == "[::1]:2"


BY_BROKER = {"group_id": "g", "group_protocol": "consumer"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group_instance_id": "i"}, "group_instance_id='i' is about groups: set group_id, too"),
        ({"session_timeout_ms": 9_000}, "session_timeout_ms=9000 is about groups"),
        ({"heartbeat_interval_ms": 9}, "heartbeat_interval_ms=9 is about groups"),
        ({"max_poll_interval_ms": 9}, "max_poll_interval_ms=9 is about groups"),
        ({"auto_commit_interval_ms": 9}, "auto_commit_interval_ms=9 is about groups"),
        ({"partition_assignment_strategy": "range"}, "partition_assignment_strategy='range' is about groups"),
        ({"enable_auto_commit": True}, "enable_auto_commit=True commits the offsets of a group"),
        ({"group_id": ""}, "group_id is empty"),
        ({"group_id": "g", "group_instance_id": ""}, "group_instance_id is empty"),
        ({"group_id": "g", "session_timeout_ms": 0}, "session_timeout_ms=0 leaves no time"),
        (
            {"group_id": "g", "session_timeout_ms": 3_000},
            "heartbeat_interval_ms=3000 is not below session_timeout_ms=3000",
        ),
        (
            {"group_id": "g", "enable_auto_commit": False, "auto_commit_interval_ms": 1},
            "auto_commit_interval_ms=1 has no effect with enable_auto_commit=False",
        ),
        ({"group_id": "g", "partition_assignment_strategy": "sticky"}, "strategy: there is no assignor 'sticky'"),
        ({"group_id": "g", "partition_assignment_strategy": []}, "partition_assignment_strategy is empty"),
        ({"group_protocol": "consumer"}, "group_protocol='consumer' is about groups"),
        ({"group_id": "g", "group_protocol": "modern"}, "group_protocol='modern' is none of classic, consumer"),
        ({"group_id": "g", "group_remote_assignor": "range"}, "'range' is for group_protocol='consumer'"),
        (BY_BROKER | {"group_remote_assignor": ""}, "group_remote_assignor is empty"),
        (BY_BROKER | {"heartbeat_interval_ms": 9}, "heartbeat_interval_ms=9 has no effect with group_protocol"),
        (BY_BROKER | {"partition_assignment_strategy": "range"}, "strategy='range' has no effect with group_protocol"),
        ({"value_deserializer": "json"}, "value_deserializer='json' is not callable"),
        ({"auto_offset_reset": "first"}, "auto_offset_reset='first' is none of earliest, latest, none"),
    ],
)
def test_settings_of_groups_that_cannot_work_or_have_no_effect_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        from_keywords(ConsumerConfig, values)


def test_with_the_consumer_protocol_the_broker_says_how_often_heartbeats_come() -> None:
    config = from_dotted(ConsumerConfig, {"group.id": "g", "group.protocol": "consumer", "session.timeout.ms": "1000"})
    assert config.is_assigned_by_broker and config.session_timeout_ms < config.heartbeat_interval_ms


def test_strategies_have_kafkas_names_or_those_of_its_classes() -> None:
    java = "org.apache.kafka.clients.consumer."
    for given, expected in [
        (f"{java}CooperativeStickyAssignor", ("cooperative-sticky",)),
        (f"{java}RangeAssignor, {java}RoundRobinAssignor", ("range", "roundrobin")),
        (["roundrobin", "range", "roundrobin"], ("roundrobin", "range")),
    ]:
        dotted = from_dotted(ConsumerConfig, {"group.id": "g", "partition.assignment.strategy": given})
        assert dotted.assignors == expected
    assert ConsumerConfig(group_id="g").assignors == ("range", "cooperative-sticky")


def test_commits_are_automatic_where_there_is_a_group_unless_they_are_switched_off() -> None:
    assert ConsumerConfig(group_id="g").auto_commits
    assert not ConsumerConfig().auto_commits
    assert not ConsumerConfig(group_id="g", enable_auto_commit=False).auto_commits
    assert not from_dotted(ConsumerConfig, {"enable.auto.commit": "false"}).auto_commits


def test_public_surface_is_this_and_nothing_else() -> None:
    assert sorted(twofold.client.__all__) == [
        "ALL_RECORDS",
        "AbortTransactionSpec",
        "Admin",
        "AlterOperation",
        "ClusterDescription",
        "ColumnDelivery",
        "ConfigChange",
        "ConfigEntry",
        "ConfigResource",
        "Consumer",
        "ConsumerGroupMetadata",
        "ConsumerRecord",
        "CreatedTopic",
        "Delivery",
        "ElectionType",
        "EndedTwoPhase",
        "Feature",
        "FeatureUpdate",
        "FeaturesDescription",
        "FencedProducer",
        "GroupDescription",
        "GroupListing",
        "ListedOffset",
        "LogDirDescription",
        "LoopThread",
        "MemberDescription",
        "NewTopic",
        "Node",
        "OffsetAndMetadata",
        "OffsetRange",
        "OffsetSpec",
        "PartitionMetadata",
        "PreparedTxnState",
        "Producer",
        "ProducerDescription",
        "QuorumDescription",
        "QuorumReplica",
        "QuotaTarget",
        "Reassignment",
        "RebalanceListener",
        "RecordMetadata",
        "ReplicaInfo",
        "ResourceType",
        "Results",
        "TopicMetadata",
        "TopicPartition",
        "Transaction",
        "TransactionDescription",
        "TransactionListing",
        "TransactionOutcome",
        "TransactionState",
        "UpgradeType",
    ]


PRODUCER_METHODS = [
    "abort_transaction",
    "begin_transaction",
    "check_send",
    "close",
    "commit_transaction",
    "complete_transaction",
    "flush",
    "from_config",
    "identity",
    "init_transactions",
    "of",
    "partitions_for",
    "prepare_transaction",
    "resume",
    "send",
    "send_batch",
    "send_offsets_to_transaction",
    "transaction",
]


def test_methods_of_the_clients_are_these_and_nothing_else() -> None:
    assert _public(twofold.client.Producer) == PRODUCER_METHODS
    assert _public(twofold.client.Consumer) == [
        "assign",
        "assignment",
        "beginning_offsets",
        "close",
        "commit",
        "commit_async",
        "committed",
        "end_offsets",
        "enforce_rebalance",
        "from_config",
        "group_metadata",
        "lag",
        "of",
        "offsets_for_times",
        "partitions_for",
        "pause",
        "poll",
        "position",
        "resume",
        "seek",
        "seek_to_beginning",
        "seek_to_end",
        "seek_to_timestamp",
        "subscribe",
        "subscription",
        "topic_id",
        "unsubscribe",
    ]
    assert _public(twofold.client.Admin) == [
        "abort_transaction",
        "alter_configs",
        "alter_group_offsets",
        "alter_partition_reassignments",
        "alter_quotas",
        "alter_users",
        "bootstrap",
        "close",
        "cluster",
        "complete_transaction",
        "create_acls",
        "create_partitions",
        "create_topics",
        "delete_acls",
        "delete_group_offsets",
        "delete_groups",
        "delete_records",
        "delete_topics",
        "describe_acls",
        "describe_cluster",
        "describe_configs",
        "describe_features",
        "describe_groups",
        "describe_log_dirs",
        "describe_producers",
        "describe_quorum",
        "describe_quotas",
        "describe_topics",
        "describe_transactions",
        "describe_users",
        "elect_leaders",
        "fence_producers",
        "force_terminate_transaction",
        "from_config",
        "incremental_alter_configs",
        "list_group_offsets",
        "list_groups",
        "list_offsets",
        "list_partition_reassignments",
        "list_topics",
        "list_transactions",
        "of",
        "on",
        "repair_transaction",
        "update_features",
    ]


def _public(cls: type) -> list[str]:
    bases = [base for base in cls.__mro__ if base.__module__.startswith("twofold.")]
    return sorted({name for base in bases for name in vars(base) if not name.startswith("_")})
