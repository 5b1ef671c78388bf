"""Options: everything that can be wrong says so before anything connects."""

import pickle
import re

import pytest

from twofold.spark import kafka_names
from twofold.spark.errors import OptionError
from twofold.spark.offsets import EARLIEST, LATEST, AtOffsets, AtTimestamp, AtTimestamps, Everywhere
from twofold.spark.options import (
    Assign,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    check_read,
    read_options,
    without_prefix,
    write_options,
)
from twofold.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NAMED = {"transactionalIdPrefix": "p", "checkpointLocation": "/c"}
BASE = SERVERS | {"subscribe": "t"}


def stream(**options: str) -> ReadOptions:
    return read_options(BASE | {name.replace("__", "."): value for name, value in options.items()}, streaming=True)


def batch(**options: str) -> ReadOptions:
    return read_options(BASE | {name.replace("__", "."): value for name, value in options.items()}, streaming=False)


def test_defaults_are_those_of_sparks_own_connector_but_for_the_isolation() -> None:
    options = stream()
    assert options.starting == Everywhere(LATEST)
    assert batch().starting == Everywhere(EARLIEST)
    assert batch().ending == Everywhere(LATEST)
    assert options.fail_on_data_loss
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert not options.include_headers
    assert options.poll_timeout_ms == 120_000
    assert (options.num_retries, options.retry_interval_ms) == (3, 1000)
    assert options.metadata_ttl_ms == -1
    assert options.consumer.isolation_level == "read_committed"


def test_names_do_not_care_about_case() -> None:
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "T", "STARTINGoffsets": "Earliest"}, streaming=True
    )
    assert options.strategy == Subscribe(("T",))
    assert options.starting == Everywhere(EARLIEST)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("subscribes", "subscribe"),
        ("transactionIdPrefix", "transactionalIdPrefix"),
        ("kafka.isolation.levle", "kafka.isolation.level"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.compresion.type", "kafka.compression.type"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"unknown option '{name}'")) as refused:
        check_read(BASE | {name: "x"})
    assert f"did you mean '{near}'?" in str(refused.value)


def test_an_option_like_no_other_is_refused_too() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'zzz'$"):
        check_read(BASE | {"zzz": "x"})
    with pytest.raises(OptionError, match=r"no Kafka client has a setting 'zzz'$"):
        check_read(BASE | {"kafka.zzz": "x"})


def test_options_of_the_other_side_and_of_spark_are_no_mistake() -> None:
    check_read(BASE | {"topic": "t", "checkpointLocation": "/x", "kafka.acks": "all", "kafka.session.timeout.ms": "1"})
    reading = {"startingOffsets": "earliest", "kafka.max.poll.records": "1", "queryName": "q"}
    write_options(BASE | NAMED | reading, streaming=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing: set it to HOST:PORT"),
        (SERVERS, "one of the options subscribe, subscribePattern, assign says what to read: set exactly one"),
        (BASE | {"assign": "{}"}, "not subscribe and assign together"),
        (SERVERS | {"subscribe": " ,"}, "subscribe=',' names no topic"),
        (SERVERS | {"subscribePattern": " "}, "subscribePattern is empty"),
        (SERVERS | {"subscribePattern": "a(b"}, "is not a regular expression"),
        (SERVERS | {"subscribePattern": "[a-z&&[^b]]"}, "intersections"),
        (SERVERS | {"assign": "[0]"}, 'assign: expected JSON such as {"topicA":[0,1]}, got [0]'),
        (SERVERS | {"assign": '{"t":["0"]}'}, "assign: expected JSON"),
        (SERVERS | {"assign": '{"t":[-1]}'}, "assign: expected JSON"),
        (BASE | {"path": "/data"}, "there is no path to read or write"),
        (BASE | {"kafka.bootstrap.servers": "nonsense"}, "'nonsense' in kafka.bootstrap.servers is not HOST:PORT"),
        (BASE | {"startingOffsets": "start"}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":{"0":"x"}}'}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":{"0":1.5}}'}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":{"x":1}}'}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":[1]}'}, "startingOffsets: expected JSON"),
        (BASE | {"startingOffsets": '{"t":{"0":-3}}'}, "-3 for t-0 is no offset"),
        (BASE | {"startingTimestamp": "now"}, "startingTimestamp='now' is not a whole number"),
        (BASE | {"startingOffsetsByTimestampStrategy": "first"}, "is none of error, latest"),
        (BASE | {"minPartitions": "0"}, "minPartitions=0 must be positive"),
        (BASE | {"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition='x' is not a whole number"),
        (BASE | {"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger=-1 is negative"),
        (
            BASE | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger=9 is above maxOffsetsPerTrigger=8",
        ),
        (BASE | {"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a time: use a number and one of us, ms, s"),
        (BASE | {"failOnDataLoss": "yes"}, "failOnDataLoss='yes' is neither true nor false"),
        (BASE | {"includeHeaders": "1"}, "includeHeaders='1' is neither true nor false"),
        (BASE | {"kafka.isolation.level": "dirty"}, "kafka.isolation.level='dirty' is none of"),
        (BASE | {"kafka.fetch.max.bytes": "many"}, "kafka.fetch.max.bytes='many' is not a number"),
        (
            BASE | {"kafka.ssl.truststore.location": "x"},
            "kafka.ssl.truststore.location has no effect without kafka.sec",
        ),
        (
            BASE | {"kafka.sasl.mechanism": "PLAIN"},
            "kafka.sasl.mechanism has no effect without kafka.security.protocol",
        ),
        (BASE | {"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is missing"),
        (BASE | {"kafka.ssl.truststore.password": "x"}, "kafka.ssl.truststore.password is not supported"),
        (BASE | {"kafka.auto.offset.reset": "x"}, "kafka.auto.offset.reset is not supported: set startingOffsets"),
        (BASE | {"kafka.key.deserializer": "x"}, "kafka.key.deserializer is not supported"),
        (BASE | {"kafka.value.deserializer": "x"}, "kafka.value.deserializer is not supported"),
        (BASE | {"kafka.enable.auto.commit": "x"}, "kafka.enable.auto.commit is not supported"),
        (BASE | {"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes is not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_with_what_to_write_instead(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        check_read(options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is for batch queries"):
        stream(**{name: "latest"})
    check_read(BASE | {"endingOffsets": "latest"})  # a batch query may be meant
    assert stream(endingTimestamp="1").ending == Everywhere(LATEST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 cannot be latest (-1)"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest in a batch query"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets for t-0 cannot be earliest (-2)"),
        (
            {"startingOffsets": '{"t":{"0":8}}', "endingOffsets": '{"t":{"0":3}}'},
            "startingOffsets for t-0 is 8, after endingOffsets 3",
        ),
        (
            {"startingOffsets": '{"t":{"0":1,"1":1}}', "endingOffsets": '{"t":{"0":3}}'},
            "must name the same partitions, not t-1 in one",
        ),
    ],
)
def test_bounds_of_a_batch_are_in_order(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        batch(**options)


def test_timestamps_go_before_offsets_and_the_one_for_all_before_those_by_partition() -> None:
    tp = TopicPartition("t", 0)
    one, many, offsets = "5", '{"t":{"0":6}}', '{"t":{"0":7}}'
    all_three = {"startingOffsets": offsets, "startingOffsetsByTimestamp": many, "startingTimestamp": one}
    assert stream(**all_three).starting == AtTimestamp(5)
    del all_three["startingTimestamp"]
    assert stream(**all_three).starting == AtTimestamps({tp: 6})
    assert stream(startingOffsets=offsets).starting == AtOffsets({tp: 7})


@pytest.mark.parametrize(
    ("text", "expected"), [("15m", 900_000), ("2 s", 2000), ("500", 500), ("1h", 3_600_000), ("90MIN", 5_400_000)]
)
def test_times_are_sparks(text: str, expected: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == expected


def test_what_to_read() -> None:
    assigned = read_options(SERVERS | {"assign": '{"a":[1,0],"b":[2,2]}'}, streaming=True).strategy
    assert assigned == Assign((TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2)))
    assert stream().strategy == Subscribe(("t",))
    pattern = read_options(SERVERS | {"subscribePattern": r"a\.[\p{Digit}_]+|\Qx.y\E"}, streaming=True).strategy
    assert isinstance(pattern, SubscribePattern)
    assert [name for name in ("a.1", "za._9z", "ax1", "x.y", "xzy") if pattern.matches(name)] == [
        "a.1",
        "za._9z",
        "x.y",
    ]


def test_settings_of_kafka_reach_the_client() -> None:
    options = stream(
        kafka__max__partition__fetch__bytes="77", kafka__client__id="me", kafka__isolation__level="read_uncommitted"
    )
    assert options.consumer.max_partition_fetch_bytes == 77
    assert options.consumer.client_id == "me"
    assert options.consumer.isolation == 0


def test_readers_are_known_to_the_broker_by_the_name_that_their_group_would_have() -> None:
    assert stream().consumer.client_id == "spark-kafka-source"
    assert batch().consumer.client_id == "spark-kafka-relation"
    assert stream(groupIdPrefix="mine").consumer.client_id == "mine"
    assert stream(groupIdPrefix="mine", kafka__group__id="g").consumer.client_id == "g"


def test_options_travel_to_tasks() -> None:
    options = batch(startingOffsets='{"t":{"0":7}}')
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exactlyOnce": "maybe"}, "exactlyOnce='maybe' is none of auto, 2pc, resume, off"),
        ({"transactionalIdPrefix": ""}, "transactionalIdPrefix is empty"),
        ({"transactionTimeoutMs": "0"}, "transactionTimeoutMs=0 must be positive"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
        ({"kafka.acks": "2"}, "kafka.acks='2' is none of"),
        (
            {"kafka.acks": "1"},
            "kafka.acks=1 does not go with the transactions of exactlyOnce: use kafka.acks='all', or ex",
        ),
        ({"kafka.compression.type": "x"}, "kafka.compression.type='x' is none of none, gzip"),
        ({"kafka.linger.ms": "soon"}, "kafka.linger.ms='soon' is not a number"),
        ({"kafka.delivery.timeout.ms": "1"}, "is less than kafka.linger.ms + kafka.request.timeout.ms = 30005"),
        ({"kafka.partitioner.class": "com.example.Mine"}, "kafka.partitioner.class=com.example.Mine is not supported"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config has no effect without kafka.security.protocol"),
        ({"batchCheck": "none"}, "batchCheck='none' is none of input, number"),
    ],
)
def test_options_of_the_sink_are_refused_in_the_same_way(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        write_options(SERVERS | NAMED | options, streaming=True)


def test_options_of_the_sink() -> None:
    chosen = {"topic": " out ", "exactlyOnce": "2PC", "kafka.compression.type": "zstd"}
    options = write_options(SERVERS | NAMED | chosen, streaming=True)
    assert (options.topic, options.exactly_once, options.producer.compression_type) == ("out", "2pc", "zstd")
    assert options.transactional_id_prefix == "p"


def test_the_partitioner_is_one_of_kafkas_own() -> None:
    def chosen(**given: str) -> str:
        options = {name.replace("__", "."): value for name, value in given.items()}
        return write_options(SERVERS | NAMED | options, streaming=True).partitioner

    assert chosen() == kafka_names.BY_KEY
    assert chosen(kafka__partitioner__ignore__keys="true") == kafka_names.STICKY
    for name in kafka_names.PARTITIONERS:
        assert chosen(kafka__partitioner__class=f" {name} ") == name


def test_a_batch_needs_no_prefix_unless_it_is_to_prepare_what_nothing_else_ends() -> None:
    options = write_options(SERVERS | {"topic": "t"}, streaming=False)
    assert options.transactional_id_prefix is None
    named = without_prefix(options, "spark-once-0-0").settings
    assert (named.is_once, named.exactly_once, named.decision_topic) == (True, "resume", "spark-once.decisions")
    with pytest.raises(OptionError, match="exactlyOnce=2pc needs the option transactionalIdPrefix"):
        write_options(SERVERS | {"topic": "t", "exactlyOnce": "2pc"}, streaming=False)


def test_a_stream_needs_its_checkpoint_unless_the_user_accepts_what_that_risks() -> None:
    for options in ({}, {"transactionalIdPrefix": "p"}, {"batchCheck": "number"}):
        with pytest.raises(OptionError, match="set the option checkpointLocation"):
            write_options(SERVERS | options, streaming=True)
    risky = write_options(SERVERS | {"transactionalIdPrefix": "p", "batchCheck": "number"}, streaming=True)
    assert not risky.checks_input
    assert write_options(SERVERS | {"checkpointLocation": "/c"}, streaming=True).transactional_id_prefix is None
