"""Versions of before, out of the repository's history."""

import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("src", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def install_or_skip(commit: str, folder: Path) -> Path:
    """The interpreter of an environment that has the commit installed, with all that a server needs."""
    listed = _git("ls-tree", "--name-only", commit)
    if listed.returncode != 0:
        pytest.skip(f"the history of this checkout has no commit {commit}: {listed.stderr.strip()}")
    parts = [part for part in PARTS if part in listed.stdout.split()]
    archive, sources = folder / "sources.tar", folder / "sources"
    made = _git("archive", "--output", str(archive), commit, *parts)
    assert made.returncode == 0, made.stderr
    sources.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(sources)], check=True)
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    extra = "[server]" if "\nserver = [" in (sources / "pyproject.toml").read_text() else ""
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"{sources}{extra}"], check=True, timeout=600)
    return python


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
