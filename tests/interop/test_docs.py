"""Every command and every piece of Python in the docs is run, against a real server, in the order it is shown."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import TwofoldServer

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
KNOWN = {"bash", "python"}
PICTURES = {"mermaid"}
SPARK_TIMEOUT_S = 300


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for match in BLOCK.finditer(page.read_text()):
        if match.group(1) not in PICTURES:
            yield match.group(1), match.group(2)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def joined(listed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Blocks of Python that use one Spark session are one script: a session takes seconds to start."""
    if not any("SparkSession" in text for _, text in listed):
        return listed
    script = "\n".join(text for language, text in listed if language == "python")
    return [entry for entry in listed if entry[0] != "python"] + [("python", script)]


@pytest.mark.timeout(SPARK_TIMEOUT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path):
    listed = joined(list(blocks(page)))
    if not listed:
        return
    server = TwofoldServer(tmp_path)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TWOFOLD_BOOTSTRAP_SERVER": server.bootstrap_servers,
    }
    with server:
        for language, text in listed:
            assert language in KNOWN, f"{page.name}: a block of {language}; known are {KNOWN}"
            text = text.replace("127.0.0.1:9092", server.bootstrap_servers)
            if language == "python":
                run_python(text, environment, tmp_path)
            else:
                run_shell(text, environment, tmp_path)


def run_python(text: str, environment: dict[str, str], directory: Path) -> None:
    if "def test_" in text:
        (directory / "test_shown.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory / "test_shown.py")]
    else:
        command = [sys.executable, "-c", text]
    timeout_s = SPARK_TIMEOUT_S if "SparkSession" in text else 60
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def run_shell(text: str, environment: dict[str, str], directory: Path) -> None:
    for line in text.splitlines():
        command = line.split("  #")[0].strip()
        if not command:
            continue
        if command.startswith("make "):
            # Running make inside make would never end: that the target is there is what can be checked.
            assert command.split()[1] in make_targets(), f"no target for: {command}"
            continue
        if command.startswith("twofold serve"):
            check_serve_options(command, environment)
            continue
        done = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=directory, capture_output=True, text=True, timeout=60,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def check_serve_options(command: str, environment: dict[str, str]) -> None:
    """The server of the page is running already; that the options exist is what is checked."""
    done = subprocess.run(
        ["twofold", "serve", "--help"], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    for option in re.findall(r"(--[a-z-]+|-o)\b", command):
        assert option in done.stdout, f"{command}: no option {option}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
