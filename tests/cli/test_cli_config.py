"""`twofold config check|show`: the settings of a start, and of a running broker."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from kits.processes import commands
from kits.processes.commands import Done
from twofold.embedded import Broker


def twofold(*words: str, code: int = 0, env: Mapping[str, str] = {}, server: str | None = None) -> Done:
    done = commands.run("config", *words, server=server, env=env)
    assert done.returncode == code, f"{words}: {done}"
    assert "Traceback" not in done.stderr
    return done


def test_a_file_with_mistakes_is_told_all_of_them_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"num.partitions=many\nnum.partitons=2\nsasl.enabled.mechanisms=PLAIN\nlog.dirs={tmp_path / 'd'}\n")
    said = twofold("check", str(file), code=1).stdout.splitlines()
    assert any(line.startswith(f"problem  num.partitions (from {file}): many: must be") for line in said), said
    assert any(line.startswith("warning  num.partitons") and "did you mean" in line for line in said), said
    assert any(line.startswith("problem  sasl.enabled.mechanisms") for line in said), said
    assert said[-1] == "2 problems, 1 warning: a broker would not start"
    assert not (tmp_path / "d").exists()
    rows = json.loads(twofold("check", "--config", str(file), "--format", "json", code=1).stdout)
    assert rows["ok"] is False and len(rows["findings"]) == 3


def test_right_settings_are_told_to_be_so() -> None:
    done = twofold("check", "-o", "num.partitions=3", "--listen", "127.0.0.1:0")
    assert done.stdout == "0 problems, 0 warnings: 2 settings would hold\n"


def test_what_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    assert "No such file" in twofold("check", str(tmp_path / "none"), code=2).stderr
    assert "are two files: give one" in twofold("check", "a", "--config", "b", code=2).stderr
    assert "is not of the form key=value" in twofold("check", "-o", "x", code=2).stderr


def test_settings_are_shown_with_where_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=5\n")
    words = ["--config", str(file), "-o", "num.partitions=3", "--format", "json"]
    rows = json.loads(twofold("show", *words, env={"TWOFOLD_LOG_RETENTION_HOURS": "6"}).stdout)
    told = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert told["num.partitions"] == ("3", "the command line")
    assert told["log.retention.hours"] == ("6", "the environment")
    assert told["listeners"] == ("PLAINTEXT://127.0.0.1:9092", "the default")
    everything = json.loads(twofold("show", "--all", *words).stdout)
    assert len(everything) > 100
    assert {row["name"]: row["source"] for row in everything}["log.segment.bytes"] == "default"


def test_one_setting_is_shown_by_its_name() -> None:
    assert "1073741824" in twofold("show", "log.segment.bytes").stdout
    assert "did you mean log.segment.bytes?" in twofold("show", "log.segment.byte", code=2).stderr


def test_the_settings_of_a_running_broker_are_its_own() -> None:
    with Broker(settings={"num.partitions": 7}) as broker:
        address = broker.bootstrap_servers
        rows = json.loads(twofold("show", "--broker", "1", "--format", "json", server=address).stdout)
        told = {row["name"]: (row["value"], row["source"]) for row in rows}
        assert told["num.partitions"] == ("7", "the start")
        assert (
            "there is no broker 9: the cluster has 1" in twofold("show", "--broker", "9", server=address, code=2).stderr
        )


@pytest.mark.parametrize("secret", ["ssl.keystore.password", "sasl.jaas.config"])
def test_a_secret_is_never_shown(secret: str) -> None:
    done = commands.run("config", "show", "-o", f"{secret}=hunter2")
    assert done.returncode == 1 and "hunter2" not in done.stdout + done.stderr
    done = commands.run("config", "check", "-o", f"{secret}=hunter2")
    assert done.returncode == 1 and "hunter2" not in done.stdout + done.stderr
