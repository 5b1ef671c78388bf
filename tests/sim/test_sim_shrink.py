"""What fails is made smaller: only what it needs is left of the plan, and the command that is printed repeats it."""

from collections.abc import Sequence
from typing import Any

import pytest

from sim.broker.run import simulate
from sim.mixed.plan import make_mixed_plan
from sim.shrink import Shrinker, shrink
from sim.worlds import KINDS, Failure, changed, parts, run
from twofold.broker.coordinators.transactions.producer_ids import Block, ProducerIdBlocks


def failure(*changes: str, error: str = "Violation") -> Failure:
    return Failure("mixed", 5, changes, error, "something does not hold", ())


def test_a_change_of_a_plan_keeps_what_it_names() -> None:
    plan = make_mixed_plan(5)
    smaller = changed(plan, ["faults=0", "plain.producers=", "ghosts=0", "alters=0", "duration_s=0.50"])
    assert smaller.faults == plan.faults[:1]
    assert smaller.plain.producers == ()
    assert (smaller.ghosts, smaller.alters, smaller.duration_s) == (0.0, False, 0.5)
    assert smaller.writers == plan.writers


@pytest.mark.parametrize("kind", KINDS)
def test_every_world_has_parts_that_can_be_taken_out(kind: str) -> None:
    plan = KINDS[kind].plan(0)
    assert any(isinstance(value, tuple) for value in parts(plan).values())
    assert all(changed(plan, [f"{path}="]) for path, value in parts(plan).items() if isinstance(value, tuple))


def test_only_what_the_failure_needs_is_left() -> None:
    """It needs the second fault and the last writer."""
    plan = make_mixed_plan(5)
    assert len(plan.faults) > 2 and len(plan.writers) > 1
    needed = (plan.faults[1], plan.writers[-1])

    def try_it(kind: str, seed: int, changes: Sequence[str]) -> Failure | None:
        smaller = changed(make_mixed_plan(seed), changes)
        return failure(*changes) if needed[0] in smaller.faults and needed[1] in smaller.writers else None

    found = Shrinker(failure(), try_it).shrink()
    smallest: Any = changed(make_mixed_plan(5), found.changes)
    assert smallest.faults == needed[:1]
    assert smallest.writers == needed[1:]
    assert not smallest.copiers and not smallest.plain.producers and not smallest.group.members
    assert smallest.duration_s <= 0.6


def test_another_kind_of_error_is_not_what_was_looked_for() -> None:
    found = Shrinker(failure(), lambda kind, seed, changes: failure(*changes, error="IndexError")).shrink()
    assert found == failure()


@pytest.mark.slow
def test_a_seed_that_fails_is_shrunk_and_its_command_says_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerIdBlocks, "_checked", lambda self, response: Block(0, 1000))
    found = next(bad for seed in range(40) if (bad := run("broker", seed)) is not None and bad.is_violation)
    assert "handed out twice" in found.invariant
    small = shrink(found, max_runs=12)
    assert small.is_violation and small.changes and small.trace
    assert small.command.startswith(f".venv/bin/python tools/run_seeds.py --world broker --seed {found.seed} --keep '")
    assert not any(" send #" in line for line in small.trace)
    again = run("broker", small.seed, small.changes)
    assert again == small
    monkeypatch.undo()
    simulate(small.seed, changed(KINDS["broker"].plan(small.seed), small.changes))
