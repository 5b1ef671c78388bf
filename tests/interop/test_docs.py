"""Every command and every piece of Python in the docs is run, against a real server, in the order it is shown."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interop.docs_kit import LONG, ROOT, Reader, blocks, follow

pytestmark = pytest.mark.interop

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.timeout(1800 if LONG else 600)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_page_can_be_followed_literally_from_the_state_that_it_describes(page: Path, tmp_path: Path):
    if any("SparkSession" in text for _, text in blocks(page)) and shutil.which("java") is None:
        pytest.skip("Spark needs a JDK: install openjdk-17-jdk-headless")
    follow(page, tmp_path, Reader())


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_flags_of_the_guide_to_pipelines_are_those_of_the_command():
    page = (ROOT / "docs" / "guide" / "spark.md").read_text()
    table = page.split("| flag |", 1)[1].split("\n\n", 1)[0]
    shown = set(re.findall(r"`(--[a-z-]+)", table))
    command = [sys.executable, "-m", "twofold", "pipeline", "run", "--help"]
    environment = os.environ | {"COLUMNS": "200", "TERM": "dumb"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown == set(re.findall(r"(?<![\w-])(--[a-z-]+)", told)) - {"--help"}
