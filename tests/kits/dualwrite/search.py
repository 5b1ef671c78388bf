"""Every state that a world can reach, each visited once, and what must hold in it.

1. The log has committed nothing that the table lacks, and the table has nothing that the log has aborted.
2. An item is in the log with both of its records, or with none.
3. A process that lost the row does not change the table (the world says so itself).
4. What a writer was told stays true: "not done" is never in the table.
5. Somebody can go on, unless all have ended.
6. If everything is killed now, one process that takes over alone ends what is open, and table and log agree.
"""

from collections import deque
from typing import NamedTuple

from kits.dualwrite.places import Log, ModelRow
from kits.dualwrite.world import ENDED, Faults, Process, Script, State, Violation, World

NO_FAULTS = Faults(0, 0, 0)


class Searched(NamedTuple):
    states: int
    moves: int
    written: int
    """The most items that both places have in a state in which all have ended."""


class Found(Exception):
    """A state in which something does not hold, with the moves that lead there."""

    def __init__(self, what: str, path: list[str]) -> None:
        super().__init__("\n".join([what, *path]))
        self.what = what
        self.path = path


def search(world: World, faults: Faults, start: State | None = None) -> Searched:
    first = world.start(faults) if start is None else start
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting, moves, written = deque([first]), 0, 0
    settling = Settling(world)
    while waiting:
        state = waiting.popleft()
        try:
            check(state)
            settling.check(state)
            following = list(world.moves(state))
            alive = any(process.program >= 0 for process in state.processes)
            if alive and not following:
                raise Violation("nobody can go on")
            following += world.kills(state)
        except Violation as violation:
            raise Found(str(violation), _path(came_from, state)) from violation
        moves += len(following)
        if not alive:
            written = max(written, (state.table & state.log.first).bit_count())
        for label, after in following:
            if after not in came_from:
                came_from[after] = state, label
                waiting.append(after)
    return Searched(len(came_from), moves, written)


def check(state: State) -> None:
    log, table = state.log, state.table
    if log.first != log.second:
        raise Violation(f"half a transaction is committed: {log.first:b}, {log.second:b}")
    if log.first & ~table:
        raise Violation(f"the log has committed {log.first & ~table:b}, and the table does not have it")
    if table & log.aborted:
        raise Violation(f"the table has {table & log.aborted:b}, and the log has aborted it")
    if table & state.denied:
        raise Violation(f"the table has {table & state.denied:b}, and its writer was told that it has not")


class Settling:
    """What a process that takes over alone makes of the places that the others have left."""

    def __init__(self, world: World) -> None:
        self._world = World(world.isolation, (Script("the last one"),), world.rules)
        self._known: set[tuple[ModelRow, int, Log]] = set()

    def check(self, state: State) -> None:
        outcomes = [(state.row, state.table)]
        if state.adrift is not None:
            outcomes.append((state.adrift.row or state.row, state.table | state.adrift.items))
        for row, table in outcomes:
            if (row, table, state.log) not in self._known:
                self._check(row, table, state.log)
                self._known.add((row, table, state.log))

    def _check(self, row: ModelRow, table: int, log: Log) -> None:
        state = self._world.start(NO_FAULTS)._replace(row=row, table=table, log=log)
        while state.processes != (Process(ENDED),):
            moves = list(self._world.moves(state))
            if len(moves) != 1:
                raise Violation(f"one that takes over alone has {len(moves)} ways to go on")
            state = moves[0][1]
        check(state)
        if state.log.open is not None or state.table != state.log.first:
            raise Violation(
                f"after everything was killed and one took over: {state.table:b} in the table, {state.log.first:b} in "
                f"the log, open {state.log.open}"
            )


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels = []
    step = came_from[state]
    while step is not None:
        before, label = step
        labels.append(label)
        step = came_from[before]
    return labels[::-1]
