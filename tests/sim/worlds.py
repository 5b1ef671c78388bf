"""All worlds of the simulator under one roof: run a seed of one of them, or a part of its plan, and say how it went.

A change of a plan is a short text, so that a person can give it on a command line: `writers=0,2` keeps the first and
the third of the writers, `ghosts=0`, `side_topics=0` and `duration_s=1.5` set a value, `plain.producers=` reaches into
a plan within the plan.
"""

import dataclasses
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sim.broker.watch import Violation
from sim.broker.world import BrokerSimulation

TRACE_LINES = 60
# What the wire and the disk do is far more than anybody wants to read; faults of the disk are not.
_NOISE = re.compile(r"[\d.]+ (send|arrive|accept|connect|close|drop|disk (?!\S+ (crash|fault)))")
# Told by the programme and not by a checker, but what it says is that something must hold and does not.
_UNSEEN = "an error that nobody expected"


@dataclass(frozen=True)
class Kind:
    module: str
    make_plan: str
    simulate: str
    share: int
    """Of a hundred seeds."""
    plan_module: str = ""

    def plan(self, seed: int) -> Any:
        return getattr(importlib.import_module(self.plan_module or self.module), self.make_plan)(seed)

    def run(self, seed: int, plan: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.simulate)(seed, plan)


KINDS = {
    "mixed": Kind("sim.mixed.world", "make_mixed_plan", "simulate_mixed", 22, "sim.mixed.plan"),
    "broker": Kind("sim.broker.run", "make_plan", "simulate", 13, "sim.broker.plan"),
    "transactions": Kind("sim.transactions.world", "make_txn_plan", "simulate_txn", 14, "sim.transactions.plan"),
    "lost-markers": Kind("sim.transactions.lost_markers", "make_lost_markers_plan", "simulate_lost_markers", 3),
    "groups": Kind("sim.groups.world", "make_group_plan", "simulate_group", 5),
    "consumer-groups": Kind(
        "sim.consumer_groups.world",
        "make_consumer_group_plan",
        "simulate_consumer_group",
        8,
        "sim.consumer_groups.plan",
    ),
    "two-phase": Kind("sim.two_phase.world", "make_two_phase_plan", "simulate_two_phase", 10, "sim.two_phase.plan"),
    "metadata": Kind("sim.metadata.world", "make_metadata_plan", "simulate_metadata", 10, "sim.metadata.plan"),
    "cluster": Kind("sim.cluster.run", "make_cluster_plan", "simulate_cluster", 10, "sim.cluster.plan"),
    "sink": Kind("sim.sink.world", "make_sink_plan", "simulate_sink", 5, "sim.sink.plan"),
}


class Failure(NamedTuple):
    kind: str
    seed: int
    changes: tuple[str, ...]
    error: str
    """The type of what was raised: Violation where a checker said so."""
    invariant: str
    """What does not hold, with the values at hand."""
    trace: tuple[str, ...]

    @property
    def is_violation(self) -> bool:
        """Found by somebody who checks, and not a simulation that broke."""
        return self.error in (Violation.__name__, AssertionError.__name__)

    @property
    def command(self) -> str:
        kept = "".join(f" --keep '{change}'" for change in self.changes)
        return f".venv/bin/python tools/run_seeds.py --world {self.kind} --seed {self.seed}{kept}"


def run(kind: str, seed: int, changes: Sequence[str] = ()) -> Failure | None:
    world = KINDS[kind]
    plan = changed(world.plan(seed), changes)
    try:
        world.run(seed, plan)
    except Exception as error:
        trace = [line for line in BrokerSimulation.latest.trace if not _NOISE.match(line)]
        return Failure(kind, seed, tuple(changes), type(error).__name__, _said(error), tuple(trace[-TRACE_LINES:]))
    return None


def _said(error: BaseException) -> str:
    """In one line; an assertion of Python says where it stands."""
    text = str(error)
    if not text:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            text = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename}"
    return " ".join(text.split()) or _UNSEEN


# Plans


def changed(plan: Any, changes: Sequence[str]) -> Any:
    for change in changes:
        path, _, text = change.partition("=")
        plan = _change(plan, path.split("."), text)
    return plan


def _change(plan: Any, path: Sequence[str], text: str) -> Any:
    name, *rest = path
    now = getattr(plan, name)
    new: Any
    if rest:
        new = _change(now, rest, text)
    elif isinstance(now, tuple):
        new = tuple(now[int(index)] for index in text.split(",") if index)
    else:
        new = type(now)(int(text)) if isinstance(now, bool) else type(now)(text)
    return dataclasses.replace(plan, **{name: new})


def parts(plan: Any, prefix: str = "") -> dict[str, Any]:
    """What may be taken out of a plan: path -> its value. Faults and time are those of the outermost plan."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        path = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            found |= parts(value, f"{path}.")
        elif isinstance(value, tuple | bool | float) and not (prefix and field.name in ("faults", "duration_s")):
            found[path] = value
    return found
