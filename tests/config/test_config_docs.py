"""docs/settings.md says what the tables say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_page_of_settings_is_generated_from_the_tables():
    tool = ROOT / "tools" / "generate_settings.py"
    found = subprocess.run([sys.executable, tool, "--check"], check=False)
    assert found.returncode == 0, "docs/settings.md is stale: run python tools/generate_settings.py"
