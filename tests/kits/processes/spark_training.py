"""Loads the classes of Spark that tests use: SQL, Arrow, Python workers, and a stream to Python."""

import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.functions import udf
from pyspark.sql.types import Row, StringType


class Nowhere(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Trained(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trained"

    def schema(self) -> str:
        return "number int"

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return Nowhere()


@udf(StringType())
def doubled(word: str) -> str:
    return word + word


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.dataSource.register(Trained)
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "number int, word string")
    frame.select(doubled("word").alias("word")).groupBy("word").count().collect()
    with tempfile.TemporaryDirectory() as directory:
        stream: DataFrame = spark.readStream.format("rate").load().selectExpr("int(value) * 2 AS number")
        query = stream.writeStream.format("trained").option("checkpointLocation", directory).trigger(once=True).start()
        query.awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive while it ends


main()
