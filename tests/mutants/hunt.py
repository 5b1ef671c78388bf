"""Run seeds on the sources that PYTHONPATH names and print each failure as a line of JSON: in a process of its own,
because a package is imported once.

    hunt.py SOURCES WORLD[,WORLD] FIRST SEEDS [PATTERN]
"""

import json
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import twofold  # noqa: E402
from sim.worlds import run  # noqa: E402


def main() -> int:
    sources, worlds, first, seeds, *pattern = sys.argv[1:]
    if not Path(twofold.__file__).is_relative_to(sources):
        print(f"twofold comes from {twofold.__file__} and not from {sources}", file=sys.stderr)
        return 2
    for seed in range(int(first), int(first) + int(seeds)):
        for world in worlds.split(","):
            failure = run(world, seed)
            if failure is None:
                continue
            row = {
                "world": world,
                "seed": seed,
                "error": failure.error,
                "is_violation": failure.is_violation,
                "invariant": failure.invariant,
            }
            print(json.dumps(row), flush=True)
            if pattern and pattern[0] and failure.is_violation and re.search(pattern[0], failure.invariant):
                return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
