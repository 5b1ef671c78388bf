"""A job that is moved from Spark's own connector by one word, and back: modes, threads, tables, checkpoints."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connector import when_long
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter
from sink_kit import Broker
from spark_kit import Kit

from twofold.spark import attach
from twofold.spark.checkpoints import driver_process
from twofold.spark.checkpoints.driver_process import with_checkpoint_of_session


class Job:
    """What a user has written, but for one word."""

    def __init__(self, kit: Kit, form: str = "twofold") -> None:
        self.kit = kit
        self.form = form
        self.servers = {"kafka.bootstrap.servers": kit.bootstrap_servers}
        self.frame = kit.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")

    def batch(self, topic: str) -> Any:
        return self.frame.write.format(self.form).options(topic=topic, **self.servers)

    def stream(self, source: str, target: str, checkpoint: str | None = None) -> Any:
        rows = self.kit.spark.readStream.format(self.form).options(subscribe=source, **self.servers)
        rows = rows.option("startingOffsets", "earliest").load().select("key", "value")
        writer = rows.writeStream.format(self.form).options(topic=target, **self.servers)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True)

    def read(self, topic: str) -> list[int]:
        return sorted(int(value) for _, _, value in Broker(self.kit.bootstrap_servers).read(topic))


@pytest.fixture
def attached(ours: Kit) -> Iterator[Job]:
    """As PySpark was before, afterwards."""
    before = {writer: dict(writer.__dict__) for writer in (DataFrameWriter, DataStreamWriter)}
    attach(ours.spark)
    yield Job(ours)
    for writer, methods in before.items():
        for name in set(writer.__dict__) - set(methods):
            delattr(writer, name)
        for name, method in methods.items():
            if name not in ("__dict__", "__weakref__") and writer.__dict__[name] is not method:
                setattr(writer, name, method)


def in_thread(act: Any) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_an_attached_program_writes_without_a_mode_from_a_thread_and_with_the_checkpoint_of_the_session(
    attached: Job,
) -> None:
    kit, source, target = attached.kit, attached.kit.topic(), attached.kit.topic()
    attached.batch(source).save()
    in_thread(lambda: attached.batch(source).save(mode="error"))
    assert attached.read(source) == sorted([*range(10)] * 2)
    for mode in ("ignore", "overwrite"):
        with pytest.raises(PySparkException):
            attached.batch(source).mode(mode).save()
    root = kit.directory / "session"
    kit.spark.conf.set("spark.sql.streaming.checkpointLocation", str(root))
    try:
        in_thread(lambda: attached.stream(source, target).queryName("moved").start().awaitTermination(120))
    finally:
        kit.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (root / "moved" / "commits" / "0").exists()
    assert attached.read(target) == attached.read(source)
    kit.spark.range(1).write.parquet(str(kit.directory / "p"))
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        kit.spark.range(1).write.parquet(str(kit.directory / "p"))


def test_without_it_spark_says_which_mode_to_choose(ours: Kit) -> None:
    with pytest.raises(AnalysisException, match='Please use either the "Append"'):
        Job(ours).batch("t").save()


def test_a_table_of_the_catalog_is_read_and_written(ours: Kit, tmp_path: Path) -> None:
    job, topic = Job(ours), ours.topic()
    job.batch(topic).mode("append").save()
    servers, spark = ours.bootstrap_servers, ours.spark
    name = f"orders_{topic}"
    options = f"OPTIONS ('kafka.bootstrap.servers' '{servers}', subscribe '{topic}', topic '{topic}')"
    spark.sql(f"CREATE TABLE {name} USING twofold {options} COMMENT 'of orders' TBLPROPERTIES ('owner-team' = 'shop')")
    try:
        assert spark.table(name).count() == 10
        spark.sql(f"INSERT INTO {name} (key, value) SELECT CAST('k' AS BINARY), CAST('10' AS BINARY)")
        assert (
            spark.sql(f"SELECT CAST(value AS STRING) v FROM {name} WHERE key = CAST('k' AS BINARY)").first().v == "10"
        )
        assert job.read(topic) == list(range(11))
        for bad, message in (
            (f"CREATE TABLE {name}_2 USING twofold {options} LOCATION '{tmp_path}'", "has no LOCATION"),
            (f"CREATE TABLE {name}_2 USING twofold OPTIONS (subscrib 't')", "unknown option 'subscrib'"),
            (
                f"CREATE TABLE {name}_2 USING twofold OPTIONS (topic 't', 'kafka.sasl.jaas.config' 'x')",
                "would stand in the catalog",
            ),
        ):
            with pytest.raises(AnalysisException, match=message):
                spark.sql(bad)
    finally:
        spark.sql(f"DROP TABLE {name}")


# Checkpoints


def test_the_checkpoint_of_the_session_is_found_in_what_the_driver_was_started_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = ["--conf", "spark.sql.streaming.checkpointLocation=/checkpoints/"]
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.sql.streaming.checkpointLocation   /defaults\n")
    (tmp_path / "mine.conf").write_text("spark.sql.streaming.checkpointLocation=/mine\n")
    (tmp_path / "empty.conf").write_text("spark.app.name=x\n")
    mine, empty = (["--properties-file", str(tmp_path / f"{name}.conf")] for name in ("mine", "empty"))
    for arguments, defaults, expected in (
        (root, False, "/checkpoints/moved"),
        ([], True, "/defaults/moved"),
        (root, True, "/checkpoints/moved"),
        ([], False, None),
        (mine, True, "/mine/moved"),
        ([*root, *mine], True, "/checkpoints/moved"),
        (empty, True, None),
        (["--load-spark-defaults", *empty], True, "/defaults/moved"),
        (["job.py", *root], False, None),
    ):
        program = [sys.executable, "-c", "print('here', flush=True); input()", *arguments]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        try:
            monkeypatch.setattr(driver_process, "driver_pid", lambda pid=process.pid: pid)
            monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path if defaults else tmp_path / "none"))
            found = with_checkpoint_of_session({"queryName": "moved", "topic": "t"})
            assert found.get("checkpointlocation") == expected
            assert with_checkpoint_of_session({"topic": "t"}) == {"topic": "t"}  # a new query at every start
            given = {"queryName": "moved", "checkpointLocation": "/mine"}
            assert with_checkpoint_of_session(given)["checkpointlocation"] == "/mine"
        finally:
            process.kill()
            process.communicate()


@when_long
def test_a_job_goes_from_sparks_own_connector_to_ours_and_back_with_one_checkpoint(ours: Kit) -> None:
    """After one batch of each, and after several."""
    source, target = ours.topic(), ours.topic()
    checkpoint = str(ours.directory / "moving")
    sent = 0
    for form in ("kafka", "twofold", "twofold", "kafka", "twofold"):
        ours.send(source, range(sent, sent + 4))
        sent += 4
        job = Job(ours, form)
        job.stream(source, target, checkpoint).start().awaitTermination(120)
        assert job.read(target) == list(range(sent)), form


@when_long
def test_a_job_of_ours_goes_back_after_its_first_batch(ours: Kit) -> None:
    source, target = ours.topic(), ours.topic()
    checkpoint = str(ours.directory / "moving")
    for number, form in enumerate(("twofold", "kafka")):
        ours.send(source, range(4 * number, 4 * number + 4))
        Job(ours, form).stream(source, target, checkpoint).start().awaitTermination(120)
        assert Job(ours).read(target) == list(range(4 * number + 4))
