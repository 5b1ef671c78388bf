"""`format("twofold")` for PySpark: a read_committed source and an exactly-once sink.

Nothing has to be registered: Spark finds the source in the installed package `pyspark_twofold`. Where it does not look
for packages, `spark.dataSource.register(TwofoldDataSource)` does the same, and so does `attach(spark)`, which also
makes writes without a mode, from threads, and with the checkpoint of the session what they are with Spark's own format.

Every Python worker of Spark imports this package, so it imports the clients only when it uses them.
"""

from typing import TYPE_CHECKING

from twofold.spark.datasource import TwofoldDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TwofoldDataSource", "attach"]


def attach(spark: "SparkSession") -> None:
    """Once for a program, before it writes: see `twofold.spark.attaching`."""
    from twofold.spark import attaching

    attaching.attach(spark)
