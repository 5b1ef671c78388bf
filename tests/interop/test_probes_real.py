"""/healthz and /readyz of `twofold serve`, asked as orchestrators do: while it starts, runs, stands still and stops."""

import os
import signal
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from interop.test_metrics_scrape import make_topic
from kits.processes.server import TwofoldServer
from oracle.processes import free_port

pytestmark = pytest.mark.interop

PARTITIONS = 300
METADATA = struct.pack(">ihhihi", 14, 3, 1, 7, -1, -1)  # version 1, all topics


class Answer(NamedTuple):
    status: int
    text: str


class Server(TwofoldServer):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"})

    def ask(self, path: str, timeout_s: float = 20) -> Answer | None:
        """None where the broker does not listen yet, or no more."""
        try:
            with urllib.request.urlopen(
                f"http://{self.settings['metrics.listener']}{path}", timeout=timeout_s
            ) as found:
                return Answer(found.status, found.read().decode())
        except urllib.error.HTTPError as refused:
            return Answer(refused.code, refused.read().decode())
        except ConnectionError:
            return None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return None
            raise


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def test_a_killed_broker_is_healthy_and_not_ready_until_its_logs_are_recovered(server: Server) -> None:
    server.start()
    make_topic(server, "wide", PARTITIONS)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for partition in range(PARTITIONS):
        producer.produce("wide", b"x", partition=partition)
    assert producer.flush(60) == 0
    server.kill()
    server.start(wait=False)
    heard: list[Answer] = []
    deadline = time.monotonic() + 60
    while not heard or heard[-1].status != 200:
        assert time.monotonic() < deadline, heard
        answer = server.ask("/readyz")
        if answer is None:
            assert not heard, "once it listens, it answers"
            continue
        if not heard:
            assert server.ask("/healthz") == Answer(200, "ok\n")
        heard.append(answer)
    assert {answer.status for answer in heard} == {503, 200}
    assert "no  logs: " in heard[0].text and "no  listener: " in heard[0].text
    assert f"ok  listener: PLAINTEXT://127.0.0.1:{server.port}\n" in heard[-1].text
    assert "ok  logs: 300 partitions recovered\n" in heard[-1].text
    assert producer.list_topics("wide", timeout=5).topics["wide"].error is None, "ready means that clients are served"


def test_a_broker_with_a_log_that_its_disk_does_not_give_is_not_ready_until_the_log_is_repaired(server: Server) -> None:
    """The others are served meanwhile, and the broker is healthy: a restart would mend nothing."""
    server.start()
    make_topic(server, "lost", 1)
    make_topic(server, "kept", 1)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for topic in ("lost", "kept"):
        producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    server.kill()
    file = server.data / "lost-0" / "00000000000000000000.log"
    aside = file.rename(server.directory / "aside.log")
    file.mkdir()  # what stands in the way of a file cannot be read: EISDIR
    server.start()
    answer = server.ask("/readyz")
    assert answer is not None and answer.status == 503, answer
    assert "no  disk: 1 partition failed and will be repaired: lost-0\n" in answer.text
    assert "ok  listener: " in answer.text and server.ask("/healthz") == Answer(200, "ok\n")
    producer.produce("kept", b"y")
    assert producer.flush(60) == 0
    file.rmdir()
    aside.rename(file)
    deadline = time.monotonic() + 60
    while (answer := server.ask("/readyz")) is None or answer.status != 200:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("lost", 0), 10) == (0, 1)
    consumer.close()


def test_the_page_of_metrics_is_refused_with_a_reason_until_the_broker_serves(server: Server) -> None:
    server.start(wait=False)
    while (answer := server.ask("/metrics")) is None:
        time.sleep(0.001)
    assert answer.status == 200 or answer == Answer(503, "the broker is starting; /readyz tells more\n")
    while (answer := server.ask("/metrics")) is None or answer.status == 503:
        time.sleep(0.01)
    assert answer.status == 200 and "kafka_server_kafkaserver_brokerstate 3" in answer.text


def test_a_broker_that_stops_is_not_ready_and_stays_healthy_until_its_clients_have_their_answers(
    server: Server,
) -> None:
    server.start()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((server.host, server.port))
        make_topic(server, "t", 5000)
        for _ in range(40):
            slow.sendall(METADATA)  # answers of 150 KB that are not read
        held = "kafka_network_requestmetrics_requests_total"
        while f'{held}{{request="Metadata",version="1"}}' not in _page(server):
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGTERM)
        while (answer := server.ask("/readyz")) is not None and answer.status == 200:
            time.sleep(0.001)
        assert answer is not None, "it has to wait for the client that does not read"
        assert answer.status == 503 and "the broker is stopping" in answer.text
        assert server.ask("/healthz") == Answer(200, "ok\n")
    while server.running:
        time.sleep(0.01)
    assert server.ask("/readyz") is None


def _page(server: Server) -> str:
    answer = server.ask("/metrics")
    return "" if answer is None else answer.text


def test_a_broker_that_stands_still_answers_no_probe_and_is_ready_again_when_it_goes_on(server: Server) -> None:
    server.start()
    ready = server.ask("/readyz")
    assert ready is not None and ready.status == 200
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for path in ("/healthz", "/readyz"):
            with pytest.raises(TimeoutError):
                server.ask(path, timeout_s=0.3)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert server.ask("/healthz") == Answer(200, "ok\n")
    assert server.ask("/readyz") == ready
