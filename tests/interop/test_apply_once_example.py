"""The example of ApplyOnce keeps its promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "apply_once.py"

pytestmark = pytest.mark.interop


def test_every_order_is_billed_once_across_kills_and_pauses() -> None:
    command = [sys.executable, str(EXAMPLE), "--orders", "80", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "80 bills, 80 orders of 80" in done.stdout and "every order was billed once" in done.stdout
    assert re.search(r"\d+ workers (killed|paused)", done.stdout), done.stdout
