"""Make a failing plan smaller while it still fails: fewer clients, faults and operations, and a trace that can be read.

Delta debugging: halves are tried before single things, what is left is tried again until nothing more can go. A smaller
plan is another run, so what it finds may be worded differently; it has to be an error of the same type.
"""

from collections.abc import Callable, Sequence

from sim.worlds import KINDS, Failure, changed, parts, run

MAX_RUNS = 150
SHORTEST_S = 0.3


class Shrinker:
    def __init__(self, failure: Failure, try_it: Callable[..., Failure | None] = run, max_runs: int = MAX_RUNS) -> None:
        self.best = failure
        self.runs = 0
        self._try = try_it
        self._max_runs = max_runs
        self._changes = dict(change.split("=", 1) for change in failure.changes)

    def shrink(self) -> Failure:
        """Until nothing more can be taken out, or it was tried often enough."""
        progress = True
        while progress and self.runs < self._max_runs:
            progress = False
            for path, value in parts(self._plan()).items():
                if isinstance(value, tuple):
                    progress |= self._shrink_tuple(path, len(value))
                elif isinstance(value, bool) or path.rpartition(".")[2] != "duration_s":
                    progress |= bool(value) and self._fails_with(path, "0")
                elif value > 2 * SHORTEST_S:
                    progress |= self._fails_with(path, f"{value / 2:.2f}")
        return self.best

    def _plan(self) -> object:
        return changed(KINDS[self.best.kind].plan(self.best.seed), self.best.changes)

    def _shrink_tuple(self, path: str, size: int) -> bool:
        kept = self._kept(path, size)
        chunk = len(kept)
        progress = False
        while chunk and kept:
            at = 0
            while at < len(kept):
                fewer = kept[:at] + kept[at + chunk :]
                if self._fails_with(path, ",".join(map(str, fewer))):
                    kept, progress = fewer, True
                else:
                    at += chunk
            chunk = min(chunk // 2, len(kept))
        return progress

    def _kept(self, path: str, size: int) -> list[int]:
        """Indexes into the plan that the seed has drawn."""
        known = self._changes.get(path)
        return list(range(size)) if known is None else [int(index) for index in known.split(",") if index]

    def _fails_with(self, path: str, text: str) -> bool:
        if self.runs >= self._max_runs:
            return False
        self.runs += 1
        changes = self._changes | {path: text}
        try:
            found = self._try(self.best.kind, self.best.seed, as_texts(changes))
        except Exception:  # a plan that nobody can carry out, say without the topic that somebody writes to
            return False
        if found is None or found.error != self.best.error:
            return False
        self.best, self._changes = found, changes
        return True


def as_texts(changes: dict[str, str]) -> Sequence[str]:
    return tuple(f"{path}={text}" for path, text in changes.items())


def shrink(failure: Failure, max_runs: int = MAX_RUNS) -> Failure:
    return Shrinker(failure, max_runs=max_runs).shrink()
