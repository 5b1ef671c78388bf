"""docs/guide/client-options.md says what the config classes say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_page_of_client_options_is_generated_from_the_config_classes() -> None:
    tool = ROOT / "tools" / "generate_client_options.py"
    found = subprocess.run([sys.executable, tool, "--check"], check=False)
    page = "docs/guide/client-options.md is stale: run python tools/generate_client_options.py"
    assert found.returncode == 0, page
