"""What was shown is what is ended. Between the question and the answer the producer goes on, or another operator acts.

With every kind of producer at Twofold (of the newer protocol; of the first one, whose transactions share an epoch; at
transaction.version 1), and at Apache Kafka, which cannot compare and is read again instead."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import twofold
from kits.processes.asked import Answered, Asked
from kits.processes.server import TwofoldServer
from kits.wire.proxy import Proxy
from kits.wire.session import OLD, TV1, TV2, Session, Versions
from kits.wire.tools import (
    SETTINGS,
    Cli,
    Server,
    fresh,
    hang,
    make_cli,
    make_topic,
    not_verifying,
    read_committed,
    session,
    stable_offset,
)
from oracle.kafka import Oracle, jars_or_skip
from twofold.client import TopicPartition
from twofold.client.admin.model import FeatureUpdate, UpgradeType
from twofold.client.admin.transaction_model import AbortTransactionSpec, TransactionState
from twofold.client.errors import EndedMeanwhile
from twofold.records.batch import iter_headers
from twofold.records.control import ControlType, EndMarker, read_end_marker
from twofold.wire.errors import KafkaError

pytestmark = pytest.mark.interop

FENCED = (47, 90)
CLI_ID = "twofold-cli"
NOT_ATOMIC = "the check was not atomic"


@dataclass(frozen=True)
class Place:
    server: Server
    versions: Versions

    @property
    def is_exact(self) -> bool:
        return self.server.name == "twofold"


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("shown"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def older_level(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    """At transaction.version 1."""
    with TwofoldServer(tmp_path_factory.mktemp("shown-tv1"), SETTINGS) as running:
        with twofold.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.update_features({"transaction.version": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)})
        yield running


ORACLE = [pytest.mark.oracle, pytest.mark.slow]
PLACES = [
    pytest.param(("twofold_server", TV2), id="twofold"),
    pytest.param(("twofold_server", TV1), id="twofold-first-protocol"),
    pytest.param(("older_level", OLD), id="twofold-level-1"),
    pytest.param(("oracle", TV2), id="oracle", marks=ORACLE),
    pytest.param(("oracle", TV1), id="oracle-first-protocol", marks=ORACLE),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name, versions = request.param
    node: Server = request.getfixturevalue(name)
    with not_verifying(node):
        yield Place(node, versions)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return make_cli(capsys, monkeypatch)


def begin(place: Place, topic: str, name: str | None = None) -> Session:
    writer = session(place.server, name, versions=place.versions)
    writer.write(topic, 0, "first")
    return writer


def go_on(writer: Session, topic: str) -> None:
    """Commit, and begin the next one."""
    assert writer.until_ready(lambda: writer.end(True)) == 0
    writer.write(topic, 0, "second")


def by_offset(topic: str, writer: Session) -> tuple[str, ...]:
    return ("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")


def by_numbers(topic: str, writer: Session) -> tuple[str, ...]:
    numbers = ("--producer-id", str(writer.producer_id), "--producer-epoch", str(writer.epoch))
    return ("abort", "--topic", topic, "--partition", "0", *numbers)


def by_id(topic: str, writer: Session) -> tuple[str, ...]:
    return ("terminate", "--transactional-id", writer.id)


def in_one_partition(topic: str, writer: Session) -> tuple[str, ...]:
    return (*by_offset(topic, writer), "--partition-only")


WAYS = [by_offset, by_numbers, by_id, in_one_partition]
Way = Callable[[str, Session], tuple[str, ...]]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_producer_that_went_on_before_the_answer_keeps_its_new_transaction(place: Place, way: Way) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    with Asked(place.server.bootstrap_servers, "txn", *way(topic, writer)) as asked:
        assert f"producer {writer.producer_id}" in asked.question.replace("producer id", "producer")
        go_on(writer, topic)
        told = asked.answer("y")
    assert told.code == 1 and not told.stdout, told
    assert "that transaction has ended meanwhile" in told.stderr and "othing was done" in told.stderr, told.stderr
    assert writer.until_ready(lambda: writer.end(True)) == 0, "the live producer commits"
    assert read_committed(place.server, topic, 0) == [b"first", b"second"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_was_shown_and_is_still_open_is_ended_and_named(place: Place, way: Way) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    epoch = writer.epoch
    with Asked(place.server.bootstrap_servers, "txn", *way(topic, writer)) as asked:
        told = asked.answer("y")
    assert told.code == 0, told
    assert f"{writer.producer_id}" in told.stdout and f"epoch {epoch}" in told.stdout and f"{topic}-0" in told.stdout
    assert (NOT_ATOMIC in told.stderr) != place.is_exact, told.stderr
    assert stable_offset(place.server, topic, 0) == 2, "the markers are written when it returns"
    if way is not in_one_partition:
        assert writer.end(True) in FENCED
    assert read_committed(place.server, topic, 0) == []


def test_of_two_operators_the_second_is_told(place: Place) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    servers = place.server.bootstrap_servers
    with (
        Asked(servers, "txn", *by_offset(topic, writer)) as first,
        Asked(servers, "txn", *by_offset(topic, writer)) as second,
        Asked(servers, "txn", *by_id(topic, writer)) as third,
    ):
        assert first.answer("y").code == 0
        # The producer's next instance is at work by then.
        heir = begin(place, topic, writer.id)
        for late in (second, third):
            told = late.answer("y")
            assert told.code == 1 and "that transaction has ended meanwhile, nothing was done" in told.stderr, told
    assert heir.until_ready(lambda: heir.end(True)) == 0
    assert read_committed(place.server, topic, 0) == [b"first"]


def test_an_idle_producer_that_begins_before_the_answer_is_left_alone(place: Place) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    assert writer.until_ready(lambda: writer.end(True)) == 0
    with Asked(place.server.bootstrap_servers, "txn", *by_id(topic, writer)) as asked:
        assert "it has none open" in asked.question
        writer.write(topic, 0, "second")
        told = asked.answer("y")
    assert told.code == 1 and "nothing was done" in told.stderr, told
    assert writer.until_ready(lambda: writer.end(True)) == 0


def test_an_idle_producer_is_fenced_and_named(place: Place, cli: Cli) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    assert writer.until_ready(lambda: writer.end(True)) == 0
    told = cli(place.server, *by_id(topic, writer), "--yes")
    assert f": fenced producer id {writer.producer_id}, epoch {writer.epoch}" in told.stdout
    if place.versions.adds_implicitly:
        assert writer.produce(topic, 0, "late") != 0
    else:
        assert writer.add(topic, 0)[0] in FENCED


def test_programs_are_told_what_was_ended(place: Place, cli: Cli) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    epoch, partitions = writer.epoch, [f"{topic}-0"]
    told: Any = json.loads(cli(place.server, *by_offset(topic, writer), "--yes", "--format", "json").stdout)
    assert told.pop("start_ms") > 0
    assert told == {
        "how": "terminated",
        "transactional_id": writer.id,
        "producer_id": writer.producer_id,
        "producer_epoch": epoch,
        "partitions": partitions,
        "compared_at_write": place.is_exact,
    }
    hung = hang(place.server, topic, 0)
    words = ("abort", "--topic", topic, "--partition", "0", "--start-offset", "2", "--yes", "--format", "json")
    assert json.loads(cli(place.server, *words).stdout) == {
        "how": "marker",
        "producer_id": hung,
        "producer_epoch": 0,
        "start_offset": 2,
        "partitions": partitions,
        "compared_at_write": place.is_exact,
    }


def test_the_administrators_client_ends_what_it_was_shown_or_nothing(place: Place) -> None:
    topic = make_topic(place.server)
    writer = begin(place, topic)
    tp = TopicPartition(topic, 0)
    with twofold.Admin(bootstrap_servers=place.server.bootstrap_servers) as admin:
        shown = admin.describe_transactions([writer.id]).get()[writer.id]
        spec = AbortTransactionSpec(tp=tp, producer_id=writer.producer_id, producer_epoch=writer.epoch, start_offset=0)
        go_on(writer, topic)
        with pytest.raises(EndedMeanwhile, match="has ended meanwhile, nothing was done"):
            admin.force_terminate_transaction(writer.id, expected=shown)
        with pytest.raises(EndedMeanwhile, match="has ended meanwhile"):
            admin.abort_transaction(spec)
        now = admin.describe_transactions([writer.id]).get()[writer.id]
        assert now.state is TransactionState.ONGOING, "the next one is untouched"
        ended = admin.force_terminate_transaction(writer.id, expected=now)
        assert ended is not None and ended.is_exact == place.is_exact
        assert (ended.producer_id, ended.producer_epoch, ended.start_ms) == (*now.identity, now.start_ms)
    assert writer.end(True) in FENCED
    assert read_committed(place.server, topic, 0) == [b"first"]


@pytest.mark.parametrize("place", [PLACES[0], PLACES[3]], indirect=True)
def test_a_marker_by_producer_id_and_epoch_says_where_the_transaction_begins(place: Place) -> None:
    """Also where a coordinator's marker was written before: Apache Kafka refuses -1 there, and gets its epoch."""
    topic = make_topic(place.server)
    writer = begin(place, topic)
    assert writer.until_ready(lambda: writer.end(True)) == 0
    writer.write(topic, 0, "second")
    tp = TopicPartition(topic, 0)
    with twofold.Admin(bootstrap_servers=place.server.bootstrap_servers) as admin:
        (before,) = admin.describe_producers([tp]).get()[tp]
        assert before.coordinator_epoch >= 0
        spec = AbortTransactionSpec(tp=tp, producer_id=writer.producer_id, producer_epoch=writer.epoch)
        ended = admin.abort_transaction(spec)
        assert (ended.start_offset, ended.is_exact) == (2, place.is_exact)
        (after,) = admin.describe_producers([tp]).get()[tp]
        assert (after.coordinator_epoch, after.current_txn_start_offset) == (before.coordinator_epoch, -1)
        with pytest.raises(EndedMeanwhile, match="has no transaction"):
            admin.abort_transaction(spec)
    assert stable_offset(place.server, topic, 0) == 4


# Between the last look and the write


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Proxy() as running:
        settings = {**SETTINGS, "advertised.listeners": f"PLAINTEXT://{running.address}"}
        with TwofoldServer(tmp_path_factory.mktemp("proxied"), settings) as server:
            running.forward_to(server.host, server.port)
            yield running


@dataclass
class Behind:
    """The server as it is seen through the proxy."""

    name: str
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"


def through(proxy: Proxy, versions: Versions = TV2) -> Place:
    return Place(Behind("twofold", proxy.host, proxy.port), versions)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("versions", [TV2, TV1], ids=["newer", "first-protocol"])
def test_a_producer_that_goes_on_while_the_request_is_under_way_keeps_its_new_transaction(
    proxy: Proxy, way: Way, versions: Versions
) -> None:
    """The last look has shown it open: only the comparison at the write can tell."""
    place = through(proxy, versions)
    topic = make_topic(place.server)
    writer = begin(place, topic)
    with Asked(proxy.address, "txn", *way(topic, writer)) as asked:
        held = proxy.hold("WriteTxnMarkers" if way is in_one_partition else "InitProducerId", CLI_ID)
        told: list[Answered] = []
        answering = threading.Thread(target=lambda: told.append(asked.answer("y")))
        answering.start()
        held.wait()
        go_on(writer, topic)
        held.release()
        answering.join(60)
    assert told[0].code == 1 and not told[0].stdout, told
    assert "that transaction has ended meanwhile" in told[0].stderr
    assert writer.until_ready(lambda: writer.end(True)) == 0, "the live producer commits"
    assert read_committed(place.server, topic, 0) == [b"first", b"second"]


@pytest.mark.parametrize("way", [by_offset, in_one_partition], ids=lambda way: way.__name__)
def test_of_a_lost_answer_nothing_wrong_is_said(proxy: Proxy, cli: Cli, way: Way) -> None:
    place = through(proxy)
    topic = make_topic(place.server)
    writer = begin(place, topic)
    lost = proxy.lose_answer("WriteTxnMarkers" if way is in_one_partition else "InitProducerId", CLI_ID)
    if way is in_one_partition:
        told = cli(place.server, *way(topic, writer), "--yes", code=1)
        assert "The answer to the first attempt was lost, so that attempt may have ended it" in told.stderr
        assert "Nothing was done" not in told.stderr
    else:
        told = cli(place.server, *way(topic, writer), "--yes")
        assert f"aborted the transaction of {writer.id} " in told.stdout and NOT_ATOMIC in told.stderr
        assert writer.end(True) in FENCED
    assert lost.arrived.is_set()
    assert stable_offset(place.server, topic, 0) == 2


# Prepared ones


def prepare(address: str, topic: str, name: str, value: bytes = b"prepared") -> tuple[twofold.Producer, str]:
    producer = twofold.Producer(
        bootstrap_servers=address, transactional_id=name, transaction_two_phase_commit_enable=True
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, value, partition=0)
    return producer, str(producer.prepare_transaction())


@pytest.mark.parametrize("decision", ["--commit", "--abort"])
def test_a_prepared_transaction_is_shown_before_it_is_completed_and_named_afterwards(
    twofold_server: TwofoldServer, decision: str
) -> None:
    topic, name = make_topic(twofold_server), fresh("app")
    producer, state = prepare(twofold_server.bootstrap_servers, topic, name)
    words = ("complete", "--transactional-id", name, "--state", state, decision)
    with producer, Asked(twofold_server.bootstrap_servers, "txn", *words) as asked:
        assert f"'{name}' has prepared as {state} (producer id {state.split(':')[0]}, epoch" in asked.question
        assert f"1 partition ({topic}-0)" in asked.question
        told = asked.answer("y")
    assert told.code == 0 and NOT_ATOMIC not in told.stderr, told
    done = "committed" if decision == "--commit" else "aborted"
    assert told.stdout.startswith(f"{done} the transaction of {name} (producer id ")
    assert told.stdout.endswith(f"in 1 partition ({topic}-0), which was prepared as {state}")
    assert read_committed(twofold_server, topic, 0) == ([b"prepared"] if decision == "--commit" else [])


def test_a_prepared_transaction_that_its_producer_ended_before_the_answer_is_not_completed_twice(
    twofold_server: TwofoldServer,
) -> None:
    topic, name = make_topic(twofold_server), fresh("app")
    producer, state = prepare(twofold_server.bootstrap_servers, topic, name)
    words = ("complete", "--transactional-id", name, "--state", state, "--abort")
    with producer, Asked(twofold_server.bootstrap_servers, "txn", *words) as asked:
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"next", partition=0)
        producer.flush()
        told = asked.answer("y")
        assert told.code == 1 and "that transaction has ended meanwhile, nothing was done" in told.stderr, told
        producer.commit_transaction()
    assert read_committed(twofold_server, topic, 0) == [b"prepared", b"next"]


def test_to_complete_a_transaction_nothing_but_that_one_is_taken_over(proxy: Proxy) -> None:
    """A producer has taken it over, so the administrator does the same; by then the next one is open."""
    topic, name = make_topic(through(proxy).server), fresh("app")
    producer, state = prepare(proxy.address, topic, name)
    heir = twofold.Producer(
        bootstrap_servers=proxy.address,
        transactional_id=name,
        transaction_two_phase_commit_enable=True,
    )
    with producer, heir, twofold.Admin(bootstrap_servers=proxy.address, client_id="admin") as admin:
        heir.init_transactions(keep_prepared_txn=True)
        held = proxy.hold("InitProducerId", "admin")
        problems: list[BaseException] = []

        def complete() -> None:
            try:
                admin.complete_transaction(name, twofold.PreparedTxnState(state), commit=False)
            except KafkaError as error:
                problems.append(error)

        completing = threading.Thread(target=complete)
        completing.start()
        held.wait()
        heir.complete_transaction(state)
        heir.begin_transaction()
        heir.send(topic, b"next", partition=0)
        heir.flush()
        held.release()
        completing.join(60)
        assert [type(error) for error in problems] == [EndedMeanwhile], problems
        heir.commit_transaction()
    assert read_committed(through(proxy).server, topic, 0) == [b"prepared", b"next"]


# After kill -9


def test_the_marker_of_an_administrator_is_replayed_without_lowering_the_coordinator_epoch(
    tmp_path: Path, cli: Cli
) -> None:
    with TwofoldServer(tmp_path, SETTINGS) as server:
        topic = make_topic(server)
        writer = session(server)
        writer.write(topic, 0, "first")
        assert writer.until_ready(lambda: writer.end(True)) == 0
        writer.write(topic, 0, "second")
        cli(server, *in_one_partition(topic, writer)[:-2], "2", "--partition-only", "--yes")
        place = ("--topic", topic, "--partition", "0")
        before = cli(server, "producers", *place, "--format", "json").json
        server.kill()
        stored = b"".join(file.read_bytes() for file in sorted(server.data.glob(f"{topic}-0/*.log")))
        markers = [read_end_marker(stored, at) for at, header in iter_headers(stored) if header.is_control]
        known = before[0]["coordinator_epoch"]
        assert markers == [EndMarker(ControlType.COMMIT, known), EndMarker(ControlType.ABORT, -1)]
        server.start()
        after = cli(server, "producers", *place, "--format", "json").json
        assert after == before and after[0]["coordinator_epoch"] >= 0
        assert writer.until_ready(lambda: writer.end(False)) == 0
        writer.write(topic, 0, "third")
        assert writer.until_ready(lambda: writer.end(True)) == 0, "its coordinator is still obeyed"
        assert read_committed(server, topic, 0) == [b"first", b"third"]


@pytest.mark.oracle
@pytest.mark.slow
def test_apache_kafka_opens_a_folder_with_the_marker_of_an_administrator(tmp_path: Path, cli: Cli) -> None:
    jars = jars_or_skip()
    with TwofoldServer(tmp_path / "node", {**SETTINGS, "node.id": "1"}) as server:
        topic = make_topic(server)
        writer = session(server)
        writer.write(topic, 0, "first")
        assert writer.until_ready(lambda: writer.end(True)) == 0
        writer.write(topic, 0, "second")
        cli(server, *in_one_partition(topic, writer)[:-2], "2", "--partition-only", "--yes")
        server.kill()
    oracle = Oracle(jars, tmp_path / "node")
    oracle.start_on_existing_data()
    try:
        heir = session(oracle, writer.id)
        heir.write(topic, 0, "third")
        assert heir.until_ready(lambda: heir.end(True)) == 0
        assert read_committed(oracle, topic, 0) == [b"first", b"third"]
    finally:
        oracle.stop()
