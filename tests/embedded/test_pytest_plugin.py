"""The pytest plugin, in runs of pytest as its users start them."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PARTITIONS_OF = """
import pytest
import twofold

def partitions_of(broker, topic):
    broker.create_topic(topic)
    with twofold.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return len(admin.describe_topics([topic]).get()[topic].partitions)
"""

SUITE = (
    PARTITIONS_OF
    + """
ports, shared = [], []

def test_session(twofold_session_broker):
    assert partitions_of(twofold_session_broker, "t") == 2

def test_own_one(twofold_broker, twofold_session_broker):
    ports.append(twofold_broker.port)
    shared.append(twofold_session_broker.data)
    twofold_session_broker.create_topic("of-all")

def test_own_two(twofold_broker, twofold_session_broker):
    assert ports != [twofold_broker.port] and shared == [twofold_session_broker.data]
    twofold_broker.create_topic("of-all")
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        twofold_session_broker.create_topic("of-all")

@pytest.mark.twofold_settings({"num.partitions": 3})
class TestMarked:
    def test_class(self, twofold_broker):
        assert partitions_of(twofold_broker, "t") == 3

    @pytest.mark.twofold_settings({"num.partitions": 4})
    def test_method(self, twofold_broker):
        assert partitions_of(twofold_broker, "t") == 4

def test_leaves_faults(twofold_session_broker):
    faults = twofold_session_broker.faults
    faults.fail_next("Metadata", "UNKNOWN_SERVER_ERROR", times=None)
    faults.network_down()
    faults.pause()

def test_after_the_faults(twofold_session_broker):
    assert partitions_of(twofold_session_broker, "after") == 2

@pytest.mark.twofold_settings({"num.partitions": 3})
def test_wrong_fixture(twofold_session_broker): ...

@pytest.mark.twofold_settings(partitions=3)
def test_wrong_form(twofold_broker): ...

@pytest.mark.twofold_settings({"num.partition": 3})
def test_wrong_name(twofold_broker): ...
"""
)
INI = "[pytest]\ntwofold_settings =\n    num.partitions=2\n    transaction.max.timeout.ms = 60000\n"
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def twofold_settings():
    return {"num.partitions": 6}
"""
OF_THE_CONFTEST = (
    PARTITIONS_OF
    + """
def test_both(twofold_session_broker, twofold_broker):
    assert partitions_of(twofold_session_broker, "t") == partitions_of(twofold_broker, "t") == 6
"""
)


class Run:
    """A run of pytest on these files: what it printed, and the outcome of each test."""

    def __init__(self, directory: Path, files: dict[str, str]) -> None:
        for name, text in files.items():
            (directory / name).write_text(dedent(text))
        command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-p", "no:cacheprovider", str(directory)]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
        self.text = done.stdout + done.stderr
        self.outcomes = {name: word for word, name in re.findall(r"^(PASSED|FAILED|ERROR) .*::(\w+)", self.text, re.M)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("suite"), {"pytest.ini": INI, "test_suite.py": SUITE})


def test_one_fixture_has_a_broker_for_each_test_and_the_other_one_for_the_session(run: Run) -> None:
    assert (run.outcomes["test_own_one"], run.outcomes["test_own_two"]) == ("PASSED", "PASSED"), run.text


def test_settings_come_from_the_configuration_of_pytest(run: Run) -> None:
    assert run.outcomes["test_session"] == "PASSED", run.text


def test_the_nearest_marker_with_settings_wins(run: Run) -> None:
    assert (run.outcomes["test_class"], run.outcomes["test_method"]) == ("PASSED", "PASSED"), run.text


def test_faults_that_a_test_leaves_do_not_reach_the_next(run: Run) -> None:
    assert (run.outcomes["test_leaves_faults"], run.outcomes["test_after_the_faults"]) == ("PASSED", "PASSED"), run.text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("test_wrong_fixture", "has no effect on twofold_session_broker"),
        ("test_wrong_form", "takes one dictionary of settings"),
        ("test_wrong_name", "num.partitions"),
    ],
)
def test_what_is_wrong_with_a_marker_is_said(run: Run, name: str, told: str) -> None:
    assert run.outcomes[name] in ("ERROR", "FAILED"), run.text
    assert told in run.text


def test_a_conftest_may_define_the_settings(tmp_path: Path) -> None:
    run = Run(tmp_path, {"pytest.ini": "[pytest]\n", "conftest.py": CONFTEST, "test_suite.py": OF_THE_CONFTEST})
    assert run.outcomes == {"test_both": "PASSED"}, run.text
