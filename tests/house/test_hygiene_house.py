"""The form of the sources: what ships, what reads the environment, and one meaning per class name."""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "twofold"

READS_THE_ENVIRONMENT = {
    "cli": "options may be given as TWOFOLD_<OPTION>, and terminals tell their width and colours there",
    "records/columnar_loading.py": "where numba keeps what it compiled (NUMBA_CACHE_DIR, XDG_CACHE_HOME)",
    "pipeline/session.py": "Spark's own variables, and the cache (XDG_CACHE_HOME)",
    "pipeline/checks.py": "where the JDK is (JAVA_HOME)",
}


def test_no_environment_variable_changes_what_the_program_does_at_a_step() -> None:
    """Tests that want a process to fail at a step of the sink pass it an observer (`twofold.sink.steps`)."""
    reading = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                inside = path.relative_to(SOURCE)
                reading.add("cli" if inside.parts[0] == "cli" else str(inside))
    assert reading == set(READS_THE_ENVIRONMENT)


def test_the_simulator_is_used_by_tests_only() -> None:
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "runtime.sim" in path.read_text() and "sim" not in path.parts
    }
    assert users == set()


def test_the_house_is_measured_as_a_table_and_as_json() -> None:
    tool = [sys.executable, str(ROOT / "tools" / "measure_house.py")]
    table = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    measured = json.loads(subprocess.run([*tool, "--format", "json"], capture_output=True, check=True).stdout)
    assert f"| sink | {measured['packages']['sink']['files']} |" in table
    assert sum(row["lines"] for row in measured["packages"].values()) == measured["lines"]
    assert measured["packages"]["sink"]["longest_chain"][-1] == "KafkaError"
