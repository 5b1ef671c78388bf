"""The example of a web application keeps its promise, over HTTP."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.interop


@pytest.mark.timeout(200)
def test_the_table_and_the_topic_of_a_web_shop_have_what_customers_were_told_of() -> None:
    command = [sys.executable, str(ROOT / "examples" / "web_shop.py"), "--orders", "35"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same orders, each once" in done.stdout
    answers = {int(status): int(count) for count, status in re.findall(r"(\d+) x (\d+)", done.stdout)}
    assert answers[201] > 0 and answers[409] > 0 and answers[422] > 0, done.stdout
    assert sum(count for status, count in answers.items() if status != 503) == 35
