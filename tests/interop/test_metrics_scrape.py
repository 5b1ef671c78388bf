"""/metrics of a real server: what real clients did is what is told; its names are those of Apache Kafka's MBeans."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from kits.processes import commands
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle
from oracle.processes import free_port
from twofold.broker.metrics.families import FAMILIES
from twofold.embedded import Broker

pytestmark = pytest.mark.interop

COORDINATOR = "kafka_server_transaction_coordinator_metrics_"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Server(TwofoldServer):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"})

    @property
    def url(self) -> str:
        return f"http://{self.settings['metrics.listener']}/metrics"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def scrape(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.status == 200
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: object) -> float | None:
    return samples.get((name, tuple(sorted((key, str(text)) for key, text in labels.items()))))


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.05)


def make_topic(server: Any, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions)])[name].result(20)


def test_what_a_transactional_client_did_is_told(server: Server) -> None:
    make_topic(server, "bank", 2)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "transactional.id": "teller"})
    producer.init_transactions()
    before = scrape(server.url)
    sizes = [3, 5, 2]
    for number, (size, commit) in enumerate(zip(sizes, (True, False, True), strict=True)):
        producer.begin_transaction()
        for index in range(size):
            producer.produce("bank", b"%d %d" % (number, index), partition=0)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.begin_transaction()
    producer.produce("bank", b"open", partition=0)
    producer.flush()

    end = sum(sizes) + 3 + 1  # records, markers, the one that is open
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("bank", 0, 0)])
    seen = 0
    while seen < 5:
        message = consumer.poll(10)
        assert message is not None and not message.error()
        seen += 1
    assert consumer.get_watermark_offsets(TopicPartition("bank", 0))[1] == end - 1, "read_committed sees the stable end"

    where = {"topic": "bank", "partition": 0}
    after = scrape(server.url)
    assert value(after, "kafka_log_log_logendoffset", **where) == end
    assert value(after, "twofold_txn_last_stable_offset", **where) == end - 1
    assert value(after, "kafka_cluster_partition_laststableoffsetlag", **where) == 1
    assert value(after, "kafka_server_brokertopicmetrics_messagesin_total", topic="bank") == end
    assert (value(after, "kafka_server_brokertopicmetrics_bytesout_total", topic="bank") or 0) > 0
    assert value(after, "twofold_txn_open", state="Ongoing") == 1
    assert value(after, "twofold_txn_ids") == 1
    for name, count in (("committed", 2), ("aborted", 1)):
        name = f"{COORDINATOR}transactions_{name}_total"
        assert (value(after, name) or 0) - (value(before, name) or 0) == count
    requests = "kafka_network_requestmetrics_requests_total"
    end_txn = [count for (name, labels), count in after.items() if name == requests and ("request", "EndTxn") in labels]
    assert end_txn == [3]
    assert value(after, "twofold_request_seconds_count", request="EndTxn") == 3
    producer.abort_transaction()
    lag = "kafka_cluster_partition_laststableoffsetlag"
    wait_for(lambda: value(scrape(server.url), lag, **where) == 0)
    consumer.close()


def test_an_operator_reads_it_with_curl(server: Server) -> None:
    done = subprocess.run(["curl", "-sS", "-i", server.url], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HTTP/1.1 200 OK")
    assert "\ntwofold_info{" in done.stdout and "process_resident_memory_bytes" in done.stdout


def test_other_paths_are_not_there(server: Server) -> None:
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(server.url.replace("/metrics", "/"), timeout=20)
    assert refused.value.code == 404
    assert "/metrics" in refused.value.read().decode()


def test_hostile_clients_do_not_keep_the_broker_from_serving(server: Server) -> None:
    """Many connections, endless heads, bytes of another protocol, readers that never read; then a client works."""
    host, port = server.url.removeprefix("http://").removesuffix("/metrics").split(":")
    address = (host, int(port))
    sockets = [socket.create_connection(address, timeout=20) for _ in range(60)]
    attacks = [
        b"GET /metrics HTTP/1.1\r\nX: ",
        b"\x00\x00\x00\x10",
        b"A" * 50_000,
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 500,
    ]
    for number, attacker in enumerate(sockets):
        try:
            attacker.sendall(attacks[number % len(attacks)])
        except ConnectionError:
            continue
    make_topic(server, "still-here")
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    producer.produce("still-here", b"yes")
    assert producer.flush(20) == 0
    for attacker in sockets:
        attacker.close()
    deadline = time.monotonic() + 10
    while value(scrape(server.url), "kafka_server_brokertopicmetrics_messagesin_total", topic="still-here") != 1:
        # A page that was begun for one of the attackers is shared with those who ask while it is written.
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.running


def test_a_server_without_the_option_neither_serves_nor_loads_metrics(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path) as plain:
        loaded = Path(f"/proc/{plain.pid}/maps").read_text()
        assert plain.running and "prometheus" not in loaded
    done = subprocess.run(
        [sys.executable, "-c", "import sys, twofold.broker.run; print(any('prometheus' in m for m in sys.modules))"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("nonsense", 2, "metrics.listener=nonsense is not HOST:PORT"),
        ("127.0.0.1:99999", 2, "metrics.listener=127.0.0.1:99999 is not HOST:PORT"),
        ("127.0.0.1:taken", 1, "metrics.listener"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, address: str, code: int, says: str) -> None:
    with listening() as port:
        address = address.replace("taken", str(port))
        options = ["--listen", "127.0.0.1:0", "--data", str(tmp_path), "--metrics", address]
        done = commands.run("serve", *options)
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("address", "host"), [(":0", "127.0.0.1"), ("localhost:0", "localhost"), ("0.0.0.0:0", None)])
def test_metrics_are_for_this_machine_unless_a_wider_address_is_named_which_is_warned_of(
    address: str, host: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(metrics=address) as broker:
        if host is not None:
            assert broker.metrics_url.startswith(f"http://{host}:")
    warned = [record.getMessage() for record in caplog.records if "metrics.listener" in record.getMessage()]
    assert bool(warned) == (host is None)
    assert all("without a login" in line for line in warned)


def test_the_embedded_broker_tells_where_its_metrics_are() -> None:
    with Broker(metrics="127.0.0.1:0") as broker:
        assert value(scrape(broker.metrics_url), "kafka_server_kafkaserver_brokerstate") == 3
    with Broker() as plain, pytest.raises(RuntimeError, match="metrics"):
        _ = plain.metrics_url


def test_partitions_above_the_limit_are_left_out_and_counted(server: Server) -> None:
    make_topic(server, "wide", 1000)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for partition in range(1000):
        producer.produce("wide", b"x", partition=partition)
    assert producer.flush(60) == 0
    samples = scrape(server.url)
    assert sum(name == "kafka_log_log_logendoffset" for name, _ in samples) == 1000, "metrics.max.partitions"
    assert (value(samples, "twofold_metrics_partitions_left_out") or 0) > 0
    assert value(samples, "kafka_server_brokertopicmetrics_messagesin_total", topic="wide") == 1000


@pytest.mark.oracle
@pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="takes a minute: TWOFOLD_LONG=1, or make interop")
def test_every_name_of_kafka_is_one_of_its_mbeans(oracle: Oracle) -> None:
    """What is not marked as proposed is there in a running Apache Kafka, under the MBean that the table names."""
    make_topic(oracle, "t")
    settings = {"bootstrap.servers": oracle.bootstrap_servers}
    producer = Producer(settings | {"transactional.id": "names"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", b"x", partition=0)
    producer.flush()
    producer.commit_transaction()
    port = free_port()
    agent = ["ManagementAgent.start", f"jmxremote.port={port}", f"jmxremote.rmi.port={port}"]
    agent += ["jmxremote.authenticate=false", "jmxremote.ssl=false", "jmxremote.host=127.0.0.1"]
    subprocess.run(["jcmd", str(oracle.pid), *agent], capture_output=True, timeout=60, check=True)
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    args = ["--jmx-url", url, "--object-name", "kafka.*:*", "--one-time", "--report-format", "properties"]
    done = oracle.tool("org.apache.kafka.tools.JmxTool", args, timeout=100)
    told = {line.rpartition("=")[0] for line in done.stdout.splitlines()}
    assert len(told) > 1000, done.stderr
    missing = [family.mbean for family in FAMILIES if family.mbean and not family.proposed and family.mbean not in told]
    invented = [family.mbean for family in FAMILIES if family.proposed and family.mbean in told]
    assert (missing, invented) == ([], []), json.dumps(sorted(x for x in told if re.search("ransaction|Txn", x)))
