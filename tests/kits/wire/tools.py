"""Transactions for `twofold txn` to look at: healthy ones, and ones that hang because nobody knows of them.

What hangs is written under an older version of Produce, which leaves it to the client to tell the coordinator, to a
broker that does not verify (`transaction.partition.verification.enable=false`): as the bug of KAFKA-9144 left it.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import pytest

from kits.wire.session import TV2, Session, produce_code
from oracle.batches import batch
from oracle.driver import Connection
from oracle.wire import decode_response
from twofold.cli.app import run_app

SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.two.phase.commit.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
PRODUCE_OLD = 9
TRANSACTIONAL = 0x10
AT_ONCE = 50
LONG = os.environ.get("TWOFOLD_LONG") == "1"


class Server(Protocol):
    name: str
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str: ...


class Done(NamedTuple):
    stdout: str
    stderr: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Cli = Callable[..., Done]


def make_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs `twofold txn ...` in this process and checks its exit code."""
    monkeypatch.setattr("twofold.logging.configure_logging", lambda **_: None)
    monkeypatch.setenv("COLUMNS", "80")

    def run(server: Server | str, *args: str, code: int = 0) -> Done:
        address = server if isinstance(server, str) else server.bootstrap_servers
        monkeypatch.setenv("TWOFOLD_BOOTSTRAP_SERVER", address)
        capsys.readouterr()
        exit_code = run_app(["txn", *args])
        done = Done(*capsys.readouterr(), exit_code)
        assert exit_code == code, f"{args}: {exit_code}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def make_topic(server: Server, partitions: int = 1, name: str | None = None) -> str:
    topic = name or fresh("t")
    with Connection(server.host, server.port) as connection:
        row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        answer = connection.ask("CreateTopics", 4, topics=[row], timeout=10_000, validate_only=False)
        assert answer["topics"][0]["error_code"] == 0, answer
    return topic


def session(server: Server, transactional_id: str | None = None, **options: Any) -> Session:
    """A producer that has its id; of the newer protocol unless `versions` says otherwise."""
    name = transactional_id or fresh("x")
    return Session(server.bootstrap_servers, name, options.pop("versions", TV2), name=name, **options).open()


def hang(server: Server, topic: str, partition: int, producer_id: int | None = None, epoch: int = 0) -> int:
    """A record of a transaction that no coordinator is told of; returns the producer id."""
    with Connection(server.host, server.port) as connection:
        if producer_id is None:
            answer = connection.ask("InitProducerId", 0, transactional_id=None, transaction_timeout=60_000)
            producer_id = int(answer["producer_id"])
        now_ms = int(time.time() * 1000)
        records = batch(
            1,
            attributes=TRANSACTIONAL,
            base_sequence=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_timestamp=now_ms,
        )
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        body = {"transactional_id": "by-hand", "acks": -1, "timeout": 5000, "topic_data": data}
        deadline = time.monotonic() + 15
        while (code := produce_code(connection.ask("Produce", PRODUCE_OLD, **body))) and time.monotonic() < deadline:
            time.sleep(0.05)  # a new topic has no leader for a moment, a new setting has not arrived
        assert code == 0, f"Produce was answered with {code}"
    return producer_id


def open_many(server: Server, topic: str, partitions: int, count: int, prefix: str = "healthy") -> None:
    """Transactions with one record each, spread over the partitions, on one connection."""
    session(server).close()  # there is a coordinator
    with Connection(server.host, server.port, timeout_s=60) as connection:
        found: list[tuple[int, int]] = []
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(count, start + AT_ONCE))
            bodies = [
                {"transactional_id": f"{prefix}-{n}", "transaction_timeout": 600_000, "producer_id": -1,
                 "producer_epoch": -1}
                for n in numbers
            ]  # fmt: skip
            found += [
                (row["producer_id"], row["producer_epoch"])
                for row in _pipelined(connection, "InitProducerId", 5, bodies)
            ]
        for start in range(0, count, AT_ONCE):
            bodies = []
            for n in range(start, min(count, start + AT_ONCE)):
                producer_id, epoch = found[n]
                records = batch(
                    1, attributes=TRANSACTIONAL, base_sequence=0, producer_id=producer_id, producer_epoch=epoch
                )
                data = [{"name": topic, "partition_data": [{"index": n % partitions, "records": records}]}]
                bodies.append({"transactional_id": f"{prefix}-{n}", "acks": -1, "timeout": 9000, "topic_data": data})
            assert {produce_code(row) for row in _pipelined(connection, "Produce", 12, bodies)} == {0}


def _pipelined(connection: Connection, api: str, version: int, bodies: Sequence[dict[str, Any]]) -> Iterator[Any]:
    for body in bodies:
        connection.send(api, version, body)
    for _ in bodies:
        payload = connection.receive()
        assert payload is not None
        yield decode_response(api, version, payload)[1]


@contextmanager
def not_verifying(server: Any) -> Iterator[None]:
    """A broker of Apache Kafka without KIP-890's verification, for a while (it is a setting of the whole cluster)."""
    name = "transaction.partition.verification.enable"

    def set_to(value: str | None) -> None:
        change = {"name": name, "config_operation": 1 if value is None else 0, "value": value}
        resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
        with Connection(server.host, server.port) as connection:
            answer = connection.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
        assert [row["error_code"] for row in answer["responses"]] == [0], answer

    if server.name == "oracle":
        set_to("false")
    try:
        yield
    finally:
        if server.name == "oracle":
            set_to(None)


def read_committed(server: Server, topic: str, partition: int) -> list[bytes]:
    """What a stock client reads of a partition at read_committed, up to where it has to wait or the end is."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": fresh("readers"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found = []
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                found.append(value)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
        raise AssertionError(f"{topic}-{partition} has no end")
    finally:
        consumer.close()


def stable_offset(server: Server, topic: str, partition: int) -> int:
    with Connection(server.host, server.port) as connection:
        rows = [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}]
        answer = connection.ask("ListOffsets", 2, replica_id=-1, isolation_level=1, topics=rows)
        row = answer["topics"][0]["partitions"][0]
        assert row["error_code"] == 0
        return int(row["offset"])
