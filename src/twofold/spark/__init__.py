"""`format("twofold")` for PySpark: a read_committed source and an exactly-once sink.

Nothing has to be registered: Spark finds the source in the installed package `pyspark_twofold`. Where it does not look
for packages, `spark.dataSource.register(TwofoldDataSource)` does the same.

Every Python worker of Spark imports this package, so it imports the clients only when it uses them.
"""

from twofold.spark.datasource import TwofoldDataSource

__all__ = ["TwofoldDataSource"]
