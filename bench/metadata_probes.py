"""Clients of one node, each at a fixed rate on a connection of its own, while something else goes on.

Prints `ready`, goes on until its standard input ends, and then prints when each request was due and when it was
answered, as JSON. A request counts from when it was due, so that a node that stalls is charged for all that had to wait
(no coordinated omission). The clock is the system's monotonic one, so that the parent knows what happened when.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from bench.wire import Client
from twofold.records.batch import BatchBuilder
from twofold.wire import codec
from twofold.wire.messages.api_versions import ApiVersionsRequest
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

TOPIC = "small"
GROUP = "probes"
RATE = 100
STALL_PAUSE_S = 0.001
RECORD_BYTES = 100
PATIENCE_S = 60
PRODUCE, FETCH, METADATA, FIND_COORDINATOR, JOIN, HEARTBEAT, SYNC, API_VERSIONS = 0, 1, 3, 10, 11, 12, 14, 18
NOT_READY = (14, 15, 16)  # a coordinator that is on its way


class Probe(threading.Thread):
    """Sends when a request is due, whether or not the one before was answered, and reads the answers."""

    def __init__(self, client: Client, message: Any, api: tuple[int, int], error: Callable[[Any], int]) -> None:
        super().__init__(daemon=True)
        self.times: list[tuple[float, float]] = []
        self.failure: str | None = None
        self.over = False
        self.client = client
        self._key, self._version = api
        self._data = bytes(codec.encode_request(message, *api, 1, "bench"))
        self._error = error

    def run(self) -> None:
        try:
            self.go_on()
        except Exception as error:
            self.failure = f"API {self._key}: {error!r}"

    def go_on(self) -> None:
        waiting: SimpleQueue[float | None] = SimpleQueue()
        sender = threading.Thread(target=self._send_when_due, args=[waiting], daemon=True)
        sender.start()
        while (due := waiting.get()) is not None:
            self.receive(due)

    def _send_when_due(self, waiting: "SimpleQueue[float | None]") -> None:
        due = time.monotonic()
        while not self.over and self.failure is None:
            self.send()
            waiting.put(due)
            due += 1 / RATE
            time.sleep(max(0.0, due - time.monotonic()))
        waiting.put(None)

    def send(self) -> None:
        self.client.connection.send_raw(self._data)

    def receive(self, since: float) -> None:
        payload = self.client.payload()
        self.times.append((since, time.monotonic()))
        code = self._error(codec.decode_response(self._key, self._version, payload)[1])
        if code:
            raise RuntimeError(f"error {code}")


class StallProbe(Probe):
    """One request at a time, each from when it was sent: what it waits at most is a stall of the node."""

    def go_on(self) -> None:
        while not self.over:
            sent = time.monotonic()
            self.send()
            self.receive(sent)
            time.sleep(STALL_PAUSE_S)


def member(client: Client) -> HeartbeatRequest:
    """The heartbeat of the only member of a group."""
    deadline = time.monotonic() + PATIENCE_S
    join = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id="", protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    client.ask(FindCoordinatorRequest(key=GROUP), FIND_COORDINATOR, 2)  # creates the topic of the offsets
    joined = client.ask(join, JOIN, 3)
    while joined.error_code in NOT_READY and time.monotonic() < deadline:
        time.sleep(0.05)
        joined = client.ask(join, JOIN, 3)
    place = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assigned = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
    synced = client.ask(SyncGroupRequest(assignments=assigned, **place), SYNC, 2)
    if joined.error_code or synced.error_code:
        raise RuntimeError(f"no group: {joined.error_code}, {synced.error_code}")
    return HeartbeatRequest(**place)


def produce() -> ProduceRequest:
    builder = BatchBuilder()
    builder.add(None, bytes(RECORD_BYTES), int(time.time() * 1000))
    rows = [PartitionProduceData(index=0, records=builder.build())]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=rows)])


def fetch() -> FetchRequest:
    """The first batch of the topic: one is given, however small the limit."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic=TOPIC, partitions=[partition])]
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=topics)


def metadata_error(answer: Any) -> int:
    """A fenced broker, or one without the topic, is an error as well."""
    topic = answer.topics[0]
    return topic.error_code or max(row.error_code for row in topic.partitions) or (0 if answer.brokers else -1)


def probes(connect: Callable[[], Client]) -> dict[str, Probe]:
    connections = [connect() for _ in range(5)]
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    ping = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    heartbeat = member(connections[3])
    first = connections[0].ask(produce(), PRODUCE, 8).responses[0].partition_responses[0]
    if first.error_code:
        raise RuntimeError(f"the first record was answered with error {first.error_code}")
    rows: dict[str, tuple[type[Probe], Any, tuple[int, int], Callable[[Any], int]]] = {
        "produce": (Probe, produce(), (PRODUCE, 8), lambda a: a.responses[0].partition_responses[0].error_code),
        "fetch": (Probe, fetch(), (FETCH, 11), lambda a: a.responses[0].partitions[0].error_code),
        "metadata": (Probe, asked, (METADATA, 12), metadata_error),
        "heartbeat": (Probe, heartbeat, (HEARTBEAT, 3), lambda a: a.error_code),
        "ping": (StallProbe, ping, (API_VERSIONS, 3), lambda a: a.error_code),
    }
    return {name: kind(client, *row) for client, (name, (kind, *row)) in zip(connections, rows.items(), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    found = probes(lambda: Client(options.host, options.port))
    for probe in found.values():
        probe.start()
    print("ready", flush=True)
    sys.stdin.read()
    for probe in found.values():
        probe.over = True
    for probe in found.values():
        probe.join(PATIENCE_S)
    failures = [probe.failure for probe in found.values() if probe.failure]
    print(json.dumps({"failures": failures, "times": {name: probe.times for name, probe in found.items()}}))


if __name__ == "__main__":
    main()
