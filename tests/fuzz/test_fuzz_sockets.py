"""The same over real sockets, against a real process: it lives, a healthy client is served, and its data are whole."""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fuzz import seeds
from fuzz.mutate import mutated
from kits.processes.server import TwofoldServer
from oracle.batches import batch, describe
from oracle.compare import produce_body
from oracle.driver import Connection
from twofold.wire.apis import APIS
from twofold.wire.schema import schema_of

pytestmark = pytest.mark.interop

LONG = bool(os.environ.get("TWOFOLD_LONG"))
REQUESTS = 60_000 if LONG else 500
PATIENCE_S = 4.0
WAITING = {11, 14, 1}  # JoinGroup, SyncGroup and Fetch wait for others
SLOWEST_S = 3.0  # for a healthy request: the machine may be busy with other tests


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path) as found:
        yield found


class Healthy:
    """Writes and reads; whatever others do, it works."""

    def __init__(self, server: TwofoldServer) -> None:
        self.server = server
        self.written = 0
        self.slowest_s = 0.0
        with Connection(server.host, server.port) as admin:
            rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("healthy", "t")]
            answer = admin.ask("CreateTopics", 4, topics=rows, timeout=5000)
            assert [row["error_code"] for row in answer["topics"]] == [0, 0]

    def write(self) -> None:
        begun = time.monotonic()
        with Connection(self.server.host, self.server.port, timeout_s=10) as client:
            answer = client.ask("Produce", 7, **produce_body("healthy", batch(1)))
        row = answer["responses"][0]["partition_responses"][0]
        assert (row["error_code"], row["base_offset"]) == (0, self.written)
        self.written += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)

    def check(self) -> None:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": "healthy", "partitions": [part]}]
        with Connection(self.server.host, self.server.port) as client:
            answer = client.ask("Fetch", 4, replica_id=-1, min_bytes=1, max_bytes=1 << 20, topics=topics)
        found = describe(answer["responses"][0]["partitions"][0]["records"])
        assert found is not None
        assert [row["base_offset"] for row in found] == list(range(self.written))
        assert {row["crc"] for row in found} == {"good"}


def any_request(source: Random, sound: list[bytes]) -> bytes:
    kind = source.random()
    if kind < 0.5:
        key, version = source.choice(seeds.every_version())
        message = seeds.entity(schema_of(APIS[key].module, version, "request"), source, most=3)
        return seeds.request_frame(key, version, message)
    return mutated(source.choice(sound), source, sound)


@pytest.mark.parametrize("seed", [1])
def test_any_request_is_answered_or_its_connection_closed_and_no_other_client_notices(server, seed):
    source = Random(f"sockets/{seed}")
    sound = seeds.requests(rounds=1)
    healthy = Healthy(server)
    for number in range(REQUESTS):
        if number % 30 == 0:
            healthy.write()
        body = any_request(source, sound)
        (key,) = struct.unpack_from(">h", body.ljust(2, b"\0"))
        with Connection(server.host, server.port, timeout_s=PATIENCE_S) as client:
            client.send_raw(struct.pack(">i", len(body)) + body)
            if key in WAITING or is_unanswered(body):
                continue
            try:
                client.receive()
            except TimeoutError:
                pytest.fail(f"request {number} is neither answered nor refused: {body.hex()}")
    healthy.write()
    healthy.check()
    assert healthy.slowest_s < SLOWEST_S
    no_failure_of_ours(server)
    server.kill()
    server.start()
    healthy.check()
    healthy.write()
    no_failure_of_ours(server)


def is_unanswered(body: bytes) -> bool:
    """A Produce that wants no answer, or any frame that its cut or its doubled bytes make one: acks is then 0."""
    return body[:2] == b"\0\0"


def no_failure_of_ours(server: TwofoldServer) -> None:
    lines = server.log_text().splitlines()
    failures = [line for line in lines if "Traceback" in line or " ERROR " in line or "CRITICAL" in line]
    assert not failures, "\n".join(lines[-60:])
