"""Stories of the sink that a seed may need long to tell: each is about one request, one death or one clock."""

import asyncio
from contextlib import suppress
from contextvars import Context
from typing import Any

import pytest

from sim.broker.world import BROKER
from sim.frame import LONG
from sim.sink.plan import make_sink_plan
from sim.sink.spark import TOPIC, Died, Process
from sim.sink.stage import RUN, SinkStage, play, within
from twofold.client.transactions.calls import Terms
from twofold.connections.errors import NoAnswer
from twofold.connections.waiting import Deadline
from twofold.runtime.sim import CutMode
from twofold.sink.driver import Driver, Votes
from twofold.sink.errors import DecidedDataLost, Revoked, TaskFailed, VoteFailed
from twofold.sink.journal import Journal
from twofold.sink.register import JournalKind, Mode, Register
from twofold.sink.slots import Use
from twofold.sink.writer import Conditions
from twofold.wire.errors import KafkaError, OutOfOrderSequenceNumber

DAY_MS = 86_400_000


def test_a_sweep_whose_request_comes_late_does_not_end_a_transaction_of_the_next_batch() -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer = stage.process("planner"), stage.process("committer")
        winner, loser = stage.process(), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(winner, plan, 0)
        lost = await stage.write(loser, plan, 0)
        assert lost.participant is not None
        requests = [
            stage.hold(api, committer, lost.participant.transactional_id) for api in ("InitProducerId", "EndTxn")
        ]
        await stage.commit(committer, 0, written)
        swept = [held for held in requests if held.message is not None]
        assert swept
        plan = await stage.plan_batch(planner)
        again = await stage.write(loser, plan, 1)
        assert again.participant is not None
        assert again.participant.transactional_id == lost.participant.transactional_id

        def deliver(node: str) -> None:
            for held in swept:
                stage.deliver(held)

        stage.on_step("commit: checked", deliver)
        await stage.commit(committer, 1, again)

    play(story)


def test_a_task_that_dies_while_it_takes_an_id_does_not_take_it_from_the_next_one_later() -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer, dying = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        held = stage.hold("InitProducerId", dying)
        attempt = asyncio.ensure_future(stage.write(dying, plan, 0))
        await asyncio.sleep(0.2)
        assert held.message is not None
        dying.die()
        with pytest.raises(Died):
            await attempt
        worker = stage.process()
        await stage.commit(committer, 0, await stage.write(worker, plan, 0))
        plan = await stage.plan_batch(planner)
        other = stage.process()
        written = [
            await stage.write(w, plan, 1, rows) for w, rows in ((worker, stage.rows(1)[:2]), (other, stage.rows(1)[2:]))
        ]
        stage.on_step("commit: checked", lambda node: stage.deliver(held))
        await stage.commit(committer, 1, *written)

    play(story, keys=1)


def test_a_commit_that_finds_its_decision_taken_back_does_not_say_that_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without two-phase commit: it is written, nobody is told, and when it is looked up all of it has timed out."""
    append = Journal.append

    async def unsure(self: Journal, register: Register, *offsets: object) -> None:
        await append(self, register, *offsets)  # type: ignore[arg-type]
        if register.kind is JournalKind.COMMIT:
            await self.close()
            await asyncio.sleep(3)
            raise NoAnswer("nobody knows")

    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        monkeypatch.setattr(Journal, "append", unsure)
        with pytest.raises(Revoked):
            await stage.commit(committer, 0, written)
        monkeypatch.undo()
        plan = await stage.plan_batch(planner)
        await stage.commit(committer, 0, await stage.write(worker, plan, 0, run_id="run2"))

    play(story, Mode.RESUME, timeout_ms=2000)


@pytest.mark.slow
def test_a_decision_whose_ids_are_forgotten_is_not_taken_back() -> None:
    """Without two-phase commit: all is committed, nobody has said so, and nobody comes until the ids are forgotten."""

    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        stage.on_step("commit: ended", stage.kill)
        with pytest.raises(Died):
            await stage.commit(committer, 0, written)
        stage.checkpoint.committed[0] = RUN
        await asyncio.sleep(0.5)
        stage.sim.jump_clock(BROKER, 30 * DAY_MS)
        await asyncio.sleep(2 * 3600)  # a clock that jumped is believed after an hour
        with pytest.raises(DecidedDataLost):
            await stage.plan_batch(stage.process("planner"), "next")

    play(story, Mode.RESUME, loses=True, virtual_s=4 * 3600)


@pytest.mark.parametrize("kind", ["commit", "done"])
def test_a_driver_that_dies_in_the_journal_is_not_waited_for(kind: str) -> None:
    """What it left open there never times out: whoever comes next ends it, and does not wait for it."""

    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        stage.on_step(f"journal: {kind}", stage.kill)
        with pytest.raises(Died):
            await stage.commit(committer, 0, written)
        other = stage.process("committer")
        participants = list(stage.votes(0, written).participants)
        await within(4, other.call(lambda: other.driver.abort("me", plan.conditions, participants)))
        plan = await within(4, stage.plan_batch(planner))
        await stage.commit(other, 0, await stage.write(worker, plan, 0, run_id="run2"))

    play(story)


@pytest.mark.parametrize("kind", ["commit", "done"])
def test_a_planner_does_not_wait_for_a_driver_that_died_in_the_journal(kind: str) -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        stage.on_step(f"journal: {kind}", stage.kill)
        with pytest.raises(Died):
            await stage.commit(committer, 0, written)
        plan = await within(4, stage.plan_batch(planner))
        await stage.commit(stage.process("committer"), 0, await stage.write(worker, plan, 0, run_id="run2"))

    play(story)


def test_what_was_aborted_from_outside_before_is_not_decided() -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        assert written.participant is not None
        await abort_by_hand(stage, written.participant.transactional_id)
        with pytest.raises(VoteFailed, match="nothing of it is visible"):
            await stage.commit(committer, 0, written)
        plan = await stage.plan_batch(planner)
        await stage.commit(committer, 0, await stage.write(worker, plan, 0, run_id="run2"))

    play(story)


async def abort_by_hand(stage: SinkStage, name: str) -> None:
    """As a producer of that id does that knows nothing of two phases."""
    by_hand = stage.process("hand")
    calls = by_hand.driver._calls
    await by_hand.call(lambda: calls.init(name, Terms(4000), by_hand.driver._deadline()))


def test_what_was_aborted_from_outside_after_the_decision_is_told() -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        written = await stage.write(worker, plan, 0)
        assert written.participant is not None
        stage.on_step("commit: decided", stage.kill)
        with pytest.raises(Died):
            await stage.commit(committer, 0, written)
        end = stage.process("hand")
        identity = written.participant.client
        name, deadline = written.participant.transactional_id, end.driver._deadline()
        await end.call(lambda: end.driver._calls.end(name, identity, deadline, commit=False, v2=True))
        with pytest.raises(DecidedDataLost, match="accept-loss"):
            await stage.plan_batch(stage.process("planner"), "next")

    play(story, loses=True)


# Two drivers: one sleeps or dies at a step; the other takes over, and sleeps at one of its own while the first goes on

START = ("start", "start: fenced", "start: settled", "journal: owner")
COMMIT = ("commit", "commit: checked", "journal: commit", "commit: decided", "commit: ended", "journal: done")
STEPS = (*START, *COMMIT, "commit: done")
PAIRS = [(first, second) for first in STEPS for second in STEPS]
"""All pairs; otherwise every third."""
QUICK = [(first, second) for first in ("start: settled", "commit: checked", "commit: done") for second in COMMIT[:4]]


class TwoDrivers:
    """Each does what Spark does: start, write, commit, and after an error abort and all of it again."""

    def __init__(self, stage: SinkStage, first_stops: str, second_stops: str, *, dies: bool) -> None:
        self._stage = stage
        self._first_stops = first_stops
        self._second_stops = second_stops
        self._dies = dies
        self._stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._goes_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nodes: dict[str, str] = {}
        self._runs = 0
        stage.at_step = self._at_step

    def _at_step(self, step: str, node: str) -> None:
        driver = self._nodes.get(node)
        sim = self._stage.sim
        if driver == "one" and step == self._first_stops and not self._stopped.done():
            self._stopped.set_result(node)
            if self._dies:
                self._stage.kill(node)
            else:
                sim.pause(node)
        elif driver == "two" and step == self._second_stops and not self._goes_on.done():
            self._let_the_first_go_on()
            sim.loop.call_later(0.5, sim.resume, node, context=Context())
            sim.pause(node)

    def _let_the_first_go_on(self) -> None:
        if not self._goes_on.done():
            self._goes_on.set_result(None)
            self._stage.sim.resume(self._stopped.result())

    def _process(self, driver: str, kind: str) -> Process:
        process = self._stage.process(kind)
        self._nodes[process.node] = driver
        return process

    async def drive(self, owner: str, batch_id: int, attempts: int) -> bool:
        stage = self._stage
        planner, worker = self._process(owner, "planner"), stage.process()
        for _ in range(attempts):
            self._runs += 1
            committer = self._process(owner, "committer")
            votes = None
            try:
                plan = await stage.plan_batch(planner, owner)
                written = await stage.write(worker, plan, batch_id, run_id=f"run{self._runs}")
                votes = stage.votes(batch_id, written)
                await stage.commit(committer, batch_id, written)
                return True
            except (KafkaError, Died) as error:
                stage.note(f"{owner}: {error}")
                if isinstance(error, Died):
                    await self._goes_on
                if votes is not None:
                    await self._abort(owner, votes)
        return False

    async def _abort(self, owner: str, votes: Votes) -> None:
        committer = self._process(owner, "committer")
        with suppress(KafkaError):
            await committer.call(lambda: committer.driver.abort(owner, votes.conditions, list(votes.participants)))

    async def run(self) -> None:
        first = asyncio.ensure_future(self.drive("one", 0, 1))
        await self._stopped
        for batch_id in (0, 1):
            assert await self.drive("two", batch_id, 6)
        self._let_the_first_go_on()
        await first
        assert await self.drive("two", 2, 6)


@pytest.mark.parametrize(
    ("first", "second", "dies"),
    [
        pytest.param(first, second, dies, marks=[pytest.mark.slow] * ((first, second) not in QUICK))
        for at, (first, second) in enumerate(PAIRS)
        for dies in (False, True)
        # One who dies before it wrote anything is nobody's trouble.
        if (first not in START or not dies) and (LONG or (first, second) in QUICK or at % 3 == 0)
    ],
)
def test_two_drivers_of_which_each_stops_at_any_step(first: str, second: str, dies: bool) -> None:
    async def story(stage: SinkStage) -> None:
        await TwoDrivers(stage, first, second, dies=dies).run()

    play(story)


async def sweep_without_a_look(self: Driver, owner: str, deadline: Deadline) -> int:
    left = await self._transactions.describe(await self.open_ids(deadline), deadline)
    for name, row in left.items():
        if row is not None and row.state == "Ongoing":
            await self._abort_left(name, row, deadline)
    return len(left)


async def sign_before_it_settles(self: Driver, owner: str, deadline: Deadline, **options: bool) -> Conditions:
    await self._cluster.bootstrap(5000)
    await self.journal.create()
    conditions = await self._agree(deadline)
    await self._open(conditions, deadline)
    await self.journal.append(self.journal.register.owned_by(owner, self._now_ms()))
    self._reached("start: fenced")
    await self._settle(deadline)
    await self.sweep(owner, deadline)
    return conditions


async def decide_without_votes(self: Driver, votes: Votes, deadline: Deadline) -> None:
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "first", "second", "dies"),
    [
        ("sweep", sweep_without_a_look, "commit: done", "commit: checked", False),
        ("take_over", sign_before_it_settles, "commit: decided", "start: fenced", True),
    ],
)
def test_a_sink_with_another_order_is_found_out_by_two_drivers(
    name: str, broken: object, first: str, second: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, name, broken)
    with pytest.raises(AssertionError, match=r"missing|lost"):
        test_two_drivers_of_which_each_stops_at_any_step(first, second, dies)


def test_a_sink_that_does_not_look_at_the_votes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "_check_votes", decide_without_votes)
    """It decides about what was aborted before. The coordinator's record of that transaction gives it away."""
    with pytest.raises(DecidedDataLost, match="were aborted all the same"):
        test_what_was_aborted_from_outside_before_is_not_decided()


# What a power cut takes before the vow. The coordinator's own log is synced here, and nothing else is.
LOSING: dict[str, Any] = {
    "cut_mode": CutMode.ORDERED,
    "topic_configs": (("flush.messages", str(2**63 - 1)),),
    "settings": make_sink_plan(0).settings | {"log.flush.interval.messages": "1"},
}


def test_a_task_whose_acknowledged_records_are_lost_before_the_vow_fails() -> None:
    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        stage.on_step("task: written", lambda node: stage.sim.crash(BROKER, power_cut=True))
        with pytest.raises(TaskFailed, match="has lost records"):
            await stage.write(worker, plan, 0)
        await stage.commit(committer, 0, await stage.write(stage.process(), plan, 0))

    play(story, **LOSING)


def test_a_task_whose_first_records_are_lost_while_it_writes_more_fails() -> None:
    """A leader that has forgotten a producer must not take any number of it as the first."""

    async def story(stage: SinkStage) -> None:
        planner, committer, worker = stage.process("planner"), stage.process("committer"), stage.process()
        plan = await stage.plan_batch(planner)
        writer, rows = worker.new_writer(), stage.rows(0)

        async def attempt() -> object:
            await writer.begin(plan.conditions, Use(RUN, 0))
            await writer.topic(TOPIC)
            await writer.send(TOPIC, worker.encoded(rows[:2]))
            await writer._sender.flush()
            stage.sim.crash(BROKER, power_cut=True)
            await writer.send(TOPIC, worker.encoded(rows[2:]))
            try:
                return await writer.prepare(0)
            finally:
                await writer.close()

        with pytest.raises(OutOfOrderSequenceNumber):
            await worker.call(attempt)
        await stage.commit(committer, 0, await stage.write(stage.process(), plan, 0))

    play(story, **LOSING)
