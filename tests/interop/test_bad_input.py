"""Clients that are broken, hostile or many, against a real server process.

Whatever they send, the answer is the right error or a closed connection with a log line; the server goes on serving
others, and what it holds in memory stays bounded. Which error it is, is compared in `test_differential`.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from oracle.batches import Record, batch
from oracle.compare import produce_body
from oracle.driver import CLOSED, Connection
from oracle.twofold import Twofold, running_twofold
from oracle.wire import encode_request, frame

pytestmark = pytest.mark.interop

MB = 1024 * 1024
IDLE_CONNECTIONS = 2000


@pytest.fixture(scope="module")
def server() -> Iterator[Twofold]:
    with running_twofold() as twofold:
        yield twofold


@pytest.fixture(autouse=True)
def _goes_on_serving(server: Twofold) -> Iterator[None]:
    """After every test a well-behaved client finds the same server at work."""
    yield
    assert server.running
    with Connection(server.host, server.port, timeout_s=5) as client:
        assert client.ask("Metadata", 1, topics=[])["brokers"]


def outcome(server: Twofold, data: bytes) -> bytes | str:
    with Connection(server.host, server.port, timeout_s=10) as client:
        try:
            client.send_raw(data)
            return client.receive() or CLOSED
        except ConnectionError:
            return CLOSED


def settled_rss(server: Twofold) -> int:
    """Resident memory once the server has had a moment to drop what it no longer needs."""
    time.sleep(0.2)
    return server.resident_bytes


def create_topic(server: Twofold, name: str) -> None:
    with Connection(server.host, server.port) as client:
        row = {"name": name, "num_partitions": 1, "replication_factor": 1}
        answer = client.ask("CreateTopics", 4, topics=[row], timeout=5000)
        assert answer["topics"][0]["error_code"] == 0


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("size 0", struct.pack(">i", 0)),
        ("negative size", struct.pack(">i", -7)),
        ("oversized", struct.pack(">i", 104857601)),
        ("unknown key", frame(struct.pack(">hhih", 999, 0, 7, -1))),
        ("unknown version", frame(struct.pack(">hhih", 3, 99, 7, -1))),
        ("header cut short", frame(b"\0\x03\0")),
        ("body cut short", frame(struct.pack(">hhih", 3, 1, 7, -1) + b"\0\0")),
        ("garbage", frame(b"\xde\xad\xbe\xef" * 16)),
    ],
)
def test_a_bad_frame_closes_the_connection_and_is_logged(server: Twofold, what: str, data: bytes) -> None:
    before = server.log_lines()
    deadline = time.monotonic() + 5
    while server.log_lines() == before and time.monotonic() < deadline:
        assert outcome(server, data) == CLOSED
        time.sleep(0.05)  # the log lets a few lines of a kind through in a second; the next ones are only counted
    assert server.log_lines() > before, f"{what}: no log line"


def test_random_frames_never_stop_the_server(server: Twofold) -> None:
    seed = 20261115
    source = random.Random(seed)
    keys = [0, 1, 2, 3, 10, 18, 19, 20, 22, 23, 32, 37, 44, 60, 61]
    for round_number in range(300):
        body = source.randbytes(source.choice([0, 1, 7, 40, 300]))
        payload = struct.pack(">hhih", source.choice(keys), source.randrange(0, 14), round_number, -1) + body
        data = frame(payload)
        with Connection(server.host, server.port, timeout_s=10) as client:
            client.send_raw(data)
            client.half_close()
            client.receive()


def test_mutated_requests_never_stop_the_server(server: Twofold) -> None:
    """Good requests with a few bytes changed reach deeper than noise does."""
    source = random.Random(7)
    create_topic(server, "mutated")
    good = [
        encode_request("Produce", 9, produce_body("mutated", batch(3))),
        encode_request("Produce", 3, produce_body("mutated", batch(3, attributes=1))),
        encode_request("Metadata", 12, {"topics": [{"name": "mutated"}], "allow_auto_topic_creation": False}),
        encode_request("ListOffsets", 7, {"replica_id": -1, "topics": [{"name": "mutated", "partitions": [{}]}]}),
        encode_request("CreateTopics", 7, {"topics": [{"name": "mutated", "num_partitions": 1}], "timeout": 10}),
        encode_request("DescribeConfigs", 4, {"resources": [{"resource_type": 2, "resource_name": "mutated"}]}),
        encode_request(
            "Fetch",
            12,
            {
                "replica_id": -1,
                "topics": [{"topic": "mutated", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}],
            },
        ),
    ]
    for _ in range(400):
        data = bytearray(source.choice(good))
        for _ in range(source.choice([1, 1, 2, 5])):
            data[source.randrange(12, len(data))] = source.randrange(256)
        with Connection(server.host, server.port, timeout_s=30) as client:
            client.send_raw(bytes(data))
            client.half_close()
            client.receive()


def test_announced_sizes_are_not_allocated(server: Twofold) -> None:
    """A hundred clients that claim 100 MB each and send a little cost what they sent."""
    before = settled_rss(server)
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(Connection(server.host, server.port))
            client.send_raw(struct.pack(">i", 104857600) + b"\0" * 1000)
        assert settled_rss(server) - before < 250 * MB


def test_a_client_that_never_reads_costs_little(server: Twofold) -> None:
    create_topic(server, "unread")
    with Connection(server.host, server.port) as writer:
        for _ in range(10):
            large = batch([Record(value=random.Random(1).randbytes(900_000))])
            answer = writer.ask("Produce", 7, **produce_body("unread", large))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
    body = {"replica_id": -1, "min_bytes": 1, "topics": [{"topic": "unread", "partitions": [part]}]}
    request = encode_request("Fetch", 4, body)
    before = settled_rss(server)
    with Connection(server.host, server.port) as deaf:
        _send_until_refused(deaf, request * 2000)
        with Connection(server.host, server.port, timeout_s=5) as other:
            assert other.ask("Metadata", 1, topics=[])["brokers"]
        # 2,000 answers of 9 MB were asked for.
        assert settled_rss(server) - before < 100 * MB


def _send_until_refused(client: Connection, data: bytes) -> None:
    """Write as long as the server takes it; a full socket is the back-pressure that we hope for."""
    client.set_timeout(1.0)
    try:
        client.send_raw(data)
    except (TimeoutError, ConnectionError):
        return


def test_a_slow_writer_does_not_hold_up_others(server: Twofold) -> None:
    request = encode_request("Metadata", 1, {"topics": []})
    with Connection(server.host, server.port) as slow:
        for position in range(len(request) - 1):
            slow.send_raw(request[position : position + 1])
            with Connection(server.host, server.port, timeout_s=2) as other:
                assert other.ask("ApiVersions", 0)["error_code"] == 0
        slow.send_raw(request[-1:])
        assert slow.receive() is not None


def test_two_thousand_idle_connections(server: Twofold) -> None:
    before, files = settled_rss(server), server.open_files
    with ExitStack() as stack:
        idle = [stack.enter_context(Connection(server.host, server.port)) for _ in range(IDLE_CONNECTIONS)]
        idle[0].ask("ApiVersions", 0)
        idle[-1].ask("ApiVersions", 0)
        assert server.open_files - files >= IDLE_CONNECTIONS
        start = time.monotonic()
        with Connection(server.host, server.port, timeout_s=5) as busy:
            for _ in range(100):
                busy.ask("Metadata", 1, topics=[])
        assert time.monotonic() - start < 2.0
        assert settled_rss(server) - before < 60 * MB
    deadline = time.monotonic() + 10
    while server.open_files > files + 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.open_files <= files + 5, "connections that the clients closed are still open"


def test_connections_that_are_reset_leave_nothing_behind(server: Twofold) -> None:
    files = server.open_files
    request = encode_request("Metadata", 1, {"topics": None})
    for index in range(200):
        client = socket.create_connection((server.host, server.port), timeout=5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(request[: index % len(request)] if index % 2 else request)
        client.close()
    deadline = time.monotonic() + 10
    while server.open_files > files + 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.open_files <= files + 5
