"""The data source that Spark makes: its name, its schema, and which part does the work."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from twofold.spark.errors import OptionError

if TYPE_CHECKING:
    from twofold.spark.sink import BatchJobWriter, StreamWriter
    from twofold.spark.source import BatchReader, RefusedStream, StreamReader

SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


class TwofoldDataSource(DataSource):
    """`spark.readStream.format("twofold")` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "twofold"

    def schema(self) -> str:
        from twofold.spark.options import check_read, includes_headers

        check_read(self.options)
        return f"{SCHEMA}, {HEADERS}" if includes_headers(self.options) else SCHEMA

    def reader(self, schema: StructType) -> "BatchReader":
        from twofold.spark.options import read_options
        from twofold.spark.source import BatchReader
        from twofold.spark.versions import check_reading

        check_reading(self.options, streaming=False)
        options = read_options(self.options, streaming=False)
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
            check_reading(self.options, streaming=True)
            options = read_options(self.options, streaming=True)
            _check_schema(schema, options.include_headers)
        except OptionError as error:
            return RefusedStream(error)
        return StreamReader(options) if HAS_LIMITS else UnlimitedStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchJobWriter":
        from twofold.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        from twofold.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _check_schema(schema: StructType, include_headers: bool) -> None:
    names = [part.split()[0] for part in SCHEMA.split(", ")] + (["headers"] if include_headers else [])
    if schema.fieldNames() != names:
        raise OptionError(f"the source has a schema of its own ({', '.join(names)}): leave .schema(...) out")
