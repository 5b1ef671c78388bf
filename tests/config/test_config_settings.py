"""Settings: where a value comes from, how it is typed, and what a bad one says."""

import logging
import re
from pathlib import Path

import pytest

from twofold.config.definition import ConfigError, ConfigSource, ConfigType, text_of
from twofold.config.internal_topics import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    coordinator_partition,
    internal_topic,
)
from twofold.config.keys import SYNONYMS
from twofold.config.settings import DEFINITIONS, Settings, Source, environment_values

ROOT = Path(__file__).parent.parent.parent
# What tests and pages give as settings, right or wrong.
MEANT_AS_SETTINGS = {
    f"TWOFOLD_{name}" for name in ("NUM_PARTITIONS", "NUM_PARTITION", "NUM_PARTITON", "LISTENERS", "SUPER_USERS")
} | {  # in deploy and docs
    f"TWOFOLD_{name}"
    for name in (
        "ADVERTISED_LISTENERS",
        "LISTENER_SECURITY_PROTOCOL_MAP",
        "LOG_RETENTION_HOURS",
        "METRICS_LISTENER",
        "TRANSACTION_HEARTBEAT_ENABLE",
        "TRANSACTION_TWO_PHASE_COMMIT_ENABLE",
    )
}


def settings(**texts: str) -> Settings:
    return Settings.from_mapping({name.replace("_", "."): text for name, text in texts.items()})


def test_every_default_is_a_value_that_its_key_allows():
    for key in DEFINITIONS.values():
        if key.default is not None:
            text = text_of(key.default)
            assert text is not None
            assert key.parse(text) == key.default, key.name


def test_every_key_has_its_own_sentence():
    for key in DEFINITIONS.values():
        assert key.doc.endswith("."), key.name
        assert "<" not in key.doc, key.name


def test_synonym_groups_name_known_keys():
    assert set(SYNONYMS) <= set(DEFINITIONS)


def test_flags_win_over_environment_over_file_over_default():
    file = Source("server.properties", {"num.partitions": "2", "queued.max.requests": "7", "fetch.max.bytes": "2048"})
    environment = Source("the environment", {"num.partitions": "3", "queued.max.requests": "8"})
    flags = Source("the command line", {"num.partitions": "4"})
    found = Settings.from_sources(file, environment, flags)
    assert found.int("num.partitions") == 4
    assert found.int("queued.max.requests") == 8
    assert found.int("fetch.max.bytes") == 2048
    assert found.int("socket.request.max.bytes") == 104_857_600


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("num.partitions", "three", "a 32-bit integer, at least 1"),
        ("num.partitions", "0", "at least 1"),
        ("num.partitions", "2147483648", "a 32-bit integer"),
        ("num.partitions", "1_000", "a 32-bit integer"),
        ("num.partitions", "", "a 32-bit integer"),
        ("offsets.topic.replication.factor", "32768", "a 16-bit integer"),
        ("log.retention.ms", "9223372036854775808", "a 64-bit integer"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "from 0 to 1"),
        ("log.cleanup.policy", "compact,forget", "any of compact, delete"),
        ("log.cleanup.policy", "delete,", "any of compact, delete"),
        ("log.retention.ms", "0", "at least 1, or negative for no limit"),
        ("compression.type", "brotli", "one of uncompressed"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
    ],
)
def test_a_bad_value_names_key_value_source_and_what_is_allowed(key, text, allowed):
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(Source("server.properties", {key: text}))
    assert str(caught.value).startswith(f"{key}={text} (from server.properties): must be ")
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("num.partitions", " 12 ", 12),
        ("num.partitions", "+12", 12),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleanup.policy", "compact , delete", ("compact", "delete")),
        ("log.cleanup.policy", "", ()),
        ("log.cleanup.policy", "delete,compact,delete", ("delete", "compact")),
        ("log.retention.minutes", "-5", -5),
        ("log.cleaner.min.cleanable.ratio", "1", 1.0),
        ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
        ("compression.gzip.level", "-1", -1),
    ],
)
def test_a_good_value_is_read_by_its_type(key, text, value):
    assert Settings.from_mapping({key: text})[key] == value


def test_typed_access_refuses_another_type():
    found = settings()
    assert found.bool("auto.create.topics.enable") is True
    assert found.string("compression.type") == "producer"
    assert found.list("process.roles") == ("broker", "controller")
    assert found.float("log.cleaner.min.cleanable.ratio") == 0.5
    assert found.optional_int("log.retention.ms") is None
    assert found.optional_string("broker.rack") is None
    assert found.list("advertised.listeners") == ()
    for ask, key in (
        (found.int, "auto.create.topics.enable"),
        (found.bool, "num.partitions"),
        (found.string, "num.partitions"),
        (found.float, "num.partitions"),
        (found.list, "compression.type"),
        (found.int, "log.retention.ms"),
    ):
        with pytest.raises(TypeError, match=key):
            ask(key)
    with pytest.raises(KeyError):
        found.int("no.such.key")
    with pytest.raises(KeyError):
        found.is_set("no.such.key")


def test_is_set_tells_a_chosen_value_from_the_default_even_if_equal():
    assert not settings().is_set("num.partitions")
    assert settings(num_partitions="1").is_set("num.partitions")


def test_an_unknown_key_in_a_file_warns_once_with_the_nearest_known(caplog):
    with caplog.at_level(logging.WARNING):
        Settings.from_sources(Source("server.properties", {"num.partition": "3"}, lenient=True))
    assert [record.message for record in caplog.records] == [
        "num.partition (from server.properties) is ignored: no such setting; did you mean num.partitions?"
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("num.partition", "no such setting; did you mean num.partitions?"),
        ("supper.users", "no such setting; did you mean super.users?"),
        ("xyz", "no such setting; docs/settings.md has all"),
        ("zookeeper.session.timeout.ms", "Twofold has no ZooKeeper"),
        ("listener.name.inside.num.partitions", "a listener has no such setting of its own"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_known(key, message):
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(Source("the command line", {key: "3"}))
    assert str(caught.value) == f"{key} (from the command line): {message}"


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("group.share.max.size", "5", "share groups"), ("zookeeper.session.timeout.ms", "5", "ZooKeeper")],
)
def test_settings_of_parts_that_twofold_lacks_are_named_as_such(caplog, key, value, what):
    with caplog.at_level(logging.WARNING):
        Settings.from_sources(Source("", {key: value}, lenient=True))
    assert [record.message for record in caplog.records] == [f"{key} is ignored: Twofold has no {what}"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"transactional.id.expiration.ms": "900000"},
            "transactional.id.expiration.ms=900000: must be longer than transaction.max.timeout.ms=900000, because",
        ),
        (
            {"transactional.id.expiration.ms": "59999", "transaction.max.timeout.ms": "60000"},
            "transactional.id.expiration.ms=59999: must be longer than transaction.max.timeout.ms=60000, because",
        ),
        (
            {"transaction.max.timeout.ms": "604800000"},
            "transaction.max.timeout.ms=604800000: must be shorter than transactional.id.expiration.ms=604800000, ",
        ),
    ],
)
def test_a_transactional_id_that_would_expire_before_its_transaction_is_refused(texts, message):
    with pytest.raises(ConfigError) as caught:
        Settings.from_mapping(texts)
    assert str(caught.value).startswith(message)


def test_a_transactional_id_that_outlives_its_transactions_by_a_millisecond_is_accepted():
    found = settings(transactional_id_expiration_ms="60001", transaction_max_timeout_ms="60000")
    assert found.int("transactional.id.expiration.ms") == 60_001


def variables_of_the_repository() -> set[str]:
    """Variables of the environment that tests, tools, examples and the command line use for themselves."""
    folders = ("src", "tests", "tools", "bench", "examples", "docs", "deploy")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yml")]
    files.append(ROOT / "Makefile")
    return {name for path in files for name in re.findall(r"\bTWOFOLD_[A-Z0-9_]+", path.read_text())}


def test_variables_that_are_no_settings_stop_nothing():
    variables = variables_of_the_repository() - MEANT_AS_SETTINGS
    assert {"TWOFOLD_LONG", "TWOFOLD_SEEDS", "TWOFOLD_BOOTSTRAP_SERVER"} <= variables
    assert environment_values(dict.fromkeys(variables, "1")) == {}


def test_environment_variables_are_keys_in_capitals_with_underscores():
    environment = {
        "TWOFOLD_NUM_PARTITIONS": "3",
        "TWOFOLD_NUM_PARTITION": "4",
        "TWOFOLD_SUPER_USERS": "User:me",
        "TWOFOLD_ORACLE_DIR": "/somewhere",
        "NUM_PARTITIONS": "5",
        "PATH": "/bin",
    }
    assert environment_values(environment) == {"num.partitions": "3", "num.partition": "4", "super.users": "User:me"}


def test_every_key_can_be_written_as_an_environment_variable():
    for name in DEFINITIONS:
        assert environment_values({"TWOFOLD_" + name.upper().replace(".", "_"): "x"}) == {name: "x"}


def test_broker_id_and_node_id_are_one_thing():
    assert settings(broker_id="7").int("node.id") == 7
    assert settings(node_id="7").int("broker.id") == 7
    assert settings(broker_id="7", node_id="7").int("node.id") == 7
    with pytest.raises(ConfigError, match=r"broker.id=7.*node.id=8"):
        settings(broker_id="7", node_id="8")
    with pytest.raises(ConfigError, match=r"node.id=-3"):
        settings(broker_id="-3")


def test_dynamic_changes_win_over_static_ones_and_broker_over_cluster():
    static = settings(log_retention_bytes="10")
    changed = static.with_dynamic(
        broker={"log.retention.bytes": "30"}, cluster={"log.retention.bytes": "20", "message.max.bytes": "5"}
    )
    assert changed.int("log.retention.bytes") == 30
    assert changed.int("message.max.bytes") == 5
    assert list(changed.history("log.retention.bytes")) == [
        (ConfigSource.DYNAMIC_BROKER_CONFIG, "30"),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, "20"),
        (ConfigSource.STATIC_BROKER_CONFIG, "10"),
    ]
    assert changed.explicit() == {"log.retention.bytes": "10"}
    again = changed.with_dynamic(broker={}, cluster={})
    assert again.int("log.retention.bytes") == 10
    assert again.int("message.max.bytes") == 1_048_588


def test_a_dynamic_value_that_cannot_be_read_is_left_out(caplog):
    with caplog.at_level(logging.WARNING):
        changed = settings().with_dynamic(broker={"message.max.bytes": "many"}, cluster={"from.the.future": "1"})
    assert changed.int("message.max.bytes") == 1_048_588
    assert "message.max.bytes=many" in caplog.text


def test_repr_shows_what_was_set():
    assert repr(settings(num_partitions="3")) == "Settings({'num.partitions': '3'})"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (("a", "b"), "a,b"),
        ((), ""),
        (None, None),
    ],
)
def test_values_are_spelled_as_kafka_spells_them(value, text):
    assert text_of(value) == text


def test_type_codes_are_those_of_the_protocol():
    assert [(kind.name, kind.value) for kind in ConfigType] == [
        ("BOOLEAN", 1),
        ("STRING", 2),
        ("INT", 3),
        ("SHORT", 4),
        ("LONG", 5),
        ("DOUBLE", 6),
        ("LIST", 7),
        ("CLASS", 8),
        ("PASSWORD", 9),
    ]


@pytest.mark.parametrize(("brokers", "replicas", "min_isr"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (9, 3, 2)])
def test_internal_topics_are_capped_by_the_number_of_brokers(brokers, replicas, min_isr):
    offsets = internal_topic(CONSUMER_OFFSETS, settings(), brokers)
    transactions = internal_topic(TRANSACTION_STATE, settings(), brokers)
    assert (offsets.partitions, offsets.replication_factor) == (50, replicas)
    assert (transactions.partitions, transactions.replication_factor) == (50, replicas)
    assert transactions.configs["min.insync.replicas"] == str(min_isr)
    assert offsets.configs["cleanup.policy"] == transactions.configs["cleanup.policy"] == "compact"


def test_an_explicit_value_for_internal_topics_is_obeyed():
    found = settings(
        offsets_topic_replication_factor="3",
        transaction_state_log_replication_factor="3",
        transaction_state_log_min_isr="2",
        offsets_topic_num_partitions="4",
    )
    assert internal_topic(CONSUMER_OFFSETS, found, 1).replication_factor == 3
    assert internal_topic(CONSUMER_OFFSETS, found, 1).partitions == 4
    assert internal_topic(TRANSACTION_STATE, found, 1).replication_factor == 3
    assert internal_topic(TRANSACTION_STATE, found, 1).configs["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("", 0),
        ("group", 47),
        ("a", 47),
        ("é", 33),
        ("my-txn-id", 11),
        ("😀", 49),
        ("transactional-id", 31),
        ("polygenelubricants", 0),
        ("test-txn", 31),
    ],
)
def test_the_partition_of_a_key_is_the_one_that_every_kafka_computes(key, partition):
    assert coordinator_partition(key, 50) == partition
