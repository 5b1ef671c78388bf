"""A seed gives the same run in every process, in every world."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.worlds import KINDS

TESTS = Path(__file__).parent.parent
# Those of the sink differed once: the broker listed transactions in the order of a map.
SEEDS = {kind: (1, 4) for kind in KINDS if kind != "lost-markers"}  # which is the world of transactions
PROGRAM = """
import sys
from sim.worlds import KINDS

for name, *seeds in (argument.split(",") for argument in sys.argv[1:]):
    print(name, *(KINDS[name].run(int(seed), KINDS[name].plan(int(seed))).digest for seed in seeds))
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_in_another_process_with_other_hashes() -> None:
    wanted = [",".join([kind, *map(str, seeds)]) for kind, seeds in SEEDS.items()]
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *wanted],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("1", "4")
    )
    assert first == second
    assert len({digest for line in first for digest in line.split()[1:]}) == 2 * len(SEEDS)
