"""Stories of the sink that a seed may need long to tell: each is about one request, one death or one clock."""

import asyncio

import pytest
from sim_sink_spark import Died
from sim_sink_stage import RUN, SinkStage, play, within
from sim_world import BROKER

from twofold.client.errors import NoAnswer
from twofold.sink.errors import DecidedDataLost, Revoked
from twofold.sink.journal import Journal
from twofold.sink.register import Kind, Mode, Register

DAY_MS = 86_400_000
SWEPT = "InitProducerId"


async def until_there(stage: SinkStage) -> None:
    await asyncio.sleep(0.05)


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
        stage.on_step("commit: checked", lambda node: [stage.deliver(held) for held in swept] and None)
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
    """Resume: the decision is written, nobody is told, and when it is looked up all of it has timed out."""
    append = Journal.append

    async def unsure(self: Journal, register: Register, *offsets: object) -> None:
        await append(self, register, *offsets)  # type: ignore[arg-type]
        if register.kind is Kind.COMMIT:
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


def test_a_decision_whose_ids_are_forgotten_is_not_taken_back() -> None:
    """Resume: all is committed, and nobody has said so; then nobody comes for longer than ids are remembered."""

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
        await asyncio.sleep(1)
        with pytest.raises(DecidedDataLost):
            await stage.plan_batch(stage.process("planner"), "next")
        stage.lost = DecidedDataLost("as it should be")

    play(story, Mode.RESUME)


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
