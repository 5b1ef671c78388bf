"""`tools/count_walk.py` counts the walks that the docs and reviews speak of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "count_walk.py"
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
