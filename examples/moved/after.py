"""A job from topic to topic. The two files of this directory differ in one word."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

FORMAT = "twofold"


def run(spark: SparkSession, servers: str, checkpoint: str) -> None:
    """From orders to totals, with tax; reads what there is."""
    kafka = {"kafka.bootstrap.servers": servers}
    orders = (
        spark.readStream.format(FORMAT)
        .options(**kafka)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    total = f.round(f.get_json_object(f.col("value").cast("string"), "$.amount") * 1.2, 2)
    query = (
        orders.select("key", f.to_json(f.struct(total.alias("total"))).alias("value"))
        .writeStream.format(FORMAT)
        .options(**kafka)
        .option("topic", "totals")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
