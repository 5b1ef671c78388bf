"""Windows that are written once: revenue by the minute of the event, with a watermark, in append mode.

    python examples/windowed_aggregation.py

Orders carry their own time and come out of order. Spark keeps a window in its state until the watermark, the newest
time seen minus a minute, has passed its end; then the window is final, and append mode writes it, once. In between a
batch is run again, as after a crash, and an order comes much too late: neither changes a window that is written.
The broker is embedded, and is gone at the end.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from shared import TWO_PHASE_COMMIT, conclude, create, forget_last_commit, read, send, session
from twofold.embedded import Broker

WINDOW_S, LATE_S = 60, 60
SHOPS = ("north", "south", "west")
Order = dict[str, int | str]


def revenue(records: DataFrame) -> DataFrame:
    order = f.from_json(f.col("value").cast("string"), "shop STRING, at_s BIGINT, cents BIGINT").alias("o")
    orders = records.select(order).select("o.shop", "o.cents", f.timestamp_seconds("o.at_s").alias("at"))
    windows = (
        orders.withWatermark("at", f"{LATE_S} seconds")
        .groupBy(f.window("at", f"{WINDOW_S} seconds"), "shop")
        .agg(f.sum("cents").alias("cents"))
    )
    start_s = f.col("window.start").cast("long").alias("start_s")
    return windows.select(f.col("shop").alias("key"), f.to_json(f.struct("shop", start_s, "cents")).alias("value"))


def orders_between(first_s: int, last_s: int, chance: random.Random) -> list[Order]:
    """Two a second, out of order: each is up to 15 seconds late."""
    return [
        {"shop": chance.choice(SHOPS), "at_s": max(0, at_s - chance.randrange(15)), "cents": chance.randrange(100, 900)}
        for at_s in range(first_s, last_s)
        for _ in range(2)
    ]


def closed_windows(orders: list[Order]) -> Counter[tuple[object, ...]]:
    """Computed without Spark: what has to be there when all of this was read."""
    sums: Counter[tuple[str, int]] = Counter()
    for order in orders:
        sums[str(order["shop"]), int(order["at_s"]) // WINDOW_S * WINDOW_S] += int(order["cents"])
    watermark_s = max(int(order["at_s"]) for order in orders) - LATE_S
    return Counter((*window, cents) for window, cents in sums.items() if window[1] + WINDOW_S <= watermark_s)


def main(directory: Path) -> int:
    chance = random.Random(60)
    early, late = orders_between(0, 600, chance), orders_between(600, 900, chance)
    much_too_late: Order = {"shop": "north", "at_s": 5, "cents": 1_000_000}
    with Broker(settings=TWO_PHASE_COMMIT) as broker:
        servers = broker.bootstrap_servers
        create(servers, "orders", "revenue")
        spark = session("windowed aggregation")

        def send_orders(orders: list[Order]) -> None:
            send(servers, "orders", [(str(order["shop"]), json.dumps(order)) for order in orders])

        def run() -> Counter[tuple[object, ...]]:
            """Reads what there is, in batches of 600, and ends; then what a stock client sees."""
            where = {"kafka.bootstrap.servers": servers}
            records = spark.readStream.format("twofold").options(**where, maxOffsetsPerTrigger="600")
            frame = revenue(records.options(subscribe="orders", startingOffsets="earliest").load())
            writer = frame.writeStream.format("twofold").outputMode("append").options(**where, topic="revenue")
            query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
            query.awaitTermination()
            return Counter(tuple(json.loads(row.value).values()) for row in read(servers, "revenue"))

        send_orders(early)
        first = run()
        forget_last_commit(directory)
        again = run()
        send_orders([much_too_late, *late])
        last = run()
        spark.stop()
    print(f"{first.total()} windows after ten minutes of orders, {last.total()} after fifteen")
    expected = closed_windows([*early, *late])
    return conclude(
        {
            "there are closed windows after ten minutes, and more after fifteen": 0 < first.total() < last.total(),
            "every window that is closed is there once, with the right sum": first == closed_windows(early),
            "a batch that is run again changes nothing": again == first,
            "fifteen minutes are right, too, and an order that came much too late changed nothing": last == expected,
        }
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="twofold-example-") as name:
        sys.exit(main(Path(name)))
