"""/metrics of `twofold serve` after a restart, while no client asks for any partition: what is told is true."""

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from interop.test_metrics_scrape import wait_for
from oracle.processes import free_port
from support.server import TwofoldServer

pytestmark = pytest.mark.interop

NOT_LOOKED_AT = "twofold_partitions_not_looked_at"
LAG = "kafka_cluster_partition_laststableoffsetlag"
STABLE = "twofold_txn_last_stable_offset"
OPEN_FOR = "twofold_txn_partition_open_seconds"
PRODUCER_IDS = "kafka_server_replicamanager_produceridcount"
PARTITIONS = 20

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
        return self._samples.get((name, None if partition is None else "orders", partition and str(partition)))


def serve(directory: Path) -> TwofoldServer:
    return TwofoldServer(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"})


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
        address = {"bootstrap.servers": server.bootstrap_servers}
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
