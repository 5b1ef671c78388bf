"""Stock clients whose requests come late or whose answers are lost: what they do by themselves ends well.

The server advertises a proxy, so clients of the older (confluent-kafka) and the newer protocol (Java) go through it.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from kits.clients.remote import Remote, RemoteClient, java_command
from kits.clients.transactional import Confluent, Refused, TransactionalClient
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from kits.wire.look import await_nothing_open, ends
from kits.wire.proxy import Held, Proxy, Request

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}
PARTITIONS = 2
PATIENCE_S = 15.0
SHORT_TIMEOUT_MS = 1500
NUMBERS = count()


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy() as made:
        yield made


@pytest.fixture(scope="module")
def server(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    directory: Path = tmp_path_factory.mktemp("server")
    advertised = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
    with TwofoldServer(directory, SETTINGS | advertised) as running:
        proxy.forward_to(running.host, running.port)
        yield running


@pytest.fixture(scope="module")
def java(proxy: Proxy, server: TwofoldServer) -> Iterator[Remote]:
    with Remote(java_command(), proxy.address) as program:
        yield program


class Stage:
    def __init__(self, server: TwofoldServer, proxy: Proxy, make: Callable[[], TransactionalClient]) -> None:
        self.server, self.proxy, self._make = server, proxy, make
        number = next(NUMBERS)
        self.topic, self.id = f"topic-{number}", f"transactional-id-{number}"
        self._made: list[TransactionalClient] = []
        create_topic(server, self.topic, PARTITIONS)

    def instance(self, *, timeout_ms: int = 60_000) -> TransactionalClient:
        made = self._make()
        self._made.append(made)
        made.open(self.id, timeout_ms)
        return made

    def is_mine(self, request: Request) -> bool:
        return self.id.encode() in request.frame

    def write(self, client: TransactionalClient, value: str, partition: int = 0) -> None:
        client.begin()
        client.send(self.topic, [(partition, value)])
        client.flush()

    def await_read(self, wanted: list[str], *, committed: bool = True) -> None:
        reader = Confluent(self.proxy.address)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = sorted(row.value for row in reader.read(self.topic, PARTITIONS, committed=committed))
            if found == wanted:
                return
            assert time.monotonic() < deadline, f"read {found}, wanted {wanted}"

    def await_nothing_open(self) -> None:
        await_nothing_open(self.server, self.topic, PARTITIONS)

    def close(self) -> None:
        for client in self._made:
            client.close()


@pytest.fixture(params=["confluent-kafka", "java"])
def stage(request: pytest.FixtureRequest, server: TwofoldServer, proxy: Proxy) -> Iterator[Stage]:
    if request.param == "java":
        remote: Remote = request.getfixturevalue("java")
        made = Stage(server, proxy, lambda: RemoteClient(remote))
    else:
        made = Stage(server, proxy, lambda: Confluent(proxy.address))
    yield made
    made.close()


def meanwhile(work: Callable[[], object], held: Held, then: Callable[[], object]) -> object:
    """Start what will be held, do something else when it is, release it; returns what the work came to."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(outcome, work)
        held.wait()
        then()
        held.release()
        return future.result(2 * PATIENCE_S)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except Refused as error:
        return error


@pytest.mark.parametrize("api", ["EndTxn", "Produce", "InitProducerId"])
def test_a_lost_answer_is_made_good_by_the_client(stage: Stage, api: str) -> None:
    first = stage.instance()
    stage.write(first, "one")
    first.commit()
    lost = stage.proxy.lose_answer(api, where=stage.is_mine)
    client = stage.instance() if api == "InitProducerId" else first
    stage.write(client, "two")
    client.commit()
    lost.wait_answer()
    stage.write(client, "three")
    client.commit()
    stage.await_read(["one", "three", "two"])
    stage.await_nothing_open()


def test_zombie_produce_after_abort_is_refused_and_the_lso_moves_on(stage: Stage) -> None:
    """The coordinator aborts while a batch to another partition is under way."""
    client = stage.instance(timeout_ms=SHORT_TIMEOUT_MS)
    stage.write(client, "first")
    zombie = stage.proxy.hold("Produce", where=stage.is_mine)

    def write_on() -> None:
        client.send(stage.topic, [(1, "zombie")])
        client.flush()

    ended = meanwhile(write_on, zombie, stage.await_nothing_open)
    assert isinstance(ended, Refused), "the batch of an aborted transaction was taken"
    assert isinstance(outcome(client.commit), Refused)
    stage.await_nothing_open()
    assert ends(stage.server, stage.topic, PARTITIONS, committed=False)[1] <= 1, "a marker at most"
    client.reopen()
    stage.write(client, "after", 1)
    client.commit()
    stage.await_read(["after"])


def test_aborted_read_of_a_commit_that_was_delayed_past_the_abort_of_the_coordinator(stage: Stage) -> None:
    client = stage.instance(timeout_ms=SHORT_TIMEOUT_MS)
    stage.write(client, "late")
    commit = stage.proxy.hold("EndTxn", where=stage.is_mine)
    ended = meanwhile(client.commit, commit, stage.await_nothing_open)
    assert isinstance(ended, Refused), "a transaction that the coordinator aborted was committed"
    assert ended.kind == "fenced"
    stage.await_read([])
    stage.await_read(["late"], committed=False)


def test_two_instances_one_transactional_id_when_the_commit_of_the_first_comes_late(stage: Stage) -> None:
    first = stage.instance()
    stage.write(first, "first")
    commit = stage.proxy.hold("EndTxn", where=stage.is_mine)
    second: list[TransactionalClient] = []

    def take_over() -> None:
        # The program of the Java client does one thing at a time, so a second instance is one of another client.
        client = Confluent(stage.proxy.address)
        second.append(client)
        client.open(stage.id, 60_000)
        client.begin()
        client.send(stage.topic, [(0, "second")])
        client.flush()

    ended = meanwhile(first.commit, commit, take_over)
    assert isinstance(ended, Refused)
    assert ended.kind == "fenced"
    second[0].commit()
    second[0].close()
    stage.await_read(["second"])
    stage.await_nothing_open()
