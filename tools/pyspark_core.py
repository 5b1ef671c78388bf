"""What `format("twofold")` does with the PySpark of the Python that runs this: one line of JSON for each check.

tools/check_pysparks.py runs it in an environment of its own for each version. A check has passed, or this PySpark lacks
what it takes and says so at the start, or it has failed. A broker of our own is part of it; so is a kill -9.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PATIENCE_S = 300
ATTEMPTS = 4
TOO_SLOW = "Python worker failed to connect back"
SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "transaction.heartbeat.enable": "true",
    "log.retention.ms": "-1",
}
CONF = {
    "spark.driver.memory": "600m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class Lacks(Exception):
    """This PySpark has no place for it, and the message says which has."""


def session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("core")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def unchanged(rows: Any) -> Any:
    return rows


class Core:
    def __init__(self, spark: Any, servers: str, directory: Path) -> None:
        self.spark, self.servers, self.directory = spark, servers, directory
        self.kafka = {"kafka.bootstrap.servers": servers}

    def send(self, topic: str, numbers: range, **options: Any) -> None:
        from twofold import Producer

        with Producer(bootstrap_servers=self.servers) as producer:
            for number in numbers:
                producer.send(topic, b"%d" % number, key=b"k%d" % (number % 5), **options)

    def values(self, topic: str, **options: str) -> Counter[int]:
        frame = self.spark.read.format("twofold").options(**self.kafka, **options).option("subscribe", topic).load()
        return Counter(int(row.value) for row in frame.collect())

    def write(self, numbers: range, topic: str, **options: str) -> None:
        frame = self.spark.range(numbers.start, numbers.stop).selectExpr("cast(id as string) value")
        options = {"topic": topic, "transactionalIdPrefix": topic, **options}
        frame.write.format("twofold").options(**self.kafka, **options).mode("append").save()

    def topic(self, name: str) -> str:
        from twofold import Admin, NewTopic

        topic = new(name)
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.create_topics([NewTopic(topic, num_partitions=1)])
        return topic

    def run(self, source: str, target: str, **read: str) -> None:
        query = self.writer(source, target, unchanged, **read).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), "the query did not end"

    def writer(self, source: str, target: str, frame: Callable[[Any], Any], **read: str) -> Any:
        rows = self.spark.readStream.format("twofold").options(**self.kafka, **read).option("subscribe", source)
        rows = rows.option("startingOffsets", "earliest").load()
        writer = frame(rows.select("key", "value", "timestamp")).writeStream.format("twofold").options(**self.kafka)
        return writer.option("topic", target).option("checkpointLocation", str(self.directory / target))

    def wait_for(self, topic: str, expected: Counter[int], query: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.values(topic) != expected:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{topic} has {self.values(topic)}"
            time.sleep(0.5)

    # The checks: each with topics of its own, so that it can be repeated

    def a_batch_is_written_once_and_read(self) -> None:
        topic = new("batch")
        for _ in range(2):
            self.write(range(100), topic, writeId="one")
        assert self.values(topic) == Counter(range(100))

    def a_stream_goes_on_where_it_was(self) -> None:
        source, target = new("in"), new("out")
        self.send(source, range(100))
        self.run(source, target)
        self.send(source, range(100, 150))
        self.run(source, target)
        assert self.values(target) == Counter(range(150))

    def a_window_that_is_over_is_written_once(self) -> None:
        source, target = self.events(), self.topic("counts")
        query = self.writer(source, target, windows).start()
        try:
            self.wait_for(target, Counter({5: 3}), query)
        finally:
            query.stop()

    def what_is_available_now_closes_windows(self) -> None:
        """It takes a batch without rows, and Spark before 4.2 has one batch for a Python source."""
        import pyspark

        source, target = self.events(), self.topic("counts")
        query = self.writer(source, target, windows).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S), "the query did not end"
        found = self.values(target)
        if not found and tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
            raise Lacks("4.2")
        assert found == Counter({5: 3}), found

    def events(self) -> str:
        source = new("events")
        for at in range(0, 40, 2):
            self.send(source, range(1), timestamp_ms=1_700_000_000_000 + at * 1000)
        return source

    def a_driver_killed_with_9_loses_and_doubles_nothing(self) -> None:
        source, target = new("killed-in"), self.topic("killed-out")
        self.send(source, range(100))
        command = [sys.executable, __file__, "--pipeline", self.servers, str(self.directory), source, target]
        for count in (100, 200):
            with (self.directory / "pipeline.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                deadline = time.monotonic() + PATIENCE_S
                while sum(self.values(target).values()) < count:
                    assert time.monotonic() < deadline, "the pipeline wrote nothing"
                    assert process.poll() is None, TOO_SLOW if TOO_SLOW in self.log else self.log
                if count == 100:
                    self.send(source, range(100, 200))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert self.values(target) == Counter(range(200))

    @property
    def log(self) -> str:
        return (self.directory / "pipeline.log").read_text(errors="replace")[-5000:]

    def a_stream_takes_so_many_rows_in_a_batch(self) -> None:
        source, target = new("in"), new("out")
        self.send(source, range(100))
        try:
            self.run(source, target, maxOffsetsPerTrigger="40")
        except Exception as error:
            raise lacks(error) from error
        assert self.values(target) == Counter(range(100))
        batches = list((self.directory / target / "commits").glob("[0-9]*"))
        assert len(batches) == 3, batches

    def filters_are_pushed_down(self) -> None:
        topic = new("filtered")
        self.write(range(20), topic)
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = self.spark.read.format("twofold").options(**self.kafka, pushDownFilters="true")
            found = frame.option("subscribe", topic).load().where("partition = 0 and offset < 10").count()
        except Exception as error:
            raise lacks(error) from error
        finally:
            self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        assert found == 10, found

    def an_input_made_anew_stops_a_query(self) -> None:
        from twofold import Admin

        source, target = new("in"), new("out")
        self.send(source, range(10))
        self.run(source, target)
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.delete_topics([source])
        self.send(source, range(50))
        said = ""
        try:
            self.run(source, target)
        except Exception as error:
            said = str(error)
        assert "was deleted and made anew since the query has read it" in said, said or "it went on"


def windows(rows: Any) -> Any:
    from pyspark.sql import functions as f

    counted = rows.withWatermark("timestamp", "0 seconds").groupBy(f.window("timestamp", "10 seconds")).count()
    return counted.selectExpr("cast(count as string) as value")


def new(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def lacks(error: Exception) -> Exception:
    found = [line for line in str(error).splitlines() if "needs PySpark" in line]
    return Lacks(found[0].partition(" needs PySpark ")[2]) if found else error


def pipeline(servers: str, directory: str, source: str, target: str) -> None:
    """Until it is killed."""
    rows = session().readStream.format("twofold").option("kafka.bootstrap.servers", servers)
    rows = rows.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = rows.select("key", "value").writeStream.format("twofold").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", target).option("checkpointLocation", f"{directory}/{target}")
    writer.start().awaitTermination()


def main() -> None:
    from twofold.embedded import Broker

    directory = Path(tempfile.mkdtemp(prefix="pyspark-core-"))
    try:
        with Broker(settings=SETTINGS) as broker:
            spark = session()
            core = Core(spark, broker.bootstrap_servers, directory)
            for name, check in vars(Core).items():
                if name in CHECKS:
                    print("@" + json.dumps({"check": name} | outcome(partial(check, core))), flush=True)
            spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def outcome(check: Callable[[], None]) -> dict[str, str]:
    """Again where Spark was too slow to start a Python process: it gives those ten seconds. A check can be repeated."""
    for _ in range(ATTEMPTS):
        found = attempt(check)
        if TOO_SLOW not in found["why"]:
            break
    return found


def attempt(check: Callable[[], None]) -> dict[str, str]:
    try:
        check()
    except Lacks as error:
        return {"outcome": "lacks", "why": str(error)}
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return {"outcome": "failed", "why": said if len(said) < 3000 else f"{said[:500]} ... {said[-2500:]}"}
    return {"outcome": "passed", "why": ""}


CHECKS = {
    "a_batch_is_written_once_and_read": "batches, `writeId`",
    "a_stream_goes_on_where_it_was": "streams",
    "a_window_that_is_over_is_written_once": "windows",
    "what_is_available_now_closes_windows": "`availableNow` in several batches",
    "a_driver_killed_with_9_loses_and_doubles_nothing": "kill -9",
    "an_input_made_anew_stops_a_query": "recreated inputs",
    "a_stream_takes_so_many_rows_in_a_batch": "`maxOffsetsPerTrigger`, `minOffsetsPerTrigger`",
    "filters_are_pushed_down": "`pushDownFilters`",
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--pipeline"]:
        pipeline(*sys.argv[2:])
    else:
        main()
