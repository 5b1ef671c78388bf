"""The options of Spark's own Kafka connector, as its documentation lists them (Structured Streaming + Kafka
Integration Guide, "Creating a Kafka Source", "Creating a Kafka Sink", "Kafka Specific Configurations"): data for tests
that ask both formats for the same.

The topic that is read has two partitions. The numbers 0 to 9 are in them, the even ones in partition 0. Record n has
the timestamp AT + n.
"""

from dataclasses import dataclass

AT = 1_700_000_000_000
EVERYTHING = tuple(range(10))
BATCH, STREAM = "batch", "stream"
BOTH = (BATCH, STREAM)


@dataclass(frozen=True)
class Read:
    """`{t}` in a value is the topic. `rows` are what is read from the earliest offsets unless the option says
    otherwise. `wrong` are values that are refused."""

    name: str
    value: str
    kinds: tuple[str, ...] = BOTH
    rows: tuple[int, ...] = EVERYTHING
    wrong: tuple[str, ...] = ()
    instead_of_subscribe: bool = False


READ = (
    Read("assign", '{"{t}":[1]}', rows=(1, 3, 5, 7, 9), wrong=("{t}",), instead_of_subscribe=True),
    Read("subscribe", "{t}", wrong=("",), instead_of_subscribe=True),
    Read("subscribePattern", "{t}.*", wrong=("",), instead_of_subscribe=True),
    Read("kafka.bootstrap.servers", "{servers}", wrong=("nonsense",)),
    Read("startingTimestamp", str(AT + 6), rows=(6, 7, 8, 9), wrong=("now",)),
    Read(
        "startingOffsetsByTimestamp",
        f'{{"{{t}}":{{"0":{AT + 4},"1":{AT + 5}}}}}',
        rows=(4, 5, 6, 7, 8, 9),
        wrong=("1",),
    ),
    Read("startingOffsets", '{"{t}":{"0":3,"1":4}}', rows=(6, 8, 9), wrong=("soon", '{"{t}":{"0":3}}')),
    Read("startingOffsets", "earliest"),
    Read("startingOffsets", "latest", (STREAM,), rows=()),
    Read("partition.metadata.cache.ttl.ms", "1000"),
    Read("startingOffsetsByTimestampStrategy", "latest", wrong=("first",)),
    Read("endingTimestamp", str(AT + 4), (BATCH,), rows=(0, 1, 2, 3), wrong=("now",)),
    Read("endingOffsetsByTimestamp", f'{{"{{t}}":{{"0":{AT + 2},"1":{AT + 3}}}}}', (BATCH,), rows=(0, 1), wrong=("1",)),
    Read("endingOffsets", '{"{t}":{"0":2,"1":-1}}', (BATCH,), rows=(0, 1, 2, 3, 5, 7, 9), wrong=("earliest",)),
    Read("failOnDataLoss", "false", wrong=("maybe",)),
    Read("kafkaConsumer.pollTimeoutMs", "60000", wrong=("long",)),
    Read("fetchOffset.numRetries", "5", wrong=("some",)),
    Read("fetchOffset.retryIntervalMs", "20", wrong=("some",)),
    Read("maxOffsetsPerTrigger", "4", (STREAM,), wrong=("some",)),
    Read("minOffsetsPerTrigger", "2", (STREAM,), wrong=("some",)),
    Read("maxTriggerDelay", "10s", (STREAM,)),
    Read("minPartitions", "4", wrong=("some", "0")),
    Read("maxRecordsPerPartition", "3", wrong=("some", "0")),
    Read("groupIdPrefix", "mine"),
    Read("kafka.group.id", "mine"),
    Read("includeHeaders", "true", wrong=("maybe",)),
    Read("kafka.isolation.level", "read_committed", wrong=("dirty",)),
    Read("kafka.max.partition.fetch.bytes", "1000", wrong=("many",)),
)

WRITE = (
    ("topic", "{t}"),
    ("kafka.bootstrap.servers", "{servers}"),
    ("includeHeaders", "true"),
    ("kafka.acks", "all"),
    ("kafka.compression.type", "zstd"),
    ("kafka.linger.ms", "1"),
    ("kafka.batch.size", "1000"),
    ("kafka.partitioner.class", "org.apache.kafka.clients.producer.RoundRobinPartitioner"),
    ("kafka.max.request.size", "100000"),
    ("kafka.client.id", "mine"),
)

NEVER_ON_READ = (
    "kafka.auto.offset.reset",
    "kafka.key.deserializer",
    "kafka.value.deserializer",
    "kafka.enable.auto.commit",
    "kafka.interceptor.classes",
)
NEVER_ON_WRITE = ("kafka.key.serializer", "kafka.value.serializer")

DECIDED = {
    ("kafka.acks", "1"): "refused: a transaction needs all; exactlyOnce=off takes it",
    ("kafka.enable.idempotence", "false"): "refused: a transaction needs it; exactlyOnce=off takes it",
    ("kafka.partitioner.class", "com.example.Mine"): "refused: a class of the user's needs a JVM",
    ("kafka.ssl.truststore.location", "x"): "refused without kafka.security.protocol: it would have no effect",
    ("kafka.sasl.mechanism", "PLAIN"): "refused without kafka.security.protocol: it would have no effect",
    ("kafka.compresion.type", "zstd"): "refused: no client of Kafka has such a setting; the other logs it and goes on",
    ("a-misspelled-option", "x"): "refused; the other says nothing",
}
"""Writes that Spark's own connector takes, or fails later, and ours refuses at once."""

FAILS_LATER = {("kafka.partitioner.class", "com.example.Mine"): "com.example.Mine"}
"""Of those, what the other fails at where it makes a producer, with what its message has in it."""

TAKEN_WHEN_OFF = (("kafka.acks", "1"), ("kafka.enable.idempotence", "false"))
"""Of those, what exactlyOnce=off takes."""

ONLY_WITH_A_PROTOCOL = (
    ("kafka.sasl.jaas.config", "${env:LOGIN}"),
    ("kafka.sasl.mechanism", "PLAIN"),
    ("kafka.ssl.truststore.location", "x"),
    ("kafka.ssl.keystore.location", "x"),
    ("kafka.ssl.endpoint.identification.algorithm", ""),
)
"""Settings of connections that are not in plain text, on both sides."""
