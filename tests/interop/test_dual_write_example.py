"""The example of two-phase commit keeps its promise, and its guide shows what the producer does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from twofold.client.transaction_states import diagram

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.interop
def test_a_table_and_a_topic_stay_in_step_across_crashes() -> None:
    command = [sys.executable, str(ROOT / "examples" / "dual_write.py"), "--orders", "25", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same orders, in the same order, each once" in done.stdout
    killed = [int(count) for count in re.findall(r"writer killed, \w+ +│ +(\d+)", done.stdout)]
    assert len(killed) == 6 and sum(killed) > 0


def test_the_guide_shows_the_table_of_states() -> None:
    page = (ROOT / "docs" / "guide" / "two-phase-commit.md").read_text()
    assert f"```mermaid\n{diagram()}\n```" in page, "copy what transaction_states.diagram() returns into the guide"
