"""Every command and every piece of Python in the docs is run, against a real server, in the order it is shown."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.docs_kit import (
    LONG,
    ROOT,
    SPARK_TIMEOUT_S,
    Elsewhere,
    PageBroker,
    check_extras,
    check_files,
    commands,
    file_of,
    prepare,
    run_until_stopped,
    runs_until_stopped,
    small_spark,
    steady,
    takes_long,
)

pytestmark = pytest.mark.interop

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
KNOWN = {"bash", "python", "toml", "text"}
PICTURES = {"mermaid"}
ALARM = re.compile(r"Traceback|\b(WARNING|ERROR|CRITICAL)\b")
SPARK_COMMANDS = ("twofold pipeline run", "spark-submit")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for match in BLOCK.finditer(page.read_text()):
        if match.group(1) not in PICTURES:
            yield match.group(1), match.group(2)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def joined(listed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Blocks of Python that use one Spark session are one script, where the first of them is."""
    if not any("SparkSession" in text for _, text in listed):
        return listed
    parts = [entry for entry in listed if entry[0] == "python" and file_of(entry[1]) is None]
    script = ("python", "\n".join(text for _, text in parts))
    return [script if entry is parts[0] else entry for entry in listed if entry is parts[0] or entry not in parts]


@pytest.mark.timeout(1800 if LONG else 600)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_page_can_be_followed_literally_from_the_state_that_it_describes(page: Path, tmp_path: Path):
    listed = joined(list(blocks(page)))
    if not listed:
        return
    uses_spark = any("SparkSession" in text for _, text in listed)
    if uses_spark and shutil.which("java") is None:
        pytest.skip("Spark needs a JDK: install openjdk-17-jdk-headless")
    directory = tmp_path / "user"
    directory.mkdir()
    broker = PageBroker(tmp_path)
    prepare(page, broker, directory)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TWOFOLD_BOOTSTRAP_SERVER": broker.address,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "200",
    }
    if uses_spark:
        environment |= small_spark()
    printed = ""
    with ExitStack() as stack:
        stack.callback(broker.stop)
        elsewhere = Elsewhere(tmp_path, stack)
        for language, text in listed:
            assert language in KNOWN, f"{page.name}: a block of {language}; known are {KNOWN}"
            text = broker.replace(text)
            if language == "text":
                assert steady(printed) == steady(text), f"{page.name} shows\n{text}\nand it printed\n{printed}"
            elif file_of(text) is not None:
                write_file(language, text, directory)
            elif language == "python":
                run_python(text, environment, directory)
            elif LONG or not takes_long(text):
                printed = run_shell(elsewhere.replace(text), environment, directory, broker)


def write_file(language: str, text: str, directory: Path) -> None:
    path = directory / str(file_of(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if language == "toml":
        tomllib.loads(text)
    else:
        compile(text, str(path), "exec")


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
    # librdkafka tells of every connection that a page's broker closes, in lines that begin so.
    said = [line for line in done.stderr.splitlines() if not line.startswith("%")]
    assert "SparkSession" in text or not said, f"{text}\nprints an alarm:\n{done.stderr}"


def run_shell(text: str, environment: dict[str, str], directory: Path, broker: PageBroker) -> str:
    """What the commands printed."""
    printed = ""
    for command in commands(text):
        if command.startswith("make "):
            # Running make inside make would never end: that the target is there is what can be checked.
            assert command.split()[1] in make_targets(), f"no target for: {command}"
        elif command.startswith("pip install"):
            check_extras(command)
        elif command.startswith("twofold serve"):
            broker.serve(command)
        elif "docker " in command or command.startswith("sudo "):
            check_files(command)
        elif runs_until_stopped(command):
            run_until_stopped(command, environment, directory)
        else:
            timeout_s = SPARK_TIMEOUT_S if command.startswith(SPARK_COMMANDS) else 60
            done = subprocess.run(
                ["bash", "-c", command], env=environment, cwd=directory, capture_output=True, text=True,
                timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert not ALARM.search(done.stderr), f"{command}\nprints an alarm:\n{done.stderr}"
            printed += done.stderr + done.stdout
    return printed


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
