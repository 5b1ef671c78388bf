"""The form of the sources: what ships, what reads the environment, and one meaning per class name."""

import ast
import importlib
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import measure_house  # noqa: E402

SOURCE = ROOT / "src" / "twofold"

READS_THE_ENVIRONMENT = {
    "cli": "options may be given as TWOFOLD_<OPTION>, and terminals tell their width and colours there",
    "connections/references.py": "a secret may stand in a variable that a setting names, as ${env:NAME}",
    "records/columnar_loading.py": "where numba keeps what it compiled (NUMBA_CACHE_DIR, XDG_CACHE_HOME)",
    "pipeline/session.py": "Spark's own variables, and the cache (XDG_CACHE_HOME)",
    "spark/checkpoints/driver_jvm.py": "where Spark's defaults are (SPARK_HOME, SPARK_CONF_DIR)",
    "spark/checkpoints/files.py": "where Spark and Hadoop are configured (SPARK_HOME, SPARK_CONF_DIR, HADOOP_CONF_DIR)",
    "pipeline/checks.py": "where the JDK is (JAVA_HOME)",
}

TWO_FORMS = "public in two forms: `twofold` has it for code without asyncio, `twofold.aio` for asyncio"
NAMES_OF_TWO_CLASSES = {
    "Admin": TWO_FORMS,
    "Consumer": TWO_FORMS,
    "Producer": TWO_FORMS,
    "Transaction": TWO_FORMS,
    "Delivery": TWO_FORMS,
    "ColumnDelivery": TWO_FORMS,
    "Broker": "public as `twofold.embedded.Broker`, which runs the other one",
    "Partition": "`twofold log dump` shows the metadata record by this name; the broker's has Apache Kafka's name",
}


def test_no_environment_variable_changes_what_the_program_does_at_a_step() -> None:
    """Tests that want a process to fail at a step of the sink pass it an observer (`twofold.sink.steps`)."""
    reading = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "environ" in text or "getenv" in text else ():
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


CALLED_BY_OTHERS = ("__", "pytest_")  # by Python, and by pytest in a plugin


def words(*folders: str) -> Counter[str]:
    """How often each name stands in the modules and pages below these folders."""
    files = [path for folder in folders for ending in ("py", "md") for path in (ROOT / folder).rglob(f"*.{ending}")]
    return Counter(name for path in files for name in re.findall(r"[A-Za-z_]\w*", path.read_text()))


def test_what_only_tests_use_is_not_shipped() -> None:
    """No name of the package is used by tests and by nothing else. The simulator is a testing API, and documented."""
    defined: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        if not path.is_relative_to(SOURCE / "runtime" / "sim"):
            tree = ast.parse(path.read_text())
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            defined.update(node.name for node in ast.walk(tree) if isinstance(node, kinds))
            assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
            defined.update(target.id for target in assigned if isinstance(target, ast.Name))
    shipped, told, tested = words("src", "examples"), words("docs", "bench", "tools"), words("tests")
    alone = {
        name for name, count in defined.items() if shipped[name] == count and not name.startswith(CALLED_BY_OTHERS)
    }
    assert sorted(name for name in alone if tested[name] and not told[name]) == []


@cache
def house() -> dict[str, Any]:
    return measure_house.measure()


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """By the tool, which reads the sources once for all tests."""
    measured = house()
    monkeypatch.setattr(measure_house, "measure", lambda source: measured)
    monkeypatch.setattr(sys, "argv", ["measure_house.py", *arguments])
    assert measure_house.main() == 0
    return capsys.readouterr().out


def test_the_house_is_measured_as_a_table_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = json.loads(printed(monkeypatch, capsys, "--format", "json"))
    table = printed(monkeypatch, capsys)
    assert f"| sink | {measured['packages']['sink']['files']} |" in table
    assert sum(row["lines"] for row in measured["packages"].values()) == measured["lines"]
    assert measured["packages"]["sink"]["longest_chain"][-1] == "KafkaError"


def test_one_class_name_has_one_meaning() -> None:
    """Helpers that begin with `_` stay in their module; wire messages have Apache Kafka's names, which repeat."""
    duplicated = house()["duplicated_classes"]
    new = {name: places for name, places in duplicated.items() if name not in NAMES_OF_TWO_CLASSES}
    assert not new, "rename the class that is used less"
    assert {name: len(places) for name, places in duplicated.items()} == dict.fromkeys(NAMES_OF_TWO_CLASSES, 2)


def test_the_sink_uses_the_public_client_and_its_parts_only() -> None:
    used = {
        f"{path.name}: {node.module}"
        for path in (SOURCE / "sink").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twofold.client")
        if node.module not in ("twofold.client", "twofold.client.parts")
    }
    assert used == set()


def test_each_word_of_the_sink_is_a_class() -> None:
    page = (ROOT / "docs" / "spark-protocol.md").read_text()
    section = page.split("### The classes")[1].split("\n## ")[0]
    words = [word for row in re.findall(r"^\| (`.*?) \|", section, re.M) for word in re.findall(r"`(\w+)`", row)]
    places = ["sink.driver", "sink.register", "sink.slots", "sink.writer", "spark.sink"]
    known = [name for place in places for name in vars(importlib.import_module(f"twofold.{place}"))]
    assert {"Plan", "Conditions", "Terms", "Votes", "Written", "Participant", "Slot", "Register"} <= set(words)
    assert set(words) <= set(known)
