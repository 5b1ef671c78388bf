"""The Spark driver of the demo: `python pipeline.py OPTIONS DIRECTORY`, in a process of its own to be killed.

OPTIONS is a file of JSON: the options by which the source and the sinks reach the broker.

SIGTERM ends it in peace: the queries stop, then read what is still there, then the process ends.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from names import ENRICHED, EXACT, ORDERS, PLAIN, REVENUE
from transform import enriched, revenue, with_products

SINKS = {
    ENRICHED: (enriched, {"transactionalIdPrefix": ENRICHED}),
    REVENUE: (revenue, {"transactionalIdPrefix": REVENUE}),
    # The same as the first without transactions, to compare: what is written again is there again.
    PLAIN: (enriched, {"exactlyOnce": "off"}),
}
TRIGGER = {"processingTime": "2 seconds"}
RESTARTS = 5


def main(servers: dict[str, str], directory: Path) -> int:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = session(directory)

    def start(name: str, trigger: dict[str, Any]) -> StreamingQuery:
        shape, options = SINKS[name]
        if name == ENRICHED and os.environ.get("TWOFOLD_DEMO_BREAK") == "1":
            options = {"exactlyOnce": "off"}  # for a test: the verdict has to see it
        records = spark.readStream.format("twofold").options(**servers, subscribe=ORDERS, startingOffsets="earliest")
        if name in EXACT:  # the reader finds the journal by it
            records = records.option("transactionalIdPrefix", name)
        frame = shape(with_products(spark, records.load()))
        writer = frame.writeStream.format("twofold").options(**servers, topic=name, **options)
        checkpoint = str(directory / "checkpoints" / name)
        return writer.option("checkpointLocation", checkpoint).queryName(name).trigger(**trigger).start()

    queries = {name: start(name, TRIGGER) for name in SINKS}
    restarts = 0
    while not over.wait(0.5):
        for name, query in queries.items():
            if not query.isActive:
                print(f"{name} failed: {query.exception()}", file=sys.stderr, flush=True)
                restarts += 1
                if restarts > RESTARTS:
                    return 1
                queries[name] = start(name, TRIGGER)
    for query in queries.values():
        query.stop()
    for query in [start(name, {"availableNow": True}) for name in SINKS]:
        query.awaitTermination()
    spark.stop()
    return 0


def session(directory: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.local.dir": str(directory / "spark"),
        # For a JVM that lives for a minute: it starts with half the work.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    # Two cores, and a task is tried four times before it fails.
    builder = SparkSession.builder.master("local[2,4]").appName("twofold demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])))
