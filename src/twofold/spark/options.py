"""The options of `format("twofold")`: names, defaults and meaning of Spark's own Kafka connector, and a few of our own.

1. Whatever can be wrong with an option is refused here, before anything connects, by a message with the option, its
   value and what to write instead.
2. Names do not care about case. An option of the other side is no mistake, because many users keep one set for reading
   and writing; a name that neither side knows is one, and so is a `kafka.` setting that no Kafka client has.
3. isolation.level is read_committed unless the query says otherwise.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from twofold.spark import kafka_names
from twofold.spark.errors import OptionError
from twofold.spark.offsets import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Everywhere,
    parse_numbers,
    parse_partitions,
)
from twofold.spark.option_values import (
    HADOOP,
    KAFKA,
    GivenOptions,
    checked,
    not_empty,
    one_of,
    parse_flag,
    parse_integer,
    parse_number,
    parse_positive,
    parse_time,
)
from twofold.types import TopicPartition

if TYPE_CHECKING:
    from twofold.client.config import ClientConfig, ConsumerConfig, ProducerConfig
    from twofold.sink.driver import SinkSettings

T = TypeVar("T")

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
STRATEGIES = ("subscribe", "subscribePattern", "assign")
READ = (
    *STRATEGIES,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "pushDownFilters",
)
WRITE = (
    "topic",
    "topic.partitions",
    "transactionalIdPrefix",
    "exactlyOnce",
    "decisionTopic",
    "transactionTimeoutMs",
    "writeId",
    "consumerGroup",
    "batchCheck",
)
# Given by Spark itself, or to it, with everything else.
OF_SPARK = ("checkpointLocation", "queryName", "outputMode")
KNOWN = {name.lower(): name for name in (*READ, *WRITE, *OF_SPARK)}

DEFAULT_POLL_TIMEOUT_MS = 120_000  # spark.network.timeout
DEFAULT_NUM_RETRIES = 3
DEFAULT_RETRY_INTERVAL_MS = 1_000
DEFAULT_MAX_TRIGGER_DELAY = "15m"
ANY_ID = "any"
HEARTBEAT_INTERVAL = "kafka.transaction.heartbeat.interval.ms"
EXACTLY_ONCE = ("auto", "2pc", "resume", "off")
BATCH_CHECK = ("input", "number")
# Larger than Kafka's megabyte: each answer becomes one Arrow batch, and Spark pays for every one.
MAX_PARTITION_FETCH_BYTES = 4 * 1024 * 1024
# What a task asks for is known to be there, so an answer without records tells that the log has none in between.
FETCH_MAX_WAIT_MS = 10


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    pattern: str

    def matches(self, topic: str) -> bool:
        """Anywhere in the name, as in Spark's own connector."""
        return re.search(self.pattern, topic, re.ASCII) is not None


@dataclass(frozen=True, slots=True)
class Assign:
    partitions: tuple[TopicPartition, ...]


Strategy: TypeAlias = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    strategy: Strategy
    starting: Bound
    ending: Bound
    latest_without_match: bool
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    poll_timeout_ms: int
    num_retries: int
    retry_interval_ms: int
    metadata_ttl_ms: int
    push_down_filters: bool
    consumer: "ConsumerConfig"
    prefix: str | None = None
    decision_topic: str | None = None
    """Of the sink that the query writes to, where its user has chosen them for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    topic: str | None
    transactional_id_prefix: str | None
    exactly_once: str
    decision_topic: str | None
    transaction_timeout_ms: int | None
    write_id: str | None
    consumer_group: str | None
    checkpoint_location: str | None
    checks_input: bool
    """Whether a batch of a stream is known by its input, which the checkpoint has, or by its number alone."""
    heartbeat_interval_ms: int | None
    producer: "ProducerConfig"
    topic_partitions: int | None = None
    """Of a topic that is missing."""
    file_settings: tuple[tuple[str, str], ...] = ()
    """Spark's, for the file system of the checkpoint, where the session was not started with them."""
    partitioner: str = kafka_names.BY_KEY
    where: str = ""
    former_prefixes: tuple[str, ...] | None = None
    query_name: str = ""
    is_once: bool = False
    """A batch that was given no prefix."""

    @property
    def settings(self) -> "SinkSettings":
        """Of the protocol, which needs to be told under which name it writes."""
        from twofold.sink.driver import DEFAULT_HEARTBEAT_INTERVAL_MS, SinkSettings

        assert self.transactional_id_prefix is not None
        return SinkSettings(
            prefix=self.transactional_id_prefix,
            exactly_once=self.exactly_once,
            decision_topic=self.decision_topic,
            transaction_timeout_ms=self.transaction_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms or DEFAULT_HEARTBEAT_INTERVAL_MS,
            where=self.where,
            former=self.former_prefixes,
            query_name=self.query_name,
            is_once=self.is_once,
        )


def check_names(options: Mapping[str, str]) -> None:
    """Refuse what neither side knows."""
    given = GivenOptions(options)
    if "path" in given:
        raise OptionError("there is no path to read or write: name topics with the option subscribe or topic")
    known = _kafka_known()
    for written in given.names:
        name = written.lower()
        setting = name.removeprefix(KAFKA)
        if name.startswith(KAFKA) and setting not in known:
            near = _nearest(setting, sorted(known), {other: KAFKA + other for other in known})
            raise OptionError(f"unknown option {written!r}: no Kafka client has a setting {setting!r}{near}")
        if not name.startswith((KAFKA, HADOOP)) and name not in KNOWN:
            raise OptionError(f"unknown option {written!r}{_nearest(name, list(KNOWN), KNOWN)}")


def _nearest(name: str, known: list[str], shown: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {shown[near[0]]!r}?)" if near else ""


# Reading


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """What a query reads, checked."""
    check_names(options)
    given = GivenOptions(options)
    strategy = _strategy(given)
    _refuse(given, kafka_names.REFUSED_ON_READ)
    min_offsets = given.parsed("minOffsetsPerTrigger", parse_number, None)
    max_offsets = given.parsed("maxOffsetsPerTrigger", parse_number, None)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(f"minOffsetsPerTrigger={min_offsets} is above maxOffsetsPerTrigger={max_offsets}")
    starting, ending = _bounds(given, streaming)
    return ReadOptions(
        strategy=strategy,
        starting=starting,
        ending=ending,
        latest_without_match=given.parsed("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error")
        == "latest",
        fail_on_data_loss=given.parsed("failOnDataLoss", parse_flag, True),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=parse_time("maxTriggerDelay", given.text("maxTriggerDelay") or DEFAULT_MAX_TRIGGER_DELAY),
        min_partitions=given.parsed("minPartitions", parse_positive, None),
        max_records_per_partition=given.parsed("maxRecordsPerPartition", parse_positive, None),
        include_headers=given.parsed("includeHeaders", parse_flag, False),
        poll_timeout_ms=given.parsed("kafkaConsumer.pollTimeoutMs", parse_number, DEFAULT_POLL_TIMEOUT_MS),
        num_retries=given.parsed("fetchOffset.numRetries", parse_number, DEFAULT_NUM_RETRIES),
        retry_interval_ms=given.parsed("fetchOffset.retryIntervalMs", parse_number, DEFAULT_RETRY_INTERVAL_MS),
        metadata_ttl_ms=given.parsed("partition.metadata.cache.ttl.ms", parse_integer, -1),
        push_down_filters=given.parsed("pushDownFilters", parse_flag, False),
        consumer=_consumer(given, streaming),
        prefix=given.text("transactionalIdPrefix"),
        decision_topic=given.text("decisionTopic"),
    )


def check_read(options: Mapping[str, str]) -> None:
    """Refuse what neither a batch query nor a stream takes."""
    try:
        read_options(options, streaming=True)
    except OptionError:
        read_options(options, streaming=False)


def check_table(options: Mapping[str, str]) -> None:
    """Refuse a table that can be neither read nor written."""
    if "topic" in options and not any(name.lower() in options for name in STRATEGIES):
        write_options(options, streaming=False)
    else:
        check_read(options)


def includes_headers(options: Mapping[str, str]) -> bool:
    return GivenOptions(options).parsed("includeHeaders", parse_flag, False)


def _strategy(given: GivenOptions) -> Strategy:
    chosen = [name for name in STRATEGIES if name in given]
    if len(chosen) != 1:
        said = f", not {' and '.join(chosen)} together" if chosen else ""
        raise OptionError(f"one of the options {', '.join(STRATEGIES)} says what to read{said}: set exactly one")
    name = chosen[0]
    text = given.text(name) or ""
    if name == "assign":
        return Assign(checked(parse_partitions, name, text))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={text!r} names no topic: use a comma-separated list")
        return Subscribe(topics)
    if not text:
        raise OptionError("subscribePattern is empty: use a regular expression such as 'orders-.*'")
    return SubscribePattern(_python_pattern(text))


def _python_pattern(text: str) -> str:
    """A Java regular expression as one of Python; those that have no equal here are refused."""
    if "&&" in text:
        raise OptionError(f"subscribePattern={text!r}: intersections (&&) are not supported, list the characters")
    pattern = re.sub(r"\\Q(.*?)(?:\\E|$)", lambda match: re.escape(match.group(1)), text)
    pattern = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    for name, chars in _JAVA_CLASSES.items():
        pattern = re.sub(rf"\[([^\]]*)\\p\{{{name}\}}", rf"[\g<1>{chars}", pattern)
        pattern = pattern.replace(f"\\p{{{name}}}", f"[{chars}]")
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise OptionError(f"subscribePattern={text!r} is not a regular expression: {error}") from None
    return pattern


_JAVA_CLASSES = {"Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9"}


def _bounds(given: GivenOptions, streaming: bool) -> tuple[Bound, Bound]:
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp"):
            if name in given:
                raise OptionError(f"{name} is for batch queries: a stream has no end, leave it out")
        return _bound(given, "starting", LATEST), Everywhere(LATEST)
    starting, ending = _bound(given, "starting", EARLIEST), _bound(given, "ending", LATEST)
    _refuse_offset(starting, LATEST, "startingOffsets", "latest", "a batch query starts at earliest or at offsets")
    _refuse_offset(ending, EARLIEST, "endingOffsets", "earliest", "a batch query ends at latest or at offsets")
    _check_order(starting, ending)
    return starting, ending


def _bound(given: GivenOptions, which: str, default: int) -> Bound:
    text = given.text(f"{which}Timestamp")
    if text is not None:
        return AtTimestamp(parse_integer(f"{which}Timestamp", text))
    name = f"{which}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        return AtTimestamps(checked(parse_numbers, name, text, "1700000000000"))
    name = f"{which}Offsets"
    text = given.text(name)
    if text is None:
        return Everywhere(default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Everywhere(words[text.lower()])
    offsets = checked(parse_numbers, name, text, "23")
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(f"{name}: {offset} for {tp} is no offset, and neither -1 (latest) nor -2 (earliest)")
    return AtOffsets(offsets)


def _refuse_offset(bound: Bound, offset: int, name: str, word: str, hint: str) -> None:
    if isinstance(bound, Everywhere) and bound.offset == offset:
        raise OptionError(f"{name} cannot be {word} in a batch query: {hint}")
    if isinstance(bound, AtOffsets):
        for tp, chosen in bound.offsets.items():
            if chosen == offset:
                raise OptionError(f"{name} for {tp} cannot be {word} ({offset}) in a batch query: {hint}")


def _check_order(starting: Bound, ending: Bound) -> None:
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last, what = starting.offsets, ending.offsets, "Offsets"
    elif isinstance(starting, AtTimestamps) and isinstance(ending, AtTimestamps):
        first, last, what = starting.timestamps, ending.timestamps, "OffsetsByTimestamp"
    else:
        return
    different = sorted(first.keys() ^ last.keys())
    if different:
        raise OptionError(f"starting{what} and ending{what} must name the same partitions, not {different[0]} in one")
    for tp, start in first.items():
        if 0 <= last[tp] < start:
            raise OptionError(f"starting{what} for {tp} is {start}, after ending{what} {last[tp]}")


# Writing


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """How a query writes, checked."""
    check_names(options)
    given = GivenOptions(options)
    _refuse(given, kafka_names.REFUSED_ON_WRITE)
    exactly_once = given.parsed("exactlyOnce", one_of(*EXACTLY_ONCE), "auto")
    group = given.parsed("consumerGroup", not_empty, None)
    location = given.text("checkpointLocation") if streaming else None
    producer = _producer(given, exactly_once)
    if group is not None:
        _check_group(streaming, exactly_once, location)
    checks_input = given.parsed("batchCheck", one_of(*BATCH_CHECK), "input") == "input"
    chosen = WriteOptions(
        topic=given.parsed("topic", not_empty, None),
        transactional_id_prefix=_prefix(given, streaming, exactly_once),
        exactly_once=exactly_once,
        decision_topic=given.parsed("decisionTopic", not_empty, None),
        transaction_timeout_ms=given.parsed("transactionTimeoutMs", parse_positive, producer.transaction_timeout_ms),
        write_id=None if streaming else given.parsed("writeId", not_empty, None),
        consumer_group=group,
        checkpoint_location=location,
        checks_input=checks_input,
        heartbeat_interval_ms=given.parsed(HEARTBEAT_INTERVAL, parse_positive, None),
        producer=producer,
        topic_partitions=given.parsed("topic.partitions", parse_positive, None),
        file_settings=given.hadoop,
        partitioner=_partitioner(given, producer),
        query_name=given.text("queryName") or "",
    )
    if streaming and exactly_once != "off":
        _check_location(given, checks_input, location)
    return chosen


def _partitioner(given: GivenOptions, producer: "ProducerConfig") -> str:
    chosen = given.kafka.get(kafka_names.PARTITIONER, "").strip()
    if not chosen:
        return kafka_names.STICKY if producer.partitioner_ignore_keys else kafka_names.BY_KEY
    if chosen not in kafka_names.PARTITIONERS:
        raise OptionError(
            f"{KAFKA}{kafka_names.PARTITIONER}={chosen} is not supported: no JVM is here to run it. Use one "
            f"of {', '.join(kafka_names.PARTITIONERS)}, or write a column 'partition'"
        )
    return chosen


def _check_location(given: GivenOptions, checks_input: bool, location: str | None) -> None:
    """A stream needs its checkpoint to be known again: which query it is, and which batch."""
    if location is not None:
        return
    if "transactionalIdPrefix" not in given or checks_input:
        raise OptionError(
            "the sink has to know the query and its batches again after a restart: set the option checkpointLocation "
            "on the writer. That of the session (spark.sql.streaming.checkpointLocation) is found if Spark was "
            "started with it and the query has a queryName, or after twofold.spark.attach(spark). Where neither "
            "is possible: transactionalIdPrefix with batchCheck=number, which knows a batch by its number alone and "
            "skips rows if the checkpoint was restored from an older copy"
        )


def without_prefix(options: WriteOptions, prefix: str) -> WriteOptions:
    """A batch that was given no prefix: what it leaves open when it dies ends by its timeout, because nothing may ever
    come back to it."""
    from twofold.sink import names

    topic = options.decision_topic or names.ONCE_TOPIC
    return replace(options, transactional_id_prefix=prefix, decision_topic=topic, exactly_once="resume", is_once=True)


def _prefix(given: GivenOptions, streaming: bool, exactly_once: str) -> str | None:
    """Under which transactional ids it writes. Without transactions the name is not used. Without a prefix a stream has
    it from its checkpoint, and a batch for as long as it is written."""
    from twofold.sink.names import check_prefix

    prefix = given.parsed("transactionalIdPrefix", not_empty, None)
    if prefix is not None:
        return checked(check_prefix, prefix)
    if exactly_once == "off":
        return "off"
    if not streaming and exactly_once == "2pc":
        raise OptionError(
            "exactlyOnce=2pc needs the option transactionalIdPrefix: without a name nothing would end what this job "
            "has prepared when it dies. Set one, different for each job that may run at the same time, or leave "
            "exactlyOnce out"
        )
    return None


def _check_group(streaming: bool, exactly_once: str, location: str | None) -> None:
    if not streaming:
        raise OptionError("consumerGroup is for streams: a batch query has no offsets that it goes on from")
    if exactly_once == "off":
        raise OptionError("consumerGroup commits offsets in the transaction of the output: it needs exactlyOnce")
    if location is None:
        raise OptionError(
            "consumerGroup takes the offsets from the query's checkpoint: set the option checkpointLocation on the "
            "writer, or call twofold.spark.attach(spark) for that of the session"
        )


# Settings of Kafka's clients


def check_security(settings: Mapping[str, str]) -> None:
    """Refuse what has no effect, and secrets: Spark shows options in plans, in its UI and in its event log."""
    from twofold.connections import security

    for name in settings:
        if name in security.REFUSED:
            raise OptionError(f"the option {KAFKA}{name} is not supported: {security.REFUSED[name]}")
    without = [name for name in settings if name.startswith(kafka_names.SECURITY_PREFIXES)]
    if without and kafka_names.SECURITY_PROTOCOL not in settings:
        raise OptionError(
            f"{KAFKA}{without[0]} has no effect without {KAFKA}{kafka_names.SECURITY_PROTOCOL}: the connection would "
            "be in plain text. Set it to SSL, SASL_PLAINTEXT or SASL_SSL, or leave the option out"
        )
    secret = security.literal_secret(settings)
    if secret is not None:
        raise OptionError(
            f"the option {KAFKA}{secret} holds a secret, and Spark shows options in its plans: write where it stands, "
            "as ${env:NAME}, ${file:PATH} or ${file:PATH:KEY}. Every process of Spark reads it there"
        )


def _kafka_known() -> set[str]:
    from twofold.client.config import ConsumerConfig, ProducerConfig
    from twofold.connections import security

    return {
        *_dotted(ConsumerConfig),
        *_dotted(ProducerConfig),
        *kafka_names.CONSUMER_WITHOUT_EFFECT,
        *kafka_names.PRODUCER_WITHOUT_EFFECT,
        *kafka_names.COMMON_WITHOUT_EFFECT,
        *kafka_names.REFUSED_ON_READ,
        *kafka_names.REFUSED_ON_WRITE,
        *security.REFUSED,
        *security.WITHOUT_EFFECT,
        kafka_names.PARTITIONER,
    }


def _dotted(config: "type[ClientConfig]") -> set[str]:
    return {name.replace("_", ".") for name in config.__dataclass_fields__}


def _consumer(given: GivenOptions, streaming: bool) -> "ConsumerConfig":
    from twofold.client.config import ConsumerConfig

    # No group is joined; the name that the group would have had tells the readers apart at the broker.
    prefix = given.text("groupIdPrefix") or ("spark-kafka-source" if streaming else "spark-kafka-relation")
    defaults = {
        "isolation.level": "read_committed",
        "fetch.max.wait.ms": str(FETCH_MAX_WAIT_MS),
        "max.partition.fetch.bytes": str(MAX_PARTITION_FETCH_BYTES),
        "client.id": given.kafka.get("group.id", prefix),
    }
    without = tuple(KAFKA + name for name in kafka_names.CONSUMER_WITHOUT_EFFECT)
    return _client(ConsumerConfig, given, defaults, without)


def _producer(given: GivenOptions, exactly_once: str) -> "ProducerConfig":
    from twofold.client.config import ProducerConfig

    if exactly_once == "off":
        return _client(ProducerConfig, given, {}, without=(HEARTBEAT_INTERVAL,))
    # What a transactional producer may not have is refused by its own rules, whatever its id will be.
    checked = _client(ProducerConfig, given, {"transactional.id": ANY_ID}, without=(HEARTBEAT_INTERVAL,))
    return replace(checked, transactional_id=None)


def _client(config: type[T], given: GivenOptions, defaults: Mapping[str, str], without: tuple[str, ...] = ()) -> T:
    from twofold.client.config import from_dotted

    if not given.text(BOOTSTRAP_SERVERS):
        table = (
            ""
            if given.names
            else (". If this is a table of the catalog: Spark keeps the options of one that was made without columns")
        )
        raise OptionError(
            f"the option {BOOTSTRAP_SERVERS} is missing: set it to HOST:PORT of one or more brokers{table}"
        )
    settings = given.kafka
    check_security(settings)
    honoured = _dotted(config)  # type: ignore[arg-type]
    honoured -= {name.removeprefix(KAFKA) for name in without}
    chosen = {**defaults, **{name: value for name, value in settings.items() if name in honoured}}
    try:
        return from_dotted(config, chosen)  # type: ignore[type-var]
    except ValueError as error:
        raise OptionError(_in_words_of_the_user(str(error), config)) from None  # type: ignore[arg-type]


def _in_words_of_the_user(message: str, config: "type[ClientConfig]") -> str:
    """Settings as the options name them: the clients' own messages have their Python names."""
    message = message.replace(f"transactional_id={ANY_ID!r}", "the transactions of exactlyOnce")
    message = message.replace("or leave transactional_id out", "or exactlyOnce=off")
    names = sorted(config.__dataclass_fields__, key=len, reverse=True)
    found = re.sub(
        rf"(?<![\w.'])({'|'.join(names)})(?![\w.])", lambda match: KAFKA + match[1].replace("_", "."), message
    )
    # A value that could not be parsed comes with the dotted name already.
    dotted = "|".join(re.escape(name.replace("_", ".")) for name in names)
    found = re.sub(rf"^({dotted})(?==)", lambda match: KAFKA + match[1], found)
    of_security = "|".join(
        re.escape(name.replace("_", ".")) for name in names if name.startswith(("sasl_", "security_", "ssl_"))
    )
    return re.sub(rf"(?<![\w.])({of_security})(?![\w.])", lambda match: KAFKA + match[1], found)


def _refuse(given: GivenOptions, refused: Mapping[str, str]) -> None:
    for name, reason in refused.items():
        if name in given.kafka:
            raise OptionError(f"the option {KAFKA}{name} is not supported: {reason}")
