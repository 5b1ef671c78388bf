"""The data source that Spark makes: its name, its schema, and which part does the work."""

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from twofold.spark.errors import OptionError

if TYPE_CHECKING:
    from twofold.spark.sink import BatchJobWriter, StreamWriter
    from twofold.spark.source import BatchReader, RefusedStream, StreamReader

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", ArrayType(HEADER))])


class TwofoldDataSource(DataSource):
    """`spark.readStream.format("twofold")` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "twofold"

    def schema(self) -> StructType:
        from twofold.spark.options import check_read, check_table
        from twofold.spark.tables import options_of_new_table, with_options

        table = options_of_new_table(self.options)
        if table is not None:
            check_table(table)
            return with_options(_schema(table), table)
        check_read(self.options)
        return _schema(self.options)

    def reader(self, schema: StructType) -> "BatchReader":
        from twofold.spark.options import read_options
        from twofold.spark.source import BatchReader
        from twofold.spark.versions import check_reading

        chosen = self._chosen(schema)
        check_reading(chosen, streaming=False)
        options = read_options(chosen, streaming=False)
        _check_schema(schema, options.include_headers)
        if options.push_down_filters:
            from twofold.spark.pushdown import SelectiveReader

            return SelectiveReader(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> "StreamReader | RefusedStream":  # noqa: N802
        from twofold.spark.options import read_options
        from twofold.spark.source import RefusedStream, StreamReader, UnlimitedStreamReader
        from twofold.spark.versions import HAS_LIMITS, check_reading

        try:
            chosen = self._chosen(schema)
            check_reading(chosen, streaming=True)
            options = read_options(chosen, streaming=True)
            _check_schema(schema, options.include_headers)
        except OptionError as error:
            return RefusedStream(error)
        return StreamReader(options) if HAS_LIMITS else UnlimitedStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchJobWriter":
        from twofold.spark.sink import batch_writer

        return batch_writer(self._chosen(schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        from twofold.spark.sink import stream_writer

        return stream_writer(self._chosen(schema), schema, overwrite)

    def _chosen(self, schema: StructType) -> dict[str, str]:
        from twofold.spark.tables import options_of

        return options_of(schema, self.options)


def _schema(options: Mapping[str, str]) -> StructType:
    from twofold.spark.options import includes_headers

    return SCHEMA_WITH_HEADERS if includes_headers(options) else SCHEMA


def _check_schema(schema: StructType, include_headers: bool) -> None:
    names = (SCHEMA_WITH_HEADERS if include_headers else SCHEMA).fieldNames()
    if schema.fieldNames() != names:
        raise OptionError(
            f"the source has a schema of its own ({', '.join(names)}): leave .schema(...) out, and the columns of "
            "CREATE TABLE"
        )
