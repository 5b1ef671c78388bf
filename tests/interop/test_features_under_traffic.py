"""transaction.version is switched while transactional clients work: nobody fails, and nothing is lost or doubled.

A client takes the level of the ApiVersions answer with the highest epoch, which it asks for on every new connection,
and keeps to the protocol that a transaction began with (KIP-890). Which protocol it speaks shows in the versions of its
requests, which the server counts.
"""

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kits.clients.remote import Remote, RemoteClient, java_command
from kits.clients.single_requests import SingleRequests
from kits.clients.transactional import STOCK, TransactionalClient
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

TV = "transaction.version"
PARTITIONS = 2
LEVELS = (1, 2, 0, 2, 1, 3, 2)


class Server(TwofoldServer):
    def __init__(self, directory: Any) -> None:
        super().__init__(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"})
        self.level = 2

    def set_level(self, level: int) -> None:
        kind = 1 if level > self.level else 2
        row = {"feature": TV, "max_version_level": level, "upgrade_type": kind}
        with Connection(self.host, self.port) as connection:
            answer = connection.ask("UpdateFeatures", 2, feature_updates=[row], timeout=10_000, validate_only=False)
        assert answer["error_code"] == 0, answer
        self.level = level

    def requests(self, api: str) -> dict[int, int]:
        """How many of an API came so far, by version."""
        url = f"http://{self.settings['metrics.listener']}/metrics"
        text = urllib.request.urlopen(url, timeout=20).read().decode()
        return {
            int(sample.labels["version"]): int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("request") == api and "version" in sample.labels
        }


@pytest.fixture
def server(tmp_path: Any) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


@pytest.fixture(params=["confluent-kafka", "java", "single-requests"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[TransactionalClient]:
    with ExitStack() as stack:
        made: TransactionalClient
        if request.param == "java":
            made = RemoteClient(stack.enter_context(Remote(java_command(), server.bootstrap_servers)))
        elif request.param == "single-requests":
            made = SingleRequests(server.bootstrap_servers)
        else:
            made = STOCK[request.param](server.bootstrap_servers)
        stack.callback(made.close)
        yield made


def one_transaction(client: TransactionalClient, topic: str, number: int, *, commit: bool) -> None:
    client.begin()
    client.send(topic, [(index, f"{number}-{index}") for index in range(PARTITIONS)])
    client.flush()
    if commit:
        assert client.commit()
    else:
        client.abort()


def test_switching_levels_under_traffic_fails_no_client(server: Server, client: TransactionalClient) -> None:
    create_topic(server, "busy", PARTITIONS)
    client.open("busy-id", 30_000)
    committed: list[int] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        number = 0
        try:
            while not stop.is_set():
                one_transaction(client, "busy", number, commit=number % 3 != 0)
                if number % 3:
                    committed.append(number)
                number += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for level in LEVELS:
        time.sleep(0.3)
        before = len(committed)
        server.set_level(level)
        deadline = time.monotonic() + 20
        while len(committed) < before + 3 and not failures and time.monotonic() < deadline:
            time.sleep(0.01)
    stop.set()
    thread.join(60)
    assert not failures, failures
    assert len(committed) >= 3 * len(LEVELS)
    client.reopen()  # what the last transaction left is over
    wanted = sorted(f"{number}-{index}" for number in committed for index in range(PARTITIONS))
    assert sorted(row.value for row in client.read("busy", PARTITIONS, committed=True)) == wanted


def test_a_producer_speaks_the_protocol_of_the_level_that_it_finds(server: Server) -> None:
    create_topic(server, "found", PARTITIONS)
    number = 0
    with Remote(java_command(), server.bootstrap_servers) as remote:
        client = RemoteClient(remote)
        client.open("found-id", 30_000)
        for level, version in ((2, 5), (1, 4), (2, 5), (0, 4), (3, 5)):
            if level != server.level:
                server.set_level(level)
                client.reopen()
            before = server.requests("EndTxn")
            for _ in range(3):
                one_transaction(client, "found", number, commit=True)
                number += 1
            after = server.requests("EndTxn")
            assert after.get(version, 0) - before.get(version, 0) == 3, f"at level {level}: {before} -> {after}"
        wanted = sorted(f"{one}-{index}" for one in range(number) for index in range(PARTITIONS))
        assert sorted(row.value for row in client.read("found", PARTITIONS, committed=True)) == wanted
        client.close()


def test_a_client_of_the_old_protocol_goes_on_with_it_at_every_level(server: Server) -> None:
    create_topic(server, "old", PARTITIONS)
    client = STOCK["confluent-kafka"](server.bootstrap_servers)
    client.open("old-id", 30_000)
    for number, level in enumerate((2, 1, 0, 3, 2)):
        if level != server.level:
            server.set_level(level)
            client.reopen()
        one_transaction(client, "old", number, commit=True)
    assert max(server.requests("EndTxn")) < 5
    assert max(server.requests("Produce")) < 12
    assert len(client.read("old", PARTITIONS, committed=True)) == 5 * PARTITIONS
    client.close()
