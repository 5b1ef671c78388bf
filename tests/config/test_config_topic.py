"""Configurations of a topic: the table, the resolved form, what is refused."""

import pytest

from twofold.config.definition import text_of
from twofold.config.settings import DEFINITIONS as SETTINGS
from twofold.config.settings import Settings
from twofold.config.topic import DEFINITIONS, LogConfig, parse_topic_config, validate_topic_configs
from twofold.wire.errors import InvalidConfig


def test_the_table_is_that_of_kafka_4_3():
    shown = sorted(name for name, key in DEFINITIONS.items() if not key.internal)
    assert len(shown) == 33
    assert [name for name, key in DEFINITIONS.items() if key.internal] == ["internal.segment.bytes"]


def test_every_default_is_a_value_that_its_key_allows():
    for key in DEFINITIONS.values():
        if key.default is not None:
            text = text_of(key.default)
            assert text is not None
            assert key.parse(text) == key.default, key.name


def test_defaults_of_topic_and_broker_agree():
    for key in DEFINITIONS.values():
        for synonym in key.synonyms:
            default = SETTINGS[synonym.setting].default
            if default is not None:
                assert synonym.convert(default) == key.default, key.name


def test_resolving_nothing_gives_the_defaults_of_the_table():
    config = LogConfig.resolve({})
    assert config == LogConfig() == LogConfig.resolve({}, Settings())
    for name in LogConfig.__dataclass_fields__:
        default = DEFINITIONS[name.replace("_", ".")].default
        value = getattr(config, name)
        assert (tuple(value) if isinstance(value, frozenset) else value) == default


def test_topic_wins_over_broker_over_default():
    settings = Settings.from_mapping({"log.retention.bytes": "5", "log.segment.bytes": "2000000"})
    config = LogConfig.resolve({"retention.bytes": "7"}, settings)
    assert (config.retention_bytes, config.segment_bytes, config.index_interval_bytes) == (7, 2_000_000, 4096)


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_retention_has_three_names_and_the_finest_wins(settings, retention_ms):
    assert LogConfig.resolve({}, Settings.from_mapping(settings)).retention_ms == retention_ms


def test_roll_and_flush_have_two_names():
    config = LogConfig.resolve(
        {},
        Settings.from_mapping(
            {"log.roll.hours": "1", "log.roll.jitter.hours": "2", "log.flush.scheduler.interval.ms": "3"}
        ),
    )
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3_600_000, 7_200_000, 3)


def test_types_of_the_resolved_form():
    config = LogConfig.resolve(
        {
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": "0.25",
            "unclean.leader.election.enable": "TRUE",
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.is_compacted and config.deletes_old_segments and config.stamps_append_time
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.unclean_leader_election_enable is True


def test_an_empty_cleanup_policy_keeps_everything():
    validate_topic_configs({"cleanup.policy": ""})
    config = LogConfig.resolve({"cleanup.policy": ""})
    assert not config.is_compacted and not config.deletes_old_segments


def test_internal_segment_bytes_goes_below_the_bound_of_segment_bytes():
    overrides = {"segment.bytes": "1048576", "internal.segment.bytes": "100"}
    validate_topic_configs(overrides)
    assert LogConfig.resolve(overrides).segment_bytes == 100


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"no.such": "1"}, "no topic setting is called no.such"),
        ({"retension.ms": "1"}, "did you mean retention.ms"),
        ({"retention.ms": "-2"}, "retention.ms"),
        ({"retention.ms": "x"}, "retention.ms=x"),
        ({"segment.bytes": "1048575"}, "at least 1048576"),
        ({"max.message.bytes": "-1"}, "at least 0"),
        ({"cleanup.policy": "compact,"}, "any of compact, delete"),
        ({"compression.type": "none"}, "one of uncompressed"),
        ({"preallocate": "1"}, "true or false"),
        ({"min.insync.replicas": "0"}, "at least 1"),
        ({"leader.replication.throttled.replicas": "1:2,3"}, "partition:broker"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "must not be greater"),
        ({"remote.storage.enable": "true"}, "tiered storage"),
    ],
)
def test_what_no_log_could_run_with_is_refused(overrides, said):
    with pytest.raises(InvalidConfig) as caught:
        validate_topic_configs(overrides)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["", "*", "0:1", "0:1,1:2"])
def test_throttled_replicas_are_pairs_or_a_star(value):
    validate_topic_configs({"follower.replication.throttled.replicas": value})


def test_compaction_lags_are_compared_with_the_brokers_settings_too():
    settings = Settings.from_mapping({"log.cleaner.max.compaction.lag.ms": "10"})
    validate_topic_configs({"min.compaction.lag.ms": "11"})
    with pytest.raises(InvalidConfig):
        validate_topic_configs({"min.compaction.lag.ms": "11"}, settings)


def test_null_is_no_value():
    with pytest.raises(InvalidConfig, match="needs a value"):
        parse_topic_config("retention.ms", None)
