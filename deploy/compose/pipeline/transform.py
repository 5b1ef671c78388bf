"""Orders in, totals out: README.md says how to run it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "customer string, amount double"


def configure(spark):
    """Called once with the session, before anything is read. Leave it out if you have nothing to set."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def transform(orders: DataFrame) -> DataFrame:
    """A frame with the columns of a topic in: key and value (bytes), topic, partition, offset, timestamp. One with a
    column `value` out, text or bytes; `key`, `headers`, `topic` and `partition` may be there too.

    Several sources: transform(orders, customers), by the names in pipeline.toml. Several sinks: return a dict such as
    {"totals": ..., "rejected": ...}.
    """
    # JSON by Spark's own functions. A plain value would be f.col("value").cast("string").
    parsed = orders.select(f.from_json(f.col("value").cast("string"), ORDER).alias("order")).select("order.*")
    valid = parsed.where("customer is not null and amount > 0")
    total = f.struct("customer", f.expr("round(amount * 1.2, 2) as with_tax"))
    return valid.select(f.col("customer").alias("key"), f.to_json(total).alias("value"))


if __name__ == "__main__":  # spark-submit transform.py --config pipeline.toml
    from twofold.cli.pipeline.run import main

    main(__file__)
