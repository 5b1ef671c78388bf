"""A stream joined with a table: orders get the tier of their customer, exactly once.

    python examples/stream_table_join.py

The table is a compacted topic, `customers`: the newest value of a key is its row, a null takes it away. Spark reads it
as a batch and keeps the newest record of each key. A batch of the stream that is run again after a crash may find
another table than the first time, and make other rows of the same orders. No reader sees two versions: a batch whose
rows are visible is never written again. The broker is embedded, and is gone at the end.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from shared import TWO_PHASE_COMMIT, conclude, create, forget_last_commit, read, send, session
from twofold.embedded import Broker

CUSTOMERS = 10
ORDERS = 600


def table(spark: SparkSession, servers: str) -> DataFrame:
    """Of each key the newest value: compaction may not have come to the older ones yet."""
    records = spark.read.format("twofold").options(**{"kafka.bootstrap.servers": servers}, subscribe="customers").load()
    newest = records.groupBy(f.col("key").cast("string").alias("customer")).agg(f.max_by("value", "offset").alias("v"))
    return newest.where("v IS NOT NULL").select("customer", f.col("v").cast("string").alias("tier"))


def joined(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Customers that the table does not know are kept."""
    parsed = orders.select(
        f.col("key").cast("string").alias("customer"), f.col("value").cast("string").cast("int").alias("order")
    )
    with_tier = parsed.join(f.broadcast(customers), "customer", "left")
    row = f.struct("order", "customer", f.coalesce("tier", f.lit("unknown")).alias("tier"))
    return with_tier.select(f.col("customer").alias("key"), f.to_json(row).alias("value"))


def customer(number: int) -> str:
    return f"customer-{number % CUSTOMERS}"


def main(directory: Path) -> int:
    tiers: dict[str, str | None] = {customer(n): "gold" if n % 3 == 0 else "silver" for n in range(CUSTOMERS - 1)}
    changes: dict[str, str | None] = {customer(0): "platinum", customer(1): None}
    with Broker(settings=TWO_PHASE_COMMIT) as broker:
        servers = broker.bootstrap_servers
        create(servers, "orders", "orders-with-tiers")
        create(servers, "customers", partitions=1, **{"cleanup.policy": "compact"})
        spark = session("stream-table join")

        def run() -> list[tuple[int, str, str]]:
            """Reads the orders that there are, in batches of 200, and ends; then what a stock client sees."""
            where = {"kafka.bootstrap.servers": servers}
            orders = spark.readStream.format("twofold").options(**where, maxOffsetsPerTrigger="200")
            frame = joined(orders.options(subscribe="orders", startingOffsets="earliest").load(), table(spark, servers))
            writer = frame.writeStream.format("twofold").options(**where, topic="orders-with-tiers")
            query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
            query.awaitTermination()
            rows = [json.loads(row.value) for row in read(servers, "orders-with-tiers")]
            return sorted((row["order"], row["customer"], row["tier"]) for row in rows)

        send(servers, "customers", tiers.items())
        send(servers, "orders", [(customer(n), str(n)) for n in range(ORDERS)])
        first = run()
        send(servers, "customers", changes.items())
        forget_last_commit(directory)
        again = run()
        send(servers, "orders", [(customer(n), str(n)) for n in range(ORDERS, ORDERS + 100)])
        last = run()
        spark.stop()
    print(f"tiers of the first {ORDERS} orders: {dict(Counter(tier for _, _, tier in first))}")
    print(f"tiers of the next 100: {dict(Counter(tier for _, _, tier in last[ORDERS:]))}")
    before = [(n, customer(n), tiers.get(customer(n)) or "unknown") for n in range(ORDERS)]
    now = tiers | changes
    after = [(n, customer(n), now.get(customer(n)) or "unknown") for n in range(ORDERS, ORDERS + 100)]
    return conclude(
        {
            "every order is there once, with the tier of its customer": first == before,
            "a batch that is run again with another table changes nothing": again == first,
            "orders after the change have the new tiers": last == before + after,
        }
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="twofold-example-") as name:
        sys.exit(main(Path(name)))
