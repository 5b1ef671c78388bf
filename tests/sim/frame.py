"""The frame of every world: its story is played from the start to the end, and a failure says how to see it again.

A world has `start`, `finish` and a plan; its nemesis has `run`. What a world watches and checks is its own.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

from twofold.runtime.sim import Simulation
from twofold.runtime.sim.disk import CutMode

MAX_VIRTUAL_S = 3600.0
TAIL = 40
LONG = "TWOFOLD_LONG" in os.environ or "TWOFOLD_SEEDS" in os.environ
"""Every form of a story at every point. Otherwise its forms share the points out."""


class Faulty(Protocol):
    """A plan as far as the log of errors must know it."""

    @property
    def has_disk_errors(self) -> bool: ...


class BrokerPlan(Faulty, Protocol):
    """A plan as far as the broker's machine must know it."""

    @property
    def seed(self) -> int: ...

    @property
    def cut_mode(self) -> CutMode: ...

    @property
    def settings(self) -> Mapping[str, str]: ...


class Watcher(Protocol):
    """What a broker's machine tells when the broker ends."""

    def crash(self, power_cut: bool) -> None: ...

    def stopped_cleanly(self) -> None: ...


class Playable(Protocol):
    async def start(self) -> None: ...

    async def finish(self) -> None: ...


class Troublesome(Protocol):
    def run(self) -> Awaitable[None]: ...


class Errors(Protocol):
    unexpected: list[BaseException]


W = TypeVar("W", bound=Playable)


def points(share: int, shares: int) -> Iterator[int]:
    """How many changes of the disk come before the crash: all numbers in the long form, otherwise one share of them."""
    return count() if LONG else count(share, shares)


def last_lines(sim: Simulation) -> Sequence[str]:
    return sim.trace[-TAIL:]


@contextmanager
def repeatable(
    sim: Simulation, seed: int, plan: object, test: str, told: Callable[[Any], Sequence[str]] = last_lines
) -> Iterator[None]:
    """The simulation is open inside. An error carries the trace, the plan, and the command that repeats it."""
    try:
        with sim:
            yield
    except BaseException as error:
        error.add_note("\n".join(["the end of the trace:", *told(sim)]))
        error.add_note(f"{plan}")
        error.add_note(f"again: TWOFOLD_SEED={seed} .venv/bin/python -m pytest tests/sim -k {test}")
        raise


def play(sim: Simulation, errors: Errors, make_world: Callable[[], W], make_nemesis: Callable[[W], Troublesome]) -> W:
    """From the first start to the last check of the world itself. An error that a process logged fails the run too."""

    async def story() -> W:
        world = make_world()
        await world.start()
        await make_nemesis(world).run()
        await world.finish()
        return world

    world = sim.run(story(), timeout_s=MAX_VIRTUAL_S)
    if errors.unexpected:
        raise errors.unexpected[0]
    return world
