"""`twofold pipeline` as an operator runs it, on what queries left behind: driver and tasks are the real ones."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes import commands
from kits.processes.asked import Asked
from kits.processes.commands import Done, cold, run_cold
from kits.processes.dead_query import OWNER, Query
from kits.processes.server import TwofoldServer
from twofold.sink.errors import DecidedDataLost, Stale
from twofold.sink.inspection import SinkState

pytestmark = pytest.mark.interop

TWO_PHASE = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
HOOKS = Path(__file__).parent.parent / "spark"
ORACLE = pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])


@pytest.fixture(scope="module")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with TwofoldServer(tmp_path_factory.mktemp("two-phase"), TWO_PHASE) as running:
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def resume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that has no two-phase commit for anybody."""
    with TwofoldServer(tmp_path_factory.mktemp("resume"), SOON) as running:
        yield running.bootstrap_servers


@pytest.fixture(params=["two_phase", "resume", ORACLE])
def server(request: pytest.FixtureRequest) -> str:
    found: Any = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else str(found.bootstrap_servers)


@pytest.fixture
def prefix() -> str:
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def run(server: str, *args: str) -> Done:
    return commands.run("pipeline", *args, server=server, timeout=90)


def pipeline(server: str, *args: str, code: int = 0) -> Done:
    done = run(server, *args)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def told(server: str, *args: str) -> Any:
    return json.loads(pipeline(server, *args, "--format", "json").stdout)


def state_of(server: str, prefix: str) -> dict[str, Any]:
    (state,) = told(server, "status", "--prefix", prefix)
    return dict(state)


def look(server: str, prefix: str, directory: Path) -> SinkState:
    """The same without a command line, which takes its time to start."""
    watcher = Query(server, directory, prefix)
    try:
        return watcher.state()
    finally:
        watcher.die()


def error_line(done: Done) -> str:
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("twofold: ")
    return line


def committed(server: str, topic: str) -> list[str]:
    """What a stock client reads up to the last stable offset, in any order."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + 30
    try:
        while True:
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                return sorted(found)
            found.append((message.value() or b"").decode())
    finally:
        consumer.close()


def half_committed(query: Query, topic: str) -> list[str]:
    """Batch 0 is done; batch 1 is decided and one of its three transactions is committed; a task of it was late, and
    another had not finished. The ids of the three."""
    query.start()
    query.commit([query.prepare(topic, [b"a0", b"a1"])])
    participants = [query.prepare(topic, [b"b%d" % number], 1, number) for number in range(3)]
    query.decide(participants, 1)
    query.end(participants[0], commit=True)
    query.prepare(topic, [b"late"], 1)
    query.write(topic, [b"unfinished"], 1)
    return [participant.transactional_id for participant in participants]


ALL_OF_IT = ["a0", "a1", "b0", "b1", "b2"]


# Status


def test_status_shows_what_is_decided_and_what_is_open(two_phase: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(two_phase, tmp_path, prefix)
    first, *left = half_committed(query, topic)
    query.die()
    state = state_of(two_phase, prefix)
    assert state["decision_topic"] == f"{prefix}.decisions" and state["owner"] == OWNER
    assert (state["query_id"], state["last_decided_batch"]) == ("q", 1)
    assert state["queries"] == [{"query_id": "q", "last_decided_batch": 1}]
    assert state["last_record"]["kind"] == "commit" and 0 <= state["last_record"]["age_ms"] < 60_000
    pending = state["pending"]
    assert (pending["mode"], pending["batch_id"], pending["transactions"]) == ("2pc", 1, 3)
    assert (pending["open"], pending["committed"], pending["lost"]) == (2, 1, [])
    rows = {row["transactional_id"]: row for row in state["transactions"]}
    assert first not in rows and all(rows[name]["state"] == "decided" for name in left)
    assert sorted(row["state"] for row in rows.values()) == ["decided", "decided", "prepared", "writing"]
    assert all(row["partitions"] == {topic: [0]} for row in rows.values())
    assert all((row["timeout_ms"] is None) == (row["state"] != "writing") for row in rows.values())

    text = pipeline(two_phase, "status", "--prefix", prefix).stdout
    assert "decision     in doubt: 2 of 3 transactions still open, 1 committed\n" in text
    assert [line.split()[:2] for line in text.splitlines() if "decided " in line] == [
        [name, "decided"] for name in sorted(left)
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_status_without_a_name_shows_every_sink_and_no_other_topic(
    resume: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": resume})
    foreign = f"{prefix}-foreign.decisions"
    config = {"cleanup.policy": "compact"}
    admin.create_topics([NewTopic(foreign, 1, 1, config=config)])[foreign].result(30)
    producer = Producer({"bootstrap.servers": resume})
    for key, value in ((b"customer", b"approved"), (b"other", b'{"a": 1}'), (b"third", b"[1]"), (None, b"\xff")):
        producer.produce(foreign, key=key, value=value)
    assert producer.flush(30) == 0
    for name in ("one", "two"):
        query = Query(resume, tmp_path, f"{prefix}-{name}", query_id=name)
        query.start()
        query.commit([query.prepare(topic, [name.encode()])])
        query.die()
    shown = [row for row in told(resume, "status") if row["prefix"].startswith(prefix)]
    assert [(row["prefix"], row["query_id"], row["pending"]) for row in shown] == [
        (f"{prefix}-one", "one", None),
        (f"{prefix}-two", "two", None),
    ]


def test_status_names_the_pipeline_by_its_name_also_after_it_was_recovered(
    two_phase: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    names = (f"{prefix}-shop.totals", f"{prefix}-shop.rest", f"{prefix}-shops.totals")
    for number, name in enumerate(names):
        query = Query(two_phase, tmp_path, f"{prefix}-{number}", query_name=name)
        query.start()
        query.prepare(topic, [b"a"])
        query.die()
    assert [row["pipeline"] for row in told(two_phase, "status", f"{prefix}-shop")] == list(names[:2])
    (row,) = told(two_phase, "status", names[0])
    assert row["prefix"] == f"{prefix}-0"
    assert f"pipeline     {names[0]}\nsink         {prefix}-0\n" in pipeline(two_phase, "status", names[0]).stdout
    line = error_line(pipeline(two_phase, "status", f"{prefix}-sho", code=1))
    assert f"no pipeline has the name '{prefix}-sho'" in line and names[0] in line
    pipeline(two_phase, "recover", "--prefix", f"{prefix}-0", "--yes")
    assert told(two_phase, "status", names[0])[0]["owner"].startswith("recover-")


def test_status_fences_no_query(server: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(server, tmp_path, prefix)
    query.start()
    participants = [query.prepare(topic, [b"a"]), query.prepare(topic, [b"b"])]
    assert len(state_of(server, prefix)["transactions"]) == 2
    pipeline(server, "status")
    query.commit(participants)
    query.start()
    query.die()
    assert committed(server, topic) == ["a", "b"]


def test_a_broker_without_sinks_has_nothing_to_show(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path) as empty:
        assert told(empty.bootstrap_servers, "status") == []
        assert "no sink has a journal" in pipeline(empty.bootstrap_servers, "status").stdout


# Recover


def test_what_is_decided_is_completed_and_the_rest_is_aborted(
    server: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    query = Query(server, tmp_path, prefix)
    _, *left = half_committed(query, topic)
    query.die()
    done = pipeline(server, "recover", "--prefix", prefix, "--yes", "--format", "json")
    assert "completes batch 1 of query q: commits 2 of its 3 transactions" in done.stderr
    assert "aborts 2 transactions that no decision covers" in done.stderr and "is fenced" in done.stderr
    report = json.loads(done.stdout)
    assert report["changed"] and report["owner"].startswith("recover-")
    assert report["decision"] == {"query_id": "q", "batch_id": 1, "outcome": "done", "lost": []}
    outcomes = {row["transactional_id"]: row["outcome"] for row in report["transactions"]}
    assert len(outcomes) == 4 and all(outcomes[name] == "committed" for name in left)
    assert sorted(outcomes.values()) == ["aborted", "aborted", "committed", "committed"]
    assert committed(server, topic) == ALL_OF_IT
    after = look(server, prefix, tmp_path)
    assert after.is_clean and not after.transactions
    assert after.register.owner == report["owner"] and after.register.decided_batch("q") == 1


def test_the_query_goes_on_after_it_was_recovered(two_phase: str, prefix: str, topic: str, tmp_path: Path) -> None:
    first = Query(two_phase, tmp_path / "1", prefix)
    (tmp_path / "1").mkdir()
    half_committed(first, topic)
    first.die()
    pipeline(two_phase, "recover", "--prefix", prefix, "--yes")
    (tmp_path / "2").mkdir()
    again = Query(two_phase, tmp_path / "2", prefix, run_id="run 2")
    assert dict(again.start().decided) == {"q": 1}, "the batch that was completed is not written again"
    again.commit([again.prepare(topic, [b"c"], 2)], 2)
    again.die()
    assert committed(two_phase, topic) == [*ALL_OF_IT, "c"]


def test_where_nothing_is_to_do_no_query_is_fenced(server: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(server, tmp_path, prefix)
    query.start()
    query.commit([query.prepare(topic, [b"a"])])
    said = pipeline(server, "recover", "--prefix", prefix)  # and nobody is asked
    assert said.stdout == f"nothing to do: {prefix} has no open transaction, and batch 0 is done (query q)\n"
    assert told(server, "recover", "--prefix", prefix)["changed"] is False
    query.commit([query.prepare(topic, [b"b"], 1)], 1)
    query.die()
    assert committed(server, topic) == ["a", "b"]


def test_a_query_that_still_runs_is_stopped_and_told_why(server: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(server, tmp_path, prefix)
    query.start()
    participants = [query.prepare(topic, [b"a"])]
    pipeline(server, "recover", "--prefix", prefix, "--yes")
    with pytest.raises(Stale, match="twofold pipeline recover"):
        query.commit(participants)
    with pytest.raises(Stale, match="driver recover-"):
        query.start()
    query.die()
    assert committed(server, topic) == []
    assert not look(server, prefix, tmp_path).transactions


def test_a_record_that_the_driver_left_half_written_is_dropped(
    two_phase: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    query = Query(two_phase, tmp_path, prefix)
    query.start()
    query.prepare(topic, [b"a"])
    query.leave_a_record_open()
    query.die()
    (row,) = [row for row in state_of(two_phase, prefix)["transactions"] if row["state"] == "deciding"]
    assert row["transactional_id"] == f"{prefix}|driver"
    done = pipeline(two_phase, "recover", "--prefix", prefix, "--yes")
    assert f"drops a record of {prefix}.decisions" in done.stderr
    assert not look(two_phase, prefix, tmp_path).transactions and committed(two_phase, topic) == []


def order(directory: Path, step: str, action: str) -> dict[str, str]:
    """The environment of a process that is to fail at a step (steps_hook)."""
    orders = directory / "orders"
    orders.mkdir()
    (orders / f"001~{step.replace(' ', '_')}~{action}").touch()
    return {
        "TWOFOLD_STEP_DIR": str(orders),
        "PYTHONPATH": str(HOOKS),
    }


def carried_out(directory: Path) -> list[str]:
    return (directory / "orders" / "done").read_text().split("\t")[:2]


STEPS = ["start: fenced", "commit: one ended", "journal: done", "start: settled", "journal: owner"]


@pytest.mark.parametrize("step", STEPS)
def test_recovering_that_is_killed_can_be_repeated(
    two_phase: str, prefix: str, topic: str, tmp_path: Path, step: str
) -> None:
    query = Query(two_phase, tmp_path, prefix)
    half_committed(query, topic)
    query.die()
    # An interpreter of its own: the hook is set where it starts.
    words = ("pipeline", "recover", "--prefix", prefix, "--yes")
    killed = run_cold(*words, server=two_phase, env=order(tmp_path, step, "die"))
    assert killed.returncode == -9 and carried_out(tmp_path) == [step, "die"]
    pipeline(two_phase, "recover", "--prefix", prefix, "--yes")
    assert committed(two_phase, topic) == ALL_OF_IT
    after = look(two_phase, prefix, tmp_path)
    assert after.is_clean and not after.transactions


@pytest.mark.parametrize("step", ["start: fenced", "commit: one ended", "journal: done"])
def test_a_broker_that_is_killed_meanwhile_loses_nothing(prefix: str, topic: str, tmp_path: Path, step: str) -> None:
    with TwofoldServer(tmp_path / "broker", TWO_PHASE) as server:
        query = Query(server.bootstrap_servers, tmp_path, prefix)
        half_committed(query, topic)
        query.die()
        environment = {**os.environ, **order(tmp_path, step, f"kill-{server.pid}")}
        command = cold("pipeline", "recover", "--prefix", prefix, "--yes")
        process = subprocess.Popen(
            [*command, "-b", server.bootstrap_servers], stderr=subprocess.PIPE, text=True, env=environment
        )
        deadline = time.monotonic() + 60
        while server.running:
            assert time.monotonic() < deadline, "nobody killed it"
            time.sleep(0.05)
        server.kill()
        server.start()
        _, errors = process.communicate(timeout=90)
        assert "Traceback" not in errors and carried_out(tmp_path)[0] == step
        if process.returncode:
            pipeline(server.bootstrap_servers, "recover", "--prefix", prefix, "--yes")
        assert committed(server.bootstrap_servers, topic) == ALL_OF_IT
        after = look(server.bootstrap_servers, prefix, tmp_path)
        assert after.is_clean and not after.transactions


def test_two_at_once_do_no_harm(two_phase: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(two_phase, tmp_path, prefix)
    half_committed(query, topic)
    query.die()
    command = cold("pipeline", "recover", "--prefix", prefix, "--yes", "-b", two_phase)
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=90)[1] for process in both]
    assert not any("Traceback" in text for text in errors)
    for process, text in zip(both, errors, strict=True):
        assert process.returncode == 0 or "another process has taken" in text, text
    assert 0 in [process.returncode for process in both]
    assert committed(two_phase, topic) == ALL_OF_IT
    after = look(two_phase, prefix, tmp_path)
    assert after.is_clean and not after.transactions


@pytest.mark.parametrize("where", ["resume", ORACLE])
def test_a_decision_that_timed_out_whole_is_taken_back(
    request: pytest.FixtureRequest, where: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    found: Any = request.getfixturevalue(where)
    server = found if isinstance(found, str) else str(found.bootstrap_servers)
    query = Query(server, tmp_path, prefix, transaction_timeout_ms=1_000)
    query.start()
    query.decide([query.prepare(topic, [b"a"]), query.prepare(topic, [b"b"])])
    deadline = time.monotonic() + 60
    while query.open_ids():
        assert time.monotonic() < deadline, "the broker lets them go on"
        time.sleep(0.1)
    query.die()
    assert len(state_of(server, prefix)["pending"]["lost"]) == 2
    done = pipeline(server, "recover", "--prefix", prefix, "--yes", "--format", "json")
    assert "takes the decision about batch 0 of query q back" in done.stderr
    assert json.loads(done.stdout)["decision"]["outcome"] == "revoked"
    after = look(server, prefix, tmp_path)
    assert after.is_clean and after.register.decided_batch("q") == -1
    assert committed(server, topic) == []


def test_what_an_operator_aborted_after_the_decision_is_told_until_it_is_accepted(
    server: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    query = Query(server, tmp_path, prefix)
    query.start()
    participants = [query.prepare(topic, [b"%d" % number], partition=number) for number in range(3)]
    query.decide(participants)
    query.end(participants[0], commit=True)
    query.end(participants[1], commit=False)
    query.die()
    lost = participants[1].transactional_id
    assert state_of(server, prefix)["pending"]["lost"] == [lost]
    refused = pipeline(server, "recover", "--prefix", prefix, "--yes", code=1)
    assert refused.stdout == ""
    assert lost in refused.stderr and "--accept-loss" in refused.stderr and "repair the output" in refused.stderr
    assert look(server, prefix, tmp_path).register.owner == OWNER, "who cannot help has not stopped anybody either"
    report = told(server, "recover", "--prefix", prefix, "--yes", "--accept-loss")
    assert report["decision"]["lost"] == [lost]
    assert committed(server, topic) == ["0", "2"]
    assert look(server, prefix, tmp_path).is_clean


def test_what_an_operator_aborted_is_not_taken_for_committed_when_its_id_was_used_again(
    two_phase: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    """The id has no transaction then. The coordinator's record of the last two-phase one proves what became of it."""
    query = Query(two_phase, tmp_path, prefix)
    query.start()
    participants = [query.prepare(topic, [b"%d" % number], partition=number) for number in range(3)]
    query.decide(participants)
    query.end(participants[0], commit=True)
    query.end(participants[1], commit=False)
    for participant in participants[:2]:
        query.use_again(participant)
    query.die()
    lost = participants[1].transactional_id
    pending = state_of(two_phase, prefix)["pending"]
    assert (pending["open"], pending["committed"], pending["lost"]) == (1, 1, [lost])
    assert lost in pipeline(two_phase, "recover", "--prefix", prefix, "--yes", code=1).stderr
    again = Query(two_phase, tmp_path, prefix, run_id="run 2")
    with pytest.raises(DecidedDataLost, match=re.escape(lost)):
        again.start()
    again.die()


def test_a_decision_whose_transactions_are_forgotten_is_not_taken_back(prefix: str, topic: str, tmp_path: Path) -> None:
    settings = SOON | {
        "transaction.max.timeout.ms": "6000",
        "transactional.id.expiration.ms": "6001",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    }
    with TwofoldServer(tmp_path / "broker", settings) as running:
        server = running.bootstrap_servers
        query = Query(server, tmp_path, prefix)
        query.start()
        participant = query.prepare(topic, [b"a"])
        query.decide([participant])
        query.end(participant, commit=True)
        deadline = time.monotonic() + 60
        while not (tally := query.state().tally) or not tally.forgotten:
            assert time.monotonic() < deadline, "the id does not expire"
            time.sleep(0.1)
        query.die()
        refused = pipeline(server, "recover", "--prefix", prefix, "--yes", code=1)
        assert "transactional.id.expiration.ms" in refused.stderr and "--accept-loss" in refused.stderr
        assert look(server, prefix, tmp_path).register.owner == OWNER
        report = told(server, "recover", "--prefix", prefix, "--yes", "--accept-loss")
        assert report["decision"]["outcome"] == "done"
        assert look(server, prefix, tmp_path).is_clean and committed(server, topic) == ["a"]


def test_a_prefix_that_begins_another_leaves_that_ones_transactions_alone(
    two_phase: str, prefix: str, topic: str, tmp_path: Path
) -> None:
    longer = Query(two_phase, tmp_path, f"{prefix}.b")
    longer.start()
    participants = [longer.prepare(topic, [b"longer"])]
    query = Query(two_phase, tmp_path, prefix)
    query.start()
    query.prepare(topic, [b"shorter"])
    query.die()
    report = told(two_phase, "recover", "--prefix", prefix, "--yes")
    assert [row["outcome"] for row in report["transactions"]] == ["aborted"]
    longer.commit(participants)
    longer.die()
    assert committed(two_phase, topic) == ["longer"]


def test_without_the_journal_nothing_is_aborted(two_phase: str, prefix: str, topic: str, tmp_path: Path) -> None:
    """What is decided in a topic of another name looks undecided to those who do not know the topic."""
    shared = f"{prefix}-decided"
    query = Query(two_phase, tmp_path, prefix, decision_topic=shared)
    other = Query(two_phase, tmp_path, f"{prefix}-other", query_id="o", decision_topic=shared)
    other.start()
    other.commit([other.prepare(topic, [b"other"])])
    other.die()
    half_committed(query, topic)
    assert "--decision-topic" in error_line(pipeline(two_phase, "recover", "--prefix", prefix, "--yes", code=1))
    assert len(query.open_ids()) == 4
    query.die()
    named = told(two_phase, "status", "--decision-topic", shared)
    assert {row["prefix"]: row["last_decided_batch"] for row in named} == {prefix: 1, f"{prefix}-other": 0}
    told(two_phase, "recover", "--prefix", prefix, "--decision-topic", shared, "--yes")
    assert committed(two_phase, topic) == [*ALL_OF_IT, "other"]


# Asking


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_it_says_what_it_will_do_and_asks(
    two_phase: str, prefix: str, topic: str, tmp_path: Path, answer: str, code: int
) -> None:
    query = Query(two_phase, tmp_path, prefix)
    half_committed(query, topic)
    query.die()
    with Asked(two_phase, "pipeline", "recover", "--prefix", prefix) as asked:
        output, errors, ended = asked.answer(answer)
    assert ended == code, errors
    assert "completes batch 1" in errors and "is fenced" in errors and "perhaps it does run" in errors
    assert "[y/N]" in errors
    state = look(two_phase, prefix, tmp_path)
    if answer == "y":
        assert "committed    2 transactions\naborted      2 transactions\n" in f"{output}\n"
        assert not state.transactions
    else:
        assert not output.strip() and "nothing was changed" in errors
        assert len(state.transactions) == 4 and state.register.owner == OWNER


def test_a_script_must_say_yes(two_phase: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(two_phase, tmp_path, prefix)
    query.start()
    query.prepare(topic, [b"a"])
    query.die()
    assert "add --yes" in pipeline(two_phase, "recover", "--prefix", prefix, code=2).stderr
    assert len(look(two_phase, prefix, tmp_path).transactions) == 1


# Bad input


@pytest.mark.parametrize("arguments", [["status"], ["recover", "--yes"]])
def test_a_mistyped_name_is_answered_with_those_that_there_are(
    two_phase: str, prefix: str, topic: str, tmp_path: Path, arguments: list[str]
) -> None:
    query = Query(two_phase, tmp_path, prefix)
    query.start()
    query.die()
    line = error_line(pipeline(two_phase, *arguments, "--prefix", f"{prefix}x", code=1))
    assert f"{prefix}x.decisions" in line and f"{prefix}," in f"{line.partition('have a journal: ')[2]},"
    assert "--decision-topic" in line
    line = error_line(pipeline(two_phase, *arguments, "--prefix", "two words", code=2))
    assert "--prefix 'two words'" in line and "letters" in line
    missing = f"{prefix}-missing"
    line = error_line(pipeline(two_phase, *arguments, "--prefix", prefix, "--decision-topic", missing, code=1))
    assert missing in line and "twofold topic list" in line


@pytest.mark.parametrize("value", [b"approved", b'{"v": 99}', b'{"v": 1, "t": "commit"}'])
def test_a_topic_that_is_no_journal_is_refused(resume: str, prefix: str, value: bytes) -> None:
    topic = f"{prefix}.decisions"
    producer = Producer({"bootstrap.servers": resume})
    producer.produce(topic, key=prefix.encode(), value=value)
    assert producer.flush(30) == 0
    for arguments in (["status"], ["recover", "--yes"]):
        line = error_line(pipeline(resume, *arguments, "--prefix", prefix, code=1))
        assert f"{topic} is no journal" in line and "offset 0" in line


def test_a_journal_of_others_is_not_taken_for_ones_own(resume: str, prefix: str, topic: str, tmp_path: Path) -> None:
    query = Query(resume, tmp_path, prefix)
    query.start()
    query.die()
    arguments = ["recover", "--prefix", f"{prefix}x", "--decision-topic", f"{prefix}.decisions", "--yes"]
    assert f"{prefix}.decisions is no journal of '{prefix}x'" in error_line(pipeline(resume, *arguments, code=1))


def test_a_broker_that_does_not_answer_is_said_once() -> None:
    for arguments in (["status"], ["recover", "--prefix", "p", "--yes"]):
        done = run("127.0.0.1:1", *arguments, "--timeout", "2")
        assert done.returncode == 3 and done.stdout == ""
        assert "Is a broker running at 127.0.0.1:1?" in done.stderr and len(done.stderr.splitlines()) == 2


def test_the_command_line_needs_no_spark() -> None:
    heavy = {"pyspark", "pyarrow", "numpy", "numba"}
    check = (
        "import sys; from twofold.cli.app import make_root; root = make_root()\n"
        "for name in root.list_commands(None): root.get_command(None, name)\n"
        f"print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
