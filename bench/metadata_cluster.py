"""Twofold or Apache Kafka as the measurements of the metadata need them: topics of very many partitions made, grown and
deleted over the wire, and the metadata log counted in its file."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processor import precise_cpu_seconds
from bench.servers import KAFKA, Oracle, TunedOracle, TwofoldServer, jars_or_skip
from bench.wire import Client
from kits.processes.server import memory_of
from twofold.records.batch import iter_headers
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.delete_topics import DeleteTopicsRequest
from twofold.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest

LARGE, SMALL = "large", "small"
SMALL_PARTITIONS = 10
# One request may make 10,000 metadata records in Apache Kafka, and the topic is one of them: more is POLICY_VIOLATION.
KAFKA_PARTITIONS = 9_999
PATIENCE_S = 120
UNKNOWN_TOPIC = 3
CREATE, DELETE, GROW, DESCRIBE_PARTITIONS = 19, 20, 37, 75
DIRECTORY = "__cluster_metadata-0"


@dataclass(frozen=True, slots=True)
class LogSize:
    """What the metadata log has in its segments."""

    batches: int
    bytes: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation took: until its answer, until every partition is served, and in processor time until then."""

    answered_s: float
    served_s: float
    cpu_s: float


class Cluster:
    """One node and a connection to it."""

    def __init__(self, server: TwofoldServer | Oracle) -> None:
        self.server = server
        self.client = self.connect()

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def folder(self) -> Path:
        return self.server.data / DIRECTORY

    def connect(self) -> Client:
        return Client(self.server.host, self.server.port)

    def create(self, name: str, partitions: int) -> Cost:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        request = CreateTopicsRequest(topics=[topic], timeout_ms=PATIENCE_S * 1000)
        return self._do(request, CREATE, 5, name, partitions - 1)

    def grow(self, name: str, partitions: int) -> Cost:
        topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=PATIENCE_S * 1000, validate_only=False)
        return self._do(request, GROW, 3, name, partitions - 1)

    def delete(self, name: str) -> Cost:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=PATIENCE_S * 1000)
        return self._do(request, DELETE, 5, name, None)

    def _do(self, request: object, key: int, version: int, name: str, last: int | None) -> Cost:
        """Ask, and wait until the topic has this last partition (None: until it is gone)."""
        spent, started = precise_cpu_seconds(self.pid), time.perf_counter()
        answer = self.client.ask(request, key, version)
        row = (answer.topics if key == CREATE else answer.results if key == GROW else answer.responses)[0]
        if row.error_code:
            raise RuntimeError(f"{type(request).__name__} of {name}: error {row.error_code}, {row.error_message}")
        answered = time.perf_counter() - started
        while not self._is_served(name, last):
            if time.perf_counter() - started > PATIENCE_S:
                raise RuntimeError(f"{type(request).__name__} of {name} is not to be seen after {PATIENCE_S} s")
            time.sleep(0.02)
        return Cost(answered, time.perf_counter() - started, precise_cpu_seconds(self.pid) - spent)

    def _is_served(self, name: str, last: int | None) -> bool:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name)],
            response_partition_limit=1,
            cursor=Cursor(topic_name=name, partition_index=last or 0),
        )
        topic = self.client.ask(request, DESCRIBE_PARTITIONS, 0).topics[0]
        if last is None:
            return bool(topic.error_code == UNKNOWN_TOPIC)
        return not topic.error_code and any(row.leader_id >= 0 for row in topic.partitions)

    def log_size(self) -> LogSize:
        batches = size = end_offset = 0
        for path in sorted(self.folder.glob("*.log")):
            data = path.read_bytes()
            for _, header in iter_headers(data):
                batches += 1
                size += header.size
                end_offset = header.next_offset
        return LogSize(batches, size, end_offset)

    @property
    def resident_bytes(self) -> int:
        return memory_of(self.pid)

    def peak_bytes(self) -> int:
        """The most that was ever resident."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@contextmanager
def cluster(name: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="twofold-metadata-", ignore_cleanup_errors=True) as place:
        server: TwofoldServer | Oracle
        server = TunedOracle(jars_or_skip(), Path(place)) if name == KAFKA else TwofoldServer(Path(place))
        try:
            server.start()
            found = Cluster(server)
            yield found
            found.client.close()
        finally:
            server.kill() if isinstance(server, TwofoldServer) else server.stop()
