"""An application of Spark that reads and writes over SASL_SSL: a batch, a stream, and what Spark shows of both.

secure_app.py OPTIONS FOLDER, where OPTIONS is JSON: the options of the connection, `topic` and `copies`.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PATHS = ("environment", "sql", "jobs", "stages", "executors", "storage/rdd")


def main(options: dict[str, str], folder: Path) -> None:
    topic, copies = options.pop("topic"), options.pop("copies")
    spark = session(folder)
    frame = spark.read.format("twofold").options(**options).option("subscribe", topic).load()
    shown = [plan_of(frame)]
    found: dict[str, Any] = {"batch": sorted(bytes(row.value).decode() for row in frame.collect())}
    stream = spark.readStream.format("twofold").options(**options).option("subscribe", topic)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("twofold")
        .options(**options)
        .option("topic", copies)
        .option("exactlyOnce", "resume")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown.append(explained(query))
    shown.append(json.dumps([progress.json for progress in query.recentProgress]))
    again = spark.read.format("twofold").options(**options).option("subscribe", copies).load()
    found["copies"] = sorted(bytes(row.value).decode() for row in again.collect())
    shown += pages(spark)
    (folder / "shown.txt").write_text("\n".join(shown))
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


def session(folder: Path) -> SparkSession:
    events = folder / "events"
    events.mkdir()
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        # Spark hides what looks like a secret; here it must not have to.
        .config("spark.redaction.regex", "nothing-is-redacted")
        .config("spark.sql.redaction.options.regex", "nothing-is-redacted")
        .getOrCreate()
    )


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def explained(query: Any) -> str:
    return str(query._jsq.explainInternal(True))


def pages(spark: SparkSession) -> list[str]:
    """What the UI tells, as its own interface for programs gives it."""
    assert spark.sparkContext.uiWebUrl is not None
    base = spark.sparkContext.uiWebUrl
    application = spark.sparkContext.applicationId
    addresses = [f"{base}/api/v1/applications/{application}/{path}" for path in PATHS]
    addresses += [f"{base}/{page}/" for page in ("environment", "SQL", "StreamingQuery", "jobs", "stages")]
    addresses += [f"{base}/api/v1/applications/{application}/sql?details=true&planDescription=true"]
    found = []
    for address in addresses:
        with urllib.request.urlopen(address, timeout=60) as answer:
            found.append(answer.read().decode(errors="replace"))
    return found


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
