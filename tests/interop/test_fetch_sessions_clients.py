"""Stock clients that keep fetch sessions read a topic of many partitions while the broker is killed with -9.

kafka-python and the Java client always open a session, franz-go too; librdkafka never does. What a session is told must
add up to the log: a reader that keeps its own positions gets every record once and in order, a group all of them.
`make interop` adds those of other languages.
"""

import os
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kits.clients.remote import Remote, RemoteClient, go_command, java_command
from kits.clients.transactional import Refused, Source
from kits.copying.copies import SETTINGS
from kits.groups.groups import Feed, create_topic
from kits.processes.server import TwofoldServer
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
PARTITIONS = 100
KILLS = 8 if LONG else 2
CACHED = "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached "
TOPIC = "many"

Poll = Callable[[], list[tuple[int, int]]]
"""Some records that were not read before: partition and offset."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    settings = {**SETTINGS, "metrics.listener": f"127.0.0.1:{free_port()}"}
    with TwofoldServer(tmp_path / "server", settings) as running:
        create_topic(running, TOPIC, PARTITIONS)
        yield running


def cached_partitions(server: TwofoldServer) -> int:
    with urllib.request.urlopen(f"http://{server.settings['metrics.listener']}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(CACHED))
    return int(float(line.removeprefix(CACHED)))


class Reading(threading.Thread):
    """Polls all the time, and keeps what it gets by partition in the order in which it came."""

    def __init__(self, poll: Poll) -> None:
        super().__init__(daemon=True)
        self._poll = poll
        self._stopping = threading.Event()
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.failures: list[BaseException] = []
        self.start()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                for partition, offset in self._poll():
                    self.offsets[partition].append(offset)
        except BaseException as error:
            self.failures.append(error)

    def has(self, wanted: dict[int, int]) -> bool:
        return all(self.offsets[index] and self.offsets[index][-1] >= end - 1 for index, end in wanted.items())

    def await_all(self, wanted: dict[int, int], patience_s: float = 60) -> None:
        deadline = time.monotonic() + patience_s
        while not self.has(wanted):
            assert not self.failures, self.failures
            behind = {index: end for index, end in wanted.items() if not self.has({index: end})}
            assert time.monotonic() < deadline, f"{len(behind)} partitions are not read to their end: {behind}"
            time.sleep(0.05)
        self._stopping.set()
        self.join(30)
        assert not self.failures, self.failures


def read_under_fire(server: TwofoldServer, poll: Poll) -> tuple[Reading, dict[int, int]]:
    """Feed and read, with the broker killed in between; what was read, and how much there is."""
    feed = Feed(server, {(TOPIC, index) for index in range(PARTITIONS)}, pause_s=0.4)
    reading = Reading(poll)
    for _ in range(KILLS):
        deadline = time.monotonic() + 60
        while not cached_partitions(server):  # clients leave out of it what they have data of
            assert not reading.failures, reading.failures
            assert time.monotonic() < deadline, "no session was opened"
            time.sleep(0.1)
        before = dict(feed.sent)
        time.sleep(1.0)
        assert feed.sent != before
        server.kill()
        server.start()
    time.sleep(1.0)
    wanted = {index: count for (_, index), count in feed.finish().items()}
    reading.await_all(wanted)
    return reading, wanted


def test_kafka_python_reads_every_record_once_across_kills(server: TwofoldServer) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=server.bootstrap_servers, enable_auto_commit=False, group_id=None,
        auto_offset_reset="earliest", reconnect_backoff_ms=20, reconnect_backoff_max_ms=200, retry_backoff_ms=20,
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])

    def poll() -> list[tuple[int, int]]:
        return [(row.partition, row.offset) for rows in consumer.poll(timeout_ms=200).values() for row in rows]

    reading, wanted = read_under_fire(server, poll)
    consumer.close()
    assert {index: reading.offsets[index] for index in wanted} == {n: list(range(end)) for n, end in wanted.items()}


CLIENTS = {"java": java_command, "franz-go": go_command}


@pytest.mark.skipif(not LONG, reason="takes its time: TWOFOLD_LONG=1, or make interop")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_of_another_language_reads_every_record_across_kills(server: TwofoldServer, client: str) -> None:
    with Remote(CLIENTS[client](), server.bootstrap_servers) as remote:
        member = RemoteClient(remote)
        member.open(f"reader-{client}", 30_000, Source(f"readers-{client}", TOPIC, PARTITIONS))

        def poll() -> list[tuple[int, int]]:
            try:
                return [(row.partition, row.offset) for row in member.poll(0.2)]
            except Refused as refused:
                if refused.kind == "fatal":
                    raise
                return []

        reading, wanted = read_under_fire(server, poll)
    # Nothing is committed: a group that had to gather anew may begin again, but leaves nothing out.
    for index, end in wanted.items():
        assert set(reading.offsets[index]) == set(range(end))
        for before, after in zip(reading.offsets[index], reading.offsets[index][1:], strict=False):
            assert after <= before + 1, f"partition {index}: {after} follows {before}"
