"""What the pipeline does with orders: plain Spark, nothing in it knows about transactions."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from names import LATE_S, WINDOW_S
from orders import PRODUCTS

ORDER = "order_id BIGINT, customer STRING, product STRING, quantity INT"


def with_products(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Orders parsed, with the name of the product and what they cost."""
    rows = [(product, name, price) for product, (name, price) in PRODUCTS.items()]
    products = spark.createDataFrame(rows, "product STRING, name STRING, price BIGINT")
    orders = records.select(f.from_json(f.col("value").cast("string"), ORDER).alias("o"), "timestamp")
    joined = orders.select("o.*", "timestamp").join(f.broadcast(products), "product")
    return joined.withColumn("amount", f.col("price") * f.col("quantity"))


def enriched(orders: DataFrame) -> DataFrame:
    return orders.select(
        f.col("customer").alias("key"), f.to_json(f.struct("order_id", "customer", "name", "amount")).alias("value")
    )


def revenue(orders: DataFrame) -> DataFrame:
    """What each product earned in each window; a window is written once, when it is closed."""
    by_window = (
        orders.withWatermark("timestamp", f"{LATE_S} seconds")
        .groupBy(f.window("timestamp", f"{WINDOW_S} seconds"), "name")
        .agg(f.sum("amount").alias("amount"))
    )
    start_s = f.col("window.start").cast("long").alias("start_s")
    return by_window.select(f.col("name").alias("key"), f.to_json(f.struct(start_s, "name", "amount")).alias("value"))
