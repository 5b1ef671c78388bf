"""The rules of `twofold.machine.runtime`, on a machine that sums numbers."""

import asyncio
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.machine import Machine, MachineRuntime, Result
from twofold.wire.errors import InvalidRequest, KafkaError, KafkaStorageError, NotController, RequestTimedOut

BEGIN, END = "begin", "end"


class Sum(NamedTuple):
    numbers: tuple[int, ...] = ()
    open: bool = False


class SumMachine(Machine[Sum, Any]):
    """Records are numbers; 13 cannot be applied; between BEGIN and END the state is unstable."""

    def __init__(self) -> None:
        self.folds = 0

    def initial(self) -> Sum:
        return Sum()

    def apply_all(self, state: Sum, entries: Iterable[tuple[int, Any]]) -> Sum:
        self.folds += 1
        for _, record in entries:
            state = self._apply(state, record)
        return state

    def _apply(self, state: Sum, record: Any) -> Sum:
        if record == 13:
            raise InvalidRequest("13")
        if record in (BEGIN, END):
            return state._replace(open=record == BEGIN)
        return state._replace(numbers=(*state.numbers, record))

    def is_stable(self, state: Sum) -> bool:
        return not state.open


class Port:
    def __init__(self) -> None:
        self.records: list[Any] = []
        self.epoch = 1
        self.fail: Exception | None = None
        self.shift = 0
        self.commits_at_once = False
        self.appends = 0

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def committed_offset(self) -> int:
        return len(self.records) - 1 if self.commits_at_once else -1

    def append(self, records: Sequence[Any], epoch: int) -> int:
        self.appends += 1
        if self.fail is not None:
            raise self.fail
        if epoch != self.epoch:
            raise NotController(f"epoch {epoch}")
        self.records += records
        return len(self.records) - 1 + self.shift


class FixedClock:
    def wall_ms(self) -> int:
        return 77

    def monotonic(self) -> float:
        return 0.0


class World:
    def __init__(self, *, max_pending: int = 100, lead: bool = True) -> None:
        self.port = Port()
        self.machine = SumMachine()
        self.runtime: MachineRuntime[Sum, Any] = MachineRuntime(
            self.machine, self.port, FixedClock(), max_pending=max_pending, run_effects=self._run_effects
        )
        self.effects: list[Any] = []
        self.on_effect: Callable[[Any], Any] = self.effects.append
        if lead:
            self.runtime.become_leader(1)

    def _run_effects(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            self.on_effect(effect)

    def add(self, *numbers: Any, response: Any = "ok", effects: Sequence[Any] = ()) -> "asyncio.Future[Any]":
        return self.runtime.write(lambda state, now: Result(numbers, response, effects=effects))

    def committed(self) -> tuple[int, ...]:
        return self.runtime.committed.numbers


def run(story: Callable[[], Any]) -> None:
    async def main() -> None:
        story()

    asyncio.run(main())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_response_is_held_until_its_last_record_is_committed():
    def story() -> None:
        world = World()
        answer = world.add(1, 2, 3)
        assert not answer.done()
        world.runtime.commit(1)
        assert not answer.done()
        world.runtime.commit(2)
        assert answer.result() == "ok"

    run(story)


def test_handlers_see_uncommitted_writes_and_readers_do_not():
    def story() -> None:
        world = World()
        world.add(1)
        seen: list[Sum] = []
        world.runtime.write(lambda state, now: seen.append(state) or Result((), now))
        assert seen == [Sum((1,))]
        assert world.committed() == ()
        world.runtime.commit(0)
        assert world.committed() == (1,)
        assert world.runtime.committed_offset == 0

    run(story)


def test_a_handler_gets_the_clocks_time():
    def story() -> None:
        assert World().runtime.write(lambda state, now: Result((), now)).result() == 77

    run(story)


def test_without_records_the_answer_comes_at_once_even_while_writes_wait():
    def story() -> None:
        world = World()
        world.add(1)
        assert world.runtime.write(lambda state, now: Result((), "heartbeat")).result() == "heartbeat"

    run(story)


def test_a_result_that_asks_to_wait_is_held_until_what_it_saw_is_committed():
    def story() -> None:
        world = World()
        world.add(1)
        answer = world.runtime.write(lambda state, now: Result((), state.numbers, wait=True))
        world.add(2)
        assert not answer.done()
        world.runtime.commit(0)
        assert answer.result() == (1,)
        world.runtime.commit(1)
        assert world.runtime.write(lambda state, now: Result((), "now", wait=True)).done()

    run(story)


def test_responses_are_released_in_the_order_of_the_writes():
    async def main() -> None:
        world = World()
        order: list[int] = []

        def note(number: int, _: object) -> None:
            order.append(number)

        for number in range(5):
            world.add(number).add_done_callback(partial(note, number))
        world.runtime.commit(4)
        await turn()
        assert order == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_a_failing_handler_changes_nothing():
    def story() -> None:
        world = World()

        def bad(state: Sum, now: int) -> Result[Any, str]:
            raise InvalidRequest("no")

        with pytest.raises(InvalidRequest, match="no"):
            world.runtime.write(bad)
        assert world.runtime.state == Sum()
        assert world.port.records == []
        world.add(1)
        assert world.runtime.state == Sum((1,))

    run(story)


def test_records_that_cannot_be_applied_never_reach_the_log():
    def story() -> None:
        world = World()
        with pytest.raises(InvalidRequest):
            world.add(1, 13)
        assert world.port.appends == 0
        assert world.runtime.state == Sum()

    run(story)


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(28, "full"), KafkaStorageError), (InvalidRequest("x"), InvalidRequest), (ValueError("?"), KafkaError)],
)
def test_a_failed_append_leaves_the_state_as_it_was(error: Exception, told: type[KafkaError]):
    def story() -> None:
        world = World()
        first = world.add(1)
        world.port.fail = error
        with pytest.raises(told):
            world.add(2)
        assert world.runtime.state == Sum((1,))
        world.port.fail = None
        second = world.add(3)
        world.runtime.commit(1)
        assert first.done()
        assert second.done()
        assert world.committed() == (1, 3)

    run(story)


def test_a_log_that_puts_records_elsewhere_ends_the_leadership():
    def story() -> None:
        world = World()
        world.port.shift = 5
        with pytest.raises(KafkaError, match="the log put records"):
            world.add(1)
        assert not world.runtime.is_leader
        assert world.runtime.state == Sum()

    run(story)


def test_listeners_see_every_step_before_the_responses_are_released():
    def story() -> None:
        world = World()
        steps: list[tuple[Any, ...]] = []
        answer = world.add(1, 2)
        world.add(3)
        world.runtime.on_committed(lambda *step: steps.append((*step, answer.done())))
        world.runtime.commit(1)
        world.runtime.commit(2)
        assert steps == [
            (Sum(), Sum((1, 2)), 1, [1, 2], False),
            (Sum((1, 2)), Sum((1, 2, 3)), 2, [3], True),
        ]

    run(story)


def test_a_listener_that_fails_does_not_hold_back_the_response():
    def story() -> None:
        world = World()

        def broken(*step: Any) -> None:
            raise RuntimeError("broken")

        world.runtime.on_committed(broken)
        answer = world.add(1)
        world.runtime.commit(0)
        assert answer.result() == "ok"

    run(story)


def test_a_cancelled_waiter_does_not_disturb_the_others():
    def story() -> None:
        world = World()
        first, second = world.add(1), world.add(2)
        first.cancel()
        world.runtime.commit(1)
        assert second.result() == "ok"
        assert world.committed() == (1, 2)

    run(story)


def test_a_full_queue_refuses_and_names_its_limit():
    def story() -> None:
        world = World(max_pending=2)
        world.add(1)
        world.add(2)
        with pytest.raises(RequestTimedOut, match="max_pending=2"):
            world.add(3)
        assert RequestTimedOut.retriable
        world.runtime.commit(0)
        world.add(3)
        assert world.port.records == [1, 2, 3]

    run(story)


def test_writes_are_refused_before_leadership_and_after_it():
    def story() -> None:
        world = World(lead=False)
        with pytest.raises(KafkaError) as refused:
            world.add(1)
        assert refused.value.retriable
        world.runtime.become_leader(1)
        world.add(1)
        world.runtime.resign(NotController("gone"))
        for _ in range(2):
            with pytest.raises(NotController, match="gone"):
                world.add(2)

    run(story)


def test_resigning_fails_what_waits_and_reverts_to_the_committed_state():
    def story() -> None:
        world = World()
        done, lost = world.add(1), world.add(2)
        world.runtime.commit(0)
        world.runtime.resign(NotController("gone"))
        assert done.result() == "ok"
        assert isinstance(lost.exception(), NotController)
        assert world.runtime.state == Sum((1,))
        world.runtime.commit(1)
        assert world.committed() == (1,)

    run(story)


def test_what_still_commits_after_resigning_comes_back_by_replay():
    def story() -> None:
        world = World()
        world.add(1)
        lost = world.add(2)
        world.runtime.commit(0)
        world.runtime.resign(NotController("gone"))
        lost.exception()
        world.runtime.replay([(1, 2)])
        world.runtime.show()
        assert world.committed() == (1, 2)
        world.runtime.become_leader(2)
        world.port.epoch = 2
        world.add(3)
        assert world.runtime.state == Sum((1, 2, 3))

    run(story)


def test_a_late_resignation_does_not_end_a_newer_epoch():
    def story() -> None:
        world = World()
        world.runtime.resign(NotController("gone"))
        world.runtime.become_leader(2)
        world.runtime.resign(NotController("late"), epoch=1)
        assert world.runtime.is_leader
        world.runtime.resign(NotController("now"), epoch=2)
        assert not world.runtime.is_leader

    run(story)


def test_an_epoch_is_led_once():
    def story() -> None:
        world = World()
        world.runtime.resign(NotController("gone"))
        with pytest.raises(ValueError, match="epoch 1"):
            world.runtime.become_leader(1)

    run(story)


def test_a_writer_of_an_old_epoch_is_fenced_by_the_log():
    def story() -> None:
        world = World()
        world.port.epoch = 2
        with pytest.raises(NotController):
            world.add(1)
        assert world.runtime.state == Sum()

    run(story)


def test_an_unstable_state_is_shown_only_when_it_is_stable_again():
    def story() -> None:
        world = World()
        steps: list[tuple[Any, ...]] = []
        world.runtime.on_committed(lambda *step: steps.append(step))
        before, inside, after = world.add(1), world.add(BEGIN, 2), world.add(3)
        world.runtime.commit(3)
        assert before.done()
        assert not inside.done()
        assert not after.done()
        assert world.committed() == (1,)
        assert world.runtime.committed_offset == 0
        ended = world.add(END, 4)
        world.runtime.commit(5)
        assert inside.done() and after.done() and ended.done()
        assert world.committed() == (1, 2, 3, 4)
        assert steps == [
            (Sum(), Sum((1,)), 0, [1]),
            (Sum((1,)), Sum((1, 2, 3, 4)), 5, [BEGIN, 2, 3, END, 4]),
        ]

    run(story)


def test_states_that_no_reader_will_ever_see_are_not_kept():
    """A metadata transaction has hundreds of steps; only the last is ever shown, or gone back to."""

    def story() -> None:
        world = World()
        told: list[list[Any]] = []
        world.runtime.on_committed(lambda old, new, offset, records: told.append(list(records)))
        world.add(7)
        world.runtime.extend([BEGIN], 1)
        for number in range(20, 40):
            world.runtime.extend([number], 1)
            world.runtime.commit(world.port.end_offset - 1)
            assert sum(type(found) is Sum and found.open for found in gc.get_objects()) == 1
        ended = world.add(END)
        world.runtime.commit(world.port.end_offset - 1)
        assert ended.result() == "ok"
        assert told == [[7], [BEGIN, *range(20, 40), END]]
        assert world.committed() == (7, *range(20, 40))

    run(story)


def test_resigning_inside_an_unstable_state_keeps_what_is_committed_of_it():
    def story() -> None:
        world = World()
        inside, lost = world.add(BEGIN, 1), world.add(2)
        world.runtime.commit(1)
        world.runtime.resign(NotController("gone"))
        assert isinstance(inside.exception(), NotController)
        assert isinstance(lost.exception(), NotController)
        assert world.runtime.state == Sum((1,), open=True)
        assert world.runtime.committed == Sum()
        world.runtime.replay([(2, END)])
        world.runtime.show()
        assert world.runtime.committed == Sum((1,))

    run(story)


def test_a_load_is_shown_once_and_equals_the_live_state():
    def story() -> None:
        live = World()
        for numbers in ((1,), (2, 3), (BEGIN, 4), (END,), (5,)):
            live.add(*numbers)
        live.runtime.commit(len(live.port.records) - 1)
        loaded = World(lead=False)
        shown: list[int] = []
        loaded.runtime.on_committed(lambda old, new, offset, records: shown.append(offset))
        numbered = list(enumerate(live.port.records))
        loaded.runtime.load([numbered[:2], numbered[2:5], numbered[5:]])
        assert loaded.runtime.committed == live.runtime.committed
        assert loaded.runtime.committed_offset == live.runtime.committed_offset
        assert shown == [len(numbered) - 1]

    run(story)


def test_offsets_with_gaps_are_replayed_as_they_are():
    def story() -> None:
        world = World(lead=False)
        world.runtime.load([[(3, 1), (9, 2)]])
        assert world.runtime.committed_offset == 9

    run(story)


def test_nothing_is_replayed_under_pending_writes():
    def story() -> None:
        world = World()
        world.add(1)
        with pytest.raises(ValueError, match="replay"):
            world.runtime.replay([(1, 2)])

    run(story)


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.sampled_from([1, 2, 3, 13, BEGIN, END]), max_size=3)),
        st.tuples(st.just("commit"), st.integers(0, 6)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 4)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(Steps)
def test_the_state_is_always_the_fold_of_the_log(steps: list[tuple[str, Any]]):
    """Whatever is written, refused, committed and lost: live state = replay of the log, shown = a stable prefix."""

    async def main() -> None:
        world = World()
        runtime, port = world.runtime, world.port
        committed = -1
        replayed = -1
        answers: list[tuple[int, asyncio.Future[Any]]] = []
        for kind, value in steps:
            if kind == "write":
                try:
                    answer = world.add(*value)
                    if value:
                        answers.append((port.end_offset - 1, answer))
                except InvalidRequest:
                    assert 13 in value
            elif kind == "commit":
                committed = min(committed + value, port.end_offset - 1)
                runtime.commit(committed)
            elif kind == "fail":
                port.fail = OSError("disk")
                with pytest.raises(KafkaStorageError):
                    world.add(1)
                port.fail = None
            else:
                # Leadership moves; of the uncommitted tail the new leader keeps a part.
                runtime.resign(NotController("gone"))
                del port.records[committed + 1 + value :]
                # The machine keeps its state up to the last write that was committed as a whole.
                kept = max([offset for offset, _ in answers if offset <= committed], default=replayed)
                runtime.replay(list(enumerate(port.records))[kept + 1 :])
                committed = replayed = port.end_offset - 1
                for _, answer in answers:
                    assert answer.done()
                    answer.exception()
                answers.clear()
                runtime.show()
                port.epoch += 1
                runtime.become_leader(port.epoch)
            check(world, committed, answers)
        for _, answer in answers:
            if answer.done() and not answer.cancelled():
                answer.exception()

    def check(world: World, committed: int, answers: list[tuple[int, "asyncio.Future[Any]"]]) -> None:
        fold = SumMachine()
        numbered = list(enumerate(world.port.records))
        assert world.runtime.state == fold.apply_all(Sum(), numbered)
        shown = world.runtime.committed_offset
        assert shown <= committed
        assert world.runtime.committed == fold.apply_all(Sum(), numbered[: shown + 1])
        assert not world.runtime.committed.open
        for offset, answer in answers:
            if answer.done() and answer.exception() is None:
                assert offset <= committed

    asyncio.run(main())


def test_a_write_costs_the_same_few_calls_however_many_are_pending():
    """Overhead is counted, not timed: function calls of one write and its commit."""

    def calls_of(action: Callable[[], Any]) -> int:
        count = 0

        def count_calls(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        gc.disable()  # what listens to the collector (Hypothesis does) would be counted
        sys.setprofile(count_calls)
        try:
            action()
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    def story() -> None:
        costs = []
        for pending in (0, 1, 1000):
            world = World(max_pending=5000)
            for _ in range(pending):
                world.add(1)
            folds = world.machine.folds
            costs.append(calls_of(partial(world.add, 1, 2, 3)))
            assert world.machine.folds == folds + 1
            assert world.port.appends == pending + 1
        assert costs[0] <= costs[1] == costs[2] <= 41
        world = World(max_pending=5000)
        for _ in range(1000):
            world.add(1)
        assert calls_of(lambda: world.runtime.commit(999)) <= 1000 * 8 + 50

    run(story)


# Effects


def test_the_effects_of_a_write_run_when_it_is_committed_before_its_answer():
    def story() -> None:
        world = World()
        order: list[Any] = []
        world.runtime.on_committed(lambda old, new, offset, records: order.append("listener"))
        world.on_effect = order.append
        answer = world.add(1, 2, effects=("counted", "written"))
        answer.add_done_callback(lambda _: order.append("answer"))
        world.runtime.commit(0)
        assert order == [] and not answer.done()
        world.runtime.commit(1)
        assert order == ["listener", "counted", "written"] and answer.done()

    run(story)


def test_a_decision_whose_effects_nothing_can_run_is_refused_before_its_record_is_appended():
    def story() -> None:
        port = Port()
        runtime: MachineRuntime[Sum, Any] = MachineRuntime(SumMachine(), port, FixedClock())
        runtime.become_leader(1)
        with pytest.raises(ValueError, match="nothing was given that could run"):
            runtime.write(lambda state, now: Result((1,), "ok", effects=("counted",)))
        assert port.appends == 0

    run(story)


def test_the_effects_of_a_failed_append_are_dropped():
    def story() -> None:
        world = World()
        world.port.fail = OSError("full")
        with pytest.raises(KafkaStorageError):
            world.add(1, effects=("counted",))
        world.port.fail = None
        world.add(2, effects=("other",))
        world.runtime.commit(0)
        assert world.effects == ["other"]

    run(story)


def test_the_effects_of_a_reverted_write_are_dropped_and_those_of_a_committed_one_are_kept():
    def story() -> None:
        world = World()
        world.add(1, effects=("committed",))
        world.add(2, effects=("reverted",)).add_done_callback(lambda answer: answer.exception())
        world.runtime.commit(0)
        world.runtime.resign(NotController("moved"))
        world.runtime.replay([(1, 2)])
        world.runtime.show()
        assert (world.effects, world.committed()) == (["committed"], (1, 2))

    run(story)


def test_the_effects_of_what_is_committed_and_unstable_run_when_it_is_shown():
    def story() -> None:
        world = World()
        world.runtime.extend([BEGIN], 1)
        world.add(1, effects=("inside",))
        world.add(END, effects=("end",))
        world.runtime.commit(1)
        assert world.effects == []
        world.runtime.commit(2)
        assert world.effects == ["inside", "end"]

    run(story)


def test_the_effects_of_a_decision_without_records_run_at_once():
    def story() -> None:
        world = World()
        assert world.add(effects=("heard",)).done()
        assert world.effects == ["heard"]

    run(story)


def test_an_effect_that_fails_does_not_hold_the_answer_up():
    def story() -> None:
        world = World()
        world.on_effect = lambda effect: 1 / 0
        answer = world.add(1, effects=("counted",))
        world.runtime.commit(0)
        assert answer.result() == "ok"

    run(story)


@pytest.mark.parametrize("numbers", [(1, 2), (BEGIN, 1, END), ()])
def test_a_write_that_is_committed_with_its_append_gives_what_a_later_commit_gives(numbers: tuple[Any, ...]):
    def outcome(*, at_once: bool) -> tuple[Any, ...]:
        world = World()
        world.port.commits_at_once = at_once
        steps: list[Any] = []
        world.runtime.on_committed(lambda *step: steps.append((*step[:3], list(step[3]))))
        answer = world.add(*numbers, effects=("counted",))
        assert answer.done() == (at_once or not numbers)
        world.runtime.commit(len(numbers) - 1)
        runtime = world.runtime
        return (
            answer.result(), steps, world.effects, runtime.state, runtime.committed, runtime.committed_offset,
            runtime.pending,
        )  # fmt: skip

    run(lambda: _equal(outcome(at_once=True), outcome(at_once=False)))


def _equal(one: Any, other: Any) -> None:
    assert one == other


def test_an_unstable_state_is_not_answered_although_it_is_committed_with_its_append():
    def story() -> None:
        world = World()
        world.port.commits_at_once = True
        inside = world.add(BEGIN, 1)
        assert not inside.done() and world.committed() == ()
        after = world.add(END)
        world.runtime.commit(2)
        assert inside.done() and after.done() and world.committed() == (1,)

    run(story)
