"""A pipeline in a process of its own, to be killed: `python pipeline_app.py JSON`, see sink_kit.App."""

import json
import sys
from typing import Any


def main() -> None:
    wanted = json.loads(sys.argv[1])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(wanted["master"]).appName("pipeline")
    for name, value in wanted["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if wanted["register"]:
        from twofold.spark import TwofoldDataSource

        spark.dataSource.register(TwofoldDataSource)
    frame = spark.readStream.format("twofold")
    for name, value in wanted["read"].items():
        frame = frame.option(name, value)
    queries = [start_query(frame.load(), sink, wanted["trigger"]) for sink in wanted["sinks"]]
    failed = False
    for query in queries:
        try:
            query.awaitTermination()
        except Exception as error:
            failed = True
            print(f"FAILED {error}", flush=True)
    print("ENDED", json.dumps([[p["batchId"] for p in query.recentProgress] for query in queries]), flush=True)
    spark.stop()
    sys.exit(1 if failed else 0)


def start_query(frame: Any, sink: dict[str, Any], trigger: dict[str, Any]) -> Any:
    shapes = {"plain": _plain, "shuffled": _shuffled, "by key": _by_key, "windowed": _windowed}
    shaped = shapes[sink["shape"]](frame)
    writer = shaped.writeStream.format("twofold").outputMode("append")
    for name, value in sink["options"].items():
        writer = writer.option(name, value)
    return writer.trigger(**trigger).start()


def _plain(frame: Any) -> Any:
    return frame.select("key", "value")


def _shuffled(frame: Any) -> Any:
    return frame.select("key", "value").repartition(4, "key")


def _by_key(frame: Any) -> Any:
    """As many tasks as Spark finds good."""
    return frame.select("key", "value").repartition("key")


def _windowed(frame: Any) -> Any:
    """Numbers counted by windows of ten seconds of their timestamps."""
    from pyspark.sql import functions as f

    counted = frame.withWatermark("timestamp", "0 seconds").groupBy(f.window("timestamp", "10 seconds")).count()
    return counted.select(
        f.col("window.start").cast("string").alias("key"), f.col("count").cast("string").alias("value")
    )


if __name__ == "__main__":
    main()
