"""A process that has nothing to do with the metadata that changes: a producer, a consumer group, single requests.

    python metadata_kills_bystander.py ADDRESS REPORT

It goes on, whatever happens to the broker, until SIGTERM, and then writes what it has seen as JSON. The single requests
(produce, fetch, heartbeat, metadata of one topic) go out one after another on one connection, each with the time it
began and ended, so that whoever knows when the broker was away can tell how long others had to wait.
"""

import json
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from confluent_kafka import Consumer, KafkaException, Producer

from oracle.batches import batch
from oracle.driver import Connection, WireClosed
from oracle.wire import decode_response

TOPIC, PROBED = "other", "probed"  # the broker has them already
PARTITIONS = 3
RATE_S = 0.01
PROBE_S = 0.005
GROUP, PROBED_GROUP = "others", "probed"
LOADING = frozenset({14, 15, 16})  # a coordinator that has just started
RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}


class Writer(threading.Thread):
    """Numbered records, each once: number n to partition n modulo their number."""

    def __init__(self, address: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.stopping = stopping
        self.sent = self.acknowledged = 0
        self.refused: list[str] = []
        options = {"enable.idempotence": True, "message.timeout.ms": 300_000, "linger.ms": 0, "retry.backoff.ms": 20}
        self.producer = Producer({"bootstrap.servers": address, **options, **RECONNECT})

    def run(self) -> None:
        while not self.stopping.wait(RATE_S):
            self.producer.produce(TOPIC, b"%d" % self.sent, partition=self.sent % PARTITIONS, on_delivery=self._told)
            self.sent += 1
            self.producer.poll(0)
        if self.producer.flush(60):
            self.refused.append("records are left that nobody acknowledged")

    def _told(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.refused.append(str(error))


class GroupMember(threading.Thread):
    """Reads what is written and commits; after a restart it may be given again what it had not committed."""

    def __init__(self, address: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.stopping = stopping
        self.ends: dict[int, int] = defaultdict(int)
        self.again = self.commits = self.assignments = 0
        self.wanted = 0  # once the writer is done
        self.wrong: list[str] = []
        self.errors: dict[str, int] = defaultdict(int)
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                **RECONNECT,
            }
        )

    def run(self) -> None:
        self.consumer.subscribe([TOPIC], on_assign=self._assigned)
        while not self.stopping.is_set():
            self.step()
        deadline = time.monotonic() + 30
        while sum(self.ends.values()) < self.wanted and time.monotonic() < deadline:
            self.step()
        self.consumer.close()

    def _assigned(self, *_: Any) -> None:
        self.assignments += 1

    def step(self) -> None:
        messages = [one for one in self.consumer.consume(500, 0.1) if one.error() is None]
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            if int(value) != offset * PARTITIONS + partition:
                self.wrong.append(f"{value!r} at offset {offset} of {partition}")
            if offset > self.ends[partition]:
                self.wrong.append(f"offset {offset} of {partition} after {self.ends[partition] - 1}")
            self.again += offset < self.ends[partition]
            self.ends[partition] = max(self.ends[partition], offset + 1)
        if messages:
            try:
                self.consumer.commit(asynchronous=False)
                self.commits += 1
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1


class Probe(threading.Thread):
    """Single requests, in turn; none is repeated."""

    def __init__(self, address: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.stopping = stopping
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._connection: Connection | None = None
        self._member = ("", -1)
        self.took: list[tuple[str, float, float]] = []
        self.codes: dict[str, int] = defaultdict(int)
        self.joined = 0

    def run(self) -> None:
        while True:
            for probe in (self.produce, self.fetch, self.heartbeat, self.metadata):
                if self.stopping.wait(PROBE_S):
                    return
                began = time.monotonic()
                try:
                    code = probe()
                    self.codes[f"{probe.__name__} {code}"] += 1
                except (OSError, WireClosed):
                    self._connection = None
                    self.codes[f"{probe.__name__} closed"] += 1
                    continue
                self.took.append((probe.__name__, began, time.monotonic()))

    def ask(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        if self._connection is None:
            self._connection = Connection(*self._address, timeout_s=60)
        self._connection.send(api, version, body)
        payload = self._connection.receive()
        if payload is None:
            raise WireClosed(api)
        return decode_response(api, version, payload)[1]

    def produce(self) -> int:
        data = [{"name": PROBED, "partition_data": [{"index": 0, "records": batch(1)}]}]
        answer = self.ask("Produce", 9, transactional_id=None, acks=-1, timeout=10_000, topic_data=data)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    def fetch(self) -> int:
        rows = [{"topic": PROBED, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}]
        body = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0}
        answer = self.ask("Fetch", 11, **body, session_id=0, session_epoch=-1, topics=rows, rack_id="")
        return int(answer["error_code"] or answer["responses"][0]["partitions"][0]["error_code"])

    def metadata(self) -> int:
        answer = self.ask("Metadata", 9, topics=[{"name": PROBED}], allow_auto_topic_creation=False)
        return int(answer["topics"][0]["error_code"])

    def heartbeat(self) -> int:
        member_id, generation = self._member
        if not member_id:
            self._join()
            member_id, generation = self._member
        code = int(
            self.ask("Heartbeat", 4, group_id=PROBED_GROUP, generation_id=generation, member_id=member_id)["error_code"]
        )
        if code and code not in LOADING:
            self._member = ("", -1)
        return code

    def _join(self) -> None:
        body = {
            "group_id": PROBED_GROUP,
            "session_timeout": 45_000,
            "rebalance_timeout": 45_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        answer = self.ask("JoinGroup", 7, member_id="", **body)
        if answer["error_code"] == 79:  # MEMBER_ID_REQUIRED: come again under the name that you were given
            answer = self.ask("JoinGroup", 7, member_id=answer["member_id"], **body)
        if answer["error_code"]:
            return
        self.joined += 1
        self._member = answer["member_id"], answer["generation_id"]
        whose = {"group_id": PROBED_GROUP, "generation_id": self._member[1], "member_id": self._member[0]}
        rows = [{"member_id": self._member[0], "assignment": b""}]
        self.ask("SyncGroup", 5, **whose, protocol_type="consumer", protocol_name="range", assignments=rows)


def main() -> None:
    address, report = sys.argv[1:]
    told, over = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    writer, probe, member = Writer(address, told), Probe(address, told), GroupMember(address, over)
    for thread in (writer, probe, member):
        thread.start()
    told.wait()
    writer.join()
    probe.join()
    member.wanted = writer.acknowledged
    over.set()
    member.join()
    found = {
        "sent": writer.sent,
        "acknowledged": writer.acknowledged,
        "refused": writer.refused,
        "read": sum(member.ends.values()),
        "read_again": member.again,
        "commits": member.commits,
        "assignments": member.assignments,
        "commit_errors": member.errors,
        "wrong": member.wrong[:20],
        "took": probe.took,
        "codes": probe.codes,
        "joined": probe.joined,
    }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
