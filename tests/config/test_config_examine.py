"""Everything that is wrong with the settings of a start is told at once."""

import logging

import pytest

from twofold.config.examine import Severity, examine
from twofold.config.settings import Source


def found(*sources: Source) -> list[tuple[str, str, str]]:
    return [(row.level.value, row.setting, row.text) for row in examine(sources, hostname="here").findings]


def test_every_problem_is_told_and_not_the_first_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    flags = {
        "num.partitions": "many",
        "num.partitons": "3",
        "log.retention.ms": "0",
        "sasl.enabled.mechanisms": "PLAIN",
        "log.dirs": "/a,/b",
    }
    rows = found(Source("the command line", flags))
    assert {setting for level, setting, _ in rows if level == "problem"} >= {
        "num.partitions",
        "num.partitons",
        "log.retention.ms",
        "sasl.enabled.mechanisms",
    }
    assert {setting: text for _, setting, text in rows}["num.partitons"].endswith("did you mean num.partitions?")
    assert not caplog.records, "what is told is not logged as well"


def test_what_is_ignored_without_effect_or_overruled_is_a_warning() -> None:
    file = {"num.partitons": "3", "zookeeper.session.timeout.ms": "5", "num.partitions": "2", "num.io.threads": "9"}
    rows = found(Source("server.properties", file, lenient=True), Source("the command line", {"num.partitions": "3"}))
    told = {setting: (level, text) for level, setting, text in rows}
    assert all(level == Severity.WARNING for level, _ in told.values()), rows
    assert "did you mean num.partitions" in told["num.partitons"][1]
    assert "ZooKeeper" in told["zookeeper.session.timeout.ms"][1]
    assert told["num.partitions"][1] == "is overruled by the command line"
    assert told["num.io.threads"][1] == "is accepted and has no effect in Twofold"


def test_settings_that_contradict_each_other_are_a_problem() -> None:
    flags = {"transactional.id.expiration.ms": "1000", "transaction.max.timeout.ms": "2000"}
    ((level, setting, text),) = found(Source("the command line", flags))
    assert (level, setting) == ("problem", "transactional.id.expiration.ms") and "must be longer than" in text


@pytest.mark.parametrize(
    ("flags", "setting"),
    [
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1", "listeners": "PLAINTEXT://:1"}, "advertised.listeners"),
        ({"metrics.listener": "nowhere"}, "metrics.listener"),
        ({"listeners": "SSL://here:1"}, "ssl.keystore.location"),
    ],
)
def test_listeners_that_cannot_be_opened_as_written_are_a_problem(flags: dict[str, str], setting: str) -> None:
    rows = found(Source("the command line", flags))
    assert [(level, name) for level, name, _ in rows] == [("problem", setting)]


def test_right_settings_are_those_of_the_start() -> None:
    examined = examine([Source("the command line", {"num.partitions": "3"})], hostname="here")
    assert examined.findings == [] and examined.settings is not None
    assert examined.settings.int("num.partitions") == 3
