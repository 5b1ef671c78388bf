"""The resume path, for brokers that have no two-phase commit: decided transactions are ended by their producer id and
epoch, and may time out before (docs/spark-protocol.md). Ours and Apache Kafka, with transaction.version 2 and 1.

No Spark here: drivers and tasks of `twofold.sink`, stopped where it hurts.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from connector import LONG
from protocol_kit import Crash, Pause, Process, Query, Steps, closing, set_level

from kits.processes.server import TwofoldServer
from oracle.kafka import EXACT_SETTINGS, running_oracle
from twofold.client.admin.transaction_model import NO_TIMEOUT_MS
from twofold.sink.driver import Votes
from twofold.sink.errors import DecidedDataLost, Revoked, Stale, Unsupported, VoteFailed
from twofold.sink.journal import Journal
from twofold.sink.register import JournalKind, Mode
from twofold.wire.errors import KafkaError, RequestTimedOut

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CLEANUP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
SHORT_MS = 1_000
OVER = ("CompleteAbort",)


class Place(NamedTuple):
    server: Any
    exactly_once: str
    level: int


PLACES = [
    pytest.param("twofold-2", id="ours-tv2"),
    pytest.param("twofold-1", id="ours-tv1"),
    pytest.param("oracle-2", id="kafka-tv2", marks=pytest.mark.oracle),
    pytest.param(
        "oracle-1",
        id="kafka-tv1",
        marks=[pytest.mark.oracle, pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs both levels there")],
    ),
]


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Ours has two-phase commit, and is asked not to use it; Apache Kafka has not, which auto finds out."""
    kind, level = request.param.split("-")
    if kind == "oracle":
        with running_oracle(EXACT_SETTINGS) as node:
            if level == "1":
                set_level(node, 1)
            yield Place(node, "auto", int(level))
        return
    with TwofoldServer(tmp_path_factory.mktemp("server"), {CLEANUP: "100"} | TWO_PHASE) as running:
        if level == "1":
            set_level(running, 1)
        yield Place(running, "resume", int(level))


@pytest.fixture
def query(place: Place, steps: Steps, tmp_path: Path) -> Iterator[Query]:
    with closing(Query(place.server.bootstrap_servers, tmp_path / "slots", place.exactly_once, steps)) as made:
        yield made


@pytest.fixture
def steps() -> Steps:
    return Steps()


def decided_and_left(query: Query, steps: Steps, batch_id: int, timeout_ms: int | None = None) -> Votes:
    """A driver decides about a batch and is gone. With a timeout that leaves it the time to: a busy machine is slow."""
    while True:
        driver = query.driver(timeout_ms)
        driver.start()
        votes = driver.write(batch_id)
        steps.crash(driver, "commit: decided")
        try:
            with pytest.raises(Crash):
                driver.commit(votes)
        except VoteFailed:
            assert timeout_ms is not None
            timeout_ms *= 2
            continue
        return votes


def decided_and_held(query: Query, pause: Callable[[Process], Pause]) -> tuple[Process, Votes, Pause, "Future[None]"]:
    """A driver decides about batch 0 and is held up then, by what `pause` orders."""
    timeout_ms = SHORT_MS
    while True:
        driver = query.driver(timeout_ms)
        driver.start()
        votes = driver.write(0)
        held = pause(driver)
        committing = driver.commit_in_background(votes)
        if held.is_reached_before(committing):
            return driver, votes, held, committing
        with pytest.raises(VoteFailed):
            committing.result()
        timeout_ms *= 2


# All goes well, or a driver crashes


def test_batches_are_committed_one_after_the_other(query: Query, place: Place) -> None:
    driver = query.driver()
    for batch_id in range(3):
        driver.batch(batch_id)
        assert driver.plan is not None and driver.plan.conditions.mode is Mode.RESUME
    query.check(0, 1, 2)


def test_transactions_have_the_protocol_of_the_cluster(query: Query, place: Place) -> None:
    driver = query.driver()
    driver.start()
    votes = driver.write(0)
    assert {participant.v2 for participant in votes.participants} == {place.level == 2}
    driver.commit(votes)
    query.check(0)


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_what_was_decided_is_committed_by_the_next_driver(query: Query, steps: Steps, ended: int) -> None:
    query.driver().batch(0)
    votes = decided_and_left(query, steps, 1)
    after = query.driver()
    for participant in votes.participants[:ended]:
        after.end(participant, commit=True)
    for batch_id in (1, 2):
        after.batch(batch_id)
    query.check(0, 1, 2)


@pytest.mark.parametrize("step", ["commit", "commit: checked"])
def test_what_was_not_decided_is_aborted_by_the_next_driver(query: Query, steps: Steps, step: str) -> None:
    driver = query.driver()
    driver.start()
    votes = driver.write(0)
    steps.crash(driver, step)
    with pytest.raises(Crash):
        driver.commit(votes)
    after = query.driver()
    after.start()
    query.check()
    after.batch(0)
    query.check(0)


@pytest.mark.parametrize("step", ["start: fenced", "start: settled"])
def test_a_driver_that_crashes_while_it_takes_over_leaves_the_same_to_the_next(
    query: Query, steps: Steps, step: str
) -> None:
    decided_and_left(query, steps, 0)
    second = query.driver()
    steps.crash(second, step)
    with pytest.raises(Crash):
        second.start()
    third = query.driver()
    third.batch(0)
    third.batch(1)
    query.check(0, 1)


def test_a_batch_that_is_given_up_before_the_decision_leaves_nothing(query: Query) -> None:
    driver = query.driver()
    driver.start()
    driver.abort(driver.write(0))
    query.check()
    query.driver().batch(0)
    query.check(0)


def test_a_batch_that_is_given_up_after_the_decision_is_completed(query: Query, steps: Steps) -> None:
    driver = query.driver()
    driver.start()
    votes = driver.write(0)
    steps.crash(driver, "commit: decided")
    with pytest.raises(Crash):
        driver.commit(votes)
    driver.abort(votes)
    query.check(0)
    query.driver().batch(0)
    query.check(0)


# Outages that are longer than the transaction's timeout


def test_transactions_that_timed_out_are_not_decided_about(query: Query) -> None:
    driver = query.driver(timeout_ms=SHORT_MS)
    driver.start()
    votes = driver.write(0)
    driver.wait_for_states(votes, *OVER)
    with pytest.raises(VoteFailed, match=r"is over: .* batch 0 is not decided, nothing of it is visible"):
        driver.commit(votes)
    assert driver.driver.journal.register.decided_batch(query.query_id) == -1
    query.check()
    query.driver().batch(0)
    query.check(0)


def test_a_decision_that_timed_out_whole_is_taken_back_and_the_batch_written_again(query: Query, steps: Steps) -> None:
    query.driver().batch(0)
    votes = decided_and_left(query, steps, 1, timeout_ms=SHORT_MS)
    after = query.driver()
    after.wait_for_states(votes, *OVER)
    plan = after.start()
    assert dict(plan.decided)[query.query_id] == 0
    query.check(0)
    after.batch(1)
    query.check(0, 1)


def test_a_decision_that_timed_out_in_part_is_taken_back_while_nothing_is_committed(query: Query, steps: Steps) -> None:
    votes = decided_and_left(query, steps, 0)
    after = query.driver()
    # As a timeout does, which cannot be had for one of two.
    after.end(votes.participants[0], commit=False)
    after.start()
    assert after.driver.journal.register.decided_batch(query.query_id) == -1
    query.check()
    after.batch(0)
    query.check(0)


def test_a_driver_that_finds_its_own_decision_timed_out_says_so(query: Query, steps: Steps) -> None:
    driver, votes, pause, committing = decided_and_held(query, lambda one: steps.pause(one, "commit: decided"))
    query.driver().wait_for_states(votes, *OVER)
    pause.go()
    with pytest.raises(Revoked, match=r"batch 0 .* was taken back"):
        committing.result()
    assert driver.driver.journal.register.kind is JournalKind.REVOKE
    query.check()
    query.driver().batch(0)
    query.check(0)


def test_a_decision_whose_answer_was_lost_and_that_timed_out_then_is_no_success(query: Query) -> None:
    """It is looked up, found and taken back: whoever asked for it must not take the batch as written."""
    _, votes, pause, committing = decided_and_held(query, lambda one: lose_answer(one.driver.journal))
    query.driver().wait_for_states(votes, *OVER)
    pause.go()
    with pytest.raises(Revoked, match=r"batch 0 .* was decided and taken back"):
        committing.result()
    query.check()
    query.driver().batch(0)
    query.check(0)


def lose_answer(journal: Journal) -> Pause:
    """The first record is written, and after a while it turns out that nobody said so."""
    append, pause = journal.append, Pause()

    async def without_answer(*args: Any) -> None:
        journal.append = append  # type: ignore[method-assign]
        await append(*args)
        pause()
        await journal.close()
        raise RequestTimedOut("the answer was lost")

    journal.append = without_answer  # type: ignore[method-assign, assignment]
    return pause


def test_a_decision_that_is_committed_in_part_stops_the_query_until_the_loss_is_accepted(
    query: Query, steps: Steps
) -> None:
    votes = decided_and_left(query, steps, 0, timeout_ms=SHORT_MS)
    kept, lost = votes.participants
    after = query.driver()
    after.end(kept, commit=True)
    after.wait_for_states(votes, *OVER, "CompleteCommit")
    for driver in (after, query.driver()):
        with pytest.raises(DecidedDataLost, match="twofold pipeline recover --accept-loss") as raised:
            driver.start()
        assert lost.transactional_id in str(raised.value)
        assert kept.transactional_id not in str(raised.value)
    query.check(0, tasks=[kept.partition])
    query.driver().take_over(accept_loss=True)
    last = query.driver()
    last.batch(0)
    query.check(0, tasks=[kept.partition])
    last.batch(1)
    found = sorted(int(value) for _, _, value in query.broker.read(query.target))
    assert found == [number for number in query.numbers(0) if number % 2 == kept.partition] + list(query.numbers(1))


# Drivers that are not dead


def test_a_driver_that_comes_back_after_another_has_completed_its_decision_changes_nothing(
    query: Query, steps: Steps
) -> None:
    late = query.driver()
    late.start()
    votes = late.write(0)
    pause = steps.pause(late, "commit: decided")
    committing = late.commit_in_background(votes)
    pause.wait_until_reached()
    after = query.driver()
    after.batch(0)
    after.batch(1)
    pause.go()
    with pytest.raises(Stale, match=f"driver {after.name} has taken over"):
        committing.result()
    with pytest.raises(Stale, match="has taken over"):
        late.abort(votes)
    after.batch(2)
    query.check(0, 1, 2)


def test_a_commit_that_comes_after_the_decision_was_taken_back_is_refused(query: Query, steps: Steps) -> None:
    late, votes, pause, committing = decided_and_held(query, lambda one: steps.pause(one, "commit: decided"))
    after = query.driver()
    after.wait_for_states(votes, *OVER)
    after.batch(0)
    pause.go()
    with pytest.raises(KafkaError):
        committing.result()
    for participant in votes.participants:
        with pytest.raises(KafkaError):
            late.end(participant, commit=True)
    query.check(0)
    after.batch(1)
    query.check(0, 1)


def test_a_driver_that_was_overtaken_before_its_decision_decides_nothing(query: Query, steps: Steps) -> None:
    late = query.driver()
    late.start()
    votes = late.write(0)
    pause = steps.pause(late, "commit: checked")
    committing = late.commit_in_background(votes)
    pause.wait_until_reached()
    after = query.driver()
    after.batch(0)
    pause.go()
    with pytest.raises(Stale, match=f"driver {after.name} has taken over"):
        committing.result()
    with pytest.raises(Stale, match="has taken over"):
        late.abort(votes)
    query.check(0)


@pytest.mark.parametrize("step", ["commit", "commit: checked", "commit: decided", "commit: ended"])
def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing(
    tmp_path: Path, steps: Steps, step: str
) -> None:
    server = TwofoldServer(tmp_path / "server")
    server.start()
    try:
        with closing(Query(server.bootstrap_servers, tmp_path / "slots", "resume", steps)) as query:
            driver = query.driver()
            driver.start()
            votes = driver.write(0)
            pause = steps.pause(driver, step)
            committing = driver.commit_in_background(votes)
            pause.wait_until_reached()
            server.kill()
            server.start()
            pause.go()
            committing.result()
            driver.batch(1)
            query.check(0, 1)
    finally:
        server.kill()


# What is not known, and what is not allowed


@contextmanager
def ours(tmp_path: Path, settings: Mapping[str, str], exactly_once: str, steps: Steps | None = None) -> Iterator[Query]:
    with (
        TwofoldServer(tmp_path / "server", settings) as running,
        closing(Query(running.bootstrap_servers, tmp_path / "slots", exactly_once, steps)) as query,
    ):
        yield query


def test_a_decision_of_transactions_that_are_forgotten_is_not_taken_back(tmp_path: Path, steps: Steps) -> None:
    """All of them were committed, and their ids expired before anybody came back: to write again would double."""
    settings = {
        "transaction.max.timeout.ms": "6000",
        "transactional.id.expiration.ms": "6001",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    }
    with ours(tmp_path, settings, "resume", steps) as query:
        votes = decided_and_left(query, steps, 0)
        after = query.driver()
        for participant in votes.participants:
            after.end(participant, commit=True)
        after.wait_for_states(votes, None)
        with pytest.raises(DecidedDataLost, match=r"transactional\.id\.expiration\.ms.* --accept-loss"):
            after.start()
        query.check(0)
        query.driver().take_over(accept_loss=True)
        last = query.driver()
        last.batch(0)
        last.batch(1)
        query.check(0, 1)


def test_a_transaction_with_little_time_left_is_not_decided_about(tmp_path: Path) -> None:
    """Open, for the broker looks seldom, but it might be gone before it could be committed."""
    with ours(tmp_path, {CLEANUP: "600000"}, "resume") as query:
        driver = query.driver(timeout_ms=1_000)
        driver.start()
        votes = driver.write(0)
        time.sleep(1)  # of the broker's clock, by which the transaction has its time
        with pytest.raises(VoteFailed, match=r"has only -?\d+ of its 1000 ms left \(transactionTimeoutMs\)"):
            driver.commit(votes)
        driver.abort(votes)
        query.check()
        query.driver().batch(0)
        query.check(0)


@pytest.mark.parametrize("heartbeats", ["true", "false"])
def test_auto_takes_two_phase_commit_where_it_is_allowed(tmp_path: Path, steps: Steps, heartbeats: str) -> None:
    with ours(tmp_path, TWO_PHASE | {"transaction.heartbeat.enable": heartbeats}, "auto", steps) as query:
        driver = query.driver()
        conditions = driver.start().conditions
        assert conditions.mode is Mode.TWO_PHASE
        assert conditions.becomes_two_phase is (heartbeats == "true")
        votes = driver.write(0)
        assert {row.timeout_ms for row in driver.describe(votes) if row is not None} == {NO_TIMEOUT_MS}
        vowed = [participant.client != participant.ongoing for participant in votes.participants]
        assert vowed == [conditions.becomes_two_phase] * 2
        driver.commit(votes)
        decided_and_left(query, steps, 1)
        after = query.driver()
        after.batch(1)
        after.start()
        after.write(2)
        last = query.driver()
        last.start()
        query.check(0, 1)
        last.batch(2)
        query.check(0, 1, 2)


def test_auto_resumes_where_two_phase_commit_is_off_and_names_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ours(tmp_path, {"transaction.two.phase.commit.enable": "false"}, "auto") as query:
        driver = query.driver()
        with caplog.at_level(logging.WARNING, "twofold.sink.driver"):
            assert driver.start().conditions.mode is Mode.RESUME
        (line,) = [record.getMessage() for record in caplog.records if record.name == "twofold.sink.driver"]
        assert "exactlyOnce=auto takes the resume path" in line
        assert "transaction.two.phase.commit.enable" in line
        driver.batch(0)
        query.check(0)


def test_auto_names_what_the_brokers_lack(place: Place, query: Query, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "twofold.sink.driver"):
        query.driver(exactly_once="auto").start()
    lines = [record.getMessage() for record in caplog.records if record.name == "twofold.sink.driver"]
    if place.exactly_once == "resume" and place.level == 2:
        assert lines == []
    else:
        (line,) = lines
        assert ("KIP-939" if place.exactly_once == "auto" else "transaction.version=1") in line


def test_two_phase_commit_is_refused_where_it_is_off(tmp_path: Path) -> None:
    with ours(tmp_path, {"transaction.two.phase.commit.enable": "false"}, "2pc") as query:
        with pytest.raises(Unsupported, match=r"exactlyOnce=2pc: .*transaction\.two\.phase\.commit\.enable"):
            query.driver().start()
        assert query.broker.open_transactions() == []


def test_two_phase_commit_is_refused_by_brokers_that_lack_it(place: Place, query: Query) -> None:
    if place.exactly_once == "resume" and place.level == 2:
        query.driver(exactly_once="2pc").batch(0)
        query.check(0)
    else:
        with pytest.raises(Unsupported, match=r"exactlyOnce=2pc: .*(KIP-939|KIP-890)"):
            query.driver(exactly_once="2pc").start()


def test_a_two_phase_decision_is_carried_out_where_two_phase_commit_was_switched_off(
    tmp_path: Path, steps: Steps
) -> None:
    server = TwofoldServer(tmp_path / "server", TWO_PHASE)
    server.start()
    try:
        with closing(Query(server.bootstrap_servers, tmp_path / "slots", "auto", steps)) as query:
            votes = decided_and_left(query, steps, 0)
            assert votes.conditions.mode is Mode.TWO_PHASE
            server.stop()
            server.settings.clear()
            server.start()
            after = query.driver()
            assert after.start().conditions.mode is Mode.RESUME
            query.check(0)
            after.batch(1)
            query.check(0, 1)
    finally:
        server.kill()


@pytest.mark.parametrize("ended", [0, 1])
def test_transactions_are_ended_by_the_protocol_that_wrote_them_when_the_level_has_changed(
    place: Place, query: Query, steps: Steps, ended: int
) -> None:
    votes = decided_and_left(query, steps, 0)
    for participant in votes.participants[:ended]:
        query.driver().end(participant, commit=True)
    set_level(place.server, 3 - place.level)
    try:
        after = query.driver()
        after.batch(0)
        after.start()
        assert {participant.v2 for participant in after.write(1).participants} == {place.level == 1}
        last = query.driver()
        last.batch(1)
        query.check(0, 1)
    finally:
        set_level(place.server, place.level)


def test_brokers_that_allow_only_short_transactions_get_short_ones(tmp_path: Path) -> None:
    with ours(tmp_path, {"transaction.max.timeout.ms": "20000"}, "resume") as query:
        driver = query.driver()
        assert driver.start().conditions.timeout_ms == 20_000
        driver.batch(0)
        driver.write(1)
        after = query.driver()
        after.batch(1)
        query.check(0, 1)
