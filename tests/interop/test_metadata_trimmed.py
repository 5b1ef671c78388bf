"""A real broker whose metadata log is cut short by snapshots: under kill -9, over thousands of topics, and in the hands
of Apache Kafka. With TWOFOLD_LONG=1 for 5,000 topics that are created and deleted, one by one."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kits.folders.oracle import FolderOracle
from kits.processes import commands
from kits.processes.server import TwofoldServer
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
KILLS = 20 if LONG else 3
PAIRS = 5000 if LONG else 300
SMALL = {
    "internal.metadata.log.segment.bytes": "8192",
    "metadata.log.max.record.bytes.between.snapshots": "10000",
    "metadata.max.retention.bytes": "40000",
    "internal.metadata.delete.delay.millis": "10",
}
TIGHT = SMALL | {"metadata.max.retention.bytes": "15000"}
QUIET = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}


def admin_of(server: TwofoldServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers, **QUIET})


def metadata_of(server: TwofoldServer) -> Path:
    return server.data / "__cluster_metadata-0"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.exists())


def names_in(server: TwofoldServer, suffix: str) -> list[str]:
    return sorted(path.name for path in metadata_of(server).iterdir() if path.name.endswith(suffix))


def was_trimmed(server: TwofoldServer) -> bool:
    return int(names_in(server, ".log")[0][:20]) > 0 and bool(names_in(server, ".checkpoint"))


class Changes(threading.Thread):
    """Creates topics and deletes two of three again, and knows which must be there and which may."""

    def __init__(self, server: TwofoldServer) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.there: dict[str, int] = {}
        self.in_doubt: set[str] = set()
        self.stopping = threading.Event()
        self.created = 0

    def run(self) -> None:
        admin, number = admin_of(self.server), 0
        while not self.stopping.is_set():
            number += 1
            name, partitions = f"t{number}", number % 3 + 1
            self.in_doubt.add(name)
            try:
                admin.create_topics([NewTopic(name, partitions)], request_timeout=5)[name].result()
            except KafkaException:  # it was killed meanwhile: whether the topic is there stays in doubt
                time.sleep(0.02)
                continue
            self.there[name] = partitions
            self.in_doubt.discard(name)
            self.created += 1
            if number % 3:
                self.in_doubt.add(name)
                del self.there[name]
                try:
                    admin.delete_topics([name], request_timeout=5)[name].result()
                    self.in_doubt.discard(name)
                except KafkaException:
                    time.sleep(0.02)


def test_topics_survive_kill_nine_while_the_log_is_trimmed(tmp_path: Path) -> None:
    chance = random.Random(11)
    server = TwofoldServer(tmp_path, SMALL)
    server.start()
    changes = Changes(server)
    changes.start()
    try:
        for _ in range(KILLS):
            before = changes.created
            deadline = time.monotonic() + 30
            while changes.created < before + 40 and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(chance.random() / 10)
            server.kill()
            server.start()
        changes.stopping.set()
        changes.join(60)
        found = admin_of(server).list_topics(timeout=20).topics
        for name, partitions in changes.there.items():
            assert len(found[name].partitions) == partitions, name
        strangers = {name for name in found if name not in changes.there and not name.startswith("__")}
        assert strangers <= changes.in_doubt
        assert was_trimmed(server), sorted(os.listdir(metadata_of(server)))
        text = server.log_text()
        assert "Traceback" not in text and "is damaged" not in text and ".checkpoint: written" in text
    finally:
        changes.stopping.set()
        server.kill()


def test_the_folder_stays_bounded_over_many_topics(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path, SMALL) as server:
        admin, largest = admin_of(server), 0
        for number in range(PAIRS):
            name = f"t{number}"
            admin.create_topics([NewTopic(name, 1)])[name].result()
            admin.delete_topics([name])[name].result()
            if number % 20 == 0:
                largest = max(largest, size_of(metadata_of(server)))
        assert was_trimmed(server)
        # Retention, one segment and what is written until the next snapshot; files on their way out stay 10 ms.
        assert largest < 40_000 + 2 * 8192 + 2 * 10_000 + 30_000, largest
        server.kill()
        server.start()
        assert "t1" not in admin_of(server).list_topics(timeout=20).topics


def test_damage_in_the_middle_of_a_trimmed_log_stops_a_real_node_with_file_and_offset(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path, TIGHT) as server:
        admin = admin_of(server)
        for number in range(200):
            admin.create_topics([NewTopic(f"t{number}", 1)])[f"t{number}"].result()
        assert was_trimmed(server)
        server.kill()
        segment = metadata_of(server) / names_in(server, ".log")[-1]
        data = bytearray(segment.read_bytes())
        torn = bytes(data[:-3])
        segment.write_bytes(torn)
        server.start()
        found = admin_of(server).list_topics(timeout=20).topics
        assert {f"t{number}" for number in range(198)} <= found.keys()
        server.kill()
        segment = metadata_of(server) / names_in(server, ".log")[0]
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(bytes(data))
        options = [part for key, value in TIGHT.items() for part in ("-o", f"{key}={value}")]
        done = commands.run("serve", "--listen", "127.0.0.1:0", "--data", str(server.data), *options)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "Traceback" not in said, said
        assert f"{segment.name}: the batch at offset " in said and "is damaged" in said, said
        assert segment.read_bytes() == bytes(data), "nothing was changed"


@pytest.mark.oracle
def test_apache_kafka_opens_a_trimmed_folder_and_gives_it_back(tmp_path: Path) -> None:
    expected = {f"t{number}": number % 4 + 1 for number in range(100)}
    server = TwofoldServer(tmp_path, TIGHT)
    server.start()
    try:
        admin = admin_of(server)
        for name, partitions in expected.items():
            admin.create_topics([NewTopic(name, partitions, config={"retention.ms": "1234567"})])[name].result()
        assert was_trimmed(server)
    finally:
        server.kill()
    first = names_in(server, ".log")[0]
    oracle = FolderOracle(tmp_path)
    oracle.port = free_port()
    oracle._write_properties(free_port())
    oracle._spawn()
    try:
        admin = AdminClient({"bootstrap.servers": f"{oracle.host}:{oracle.port}", **QUIET})
        deadline = time.monotonic() + 60
        found: dict[str, int] = {}
        while not expected.items() <= found.items() and time.monotonic() < deadline:
            topics = admin.list_topics(timeout=20).topics
            found = {name: len(topic.partitions) for name, topic in topics.items()}
        assert expected.items() <= found.items()
        admin.create_topics([NewTopic("of-kafka", 2)])["of-kafka"].result()
    finally:
        oracle.stop(clean=True)
    assert names_in(server, ".log")[0] >= first
    server.start()
    try:
        topics = admin_of(server).list_topics(timeout=20).topics
        assert (expected | {"of-kafka": 2}).items() <= {n: len(t.partitions) for n, t in topics.items()}.items()
    finally:
        server.kill()
