"""The same transactional stories with every client: commits, aborts, fencing, timeouts, offsets.

confluent-kafka, kafka-python and aiokafka speak the older protocol (TV1), the Java client, franz-go (in `make interop`)
and single requests the newer one (TV2). What a client is told must come out as that client's own error.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import pytest

from kits.clients.remote import Remote, RemoteClient, go_command, java_command
from kits.clients.single_requests import SingleRequests
from kits.clients.transactional import STOCK, Refused, TransactionalClient
from kits.copying.copies import SETTINGS
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from kits.wire.look import await_group_offset, await_nothing_open, ends
from oracle.kafka import running_oracle

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
COMMANDS = {"java": java_command, "franz-go": go_command}
CLIENTS = (*STOCK, "java", *(("franz-go",) if LONG else ()), "single-requests")
TV2 = ("java", "franz-go", "single-requests")

FENCED = {
    "confluent-kafka": {"_FENCED"},
    "kafka-python": {"ProducerFencedError", "KafkaError"},  # the second when it repeats the first
    "aiokafka": {"ProducerFenced"},
    "java": {"ProducerFencedException"},
    "franz-go": {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"},
    "single-requests": {"ProducerFenced", "InvalidProducerEpoch"},  # the second from Produce and TxnOffsetCommit
}
"""Its own name for: another producer has this transactional id, and this one is done."""

PARTITIONS = 3
TIMEOUT_MS = 30_000
SHORT_TIMEOUT_MS = 1000
PATIENCE_S = 15.0
NUMBERS = count()


class Server(Protocol):
    name: str
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str: ...


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "oracle":
        with running_oracle(SETTINGS) as oracle:
            yield oracle
    else:
        with TwofoldServer(tmp_path_factory.mktemp("clients"), SETTINGS) as running:
            yield running


@pytest.fixture(scope="module")
def remotes(server: Server) -> Iterator[Callable[[str], Remote]]:
    """The programs of clients of other languages, each started once."""
    started: dict[str, Remote] = {}

    def remote(client: str) -> Remote:
        if client not in started:
            started[client] = Remote(COMMANDS[client](), server.bootstrap_servers)
        return started[client]

    yield remote
    for program in started.values():
        program.stop()


class World:
    """A topic of its own, and any number of instances of one client."""

    def __init__(self, server: Server, client: str, remotes: Callable[[str], Remote]) -> None:
        self.server, self.client = server, client
        self.topic = f"story-{client}-{next(NUMBERS)}"
        self.id = f"id-{self.topic}"
        self.group = f"group-{self.topic}"
        self._remotes = remotes
        self._made: list[TransactionalClient] = []
        create_topic(server, self.topic, PARTITIONS)

    def instance(self, name: str | None = None, *, timeout_ms: int = TIMEOUT_MS) -> TransactionalClient:
        """Open, so whoever had the name before is fenced."""
        made: TransactionalClient
        if self.client in STOCK:
            made = STOCK[self.client](self.server.bootstrap_servers)
        elif self.client == "single-requests":
            made = SingleRequests(self.server.bootstrap_servers)
        else:
            made = RemoteClient(self._remotes(self.client))
        self._made.append(made)
        made.open(name or self.id, timeout_ms)
        return made

    def close(self) -> None:
        for client in self._made:
            client.close()

    def write(self, client: TransactionalClient, *values: str, partition: int | None = None) -> None:
        """Begin and send; all is acknowledged."""
        client.begin()
        self.add(client, *values, partition=partition)

    def add(self, client: TransactionalClient, *values: str, partition: int | None = None) -> None:
        spread = [(index % PARTITIONS if partition is None else partition, value) for index, value in enumerate(values)]
        client.send(self.topic, spread)
        client.flush()

    def await_read(self, client: TransactionalClient, wanted: set[str], *, committed: bool = True) -> None:
        """Markers may still be under way when a commit is answered."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.read(client, committed=committed)) != sorted(wanted):
            assert time.monotonic() < deadline, f"read {found}, wanted {sorted(wanted)}"
            time.sleep(0.05)

    def read(self, client: TransactionalClient, *, committed: bool = True) -> list[str]:
        return sorted(row.value for row in client.read(self.topic, PARTITIONS, committed=committed))

    def await_nothing_open(self) -> None:
        await_nothing_open(self.server, self.topic, PARTITIONS)


@pytest.fixture(params=CLIENTS)
def world(request: pytest.FixtureRequest, server: Server, remotes: Callable[[str], Remote]) -> Iterator[World]:
    made = World(server, request.param, remotes)
    yield made
    made.close()


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value


def at_last(error: Refused, client: TransactionalClient) -> Refused:
    """A refused batch may be aborted; that all is over comes out then, when the client is done with its remedies."""
    deadline = time.monotonic() + PATIENCE_S
    while error.kind == "abortable" and time.monotonic() < deadline:
        error = refusal(client.abort)
    return error


def is_fenced(error: Refused, world: World) -> bool:
    assert (error.kind, error.name) in {("fenced", name) for name in FENCED[world.client]}
    return True


def test_what_is_committed_is_read_and_what_is_aborted_only_at_read_uncommitted(world: World) -> None:
    producer = world.instance()
    world.write(producer, "a1", "a2", "a3", "a4")
    producer.commit()
    world.write(producer, "b1", "b2", "b3")
    producer.abort()
    world.write(producer, "c1")
    world.add(producer, "c2", "c3")
    producer.commit()
    world.await_read(producer, {"a1", "a2", "a3", "a4", "c1", "c2", "c3"})
    assert world.read(producer, committed=False) == ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "c1", "c2", "c3"]


def test_readers_of_what_is_committed_stop_at_the_first_open_transaction(world: World) -> None:
    first, second = world.instance(), world.instance(f"{world.id}-other")
    world.write(first, "open", partition=0)
    world.write(second, "done", partition=0)
    second.commit()
    assert world.read(first) == []
    assert world.read(first, committed=False) == ["done", "open"]
    assert ends(world.server, world.topic, PARTITIONS, committed=True) == [0, 0, 0]
    first.commit()
    world.await_read(first, {"open", "done"})


def test_transactions_in_which_nothing_happens_change_nothing(world: World) -> None:
    producer = world.instance()
    for end in (producer.abort, producer.commit):
        producer.begin()
        end()
    world.write(producer, "a")
    producer.commit()
    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    world.write(producer, "b")
    producer.commit()
    world.await_read(producer, {"a", "b"})


def test_offsets_are_committed_with_the_transaction_or_not_at_all(world: World) -> None:
    producer = world.instance()
    for offset, end, wanted in ((3, producer.abort, -1), (5, producer.commit, 5), (7, producer.abort, 5)):
        world.write(producer, f"v{offset}")
        producer.send_offsets(world.group, world.topic, {0: offset})
        end()
        assert await_group_offset(world.server, world.group, world.topic) == wanted


FENCING: dict[str, Callable[[World, TransactionalClient], object]] = {
    "commit": lambda world, client: client.commit(),
    "abort": lambda world, client: client.abort(),
    "send-to-a-known-partition": lambda world, client: (world.add(client, "late", partition=0), client.commit()),
    "send-to-a-new-partition": lambda world, client: (world.add(client, "late", partition=1), client.commit()),
    "send-offsets": lambda world, client: (client.send_offsets(world.group, world.topic, {0: 9}), client.commit()),
}


@pytest.mark.parametrize("step", FENCING)
def test_a_second_instance_fences_the_first(world: World, step: str) -> None:
    first = world.instance()
    world.write(first, "lost", partition=0)
    second = world.instance()
    # Its remedy for a refused batch is InitProducerId with its old epoch, and that aborts whatever is open, in Apache
    # Kafka too: what its other instance has to say comes afterwards.
    has_remedy = world.client == "kafka-python" and step == "send-to-a-known-partition"
    if not has_remedy:
        world.write(second, "kept", partition=0)
    error = refusal(lambda: FENCING[step](world, first))
    error = at_last(error, first)
    assert is_fenced(error, world)
    refusal(lambda: (first.begin(), world.add(first, "never"), first.commit()))
    if has_remedy:
        world.write(second, "kept", partition=0)
    second.commit()
    world.await_read(second, {"kept"})
    world.await_nothing_open()


def test_a_second_instance_fences_a_first_that_has_nothing_open(world: World) -> None:
    first = world.instance()
    world.write(first, "before")
    first.commit()
    second = world.instance()
    error = refusal(lambda: (world.write(first, "after"), first.commit()))
    error = at_last(error, first)
    assert is_fenced(error, world)
    world.write(second, "next")
    second.commit()
    world.await_read(second, {"before", "next"})


def test_a_transaction_that_lasts_too_long_is_aborted_and_cannot_be_committed(world: World) -> None:
    producer = world.instance(timeout_ms=SHORT_TIMEOUT_MS)
    world.write(producer, "late")
    assert world.read(producer) == []
    world.await_nothing_open()
    error = refusal(producer.commit)
    if world.client in TV2 and world.server.name == "oracle":
        assert "InvalidTxnState" in error.name or error.name == "INVALID_TXN_STATE"
    else:
        assert is_fenced(error, world)
    producer.reopen()
    world.write(producer, "again")
    producer.commit()
    world.await_read(producer, {"again"})
    assert world.read(producer, committed=False) == ["again", "late"]


def test_the_newer_protocol_goes_on_after_a_timeout_with_an_abort(world: World) -> None:
    producer = world.instance(timeout_ms=SHORT_TIMEOUT_MS)
    world.write(producer, "late")
    world.await_nothing_open()
    if world.client not in TV2:
        assert is_fenced(refusal(producer.abort), world)
        producer.reopen()
    else:
        producer.abort()
    world.write(producer, "again")
    producer.commit()
    world.await_read(producer, {"again"})
