"""What is said about configurations: value, source, synonyms."""

from collections.abc import Mapping

import pytest

from twofold.config.definition import ConfigSource
from twofold.config.describe import (
    ConfigRow,
    describe_broker,
    describe_cluster_defaults,
    describe_topic,
    effective_topic_configs,
)
from twofold.config.settings import Settings

TOPIC, BROKER, CLUSTER, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def topic(name: str, overrides: Mapping[str, str] = {}, **settings: str) -> ConfigRow:
    found = Settings.from_mapping({key.replace("_", "."): text for key, text in settings.items()})
    return {row.name: row for row in describe_topic(overrides, found)}[name]


def synonyms(row: ConfigRow) -> list[tuple[str, str | None, ConfigSource]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms]


def test_a_plain_topic_shows_defaults_under_the_brokers_names():
    row = topic("segment.bytes")
    assert (row.value, row.source, row.read_only, row.sensitive) == ("1073741824", DEFAULT, False, False)
    assert synonyms(row) == [("log.segment.bytes", "1073741824", DEFAULT)]


@pytest.mark.parametrize("name", ["flush.ms", "retention.ms", "segment.ms", "segment.jitter.ms", "preallocate"])
def test_keys_whose_setting_has_no_default_have_no_synonyms(name):
    row = topic(name)
    assert row.source == DEFAULT
    assert len(row.synonyms) == (1 if name == "preallocate" else 0)


def test_a_topics_own_value_comes_first():
    row = topic("retention.ms", {"retention.ms": " 5 "}, log_retention_ms="-1")
    assert (row.value, row.source) == ("5", TOPIC)
    assert synonyms(row) == [
        ("retention.ms", "5", TOPIC),
        ("log.retention.ms", "-1", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_hours_alone_change_the_value_without_showing():
    row = topic("retention.ms", log_retention_hours="1")
    assert (row.value, row.source, row.synonyms) == ("3600000", DEFAULT, ())


def test_create_topics_tells_the_true_source():
    settings = Settings.from_mapping({"log.retention.hours": "1"})
    rows = {row.name: row for row in effective_topic_configs({"segment.ms": "7"}, settings)}
    assert (rows["retention.ms"].value, rows["retention.ms"].source) == ("3600000", STATIC)
    assert (rows["segment.ms"].value, rows["segment.ms"].source) == ("7", TOPIC)
    assert (rows["flush.ms"].value, rows["flush.ms"].source) == ("9223372036854775807", DEFAULT)
    assert list(rows) == sorted(rows) and len(rows) == 33


def test_a_policy_given_twice_counts_once_but_is_told_back_as_written():
    overrides = {"cleanup.policy": "delete,compact,delete"}
    assert topic("cleanup.policy", overrides).value == "delete,compact"
    told = {row.name: row.value for row in effective_topic_configs(overrides, Settings())}
    assert told["cleanup.policy"] == "delete,compact,delete"


def test_internal_keys_show_only_where_they_are_set():
    overrides = {"internal.segment.bytes": "100"}
    assert topic("internal.segment.bytes", overrides).value == "100"
    assert "internal.segment.bytes" not in [row.name for row in describe_topic({}, Settings())]
    assert len([*effective_topic_configs(overrides, Settings())]) == 34
    settings = Settings.from_mapping({"producer.id.expiration.check.interval.ms": "5"})
    assert "producer.id.expiration.check.interval.ms" in [row.name for row in describe_broker(settings)]


def test_a_broker_shows_each_place_where_a_value_is_written():
    settings = Settings.from_mapping({"message.max.bytes": "30"}).with_dynamic(
        broker={"message.max.bytes": "10"}, cluster={"message.max.bytes": "20"}
    )
    row = {row.name: row for row in describe_broker(settings)}["message.max.bytes"]
    assert (row.value, row.source, row.read_only) == ("10", BROKER, False)
    assert synonyms(row) == [
        ("message.max.bytes", "10", BROKER),
        ("message.max.bytes", "20", CLUSTER),
        ("message.max.bytes", "30", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]


def test_settings_that_cannot_change_are_read_only_and_internal_ones_hidden():
    rows = {row.name: row for row in describe_broker(Settings.from_mapping({"node.id": "1"}))}
    assert rows["num.partitions"].read_only
    assert "producer.id.expiration.check.interval.ms" not in rows
    assert synonyms(rows["node.id"]) == [("node.id", "1", STATIC)]
    assert rows["log.retention.ms"].value is None and rows["log.retention.ms"].synonyms == ()
    assert synonyms(rows["log.retention.hours"]) == [("log.retention.hours", "168", DEFAULT)]


def test_the_documentation_of_what_changes_nothing_says_so():
    docs = {row.name: row.doc for row in describe_broker(Settings())}
    assert docs["num.io.threads"].endswith("(Without effect in Twofold.)")
    assert docs["ssl.engine.factory.class"].endswith("which Twofold does not have. (Without effect in Twofold.)")
    assert "effect" not in docs["num.partitions"]


def test_the_cluster_shows_only_what_was_set_for_all_brokers():
    rows = list(describe_cluster_defaults({"message.max.bytes": "20", "from.the.future": "1"}))
    assert [(row.name, row.value, row.source) for row in rows] == [("message.max.bytes", "20", CLUSTER)]
    assert synonyms(rows[0]) == [("message.max.bytes", "20", CLUSTER)]
