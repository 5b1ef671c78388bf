"""A real broker process whose real files fail: what the simulated disk cannot show is that the operating system agrees.

Writes fail by the process's limit on file sizes (a real short write, then EFBIG), a directory turns read-only for a
process without the right to override permissions, and a small filesystem is unmounted under the broker.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.kafka import is_ready
from oracle.processes import spawn, wait_until
from twofold.records.batch import BatchBuilder

pytestmark = pytest.mark.interop

STORAGE_ERROR = 56
CORRUPT_MESSAGE = 2


class Server(TwofoldServer):
    """One whose root may not do what permissions forbid."""

    def start(self, *, wait: bool = True) -> None:
        options = [part for key, value in self.settings.items() for part in ("-o", f"{key}={value}")]
        listen = ["--listen", self.bootstrap_servers, "--data", str(self.data)]
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        command = [*drop, sys.executable, "-m", "twofold", "serve", *listen, *options]
        self._process = spawn(command, output=self.output)
        wait_until(lambda: is_ready(self.host, self.port), self._process, patience_s=30, output=self.output)

    def exit_code(self, patience_s: float) -> int:
        assert self._process is not None
        return self._process.wait(patience_s)

    @property
    def text(self) -> str:
        return self.output.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root overrides permissions, and there is no setpriv to take that right away")
    made = Server(tmp_path / "broker", {"log.dir.failure.timeout.ms": "2000"})
    made.settings["replica.high.watermark.checkpoint.interval.ms"] = "500"
    made.start()
    try:
        yield made
    finally:
        made.kill()


def create_topic(server: TwofoldServer, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    config = {"segment.bytes": str(1 << 20)}
    for created in admin.create_topics([NewTopic("t", partitions, 1, config=config)]).values():
        created.result(10)


def produce(wire: Connection, value: bytes, partition: int = 0) -> int:
    builder = BatchBuilder()
    builder.add(None, value, int(time.time() * 1000))
    data = [{"name": "t", "partition_data": [{"index": partition, "records": builder.build()}]}]
    answer = wire.ask("Produce", 9, acks=-1, timeout=5000, topic_data=data)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def fetch_code(wire: Connection, offset: int, partition: int = 0) -> int:
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1000}
    body = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "session_epoch": -1}
    answer = wire.ask("Fetch", 11, **body, topics=[{"topic": "t", "partitions": [part]}])
    return int(answer["responses"][0]["partitions"][0]["error_code"])


def read_all(server: TwofoldServer, partition: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", partition, 0)])
    found: list[bytes] = []
    end = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        found += [message.value() or b"" for message in consumer.consume(100, 0.2) if message.error() is None]
    consumer.close()
    return found


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_write_that_fails_half_way_is_refused_and_the_log_works_again_by_itself(server: Server) -> None:
    create_topic(server)
    wire = Connection(server.host, server.port)
    assert produce(wire, b"a" * 50_000) == 0
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    assert produce(wire, b"b" * 50_000) == STORAGE_ERROR, "ten thousand bytes of it fit"
    assert produce(wire, b"c") == STORAGE_ERROR
    assert produce(wire, b"x", 1) == 0, "another partition, another file"
    assert fetch_code(wire, 0) == 0, "readers are served"
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, infinite)
    eventually(lambda: produce(wire, b"d") == 0)
    assert read_all(server, 0, 2) == [b"a" * 50_000, b"d"]
    assert "t-0/00000000000000000000.log" in server.text and "File too large" in server.text
    assert "t-0 works again" in server.text
    server.kill()
    server.start()
    assert read_all(server, 0, 2) == [b"a" * 50_000, b"d"]
    assert "Traceback" not in server.text


def test_a_directory_that_turns_read_only_stops_the_broker_with_its_name(server: Server) -> None:
    create_topic(server)
    wire = Connection(server.host, server.port)
    assert produce(wire, b"a") == 0
    server.data.chmod(0o555)
    try:
        assert server.exit_code(20) == 1
    finally:
        server.data.chmod(0o755)
    assert f"{server.data} cannot be written to for 2 s (log.dir.failure.timeout.ms)" in server.text
    assert "Permission denied" in server.text
    assert "Traceback" not in server.text
    server.start()
    assert read_all(server, 0, 1) == [b"a"]


def test_a_directory_that_is_moved_away_stops_the_broker_before_much_is_written_to_nowhere(server: Server) -> None:
    create_topic(server)
    wire = Connection(server.host, server.port)
    assert produce(wire, b"a") == 0
    elsewhere = server.data.with_name("elsewhere")
    server.data.rename(elsewhere)
    assert server.exit_code(10) == 1
    assert f"{server.data} was removed, moved or unmounted" in server.text
    assert "Traceback" not in server.text
    shutil.rmtree(server.data, ignore_errors=True)
    elsewhere.rename(server.data)
    server.start()
    assert read_all(server, 0, 1) == [b"a"]


def test_a_filesystem_that_is_unmounted_under_the_broker_stops_it(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("a filesystem can only be mounted by root")
    server = Server(tmp_path / "broker")
    server.data = mount / "data"
    try:
        server.start()
        create_topic(server)
        assert produce(Connection(server.host, server.port), b"a") == 0
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
    try:
        assert server.exit_code(10) == 1
        assert "was removed, moved or unmounted" in server.text
        assert "Traceback" not in server.text
    finally:
        server.kill()


def test_a_damaged_segment_is_an_error_for_its_reader_and_the_others_are_served(server: Server) -> None:
    def value(number: int) -> bytes:
        return b"%d" % (number % 10) * 100_000  # ten of them fill a segment

    create_topic(server)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0})
    for number in range(20):
        for partition in (0, 1):
            producer.produce("t", value(number), partition=partition)
            producer.flush()  # a batch each
    assert server.stop() == 0
    path = server.data / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    size = len(content) // 10
    content[4 * size + 8 : 4 * size + 28] = b"\xff" * 20
    path.write_bytes(content)
    server.start()
    wire = Connection(server.host, server.port)
    assert fetch_code(wire, 0) == 0
    assert fetch_code(wire, 4) == CORRUPT_MESSAGE
    assert fetch_code(wire, 12) == 0, "what lies behind it is served"
    assert read_all(server, 1, 20) == [value(number) for number in range(20)]
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "h", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 4)])
    found = consumer.consume(1, 10)
    error = found[0].error() if found else None
    assert error is not None, "the stock client is told, and does not wait for ever"
    assert error.code() in (KafkaError.INVALID_MSG, KafkaError._BAD_MSG)
    consumer.close()
    assert produce(wire, b"new") == 0
    assert "t-0/00000000000000000000.log cannot be read at 4" in server.text
