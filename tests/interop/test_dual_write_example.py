"""The example of dual writes keeps its promise, and the guide shows the producer's own table of states. The crash table
of the guide is in `tests/dualwrite/test_dualwrite_crashes.py`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from twofold.client.transactions.states import diagram

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.interop


@pytest.mark.timeout(400)
def test_a_table_and_a_topic_stay_in_step_across_crashes_and_pauses() -> None:
    command = [sys.executable, str(ROOT / "examples" / "dual_write.py"), "--orders", "12", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same orders, in the same order, each once" in done.stdout
    rows = [(int(killed), int(paused)) for killed, paused in re.findall(r"│ +(\d+) +│ +(\d+) +│", done.stdout)]
    assert len(rows) == 15 and sum(killed for killed, _ in rows) > 0 and sum(paused for _, paused in rows) > 0


def test_the_guide_shows_the_table_of_states() -> None:
    page = (ROOT / "docs" / "guide" / "two-phase-commit.md").read_text()
    assert f"```mermaid\n{diagram()}\n```" in page, "copy what transaction_states.diagram() returns into the guide"
