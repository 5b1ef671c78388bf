"""What the sink writes: columns, topics, partitions, headers, sizes, and what it refuses. With TWOFOLD_LONG=1 Spark's
own connector is asked the same wherever it has the same to say."""

import uuid
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from sink_kit import Broker, check_exactly_once, open_ids
from spark_kit import Kit

from kits.wire.transactional_ids import transactional_ids
from twofold.sink.names import ONCE, ONCE_TOPIC


class Sink:
    """Writes of one format; ours gets a prefix where it needs one."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.spark = kit.spark
        self.broker = Broker(kit.bootstrap_servers)
        self.prefix = f"p{uuid.uuid4().hex[:8]}"

    @property
    def ours(self) -> bool:
        return self.kit.form == "twofold"

    def write(self, frame: Any, **options: Any) -> None:
        """A batch; `None` for an option leaves a default out."""
        chosen = {"kafka.bootstrap.servers": self.kit.bootstrap_servers}
        if self.ours:
            chosen["transactionalIdPrefix"] = self.prefix
        chosen |= {name.replace("__", "."): value for name, value in options.items()}
        writer = frame.write.format(self.kit.form)
        for name, value in chosen.items():
            if value is not None:
                writer = writer.option(name, value)
        writer.mode("append").save()

    def stream(self, frame: Any, name: str = "q", mode: str = "append", **options: Any) -> Any:
        """Everything that there is, as a stream."""
        chosen = {"kafka.bootstrap.servers": self.kit.bootstrap_servers}
        chosen |= {"checkpointLocation": str(self.kit.directory / name)}
        chosen |= {name.replace("__", "."): value for name, value in options.items()}
        writer = frame.writeStream.format(self.kit.form).outputMode(mode)
        for option, value in chosen.items():
            if value is not None:
                writer = writer.option(option, value)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    def rows(self, sql: str, count: int = 1) -> Any:
        return self.spark.range(0, count, 1, 2).selectExpr(*[part.strip() for part in sql.split(";")])

    def records(self, topic: str) -> list[Any]:
        """All committed records, as a stock client sees them."""
        return self.broker.messages(topic)

    def seen(self, topic: str) -> list[tuple[Any, ...]]:
        """Key, value and headers, sorted."""
        return sorted(((m.key(), m.value(), m.headers()) for m in self.records(topic)), key=repr)


@pytest.fixture
def sink(kit: Kit) -> Sink:
    return Sink(kit)


@pytest.fixture
def our_sink(ours: Kit) -> Sink:
    return Sink(ours)


# Columns


def test_text_and_bytes_are_written_as_they_are(sink: Sink) -> None:
    topic = sink.kit.topic()
    sink.write(sink.rows("'ключ' key; cast('wert' as binary) value"), topic=topic)
    sink.write(sink.rows("cast('b' as binary) key; 'text' value"), topic=topic)
    assert sink.seen(topic) == sorted([("ключ".encode(), b"wert", None), (b"b", b"text", None)], key=repr)


def test_a_null_key_and_a_null_value_stay_null(sink: Sink) -> None:
    topic = sink.kit.topic()
    sink.write(sink.rows("cast(null as string) key; 'v' value"), topic=topic)
    sink.write(sink.rows("'k' key; cast(null as binary) value"), topic=topic)
    sink.write(sink.rows("'only' value"), topic=topic)
    assert sink.seen(topic) == sorted([(None, b"v", None), (b"k", None, None), (None, b"only", None)], key=repr)


def test_headers_are_written_whenever_the_column_is_there(sink: Sink) -> None:
    topic = sink.kit.topic()
    header = "named_struct('key', 'a', 'value', cast('1' as binary)), named_struct('key', 'b', 'value', null)"
    kind = "array<struct<key:string,value:binary>>"
    sink.write(sink.rows(f"'v' value; cast(array({header}) as {kind}) headers"), topic=topic)
    sink.write(sink.rows(f"'none' value; cast(null as {kind}) headers"), topic=topic)
    sink.write(sink.rows(f"'empty' value; cast(array() as {kind}) headers"), topic=topic)
    found = {value: headers for _, value, headers in sink.seen(topic)}
    assert found == {b"v": [("a", b"1"), ("b", None)], b"none": None, b"empty": None}


def test_the_column_names_the_topic_and_the_option_counts_more(sink: Sink) -> None:
    first, second = sink.kit.topic(), sink.kit.topic()
    frame = sink.rows(f"if(id % 2 = 0, '{first}', '{second}') topic; cast(id as string) value", 10)
    sink.write(frame)
    assert [len(sink.records(first)), len(sink.records(second))] == [5, 5]
    third = sink.kit.topic()
    sink.write(frame, topic=third)
    assert [len(sink.records(name)) for name in (first, second, third)] == [5, 5, 10]


def test_the_column_chooses_the_partition_and_null_leaves_it_to_the_key(sink: Sink) -> None:
    topic = sink.kit.topic(4)
    sink.write(sink.rows("'k' key; 'chosen' value; 3 partition"), topic=topic)
    sink.write(sink.rows("'k' key; 'hashed' value; cast(null as int) partition"), topic=topic)
    sink.write(sink.rows("'k' key; 'plain' value"), topic=topic)
    found = {message.value(): message.partition() for message in sink.records(topic)}
    assert found[b"chosen"] == 3
    assert found[b"hashed"] == found[b"plain"]


def test_keys_go_to_the_partitions_of_every_kafka_client(sink: Sink) -> None:
    topic, stock = sink.kit.topic(7), sink.kit.topic(7)
    sink.write(sink.rows("concat('key-', id) key; cast(id as string) value", 200), topic=topic)
    keys = [{"key": b"key-%d" % n, "value": b"%d" % n} for n in range(200)]
    sink.kit.send(stock, keys, partitioner="murmur2_random")
    where = [{m.key(): m.partition() for m in sink.records(name)} for name in (topic, stock)]
    assert where[0] == where[1] and len(set(where[0].values())) == 7


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read_by_stock_clients(sink: Sink, codec: str) -> None:
    topic = sink.kit.topic()
    frame = sink.rows("cast(id as string) key; repeat(cast(id as string), 50) value", 300)
    sink.write(frame, topic=topic, kafka__compression__type=codec)
    assert Counter(m.value() for m in sink.records(topic)) == Counter((b"%d" % n) * 50 for n in range(300))


def test_a_record_of_ten_megabytes_is_written_where_the_settings_allow_it(sink: Sink) -> None:
    topic = sink.kit.topic(1, max_message_bytes="20000000")
    frame = sink.rows("repeat('0123456789', 1000000) value")
    limits = {"kafka.max.request.size": "20000000", "kafka.buffer.memory": "64000000"}
    sink.write(frame, topic=topic, **limits)
    assert [len(m.value()) for m in sink.records(topic)] == [10_000_000]
    with pytest.raises(PySparkException, match=r"(?i)max.?request.?size"):
        sink.write(frame, topic=topic)


def test_a_topic_that_is_not_there_is_made_where_the_broker_does_that(sink: Sink) -> None:
    name = f"auto-{uuid.uuid4().hex[:8]}"
    sink.write(sink.rows("'v' value"), topic=name)
    assert [m.value() for m in sink.records(name)] == [b"v"]


def test_columns_of_other_names_are_not_looked_at(sink: Sink) -> None:
    topic = sink.kit.topic()
    sink.write(sink.rows("'v' value; 7 other; current_timestamp() timestamp"), topic=topic)
    assert sink.seen(topic) == [(None, b"v", None)]


def test_without_transactions_rows_are_written_too(our_sink: Sink) -> None:
    topic = our_sink.kit.topic()
    our_sink.write(our_sink.rows("cast(id as string) value", 100), topic=topic, exactlyOnce="off")
    assert sorted(int(m.value()) for m in our_sink.records(topic)) == list(range(100))
    frame = our_sink.kit.stream(subscribe=topic, startingOffsets="earliest").select("value")
    target = our_sink.kit.topic()
    our_sink.stream(frame, topic=target, exactlyOnce="off")
    assert sorted(int(m.value()) for m in our_sink.records(target)) == list(range(100))


# Streams


def test_a_stream_writes_every_row_once_and_in_order(our_sink: Sink) -> None:
    broker, source, target = our_sink.broker, our_sink.kit.topic(), our_sink.kit.topic()
    broker.send(source, range(500))
    frame = our_sink.kit.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=100)
    for _ in range(2):  # the second finds nothing to do
        our_sink.stream(frame.select("key", "value"), topic=target)
        check_exactly_once(broker, target, range(500))
    assert not [name for name in open_ids(our_sink.kit.bootstrap_servers) if name.startswith("spark-")]


def test_a_query_with_state_may_use_the_mode_complete(sink: Sink) -> None:
    source, target = sink.kit.topic(), sink.kit.topic()
    sink.broker.send(source, range(20), keys=2)
    frame = sink.kit.stream(subscribe=source, startingOffsets="earliest")
    counted = frame.groupBy("key").count().selectExpr("key", "cast(count as string) value")
    sink.stream(counted, mode="complete", topic=target)
    assert {m.key(): m.value() for m in sink.records(target)} == {b"k0": b"10", b"k1": b"10"}


def test_the_consumer_group_follows_the_output(our_sink: Sink) -> None:
    source, target = our_sink.kit.topic(), our_sink.kit.topic()
    our_sink.broker.send(source, range(60))
    frame = our_sink.kit.stream(subscribe=source, startingOffsets="earliest").select("key", "value")
    group = f"g{uuid.uuid4().hex[:8]}"
    our_sink.stream(frame, topic=target, consumerGroup=group)
    ends = [our_sink.kit.watermarks(source, partition)[1] for partition in (0, 1)]
    consumer = Consumer({"bootstrap.servers": our_sink.kit.bootstrap_servers, "group.id": group})
    committed = consumer.committed([TopicPartition(source, 0), TopicPartition(source, 1)], 30)
    consumer.close()
    assert [row.offset for row in committed] == ends


# Batches


def test_a_batch_is_there_entirely_or_not_at_all(our_sink: Sink) -> None:
    topic = our_sink.kit.topic()
    # The last row of the last task cannot be written.
    frame = our_sink.rows("cast(id as string) value; if(id = 999, 99, 0) partition", 1000)
    with pytest.raises(PySparkException, match="partition 99 of topic"):
        our_sink.write(frame, topic=topic)
    assert our_sink.records(topic) == []
    our_sink.broker.wait_until_none_open()
    our_sink.write(our_sink.rows("cast(id as string) value", 1000), topic=topic)
    assert sorted(int(m.value()) for m in our_sink.records(topic)) == list(range(1000))


def test_a_batch_with_a_write_id_is_written_once(our_sink: Sink) -> None:
    topic = our_sink.kit.topic()
    frame = our_sink.rows("cast(id as string) value", 50)
    for _ in range(3):
        our_sink.write(frame, topic=topic, writeId="nightly-2026-11-15")
    assert sorted(int(m.value()) for m in our_sink.records(topic)) == list(range(50))
    our_sink.write(frame, topic=topic, writeId="another")
    our_sink.write(frame, topic=topic)
    assert len(our_sink.records(topic)) == 150


def test_a_batch_needs_no_name_and_leaves_none(our_sink: Sink) -> None:
    """All of it or nothing, as often as it is written; its prefix is used again, so nothing grows with the writes."""
    topic, servers = our_sink.kit.topic(), our_sink.kit.bootstrap_servers
    frame = our_sink.rows("cast(id as string) value", 50)
    found: list[set[str]] = []  # after each write; other tests may have left some
    for _ in range(4):
        our_sink.write(frame, topic=topic, transactionalIdPrefix=None)
        assert our_sink.broker.open_transactions(ONCE) == []
        found.append({name for name in transactional_ids(servers) if name.startswith(ONCE)})
    assert sorted(int(m.value()) for m in our_sink.records(topic)) == sorted([*range(50)] * 4)
    # One for the driver, and one for each task of a process: two tasks, which may meet other processes later.
    first, *_, last = ({name.partition("|")[0] for name in ids} for ids in found)
    assert first == last and len(found[-1] - found[0]) < 3 * 2, found
    broken = our_sink.rows("cast(id as string) value; if(id = 999, 99, 0) partition", 1000)
    with pytest.raises(PySparkException, match="partition 99 of topic"):
        our_sink.write(broken, topic=topic, transactionalIdPrefix=None)
    our_sink.write(frame, topic=topic, transactionalIdPrefix=None)
    assert len(our_sink.records(topic)) == 250
    topics = our_sink.kit.admin.list_topics(timeout=30).topics
    assert [name for name in topics if name.startswith(ONCE)] == [ONCE_TOPIC]


def test_a_batch_with_a_write_id_and_no_prefix_is_written_once_to_each_topic(our_sink: Sink) -> None:
    frame = our_sink.rows("cast(id as string) value", 5)
    for topic in (our_sink.kit.topic(), our_sink.kit.topic()):
        for _ in range(2):
            our_sink.write(frame, topic=topic, transactionalIdPrefix=None, writeId="nightly")
        assert len(our_sink.records(topic)) == 5


def test_the_partitioner_is_obeyed(our_sink: Sink) -> None:
    """Kafka's own are: every row to the next partition, or all as if they had no key."""
    frame = our_sink.rows("'one' key; cast(id as string) value", 40)
    for kafka_class, spread in (("RoundRobinPartitioner", 4), ("UniformStickyPartitioner", 1)):
        topic = our_sink.kit.topic(4)
        options = {"kafka.partitioner.class": f"org.apache.kafka.clients.producer.{kafka_class}"}
        our_sink.write(frame.coalesce(1), topic=topic, **options)
        found = Counter(m.partition() for m in our_sink.records(topic))
        assert len(found) == spread and set(found.values()) == {40 // spread}


# What is refused


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("'k' key", {}, r"(?i)value.*not found|no column 'value'"),
        ("1 value", {}, r"(?i)value.*type.*(string|binary)"),
        ("'v' value; 1 key", {}, r"(?i)key.*type.*(string|binary)"),
        ("'v' value; 'a' partition", {}, r"(?i)partition.*(must be|type).*int"),
        ("'v' value; 'a' headers", {}, r"(?i)headers.*(must be|type).*array"),
        ("'v' value", {"topic": None}, r"(?i)topic"),
        ("'v' value; cast(null as string) topic", {"topic": None}, r"(?i)null.*topic|topic.*null"),
        ("'v' value", {"kafka__key__serializer": "x"}, r"key\.serializer"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_cannot_be_written_is_refused(sink: Sink, rows: str, options: dict[str, Any], message: str) -> None:
    topic = sink.kit.topic()
    with pytest.raises(Exception, match=message):
        sink.write(sink.rows(rows), **{"topic": topic} | options)
    assert sink.records(topic) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transactionalIdPrefix": None, "exactlyOnce": "2pc"}, "needs the option transactionalIdPrefix"),
        ({"kafka.partitioner.class": "com.example.Mine"}, "kafka.partitioner.class=com.example.Mine is not supported"),
        ({"kafka.ssl.truststore.location": "x"}, "has no effect without kafka.security.protocol"),
        ({"transactionalIdPrefix": "a|b"}, "transactionalIdPrefix='a|b'"),
        ({"exactlyOnce": "yes"}, "exactlyOnce='yes' is none of auto, 2pc, resume, off"),
        ({"exactlyonces": "auto"}, "did you mean 'exactlyOnce'"),
        ({"kafka.linger": "1"}, "did you mean 'kafka.linger.ms'"),
        ({"kafka.acks": "1"}, "kafka.acks=1"),
        ({"kafka.transactional.id": "x"}, "transactionalIdPrefix"),
        ({"consumerGroup": "g"}, "consumerGroup is for streams"),
        ({"transactionTimeoutMs": "0"}, "transactionTimeoutMs=0"),
        ({"transactionTimeoutMs": "99999999"}, "transactionTimeoutMs|transaction_timeout_ms"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "3000"}, "127.0.0.1:1"),
        ({"kafka.bootstrap.servers": "nowhere"}, "nowhere"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_a_message_that_says_what_to_do(
    our_sink: Sink, options: dict[str, Any], message: str
) -> None:
    topic = our_sink.kit.topic()
    with pytest.raises(PySparkException) as refused:
        our_sink.write(our_sink.rows("'v' value"), **{"topic": topic} | options)
    assert message in str(refused.value) or any(part in str(refused.value) for part in message.split("|"))
    assert our_sink.records(topic) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpointLocation": None}, "checkpointLocation on the writer"),
        ({"consumerGroup": "g", "checkpointLocation": None, "transactionalIdPrefix": "p"}, "checkpointLocation"),
        ({"consumerGroup": "g", "exactlyOnce": "off"}, "needs exactlyOnce"),
    ],
    ids=str,
)
def test_a_stream_without_a_name_of_its_own_is_refused(our_sink: Sink, options: dict[str, Any], message: str) -> None:
    topic = our_sink.kit.topic()
    our_sink.spark.conf.set("spark.sql.streaming.checkpointLocation", str(our_sink.kit.directory / "session"))
    try:
        with pytest.raises(PySparkException, match=message):
            our_sink.stream(our_sink.kit.stream(subscribe=topic).select("value"), **{"topic": topic} | options)
    finally:
        our_sink.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_consumer_group_is_refused_where_the_source_has_no_offsets_of_topics(our_sink: Sink) -> None:
    rate = our_sink.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with pytest.raises(PySparkException, match="consumerGroup is for queries that read topics"):
        our_sink.stream(rate.selectExpr("cast(value as string) value"), topic="t", consumerGroup="g")


def test_overwriting_a_topic_is_refused(our_sink: Sink) -> None:
    writer = our_sink.rows("'v' value").write.format("twofold").option("topic", "t")
    writer = writer.option("kafka.bootstrap.servers", our_sink.kit.bootstrap_servers)
    with pytest.raises(PySparkException, match="append"):
        writer.mode("overwrite").save()
