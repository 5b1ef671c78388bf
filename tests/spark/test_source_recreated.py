"""An input topic that is deleted and made anew, with more rows than the query had read of the old one.

Its offsets in the checkpoint would skip them. The query stops, or begins at the beginning, as failOnDataLoss says. It
is killed and paused meanwhile, too."""

import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import when_long
from host_kit import Host, Pipe, wait_for
from sink_kit import PATIENCE_S, SETTINGS, Broker

from kits.processes.server import TwofoldServer
from twofold.sink.names import decision_topic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIXTURE = Path(__file__).parent.parent / "fixtures" / "spark-a6a379d.tar.gz"
MADE_ANEW = "was deleted and made anew since the query has read it"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def pipe(host: Host, server: TwofoldServer, tmp_path: Path) -> Pipe:
    host.orders.clear()
    return Pipe(host, Broker(server.bootstrap_servers), tmp_path, per_batch=1000)


def make_anew(broker: Broker, topic: str, partitions: int = 4) -> None:
    for future in broker.admin.delete_topics([topic]).values():
        future.result(PATIENCE_S)
    broker.topic(partitions, topic)


def logged(pipe: Pipe, batch_id: int) -> int:
    """How many rows the source has up to the end of a batch, by the checkpoint."""
    text = (pipe.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    return sum(json.loads(text)[pipe.source].values())


def test_a_topic_made_anew_while_the_query_was_away_stops_it_or_begins_at_its_beginning(pipe: Pipe) -> None:
    pipe.send(40)
    pipe.run_to_end()
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    for _ in range(2):  # it is no matter of trying again
        error = pipe.run().error or ""
        assert MADE_ANEW in error and repr(pipe.source) in error
        assert "Set the option failOnDataLoss to false to go on at the beginning of the new one" in error
        assert len(pipe.visible) == 40
    pipe.read["failOnDataLoss"] = "false"
    pipe.orders.give("commit: decided", "kill-driver")
    assert pipe.run().died and not pipe.orders.left, pipe.host.text
    pipe.run_to_end()
    pipe.check()
    pipe.send(30)  # it is known now, and nothing begins again
    pipe.run_to_end()
    pipe.read["failOnDataLoss"] = "true"
    pipe.send(30)
    pipe.run_to_end()
    pipe.check()


def test_a_topic_made_anew_while_the_query_runs_begins_at_its_beginning(pipe: Pipe) -> None:
    pipe.read["failOnDataLoss"] = "false"
    pipe.send(40)
    query = pipe.start(processingTime="0 seconds")
    wait_for(lambda: len(pipe.visible) == 40, "the first rows", PATIENCE_S, lambda: pipe.host.text)
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    wait_for(lambda: len(pipe.visible) == 140, "the rows of the new topic", PATIENCE_S, lambda: pipe.host.text)
    pipe.host.ask(do="stop", name=query)
    assert pipe.host.ended(query).well
    pipe.run_to_end()
    pipe.check()


@when_long
def test_a_topic_made_anew_while_the_query_runs_stops_it(pipe: Pipe) -> None:
    pipe.send(40)
    query = pipe.start(processingTime="0 seconds")
    wait_for(lambda: len(pipe.visible) == 40, "the first rows", PATIENCE_S, lambda: pipe.host.text)
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    assert MADE_ANEW in (pipe.host.ended(query).error or "")
    assert MADE_ANEW in (pipe.run().error or "")
    assert len(pipe.visible) == 40


@when_long
@pytest.mark.parametrize("step", ["start", "task: opened", "commit", "commit: done"])
def test_a_query_killed_in_the_batch_that_begins_a_topic_anew_is_exactly_once(pipe: Pipe, step: str) -> None:
    pipe.read["failOnDataLoss"] = "false"
    pipe.send(40)
    pipe.run_to_end()
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    pipe.orders.give(step, "kill-driver")
    assert pipe.run().died and not pipe.orders.left, pipe.host.text
    pipe.run_to_end()
    pipe.send(10)
    pipe.run_to_end()
    pipe.check()


@when_long
@pytest.mark.parametrize("step", ["start", "commit"])
def test_a_query_that_was_paused_while_its_topic_was_made_anew_skips_nothing_silently(pipe: Pipe, step: str) -> None:
    """The batch in which it was paused is decided with the old rows, or fails; the new topic is told after it."""
    pipe.send(40)
    pipe.orders.give(step, "stop")
    query = pipe.start(processingTime="0 seconds")
    wait_for(lambda: not pipe.orders.left and bool(pipe.orders.done), "the step", PATIENCE_S, lambda: pipe.host.text)
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    os.kill(int(pipe.orders.done[-1][2]), signal.SIGCONT)
    error = pipe.host.ended(query).error or ""
    assert "made anew" in error, error
    decided = len(pipe.visible)
    assert decided in (0, 40)
    pipe.read["failOnDataLoss"] = "false"
    if logged(pipe, 0) == 40 and decided == 0:
        pipe.sent = pipe.sent[40:]  # they are gone with the topic
    pipe.run_to_end()
    pipe.check()


@when_long
def test_the_rows_that_a_decided_batch_had_read_of_the_old_topic_are_not_looked_for_in_the_new_one(pipe: Pipe) -> None:
    """Killed after the decision and before Spark's commit: the batch comes again, and its rows are another topic's."""
    pipe.read["failOnDataLoss"] = "false"
    pipe.send(40)
    pipe.orders.give("commit: done", "kill-driver")
    assert pipe.run().died and not pipe.orders.left, pipe.host.text
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    pipe.run_to_end()
    pipe.check()


@when_long
def test_only_the_topic_that_was_made_anew_begins_again(pipe: Pipe) -> None:
    other = pipe.broker.topic(2)
    pipe.read |= {"subscribe": f"{pipe.source},{other}", "failOnDataLoss": "false"}
    pipe.send(40)
    pipe.broker.send(other, range(1000, 1020))
    pipe.run_to_end()
    make_anew(pipe.broker, pipe.source)
    pipe.send(100)
    pipe.broker.send(other, range(1020, 1030))
    pipe.run_to_end()
    counted = pipe.visible
    assert set(counted) == {*range(140), *range(1000, 1030)} and max(counted.values()) == 1


# What the version before left


def test_a_journal_without_ids_is_taken_for_the_same_once_and_has_them_from_then_on(host: Host, tmp_path: Path) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    rows = json.loads((tmp_path / "expected.json").read_text())["rows"]
    host.orders.clear()
    with TwofoldServer(tmp_path, SETTINGS) as left:
        pipe = Pipe(host, Broker(left.bootstrap_servers), tmp_path, per_batch=1000)
        pipe.source, pipe.target, pipe.checkpoint, pipe.sent = "in", "out", tmp_path / "checkpoint", list(range(rows))
        assert "topics" not in json.loads(pipe.broker.read(decision_topic(pipe.prefix))[-1][2])
        pipe.send(20)
        pipe.run_to_end()
        assert pipe.query_id in json.loads(pipe.broker.read(decision_topic(pipe.prefix))[-1][2])["topics"]
        make_anew(pipe.broker, pipe.source, 2)
        pipe.send(200)
        assert MADE_ANEW in (pipe.run().error or "")
        pipe.read["failOnDataLoss"] = "false"
        pipe.run_to_end()
        pipe.check()
