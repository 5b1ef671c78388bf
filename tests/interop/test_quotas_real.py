"""Quotas of a broker as its user starts it: our command and a stock client, against Twofold and Apache Kafka."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from kits.processes import commands
from kits.processes.commands import Done
from kits.processes.server import TwofoldServer
from oracle.batches import Record, batch
from oracle.compare import attempts, produce_body
from oracle.driver import Connection

pytestmark = pytest.mark.interop

RATE = "producer_byte_rate"


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("quotas")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> str:
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


def twofold(server: str, *args: str, code: int = 0) -> Done:
    done = commands.run("quota", *args, server=server)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def listed(server: str, *args: str) -> Any:
    return json.loads(twofold(server, "list", *args, "--format", "json").stdout)


def settled(server: str, wanted: Any, *args: str) -> bool:
    """Apache Kafka's brokers hear of a change a moment after its answer."""
    return any(listed(server, *args) == wanted for _ in attempts())


def test_quotas_are_set_listed_and_removed(server: str) -> None:
    done = twofold(server, "set", f"{RATE}=1048576", "request_percentage=12.5", "--user", "alice", "--client-id", "app")
    assert done.stdout.splitlines() == [
        f"user alice, client-id app: {RATE}=1.04858e+06",
        "user alice, client-id app: request_percentage=12.5",
    ]
    twofold(server, "set", f"{RATE}=7", "--user-defaults", "--client-id", "app")
    of_alice = {"user": "alice", "client-id": "app", "quotas": {RATE: 1048576.0, "request_percentage": 12.5}}
    of_all = {"user": None, "client-id": "app", "quotas": {RATE: 7.0}}
    assert settled(server, [of_alice], "--user", "alice")
    assert settled(server, [of_all], "--user-defaults")
    twofold(server, "remove", RATE, "--user", "alice", "--client-id", "app")
    of_alice["quotas"] = {"request_percentage": 12.5}
    assert settled(server, [of_alice], "--user", "alice")
    twofold(server, "remove", "--user", "alice", "--client-id", "app")
    twofold(server, "remove", "--user-defaults", "--client-id", "app")
    assert settled(server, [], "--client-id", "app")
    assert "has no quota" in (done := twofold(server, "remove", "--user", "alice")).stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["set", f"{RATE}=0", "--user", "a"], 1, ["user a"]),
        (["set", f"{RATE}=fast", "--user", "a"], 2, ["fast is no number"]),
        (["set", RATE, "--user", "a"], 2, ["key=value"]),
        (["set", f"{RATE}=1"], 2, ["--user", "--client-id"]),
        (["set", f"{RATE}=1", "--user", "a", "--user-defaults"], 2, ["--user a and --user-defaults"]),
        (["set", f"{RATE}=1", "--user", ""], 2, ["empty name", "--user-defaults"]),
        (["set", "connection_creation_rate=1", "--ip", "10.0.0.1", "--user", "a"], 1, ["ip"]),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(server: str, args: list[str], code: int, words: list[str]) -> None:
    done = twofold(server, *args, code=code)
    (line,) = done.stderr.splitlines()
    assert line.startswith("twofold: ") and all(word.lower() in line.lower() for word in words), line


def test_a_stock_producer_reports_that_it_has_to_wait(server: str) -> None:
    twofold(server, "set", f"{RATE}=1000", "--client-id", "throttled")
    told: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": server,
            "client.id": "throttled",
            "linger.ms": 0,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    for _ in attempts(20):
        producer.produce("quota-throttled", b"x" * 12_000)
        producer.poll(0.05)
        if any(told):
            break
    assert max(told) > 0.1, "seconds, as confluent-kafka tells them"
    twofold(server, "remove", "--client-id", "throttled")
    producer.purge()


def waits(server: str, client_id: str, sizes: tuple[int, ...]) -> tuple[list[int], float]:
    """What Produce answers tell of frames with such values, and when the next request after them was answered."""
    host, _, port = server.rpartition(":")
    found = []
    with Connection(host, int(port)) as connection:
        for size in sizes:
            connection.send(
                "Produce", 7, produce_body("quota-sums", batch([Record(value=b"x" * size)])), client_id=client_id
            )
            payload = connection.receive()
            assert payload is not None
            found.append(int.from_bytes(payload[-4:], "big"))
        sent_s = time.monotonic()
        connection.send("ApiVersions", 0, {}, client_id=client_id)
        assert connection.receive() is not None
        return found, time.monotonic() - sent_s


def test_frames_of_50_40_and_30_kb_wait_as_at_apache_kafka_and_the_next_request_is_read_that_much_later(
    server: str,
) -> None:
    host, _, port = server.rpartition(":")
    row = {"name": "quota-sums", "num_partitions": 1, "replication_factor": 1, "configs": []}
    with Connection(host, int(port)) as connection:
        connection.ask("CreateTopics", 5, topics=[row], timeout=10_000)
    twofold(server, "set", f"{RATE}=10000", "--client-id", "sums")
    assert settled(server, [{"client-id": "sums", "quotas": {RATE: 10000.0}}], "--client-id", "sums")
    found, waited_s = waits(server, "sums", (50_000, 40_000, 30_000))
    assert found[:2] == [0, 0]
    assert 1000 < found[2] <= 2100, "2 s and what is around the values, less the time that has passed"
    assert found[2] / 1000 - 0.1 <= waited_s
    twofold(server, "remove", "--client-id", "sums")
