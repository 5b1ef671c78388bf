"""Where a checkpoint is, and what Spark was started with, as a process below the driver's JVM finds it."""

from pathlib import Path

import pytest

from twofold.spark.checkpoints import driver_jvm, files
from twofold.spark.source import TopicWatch

BEFORE = (
    "/usr/bin/java -cp /spark/conf/:/spark/jars/* -Xmx1g -Djava.security.krb5.conf=/etc/k.conf -Dcom.sun.management.x"
)
OPEN = "--add-opens=java.base/java.nio=ALL-UNNAMED org.apache.spark.deploy.SparkSubmit --master local[2]"
SET = "--conf spark.hadoop.fs.s3a.endpoint=http://s3:9000?a=b --conf fs.x=1 --properties-file /my.conf --verbose"
PROGRAM = "--name=job app.py --conf spark.hadoop.fs.s3a.endpoint=no"
COMMAND = f"{BEFORE} {OPEN} {SET} {PROGRAM}".split()


def test_what_stands_before_the_main_class_is_javas_and_what_follows_the_program_is_its_own() -> None:
    found = driver_jvm.parse(COMMAND)
    assert (found.java, found.class_path) == ("/usr/bin/java", "/spark/conf/:/spark/jars/*")
    assert found.options == ("-Djava.security.krb5.conf=/etc/k.conf", "--add-opens=java.base/java.nio=ALL-UNNAMED")
    assert found.conf == {"spark.hadoop.fs.s3a.endpoint": "http://s3:9000?a=b", "fs.x": "1"}
    assert found.properties_file == "/my.conf"


def test_a_process_without_a_jvm_above_it_knows_nothing_of_spark() -> None:
    assert driver_jvm.parse(["java"]) == driver_jvm.CommandLine("java")
    assert driver_jvm.command_line_of(0) == driver_jvm.CommandLine()
    assert driver_jvm.open_jars(0) == []


@pytest.mark.parametrize("location", ["c", "/a/c", "file:/a/c", "file:///a/c", "FILE:/a/c"])
def test_a_path_is_local_unless_something_says_otherwise(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert files.is_local(location)


def test_a_path_without_a_scheme_is_where_the_default_file_system_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not files.is_local("s3a://b/c") and not files.is_local("hdfs:/c")
    assert not files.is_local("/c", (("spark.hadoop.fs.defaultfs", "hdfs://n"),))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert files.is_local("/c")
    (tmp_path / "core-site.xml").write_text("<property><name>fs.defaultFS</name><value>hdfs://n</value></property>")
    assert not files.is_local("/c") and files.is_local("file:/c")


def test_a_local_directory_is_read_however_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1")
    for location in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        found = files.files_at(location)
        assert (found.names("offsets"), found.read("offsets/0")) == (["0"], b"v1")


def test_a_run_notices_that_a_topic_has_another_id_once_each_time() -> None:
    watch = TopicWatch()
    assert watch.note({"t": "A", "u": "U"}) == {}
    assert watch.note({"t": "B", "u": "U"}) == {"t": ("A", "B")}
    assert watch.note({"t": "B"}) == {}
    watch.plan({"t": {"0": 5}}, [], is_replay=False)
    assert watch.note({"t": "C"}) == {"t": ("B", "C")}
    watch.commit({"t": {"0": 5}})
    assert watch.anew == {"t": "C"}, "the batch that was planned before began another one"
