"""Checkpoints that are not on the local disk: on S3 and on HDFS, read with what Spark was started with and no more.

The servers are real, and Spark keeps its own offsets, commits and state there."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connector import when_long
from filesystem_kit import S3, Hdfs
from host_kit import Host, Pipe
from sink_kit import SETTINGS, Broker

from kits.processes.server import TwofoldServer
from twofold.spark.checkpoints.files import HadoopFiles

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["s3", pytest.param("hdfs", marks=when_long)])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3 | Hdfs]:
    kinds: dict[str, type[S3] | type[Hdfs]] = {"s3": S3, "hdfs": Hdfs}
    kind = kinds[request.param]
    with kind(tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def make_host(files: S3 | Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Host]]:
    hosts: list[Host] = []

    def make() -> Host:
        hosts.append(Host(tmp_path_factory.mktemp("host"), conf=files.conf))
        return hosts[-1]

    yield make
    for host in hosts:
        host.kill()


@pytest.fixture(scope="module")
def host(make_host: Callable[[], Host]) -> Host:
    return make_host()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


class RemotePipe(Pipe):
    """Its checkpoint is where the test cannot look: the query's id is in the name of its journal."""

    @property
    def query_id(self) -> str | None:
        journals = [name for name in self.broker.admin.list_topics(timeout=30).topics if name.endswith(".decisions")]
        new = sorted(set(journals) - self.others)
        return new[-1].removeprefix("spark-").removesuffix(".decisions") if new else None

    others: set[str]


@pytest.fixture
def pipe(host: Host, server: TwofoldServer, files: S3 | Hdfs, tmp_path: Path) -> RemotePipe:
    return remote(host, server, files.uri(tmp_path.name), tmp_path)


def remote(host: Host, server: TwofoldServer, uri: str, directory: Path) -> RemotePipe:
    host.orders.clear()
    pipe = RemotePipe(host, Broker(server.bootstrap_servers), directory, per_batch=50)
    pipe.others = {name for name in pipe.broker.admin.list_topics(timeout=30).topics if name.endswith(".decisions")}
    pipe.write["checkpointLocation"] = uri
    pipe.write["consumerGroup"] = f"group-of-{pipe.source}"
    return pipe


def test_a_query_that_is_killed_is_exactly_once_with_a_checkpoint_on_another_file_system(pipe: RemotePipe) -> None:
    pipe.send(100)
    pipe.orders.give("commit: decided", "kill-driver")
    assert pipe.run().died and not pipe.orders.left, pipe.host.text
    pipe.run_to_end()
    pipe.send(30)
    pipe.run_to_end()
    pipe.check()
    assert committed(pipe) == 130


@when_long
@pytest.mark.parametrize("step", ["start", "task: prepared", "commit", "commit: decided", "commit: done"])
def test_a_query_that_is_killed_at_any_step_is_exactly_once(pipe: RemotePipe, step: str) -> None:
    pipe.send(150)
    pipe.orders.give(step, "kill-driver")
    assert pipe.run().died and not pipe.orders.left, pipe.host.text
    pipe.run_to_end()
    pipe.check()
    assert committed(pipe) == 150


@when_long
@pytest.mark.parametrize("step", ["start", "commit"])
def test_a_query_that_is_paused_finds_out_that_another_has_its_checkpoint(
    pipe: RemotePipe, make_host: Callable[[], Host], server: TwofoldServer, step: str, tmp_path: Path
) -> None:
    pipe.send(100)
    number = pipe.orders.give(step, "wait")
    held = pipe.run_to_step()
    paused = below(pipe.host)
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    other = remote(make_host(), server, pipe.write["checkpointLocation"], tmp_path)
    other.source, other.target, other.sent, other.others = pipe.source, pipe.target, pipe.sent, pipe.others
    try:
        other.run_to_end()
        other.check()
    finally:
        pipe.orders.go(number)
        for pid in paused:
            os.kill(pid, signal.SIGCONT)
    error = pipe.host.ended(held).error or ""
    print(error)
    assert "has taken over what is written under transactionalIdPrefix" in error
    other.send(50)
    other.run_to_end()
    other.check()


def test_settings_that_a_session_got_later_are_given_to_the_writer_as_the_message_says(
    files: S3 | Hdfs, server: TwofoldServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not isinstance(files, S3):
        pytest.skip("HDFS needs no settings")
    later = dict(files.conf)
    host = Host(tmp_path_factory.mktemp("host"), conf={"spark.jars": later.pop("spark.jars")})
    try:
        pipe = remote(host, server, files.uri(tmp_path.name), tmp_path)
        pipe.conf = {name.removeprefix("spark.hadoop."): value for name, value in later.items()}
        quickly = {"spark.hadoop.fs.s3a.attempts.maximum": "1", "spark.hadoop.fs.s3a.retry.limit": "1"}
        nowhere = {"spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9", "spark.hadoop.fs.s3a.access.key": "x"}
        pipe.write |= quickly | nowhere | {"spark.hadoop.fs.s3a.secret.key": "x"}
        pipe.send(20)
        error = pipe.run().error or ""
        assert f"'{files.uri(tmp_path.name)}'" in error and "S3AFileSystem" in error
        assert ".option('spark.hadoop.fs.s3a.endpoint', ...)" in error
        pipe.write |= later
        pipe.run_to_end()
        pipe.check()
    finally:
        host.kill()


def test_the_jvm_that_reads_the_checkpoint_ends_with_its_process(files: S3 | Hdfs, pipe: RemotePipe) -> None:
    pipe.send(10)
    pipe.run_to_end()
    readers = [pid for pid in below(pipe.host) if "py4j.GatewayServer" in command_line(pid)]
    assert readers
    pipe.host.kill()
    wait_until_gone(lambda: not any(map(command_line, readers)))


def wait_until_gone(gone: Callable[[], bool]) -> None:
    from host_kit import wait_for

    wait_for(gone, "the JVM ended")


def committed(pipe: RemotePipe) -> int:
    """What the query's group has of its source."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": pipe.broker.bootstrap_servers, "group.id": pipe.write["consumerGroup"]})
    try:
        found = consumer.committed([TopicPartition(pipe.source, partition) for partition in range(4)], timeout=30)
        return sum(entry.offset for entry in found)
    finally:
        consumer.close()


def command_line(pid: int) -> str:
    """Empty of a process that is over."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def below(host: Host) -> list[int]:
    """The processes of a host, without those that are started now."""
    assert host._process is not None
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.name))
    found, left = [], [host._process.pid]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def test_what_java_says_is_told_without_its_trace(files: Any, spark: Any) -> None:
    with pytest.raises(OSError) as refused:
        HadoopFiles("nosuch://somewhere/x").names("offsets")
    assert str(refused.value).count("\n") == 0 and "nosuch" in str(refused.value)
