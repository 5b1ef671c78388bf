"""The example of consume, transform, produce, as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_word_is_counted_once_across_a_crash_and_a_pause(protocol: str) -> None:
    program = ROOT / "examples" / "consume_transform_produce.py"
    command = [sys.executable, str(program), "--words", "600", "--crashes", "1", "--pauses", "1"]
    command += ["--group-protocol", protocol]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "600 words, 0 lost, 0 doubled: exactly once" in done.stdout
    assert done.stdout.count("a worker: ") == 2
