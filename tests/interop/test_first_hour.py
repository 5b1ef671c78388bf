"""The first hour of a newcomer, as `make interop` tries it: from an environment with only Python to the last guide.

A copy of the checkout, without what development has left in it, is installed as the README says. Then the pages are
followed with the programs of that environment. It has what the pages tell to install and nothing else: a page that
needs more is found here, where `test_docs.py` has everything that development needs. Pages about Spark, which needs a
JDK, are followed there alone.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interop.docs_kit import LONG, ROOT, Reader, follow

pytestmark = pytest.mark.interop

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*cache*", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__"
)
PAGES = (
    "README.md",
    "docs/guide/install.md",
    "docs/guide/command-line.md",
    "docs/guide/topics.md",
    "docs/guide/groups.md",
    "docs/guide/testing.md",
    "docs/guide/two-phase-commit.md",
    "docs/guide/stuck-consumer.md",
    "docs/guide/remote-clients.md",
    "docs/guide/metrics.md",
    "docs/guide/monitoring.md",
    "docs/guide/cluster.md",
    "docs/guide/log-dump.md",
    "docs/guide/metadata.md",
)
MOST_S = 20 * 60  # of the hour: the rest is for reading


def installed(python: Path) -> set[str]:
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=True
    )
    return {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}


@pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 installs into empty environments")
@pytest.mark.timeout(2 * MOST_S)
def test_a_newcomer_follows_the_pages_of_the_first_hour_with_only_what_they_tell_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*os.environ]:
        if name.startswith(("TWOFOLD_", "PYTHONPATH", "VIRTUAL_ENV")):
            monkeypatch.delenv(name)
    started = time.monotonic()
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=LEFT_OUT)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    reader = Reader(tmp_path / "env/bin/python", checkout)
    assert installed(reader.python) <= {"pip", "setuptools", "wheel"}
    for name in PAGES:
        follow(checkout / name, tmp_path / "pages" / Path(name).stem, reader)
    took = time.monotonic() - started
    found = installed(reader.python)
    assert {"twofold", "confluent-kafka", "pytest"} <= found and not {"pyspark", "mypy"} & found
    assert took < MOST_S, f"{took:.0f} s"
