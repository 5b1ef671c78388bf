"""A broker that had two-phase commit, prepared transactions, and comes back without it: what is decided is completed,
the rest keeps readers waiting, and the message says so and how to go on. No Spark here: the protocol alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from protocol_kit import Crash, Query, Steps, closing

from kits.processes.server import TwofoldServer
from twofold.sink.errors import Unsupported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TWO_PHASE = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path / "server", TWO_PHASE) as running:
        yield running


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def query(server: TwofoldServer, steps: Steps, tmp_path: Path) -> Iterator[Query]:
    with closing(Query(server.bootstrap_servers, tmp_path / "slots", "auto", steps)) as made:
        yield made


def without_two_phase(server: TwofoldServer, *, kill: bool) -> None:
    server.kill() if kill else server.stop()
    server.settings = {}
    server.start()


def with_two_phase(server: TwofoldServer) -> None:
    server.stop()
    server.settings = dict(TWO_PHASE)
    server.start()


@pytest.mark.parametrize(("exactly_once", "kill"), [("auto", True), ("2pc", False)], ids=["auto", "2pc"])
def test_the_message_says_that_readers_wait_for_what_was_prepared_and_how_to_go_on(
    server: TwofoldServer, query: Query, exactly_once: str, kill: bool
) -> None:
    first = query.driver()
    first.batch(0)
    first.start()
    votes = first.write(1)  # prepared, and nothing decided
    without_two_phase(server, kill=kill)
    with pytest.raises(Unsupported) as told:
        query.driver(exactly_once=exactly_once).start()
    text = str(told.value)
    assert f"{len(votes.participants)} transactions under transactionalIdPrefix={query.prefix!r} are prepared" in text
    assert all(repr(participant.transactional_id) in text for participant in votes.participants)
    assert "every reader with read_committed waits at their first records" in text
    assert (
        f"transaction.two.phase.commit.enable=true again, and then this query (or `twofold pipeline recover "
        f"--prefix {query.prefix}`)" in text
    )
    # It is as the message says: they are open, and readers see what was before them.
    assert len(query.broker.open_transactions(query.prefix)) == len(votes.participants)
    assert len(query.broker.read(query.target)) == query.per_batch
    # The way that it names leads on.
    with_two_phase(server)
    query.driver().batch(1)
    query.check(0, 1)


def test_what_is_decided_is_completed_without_two_phase_commit(
    server: TwofoldServer, query: Query, steps: Steps
) -> None:
    first = query.driver()
    first.start()
    votes = first.write(0)
    steps.crash(first, "commit: decided")
    with pytest.raises(Crash):
        first.commit(votes)
    without_two_phase(server, kill=True)
    second = query.driver()
    second.batch(0)
    query.check(0)
    second.batch(1)
    query.check(0, 1)


def test_a_query_with_nothing_prepared_goes_on_without_two_phase_commit(server: TwofoldServer, query: Query) -> None:
    query.driver().batch(0)
    without_two_phase(server, kill=False)
    query.driver().batch(1)
    query.check(0, 1)
