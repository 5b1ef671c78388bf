"""One producer of a transactional id made of blocking requests on connections that a test names itself.

Nothing is tried again but what a server that has just started asks for, and nothing that the session believes changes
by itself, except what a success gives it. So a test decides what is late, what is sent twice and by whom.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from oracle.batches import Record, batch
from oracle.driver import Connection
from oracle.wire import decode_response

TRANSACTIONAL = 0x10
GROUP_KEY, TRANSACTION_KEY = 0, 1
LOADING = {3, 6, 14, 15, 16, 51}
PATIENCE_S = 15.0

Answer = dict[str, Any]


class Versions(NamedTuple):
    name: str
    init: int
    add_partitions: int
    add_offsets: int
    produce: int
    txn_offset_commit: int
    end: int

    @property
    def adds_implicitly(self) -> bool:
        return self.produce >= 12


OLD = Versions("old", init=4, add_partitions=2, add_offsets=2, produce=9, txn_offset_commit=3, end=3)
"""What clients without KIP-890 send."""
TV1 = Versions("tv1", init=4, add_partitions=3, add_offsets=4, produce=11, txn_offset_commit=4, end=4)
TV2 = Versions("tv2", init=5, add_partitions=3, add_offsets=4, produce=12, txn_offset_commit=5, end=5)


class Session:
    def __init__(
        self, address: str, transactional_id: str, versions: Versions, *, name: str, timeout_ms: int = 60_000
    ) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)
        self.id, self.versions, self.timeout_ms = transactional_id, versions, timeout_ms
        self.name = name
        """The client id, by which a proxy knows the session."""
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        self._connection: Connection | None = None

    # Connections

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._host, self._port)
        return self._connection

    def reconnect(self) -> Connection | None:
        """Go on with a new connection; returns the one before, still open, with what is under way on it."""
        before, self._connection = self._connection, None
        return before

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send(self, api: str, version: int, body: Answer) -> None:
        """Without waiting for the answer."""
        self.connection.send(api, version, body, client_id=self.name)

    def ask(self, api: str, version: int, body: Answer) -> Answer:
        self.send(api, version, body)
        payload = self.connection.receive()
        if payload is None:
            self.reconnect()
            raise ConnectionError(f"{api}: the connection ended without an answer")
        return decode_response(api, version, payload)[1]

    # The bodies of requests, of this session's identity

    def init_body(self, producer_id: int = -1, epoch: int = -1) -> Answer:
        return {
            "transactional_id": self.id,
            "transaction_timeout": self.timeout_ms,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def end_body(self, commit: bool) -> Answer:
        return {**self._who(), "committed": commit}

    def add_body(self, topic: str, partitions: Sequence[int]) -> Answer:
        return {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}],
        }

    def produce_body(self, topic: str, partition: int, values: Sequence[str]) -> Answer:
        """The next batch of the partition; its sequence numbers are used up, whatever becomes of it."""
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + len(values)
        records = batch(
            [Record(key=None, value=value.encode()) for value in values],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        return {"transactional_id": self.id, "acks": -1, "timeout": 10_000, "topic_data": data}

    def offsets_body(self, group: str, topic: str, offsets: dict[int, int]) -> Answer:
        rows = [
            {"partition_index": at, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
            for at, offset in offsets.items()
        ]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        return {**self._who(), "group_id": group, **member, "topics": [{"name": topic, "partitions": rows}]}

    def _who(self) -> Answer:
        return {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    # Requests and the error code that each is answered with

    def init(self, producer_id: int = -1, epoch: int = -1) -> int:
        answer = self.ask("InitProducerId", self.versions.init, self.init_body(producer_id, epoch))
        return self.learn(answer)

    def learn(self, answer: Answer) -> int:
        """Adopt the identity of an answer, as a producer does; returns the error code."""
        code = int(answer["error_code"])
        if code == 0 and answer.get("producer_id", -1) >= 0:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return code

    def add(self, topic: str, *partitions: int) -> list[int]:
        answer = self.ask("AddPartitionsToTxn", self.versions.add_partitions, self.add_body(topic, partitions))
        rows = [row for found in answer["results_by_topic_v3_and_below"] for row in found["results_by_partition"]]
        return [row["partition_error_code"] for row in sorted(rows, key=lambda row: row["partition_index"])]

    def produce(self, topic: str, partition: int, *values: str) -> int:
        body = self.produce_body(topic, partition, values)
        return produce_code(self.ask("Produce", self.versions.produce, body))

    def write(self, topic: str, partition: int, *values: str) -> None:
        """A batch of an open or new transaction that must be taken."""
        if not self.versions.adds_implicitly:
            assert self.until_ready(lambda: self.add(topic, partition)[0]) == 0
        body = self.produce_body(topic, partition, values)
        code = self.until_ready(lambda: produce_code(self.ask("Produce", self.versions.produce, body)))
        assert code == 0, f"{self.name}: Produce was answered with {code}"

    def add_offsets(self, group: str) -> int:
        body = {**self._who(), "group_id": group}
        return int(self.ask("AddOffsetsToTxn", self.versions.add_offsets, body)["error_code"])

    def commit_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> int:
        version = self.versions.txn_offset_commit
        answer = self.ask("TxnOffsetCommit", version, self.offsets_body(group, topic, offsets))
        return next((row["error_code"] for found in answer["topics"] for row in found["partitions"]), 0)

    def write_offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        self.find(group, GROUP_KEY)
        if not self.versions.adds_implicitly:
            assert self.until_ready(lambda: self.add_offsets(group)) == 0
        assert self.until_ready(lambda: self.commit_offsets(group, topic, offsets)) == 0

    def end(self, commit: bool) -> int:
        answer = self.ask("EndTxn", self.versions.end, self.end_body(commit))
        return self.learn(answer)

    def until_ready(self, attempt: Callable[[], int]) -> int:
        """Again while the server loads or ends the transaction before, or the connection breaks."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                code = attempt()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                code = 14
            if code not in LOADING or time.monotonic() > deadline:
                return code
            time.sleep(0.02)

    def find(self, key: str, key_type: int) -> None:
        """A coordinator's topic is made when somebody asks for the coordinator."""
        body = {"key": key, "key_type": key_type}
        assert self.until_ready(lambda: int(self.ask("FindCoordinator", 1, body)["error_code"])) == 0

    def open(self) -> "Session":
        """InitProducerId as a new instance does, until it works."""
        self.find(self.id, TRANSACTION_KEY)
        code = self.until_ready(self.init)
        assert code == 0, f"{self.name}: InitProducerId was answered with {code}"
        return self


def produce_code(answer: Answer) -> int:
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])
