"""Rows of a DataFrame as record batches: which column is what, which topic and partition a row goes to.

1. Columns are those of Spark's own connector: value (text or bytes) is needed, key, headers, topic and partition may be
   there, others are not looked at. The option topic counts more than the column.
2. Rows of one partition keep their order. Rows with a key go where every Kafka client would put them; those without one
   stay together, and every Arrow batch goes to the next partition. `kafka.partitioner.class` may say otherwise: all
   rows as if they had no key, or every row to the next partition.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from twofold.client.cluster.metadata import TopicMetadata
from twofold.client.config import ProducerConfig
from twofold.records.column_batch import EncodedBatch
from twofold.records.columnar import Columns
from twofold.records.columnar_arrays import Int32s
from twofold.spark import kafka_names
from twofold.spark.errors import OptionError

HEADERS_HINT = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in a row each part of a record is; None for what there is not."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    topic_name: str | None


def layout_of(schema: StructType, topic: str | None) -> Layout:
    """OptionError for a schema that cannot be written."""
    places = {field.name: index for index, field in enumerate(schema.fields)}
    if "value" not in places:
        raise OptionError(
            f"there is no column 'value' to write, only {', '.join(places) or 'none'}: select(...) one of that name"
        )
    if topic is None and "topic" not in places:
        raise OptionError("no topic to write to: set the option topic, or add a column 'topic'")
    allowed: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "value": ((StringType, BinaryType), "string or binary"),
        "key": ((StringType, BinaryType), "string or binary"),
        "topic": ((StringType,), "string"),
        "partition": ((IntegerType,), "int"),
        "headers": ((ArrayType,), HEADERS_HINT),
    }
    for name, (types, words) in allowed.items():
        if name in places:
            kind = schema.fields[places[name]].dataType
            if not isinstance(kind, types) or (name == "headers" and not _are_headers(kind)):
                raise OptionError(f"column {name!r} is of type {kind.simpleString()}: cast it to {words}")
    return Layout(
        places["value"],
        places.get("key"),
        places.get("headers"),
        places.get("topic") if topic is None else None,
        places.get("partition"),
        topic,
    )


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element.fields[0].dataType, StringType) and isinstance(element.fields[1].dataType, BinaryType)


def by_topic(rows: pa.RecordBatch, layout: Layout) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order."""
    if layout.topic is None:
        assert layout.topic_name is not None
        yield layout.topic_name, rows
        return
    column = rows.column(layout.topic)
    if column.null_count:
        raise ValueError(
            "a row has no topic: its column 'topic' is null. Set the option topic, or filter such rows out"
        )
    topics = pc.unique(column).to_pylist()
    for topic in topics:
        yield topic, rows if len(topics) == 1 else rows.filter(pc.equal(column, topic))


class Encoder:
    """Of one task."""

    def __init__(
        self, layout: Layout, config: ProducerConfig, random: Random, partitioner: str = kafka_names.BY_KEY
    ) -> None:
        self.layout = layout
        self.bytes = 0
        """Of the batches so far, before compression."""
        self._config = config
        self._partitioner = partitioner
        self._turn = random.randrange(1 << 16)

    def encode(
        self, rows: pa.RecordBatch, topic: TopicMetadata, timestamp_ms: int
    ) -> Iterator[tuple[int, EncodedBatch]]:
        """Batches, each with its partition."""
        layout, config = self.layout, self._config
        columns = Columns(
            None if layout.key is None else rows.column(layout.key),
            rows.column(layout.value),
            timestamp_ms,
            None if layout.headers is None else rows.column(layout.headers),
        )
        count = len(topic.partitions)
        available = topic.with_leader or tuple(topic.partitions)
        self._turn += 1
        keyless = available[self._turn % len(available)]
        by_key = layout.key is not None and self._partitioner == kafka_names.BY_KEY
        in_turn = self._partitioner == kafka_names.ROUND_ROBIN
        if not by_key and not in_turn and layout.partition is None:
            batches = columns.encode(codec=config.codec, level=config.compression_level, limit=config.max_request_size)
            return self._checked(topic.name, {keyless: batches})
        if by_key:
            partitions = columns.partitions(count, keyless)
        else:
            partitions = self._in_turn(available, rows.num_rows) if in_turn else np.full(rows.num_rows, keyless, "i4")
        if layout.partition is not None:
            partitions = self._chosen(rows.column(layout.partition), partitions, topic)
        found = columns.encode_by_partition(
            partitions, count, codec=config.codec, level=config.compression_level, limit=config.max_request_size
        )
        return self._checked(topic.name, found)

    def _in_turn(self, available: Sequence[int], count: int) -> Int32s:
        first = self._turn
        self._turn += count - 1  # one was counted already
        return np.asarray(available, np.int32)[np.arange(first, first + count) % len(available)]

    def _checked(self, topic: str, found: Mapping[int, list[EncodedBatch]]) -> Iterator[tuple[int, EncodedBatch]]:
        limit = self._config.max_request_size
        for partition, batches in found.items():
            for batch in batches:
                if batch.count == 1 and batch.size_estimate > limit:
                    raise ValueError(
                        f"a row for topic {topic!r} is {batch.size_estimate} bytes large, above "
                        f"kafka.max.request.size={limit}: raise it, and max.message.bytes of the topic"
                    )
                self.bytes += batch.size_estimate
                yield partition, batch

    def _chosen(self, column: Any, otherwise: Int32s, topic: TopicMetadata) -> Int32s:
        """The column's choice where it has one."""
        chosen = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int32)
        given = pc.is_valid(column).to_numpy(zero_copy_only=False)
        count = len(topic.partitions)
        wrong = chosen[given & ((chosen < 0) | (chosen >= count))]
        if len(wrong):
            raise ValueError(
                f"a row is for partition {wrong[0]} of topic {topic.name!r}, which has {count} (0 to {count - 1})"
            )
        return np.where(given, chosen, otherwise).astype(np.int32)
