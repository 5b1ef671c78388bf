"""Every example of Spark runs, proves what it says, and leaves nothing running."""

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from connector import connector_jars, when_long

from kits.processes.spark import spark_environment
from oracle.kafka import Oracle

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 400
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(500),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]
pytest.importorskip("pyspark")


@pytest.fixture(autouse=True)
def fast_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)


def proven(directory: Path, name: str, *arguments: str) -> tuple[str, list[str]]:
    """What an example printed, and what of it is claims that hold."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    claims = [line.removeprefix("proven").strip() for line in done.stdout.splitlines() if line.startswith("proven")]
    assert "FALSE" not in done.stdout and claims
    assert [path.name for path in directory.glob("twofold-example-*")] == [], "it left files behind"
    return done.stdout, claims


def test_from_zero_to_exactly_once(tmp_path: Path) -> None:
    output, claims = proven(tmp_path, "zero_to_exactly_once.py")
    assert "1000 rows after the batch was run again" in output
    assert len(claims) == 3


@when_long
def test_a_window_is_written_once(tmp_path: Path) -> None:
    _, claims = proven(tmp_path, "windowed_aggregation.py")
    assert "a batch that is run again changes nothing" in claims


@when_long
def test_a_stream_is_joined_with_a_compacted_topic(tmp_path: Path) -> None:
    _, claims = proven(tmp_path, "stream_table_join.py")
    assert "a batch that is run again with another table changes nothing" in claims


@when_long
@pytest.mark.oracle
def test_the_same_pipeline_against_apache_kafka_takes_the_resume_path(tmp_path: Path, oracle: Oracle) -> None:
    output, claims = proven(tmp_path, "apache_kafka.py", oracle.bootstrap_servers, "--kills", "1")
    assert "the sink took the resume path" in output
    assert "nothing doubled: 0 rows too many" in claims


@when_long
def test_a_job_is_moved_by_one_word_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    jars = ",".join(map(str, connector_jars()))
    output, claims = proven(tmp_path, "moved_job.py", "--connector", jars)
    assert [line.split("'")[1] for line in output.splitlines() if line.startswith("as ")] == ["kafka", "twofold"] * 2
    assert len(claims) == 2


def test_the_moved_job_differs_in_one_word_and_the_guide_shows_it() -> None:
    before, after = ((EXAMPLES / "moved" / name).read_text() for name in ("before.py", "after.py"))
    assert before.replace('FORMAT = "kafka"', 'FORMAT = "twofold"') == after
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    guide = (EXAMPLES.parent / "docs" / "guide" / "moving.md").read_text()
    assert "```diff\n" + "\n".join(lines) + "\n```" in guide


def test_every_example_is_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")} - {"shared.py"}
    assert names and [name for name in sorted(names) if f"({name})" not in listed] == []
