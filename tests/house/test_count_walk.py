"""`tools/count_walk.py` counts what a request walks through, `tools/count_instructions.py` its instructions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kits.wire.tools import LONG

TOOLS = Path(__file__).resolve().parents[2] / "tools"
TOOL = TOOLS / "count_walk.py"
WALKS = [
    "Produce, one batch",
    "EndTxn, a commit",
    "InitProducerId with keepPreparedTxn",
    "a micro-batch, in the sink",
    "a micro-batch, in the broker",
]


@pytest.mark.slow
def test_the_walks_from_socket_to_answer_are_counted() -> None:
    command = [sys.executable, str(TOOL), "--format", "json", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert list(found) == WALKS
    for name, walk in found.items():
        assert walk["entered"] >= walk["functions"] >= walk["files"] > 10, name


@pytest.mark.slow
@pytest.mark.skipif(
    not (LONG and shutil.which("valgrind")), reason="valgrind takes its time: TWOFOLD_LONG=1, or make interop"
)
def test_the_instructions_of_a_request_are_counted() -> None:
    command = [sys.executable, str(TOOLS / "count_instructions.py"), "--format", "json", "--times", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    (found,) = json.loads(done.stdout).values()
    assert found["Produce, a record"] < found["a transaction (3 requests)"]
    assert all(10_000 < instructions < 100_000_000 for instructions in found.values())


def test_without_valgrind_the_counting_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "count_instructions.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": str(tmp_path)}, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "valgrind is missing: install valgrind (Debian: apt-get install valgrind)\n"
