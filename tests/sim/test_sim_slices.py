"""`tools/run_seeds.py --ledger`: a run in slices counts every seed once, and only seeds of the same sources."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "run_seeds.py"

pytestmark = pytest.mark.slow


def run(ledger: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--world", "metadata", "--seeds", "12", "--processes", "1"]
    return subprocess.run([*command, "--ledger", str(ledger), *more], capture_output=True, text=True, timeout=100)


def test_a_run_in_slices_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ledger = tmp_path / "seeds.json"
    first = run(ledger, "--minutes", "0")
    assert first.returncode == 0, first.stdout + first.stderr
    seen = json.loads(ledger.read_text())["worlds"]["metadata"]["seeds"]
    assert 0 < seen <= 12
    second = run(ledger)
    assert "12 of 12 seeds, 0 failed" in second.stdout, second.stdout + second.stderr
    assert json.loads(ledger.read_text())["worlds"]["metadata"]["seeds"] == 12, "none is counted twice"


def test_a_ledger_of_other_sources_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "seeds.json"
    ledger.write_text(json.dumps({"sources": "others", "worlds": {}, "failed": [], "done": []}))
    refused = run(ledger)
    assert refused.returncode == 1
    assert "of other sources than these" in refused.stderr
