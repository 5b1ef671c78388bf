"""Bugs that were planted in the broker and its client, kept as patches, to see that the simulator finds them.

A patch begins with what it breaks and how that is found:

    What:       the bug, in one sentence
    Worlds:     the worlds of the simulator in which it is looked for, one after the other
    Seeds:      so many of each are enough, from seed 0 on
    Invariant:  a pattern of what the checker says that finds it

A hunk is found by its lines and not by its line numbers, so that patches last while the files around them change. They
must be found once: a patch that could be meant for two places, or for none, is stale.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HUNT = HERE / "hunt.py"


class StalePatch(Exception):
    """A patch that does not fit the sources any more."""


@dataclass(frozen=True)
class Hunk:
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    worlds: tuple[str, ...]
    seeds: int
    invariant: str
    hunks: tuple[Hunk, ...]

    def apply(self, root: Path) -> None:
        """Change the sources under `root`; nothing is written when a hunk does not fit."""
        texts: dict[Path, str] = {}
        for hunk in self.hunks:
            path = root / hunk.path
            if path not in texts:
                if not path.exists():
                    raise StalePatch(f"{self.name}: there is no {hunk.path}")
                texts[path] = path.read_text()
            if texts[path].count(hunk.old) != 1:
                raise StalePatch(
                    f"{self.name}: {texts[path].count(hunk.old)} places fit this in {hunk.path}:\n{hunk.old}"
                )
            texts[path] = texts[path].replace(hunk.old, hunk.new)
        for path, text in texts.items():
            path.write_text(text)


@dataclass(frozen=True)
class Found:
    world: str
    seed: int
    invariant: str


def mutants() -> list[Mutant]:
    return [load(path) for path in sorted(HERE.glob("*.patch"))]


def load(path: Path) -> Mutant:
    lines = path.read_text().splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith("--- "))
    said = dict(line.rstrip("\n").split(": ", 1) for line in lines[:start] if ": " in line)
    return Mutant(
        path.stem, said["What"], tuple(said["Worlds"].split()), int(said["Seeds"]), said["Invariant"],
        tuple(_hunks(lines[start:])),
    )  # fmt: skip


def _hunks(lines: Sequence[str]) -> Iterator[Hunk]:
    path = ""
    old: list[str] = []
    new: list[str] = []
    for line in [*lines, "@@ the end"]:
        if line.startswith(("--- ", "+++ ", "@@")):
            if old or new:
                yield Hunk(path, "".join(old), "".join(new))
                old, new = [], []
            if line.startswith("+++ "):
                path = line[4:].strip().removeprefix("b/")
            continue
        if line[0] in " -":
            old.append(line[1:])
        if line[0] in " +":
            new.append(line[1:])


def mutated_sources(mutant: Mutant | None, folder: Path) -> Path:
    """A copy of the package with the bug in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        mutant.apply(folder)
    return folder / "src"


def hunt(sources: Path, worlds: Sequence[str], first: int, seeds: int, until: str = "") -> list[dict[str, Any]]:
    """What the seeds of the worlds find in these sources, up to the first that `until` fits."""
    answer = subprocess.run(
        [sys.executable, str(HUNT), str(sources), ",".join(worlds), str(first), str(seeds), until],
        env={**os.environ, "PYTHONPATH": str(sources), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the hunt broke off:\n{answer.stderr[-3000:]}")
    return [json.loads(line) for line in answer.stdout.splitlines()]


def find(mutant: Mutant, folder: Path) -> tuple[Found | None, list[dict[str, Any]]]:
    """The first seed whose checker says what it is expected to, and what else was found on the way."""
    failures = hunt(mutated_sources(mutant, folder), mutant.worlds, 0, mutant.seeds, mutant.invariant)
    for failure in failures:
        if failure["is_violation"] and re.search(mutant.invariant, failure["invariant"]):
            return Found(failure["world"], failure["seed"], failure["invariant"]), failures
    return None, failures


def passes_without(found: Found, folder: Path) -> list[dict[str, Any]]:
    """What the same seeds find in the sources as they are: nothing, or the patch proves nothing."""
    return hunt(mutated_sources(None, folder), [found.world], 0, found.seed + 1)
