"""A Spark session that runs queries on request and may be killed: JSON lines in, JSON lines out, see host_kit.Host."""

import json
import os
import sys
import threading
from typing import Any

from pipeline_app import start_query

LOCK = threading.Lock()


def say(**what: Any) -> None:
    with LOCK:
        sys.stdout.write("@" + json.dumps(what) + "\n")
        sys.stdout.flush()


def follow(name: str, query: Any) -> None:
    """Say how it ended; without a JVM this process has nothing more to do."""
    error = None
    try:
        query.awaitTermination()
    except Exception as raised:
        error = str(raised)
    try:
        batches = [progress["batchId"] for progress in query.recentProgress]
    except Exception:
        os._exit(9)
    say(ended=name, error=error, batches=batches)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(wanted["master"]).appName("host")
    for name, value in wanted["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say(ready=True)
    queries: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["name"]
        if asked["do"] == "stop":
            if name in queries:
                threading.Thread(target=queries[name].stop, daemon=True).start()
            continue
        try:
            queries[name] = query = start(spark, asked)
        except Exception as error:  # as where Spark's Python processes have just been killed
            say(ended=name, error=str(error), batches=[])
            continue
        threading.Thread(target=follow, args=(name, query), daemon=True).start()
    spark.stop()


def start(spark: Any, asked: dict[str, Any]) -> Any:
    for option, value in asked.get("conf", {}).items():
        spark.conf.set(option, value)
    reader = spark.readStream.format("twofold")
    for option, value in asked["read"].items():
        reader = reader.option(option, value)
    return start_query(reader.load(), asked["sink"], asked["trigger"])


if __name__ == "__main__":
    main()
