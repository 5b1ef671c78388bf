"""`twofold serve` and its open transactions over restarts, and with records of another time than the clock's: the
metrics are true before a client asks for any partition, and ages are those of the broker's clock."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from interop.test_metrics_scrape import wait_for
from kits.processes.server import TwofoldServer
from kits.wire.tools import Cli, hang, make_cli, make_topic
from oracle.processes import free_port

pytestmark = pytest.mark.interop

NOT_LOOKED_AT = "twofold_partitions_not_looked_at"
LAG = "kafka_cluster_partition_laststableoffsetlag"
STABLE = "twofold_txn_last_stable_offset"
OPEN_FOR = "twofold_txn_partition_open_seconds"
PRODUCER_IDS = "kafka_server_replicamanager_produceridcount"
LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"
AT_LEAST = "twofold_txn_partitions_open_at_least"
PARTITIONS = 20
HOUR_S = 3600
YEAR_MS = 365 * 86_400_000

both_ends = pytest.mark.parametrize("end", [TwofoldServer.stop, TwofoldServer.kill], ids=["stop", "kill -9"])


class Told:
    def __init__(self, server: TwofoldServer) -> None:
        with urllib.request.urlopen(f"http://{server.settings['metrics.listener']}/metrics", timeout=20) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        self._samples = {
            (sample.name, sample.labels.get("topic"), sample.labels.get("partition")): sample.value
            for family in families
            for sample in family.samples
        }

    def __call__(self, name: str, partition: int | None = None) -> float | None:
        where = (None, None) if partition is None else ("orders", str(partition))
        return self._samples.get((name, *where))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return make_cli(capsys, monkeypatch)


def serve(directory: Path, **settings: object) -> TwofoldServer:
    given = {key.replace("_", "."): str(value) for key, value in settings.items()}
    return TwofoldServer(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"} | given)


def restart(server: TwofoldServer, end: Callable[[TwofoldServer], object]) -> Told:
    """What is told once the broker has looked at all partitions; nobody else asks it for anything."""
    end(server)
    server.start()
    wait_for(lambda: Told(server)(NOT_LOOKED_AT) == 0)
    return Told(server)


@both_ends
def test_open_transactions_and_producers_are_told_before_a_client_touches_the_partition(
    tmp_path: Path, end: Callable[[TwofoldServer], object]
) -> None:
    with serve(tmp_path) as server:
        address: dict[str, str | int | float | bool] = {"bootstrap.servers": server.bootstrap_servers}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(20)
        plain = Producer({**address, "enable.idempotence": True})
        opened = Producer({**address, "transactional.id": "opened", "transaction.timeout.ms": 900_000})
        opened.init_transactions()
        opened.begin_transaction()
        for partition in range(1, PARTITIONS):
            plain.produce("orders", b"plain", partition=partition)
        plain.flush()
        for _ in range(3):
            opened.produce("orders", b"open", partition=7)
        opened.flush()
        told = restart(server, end)
        assert (told(LAG, 7), told(STABLE, 7), told(LAG, 8), told(STABLE, 8)) == (3, 1, 0, 1)
        assert told(PRODUCER_IDS) == PARTITIONS - 1 + 1
        assert (told(OPEN_FOR, 7) or 0) > 0
        assert told(OPEN_FOR, 8) is None


def serve_two_hours_ago(directory: Path, **settings: object) -> TwofoldServer:
    settings |= {"transaction_partition_verification_enable": "false"}
    server = serve(directory, log_message_timestamp_after_max_ms=24 * HOUR_S * 1000, **settings)
    server.behind_s = 2 * HOUR_S
    return server


def leave_hanging(server: TwofoldServer) -> None:
    """A transaction in orders-0 that no coordinator knows."""
    make_topic(server, 1, "orders")
    hang(server, "orders", 0)


@both_ends
def test_a_hanging_transaction_is_late_after_a_restart_by_the_time_of_its_append(
    tmp_path: Path, end: Callable[[TwofoldServer], object], cli: Cli
) -> None:
    with serve_two_hours_ago(tmp_path, log_flush_offset_checkpoint_interval_ms=100) as server:
        leave_hanging(server)
        wait_for((server.data / "orders-0" / "producer-times").exists)
        server.behind_s = 0
        told = restart(server, end)
        assert (told(LATE), told(AT_LEAST), told(LAG, 0)) == (1, 0, 1)
        assert 2 * HOUR_S <= (told(OPEN_FOR, 0) or 0) < 2 * HOUR_S + 120
        (row,) = json.loads(cli(server, "hanging", "--format", "json").stdout)
        assert 2 * HOUR_S <= row["duration_ms"] / 1000 < 2 * HOUR_S + 120
        assert (row["duration_told_by"], row["began_is_bound"]) == ("leader", False)
        (cells,) = cli(server, "find-hanging", "--topic", "orders").stdout.splitlines()[1:]
        assert cells.split()[-1] in ("120", "121")


def test_where_the_append_is_not_known_the_age_counts_from_the_restart_and_says_so(tmp_path: Path, cli: Cli) -> None:
    """As in a folder of Apache Kafka, or of a version that did not keep it."""
    with serve_two_hours_ago(tmp_path) as server:
        leave_hanging(server)
        server.stop()
        (server.data / "orders-0" / "producer-times").unlink()
        server.behind_s = 0
        server.start()
        wait_for(lambda: Told(server)(NOT_LOOKED_AT) == 0)
        told = Told(server)
        assert (told(LATE), told(AT_LEAST), told(LAG, 0)) == (0, 1, 1)
        (row,) = json.loads(cli(server, "blocked", "--format", "json").stdout)
        assert row["duration_ms"] < 120_000 and row["duration_told_by"] == "leader, at least"
        assert "leader, at least" in cli(server, "blocked").stdout and " at least " in cli(server, "hanging").stdout


@both_ends
def test_a_backfill_with_the_dates_of_last_year_is_open_for_seconds(
    tmp_path: Path, end: Callable[[TwofoldServer], object], cli: Cli
) -> None:
    with serve(tmp_path) as server:
        make_topic(server, 1, "orders")
        config = {"bootstrap.servers": server.bootstrap_servers, "transactional.id": "backfill"}
        producer = Producer(config | {"transaction.timeout.ms": 900_000})
        producer.init_transactions()
        producer.begin_transaction()
        for day in range(3):
            dated_ms = int(time.time() * 1000) - YEAR_MS + day * 86_400_000
            producer.produce("orders", b"of last year", partition=0, timestamp=dated_ms)
        producer.flush()
        for told in (Told(server), restart(server, end)):
            assert (told(LATE), told(AT_LEAST)) == (0, 0)
            assert 0 < (told(OPEN_FOR, 0) or 0) < 120
            (row,) = json.loads(cli(server, "blocked", "--format", "json").stdout)
            assert row["first_timestamp"] < int(time.time() * 1000) - YEAR_MS + 120_000
            assert row["duration_ms"] < 120_000 and row["duration_told_by"] == "coordinator"
