"""Configurations of a topic: the table of Kafka 4.3 and the resolved form that the log uses.

1. A value is the topic's own if it has one, else that of the first broker setting among its synonyms that is
   set, else the default.
2. `validate_topic_configs` refuses what the table does not know, what a rule forbids, and combinations that cannot
   work; it is the only gate, so `LogConfig.resolve` of what passed it never fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from twofold.config.definition import (
    LONG_MAX,
    THROTTLED_REPLICAS,
    ConfigError,
    ConfigKey,
    ConfigType,
    Rule,
    Value,
    at_least,
    between,
    level,
    one_of,
    some_of,
)
from twofold.config.settings import Settings
from twofold.wire.errors import InvalidConfig

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that supplies the value where the topic has none, in its own unit."""

    setting: str
    unit_ms: int = 1

    def convert(self, value: Value) -> Value:
        if self.unit_ms == 1 or not isinstance(value, int):
            return value
        return value * self.unit_ms if value >= 0 else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigKey(ConfigKey):
    synonyms: tuple[Synonym, ...] = ()
    # Known and obeyed, but never shown.
    internal: bool = False
    # False: accepted and shown, without consequence in Twofold.
    effect: bool = True


def _key(
    name: str,
    kind: ConfigType,
    default: Value,
    rule: Rule | None,
    synonyms: str | tuple[Synonym, ...],
    doc: str,
    *,
    internal: bool = False,
    effect: bool = True,
) -> TopicConfigKey:
    if isinstance(synonyms, str):
        synonyms = (Synonym(synonyms),) if synonyms else ()
    return TopicConfigKey(
        name=name, type=kind, default=default, rule=rule, synonyms=synonyms, doc=doc, internal=internal, effect=effect
    )


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

_ALL = (
    _key(
        "cleanup.policy", _LIST, ("delete",), some_of("compact", "delete"), "log.cleanup.policy",
        "What happens to old records: delete drops segments past the retention limits, compact keeps the newest "
        "record of each key, both together do both, and an empty list keeps everything.",
    ),
    _key(
        "compression.gzip.level", _INT, -1, level(1, 9, -1), "compression.gzip.level",
        "Level used where compression.type is gzip; -1 leaves it to the codec.",
    ),
    _key(
        "compression.lz4.level", _INT, 9, between(1, 17), "compression.lz4.level",
        "Level used where compression.type is lz4.", effect=False,
    ),
    _key(
        "compression.type", _STRING, "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), "compression.type",
        "How stored batches are compressed; producer keeps what the producer chose.",
    ),
    _key(
        "compression.zstd.level", _INT, 3, between(-131072, 22), "compression.zstd.level",
        "Level used where compression.type is zstd.",
    ),
    _key(
        "delete.retention.ms", _LONG, 86_400_000, at_least(0), "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps the tombstone of a deleted key, so that readers can see the deletion.",
    ),
    _key(
        "file.delete.delay.ms", _LONG, 60_000, at_least(0), "log.segment.delete.delay.ms",
        "How long the files of a removed segment stay on disk after they left the log.",
    ),
    _key(
        "flush.messages", _LONG, LONG_MAX, at_least(1), "log.flush.interval.messages",
        "Sync the log to disk after this many records; 1 syncs every append.",
    ),
    _key(
        "flush.ms", _LONG, LONG_MAX, at_least(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        "Sync the log to disk when its oldest unsynced record is this old.",
    ),
    _key(
        "follower.replication.throttled.replicas", _LIST, (), THROTTLED_REPLICAS, "",
        "Replicas whose fetching from a leader is throttled, as partition:broker, or * for all.", effect=False,
    ),
    _key(
        "index.interval.bytes", _INT, 4096, at_least(0), "log.index.interval.bytes",
        "How many bytes of log lie between two entries of the offset index.",
    ),
    _key(
        "internal.segment.bytes", _INT, None, None, "",
        "Overrides segment.bytes without its lower bound; meant for tests.", internal=True,
    ),
    _key(
        "leader.replication.throttled.replicas", _LIST, (), THROTTLED_REPLICAS, "",
        "Replicas that a leader serves only within the throttle, as partition:broker, or * for all.", effect=False,
    ),
    _key(
        "local.retention.bytes", _LONG, -2, at_least(-2), "log.local.retention.bytes",
        "Bytes kept on local disk where tiered storage is on; -2 means retention.bytes.", effect=False,
    ),
    _key(
        "local.retention.ms", _LONG, -2, at_least(-2), "log.local.retention.ms",
        "Time kept on local disk where tiered storage is on; -2 means retention.ms.", effect=False,
    ),
    _key(
        "max.compaction.lag.ms", _LONG, LONG_MAX, at_least(1), "log.cleaner.max.compaction.lag.ms",
        "The longest time a record of a compacted topic may wait for compaction.",
    ),
    _key(
        "max.message.bytes", _INT, 1_048_588, at_least(0), "message.max.bytes",
        "The largest record batch that is accepted, after compression.",
    ),
    _key(
        "message.timestamp.after.max.ms", _LONG, 3_600_000, at_least(0), "log.message.timestamp.after.max.ms",
        "How far ahead of the broker's clock a record's timestamp may be; not checked with LogAppendTime.",
    ),
    _key(
        "message.timestamp.before.max.ms", _LONG, LONG_MAX, at_least(0), "log.message.timestamp.before.max.ms",
        "How far behind the broker's clock a record's timestamp may be; not checked with LogAppendTime.",
    ),
    _key(
        "message.timestamp.type", _STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether a record keeps the producer's timestamp or gets the time of its append.",
    ),
    _key(
        "min.cleanable.dirty.ratio", _DOUBLE, 0.5, between(0, 1), "log.cleaner.min.cleanable.ratio",
        "The share of uncompacted bytes in a log from which it is worth compacting.",
    ),
    _key(
        "min.compaction.lag.ms", _LONG, 0, at_least(0), "log.cleaner.min.compaction.lag.ms",
        "The shortest time a record of a compacted topic stays before it may be compacted away.",
    ),
    _key(
        "min.insync.replicas", _INT, 1, at_least(1), "min.insync.replicas",
        "How many replicas must be in sync, the leader included, for a produce with acks=all to succeed.",
    ),
    _key(
        "preallocate", _BOOLEAN, False, None, "log.preallocate",
        "Reserve a segment's whole size when it is created.", effect=False,
    ),
    _key(
        "remote.log.copy.disable", _BOOLEAN, False, None, "",
        "Make tiered data of the topic read-only.", effect=False,
    ),
    _key(
        "remote.log.delete.on.disable", _BOOLEAN, False, None, "",
        "Delete tiered data when tiered storage is turned off for the topic.", effect=False,
    ),
    _key(
        "remote.storage.enable", _BOOLEAN, False, None, "",
        "Tiered storage for the topic. Twofold has none, so true is refused.", effect=False,
    ),
    _key(
        "retention.bytes", _LONG, -1, None, "log.retention.bytes",
        "The size of a partition from which its oldest segments are deleted; -1 for no limit.",
    ),
    _key(
        "retention.ms", _LONG, 604_800_000, at_least(-1),
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        "The age from which segments are deleted; -1 for no limit.",
    ),
    _key(
        "segment.bytes", _INT, 1_073_741_824, at_least(1_048_576), "log.segment.bytes",
        "The size at which a new segment is begun. Retention and compaction work on whole closed segments.",
    ),
    _key(
        "segment.index.bytes", _INT, 10_485_760, at_least(4), "log.index.size.max.bytes",
        "The largest size of an offset index; a full index begins a new segment.",
    ),
    _key(
        "segment.jitter.ms", _LONG, 0, at_least(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
        "The most by which a random amount shortens segment.ms, so that not all logs roll at once.",
    ),
    _key(
        "segment.ms", _LONG, 604_800_000, at_least(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
        "The age at which a new segment is begun even if the current one is not full.",
    ),
    _key(
        "unclean.leader.election.enable", _BOOLEAN, False, None, "unclean.leader.election.enable",
        "Whether a replica that is not in sync may become leader when no other is left, at the price of lost records.",
        effect=False,
    ),
)  # fmt: skip

DEFINITIONS: Mapping[str, TopicConfigKey] = {key.name: key for key in _ALL}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's configuration, resolved and typed."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes_old_segments(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def stamps_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], settings: Settings | None = None) -> "LogConfig":
        """The topic's own values, then the broker's settings, then the defaults."""
        values: dict[str, Any] = {}
        for field, key in _FIELDS:
            text = overrides.get(key.name)
            if text is not None:
                values[field] = key.parse(text)
            elif settings is not None and (found := broker_value(key, settings)) is not None:
                values[field] = found
        if (text := overrides.get("internal.segment.bytes")) is not None:
            values["segment_bytes"] = DEFINITIONS["internal.segment.bytes"].parse(text)
        if "cleanup_policy" in values:
            values["cleanup_policy"] = frozenset(values["cleanup_policy"])
        return cls(**values)


_FIELDS = tuple((field.name, DEFINITIONS[field.name.replace("_", ".")]) for field in fields(LogConfig))


def set_synonyms(key: TopicConfigKey, settings: Settings) -> Iterator[Synonym]:
    """The broker settings behind a topic configuration that are set, strongest first."""
    return (synonym for synonym in key.synonyms if settings.is_set(synonym.setting))


def broker_value(key: TopicConfigKey, settings: Settings) -> Value:
    for synonym in set_synonyms(key, settings):
        return synonym.convert(settings[synonym.setting])
    return None


def parse_topic_config(name: str, text: str | None) -> Value:
    """The typed value of one override; InvalidConfig where there is no such configuration or value."""
    key = DEFINITIONS.get(name)
    if key is None:
        nearest = get_close_matches(name, DEFINITIONS, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise InvalidConfig(f"no topic setting is called {name}{hint}")
    if text is None:
        raise InvalidConfig(f"{name} needs a value")
    try:
        return key.parse(text)
    except ConfigError as error:
        raise InvalidConfig(f"{name}={text} {error.allowed}") from None


def validate_topic_configs(overrides: Mapping[str, str], settings: Settings | None = None) -> None:
    """Refuse a set of overrides that no log could run with."""
    values = {name: parse_topic_config(name, text) for name, text in overrides.items()}
    if values.get("remote.storage.enable"):
        raise InvalidConfig("remote.storage.enable=true: tiered storage is not part of Twofold; leave it false")
    config = LogConfig.resolve(overrides, settings)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} must not be greater than "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
