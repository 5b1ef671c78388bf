"""`twofold doctor`: what is in the way is found before a broker or a client meets it."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.processes import commands
from twofold.cli.doctor import machine
from twofold.cli.doctor.findings import Finding, Grade
from twofold.cli.doctor.folder import check_folder, filesystem, is_locked, newest_ms
from twofold.cli.doctor.machine import SyncSpeed, check_clock, check_limits, check_sync
from twofold.config.settings import Settings
from twofold.embedded import Broker

Told = dict[str, list[tuple[str, str, str]]]


def doctor(*words: str, code: int = 0, server: str | None = None, timeout_s: str = "5") -> Told:
    """What was found, by check: level, text and advice."""
    done = commands.run("doctor", *words, "--format", "json", "--timeout", timeout_s, server=server)
    assert done.returncode == code, done
    answer = json.loads(done.stdout)
    assert answer["ok"] == (code == 0)
    told: Told = {}
    for row in answer["findings"]:
        told.setdefault(row["check"], []).append((row["level"], row["text"], row["advice"]))
    return told


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_before_the_first_start_all_is_checked_and_nothing_is_made(tmp_path: Path) -> None:
    address = free_address()
    told = doctor("--data", str(tmp_path / "new"), "--listen", address)
    assert set(told) == {"settings", "versions", "limits", "clock", "folder", "disk", "reachable", "ports"}
    assert told["reachable"] == [("note", f"no broker answers at {address}", "start one with: twofold serve")]
    assert told["ports"] == [("ok", f"PLAINTEXT://{address} is free", "")]
    assert told["folder"][0][1].endswith("is not there yet; a start makes it")
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_a_start_chooses_cannot_be_asked_and_all_else_is_checked(tmp_path: Path) -> None:
    told = doctor("--data", str(tmp_path / "new"), "--listen", "127.0.0.1:0")
    assert told["reachable"][0][:2] == ("note", "127.0.0.1:0 has the port 0: a start chooses one")
    assert told["ports"][0][0] == "ok"


def test_a_running_broker_is_seen_as_a_client_sees_it(broker: Broker, tmp_path: Path) -> None:
    address = broker.bootstrap_servers
    told = doctor("--data", broker.data, "--listen", address)
    assert told["reachable"][0][0] == "ok" and address in told["reachable"][0][1]
    assert told["client sees"][0][1].startswith(f"broker 1 tells clients to connect to {address} (127.0.0.1), which")
    (port,) = told["ports"]
    assert port[0] == "note" and port[1].startswith(f"PLAINTEXT://{address} is in use, by a broker of cluster ")
    assert ("note", "a broker is using it now", "") in told["folder"]
    assert ": 0 partitions, cluster " in told["folder"][0][1]


def test_people_read_a_line_per_check_and_the_sum(broker: Broker, tmp_path: Path) -> None:
    done = commands.run("doctor", "--data", str(tmp_path), "--listen", free_address(), server=broker.bootstrap_servers)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "0 problems, 0 warnings", done.stdout
    assert all(line.split()[0] in ("ok", "note") for line in lines[:-2] if line[0] != " "), done.stdout


def test_an_advertised_address_that_leads_nowhere_is_a_problem(tmp_path: Path) -> None:
    for advertised, reason in (
        ("no-such-host.invalid:9092", "and this machine cannot resolve no-such-host.invalid"),
        (free_address(), "Connection refused"),
    ):
        with Broker(settings={"advertised.listeners": f"PLAINTEXT://{advertised}"}) as broker:
            told = doctor("--data", str(tmp_path), server=broker.bootstrap_servers, code=1)
            ((level, text, advice),) = told["client sees"][:1]
            assert level == "problem" and advertised in text and reason in text and "--advertise" in advice


def test_a_name_that_leads_back_to_this_machine_is_noted(tmp_path: Path) -> None:
    with Broker() as broker, Broker(settings={"advertised.listeners": "PLAINTEXT://LOCALHOST:0"}) as named:
        plain = doctor("--data", str(tmp_path), server=broker.bootstrap_servers)
        told = doctor("--data", str(tmp_path), server=named.bootstrap_servers)
    assert not any(level == "note" for level, _, _ in plain["client sees"])
    assert any("LOCALHOST leads back to this machine" in text for _, text, _ in told["client sees"])


def test_an_advertised_address_of_another_cluster_is_a_problem(broker: Broker, tmp_path: Path) -> None:
    other = f"PLAINTEXT://{broker.bootstrap_servers}"
    with Broker(settings={"advertised.listeners": other}) as wrong:
        told = doctor("--data", str(tmp_path), server=wrong.bootstrap_servers, code=1)
    assert told["client sees"][0][0] == "problem" and "where another cluster answers" in told["client sees"][0][1]


def test_a_named_broker_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    address = free_address()
    told = doctor("--data", str(tmp_path), "-b", address, code=1)
    assert told["reachable"][0][0] == "problem" and address in told["reachable"][0][1]


def test_a_port_that_another_program_has_is_a_problem(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = doctor("--data", str(tmp_path), "--listen", address, "-b", address, code=1, timeout_s="0.3")
    assert told["ports"][0][0] == "problem" and "Address already in use" in told["ports"][0][1]


def test_wrong_settings_are_problems(tmp_path: Path) -> None:
    told = doctor("--data", str(tmp_path), "-o", "num.partitions=many", "--listen", free_address(), code=1)
    assert told["settings"][0][0] == "problem" and told["settings"][0][1].startswith("num.partitions")


# The folder


def levels(found: Iterator[Finding]) -> dict[Grade, list[str]]:
    told: dict[Grade, list[str]] = {}
    for finding in found:
        told.setdefault(finding.level, []).append(finding.text)
    return told


def test_a_data_folder_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    settings = Settings()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        (text,) = levels(check_folder(path, settings))[Grade.PROBLEM]
        assert f"{tmp_path / 'file'} is a file" in text
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "meta.properties").write_text("garbage")
    assert "is no meta.properties" in levels(check_folder(garbage, settings))[Grade.PROBLEM][0]
    nameless = tmp_path / "nameless"
    (nameless / "events-0").mkdir(parents=True)
    assert (
        "meta.properties is missing, but events-0 is there"
        in levels(check_folder(nameless, settings))[Grade.PROBLEM][0]
    )


def test_looking_takes_no_lock_and_changes_nothing(broker: Broker) -> None:
    lock = Path(broker.data) / ".lock"
    assert is_locked(lock) and is_locked(lock)
    before = sorted(path.name for path in Path(broker.data).iterdir())
    list(check_folder(Path(broker.data), Settings()))
    assert sorted(path.name for path in Path(broker.data).iterdir()) == before


def test_a_broker_that_was_killed_is_told(tmp_path: Path) -> None:
    with Broker(data=str(tmp_path / "d")):
        pass
    settings = Settings()
    assert Grade.NOTE not in levels(check_folder(tmp_path / "d", settings))
    (tmp_path / "d" / ".kafka_cleanshutdown").unlink()
    assert levels(check_folder(tmp_path / "d", settings))[Grade.NOTE] == ["the last broker did not stop in order"]


def test_too_little_room_is_a_problem(tmp_path: Path) -> None:
    much = Settings.from_mapping({"log.reserve.bytes": str(2**60)})
    assert "log.reserve.bytes" in levels(check_folder(tmp_path, much))[Grade.PROBLEM][0]


def test_a_folder_in_memory_is_a_warning() -> None:
    place = Path("/dev/shm")
    if not place.is_dir() or filesystem(place) != "tmpfs":
        pytest.skip("this machine has no /dev/shm")
    assert "is in memory (tmpfs)" in levels(check_folder(place, Settings()))[Grade.WARNING][-1]


# The machine


def test_the_speed_of_the_disk_is_measured_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = machine.measure_sync(tmp_path)
    assert 0 < speed.median_ms <= speed.slowest_ms and 1 <= speed.syncs <= machine.SYNCS
    assert list(tmp_path.iterdir()) == []
    for median_ms, level in ((0.001, Grade.NOTE), (1.0, Grade.OK), (90.0, Grade.WARNING)):
        monkeypatch.setattr(machine, "measure_sync", lambda _, given=median_ms: SyncSpeed(given, given, 40))
        (finding,) = check_sync(tmp_path, in_memory=False)
        assert finding.level is level
    monkeypatch.undo()
    (finding,) = check_sync(tmp_path / "none", in_memory=False)
    assert finding.level is Grade.PROBLEM


def test_a_clock_behind_the_files_of_the_folder_is_a_problem() -> None:
    now_ms = int(time.time() * 1000)
    (finding,) = check_clock(now_ms + 3_600_000)
    assert (finding.level is Grade.PROBLEM and "3,5" in finding.text) or "3,6" in finding.text
    (finding,) = check_clock(now_ms)
    assert finding.level in (Grade.OK, Grade.NOTE)


def test_limits_that_are_too_low_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    told = levels(check_limits(1 << 30))
    assert "256" in told[Grade.WARNING][0] and "log.segment.bytes" in told[Grade.PROBLEM][0]


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o500])
@pytest.mark.parametrize("below", [".", "new"])
def test_a_folder_that_this_user_may_not_use_is_a_problem_among_the_other_findings(
    tmp_path: Path, mode: int, below: str
) -> None:
    """Root obeys the mode of a folder, too, without its capabilities."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if drop and shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) takes root's capabilities away")
    locked = tmp_path / "locked"
    locked.mkdir(mode=mode)
    command = [*drop, sys.executable, "-m", "twofold", "doctor", "--format", "json", "--listen", "127.0.0.1:0"]
    try:
        done = subprocess.run(
            [*command, "--data", str(locked / below)], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        locked.chmod(0o700)
    found = json.loads(done.stdout)["findings"]
    problems = {row["check"] for row in found if row["level"] == "problem"}
    if mode == 0o300 and below == "new":
        assert done.returncode == 0 and not problems, "it can be made, and that is enough"
    else:
        assert done.returncode == 1 and "folder" in problems and done.stderr == "", done
    assert {"settings", "clock", "reachable", "ports"} <= {row["check"] for row in found}


def test_things_that_a_broker_removes_meanwhile_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "there").touch()
    assert newest_ms(tmp_path) is not None and newest_ms(tmp_path / "none") is None
    assert doctor("--data", str(tmp_path), "--listen", free_address())["clock"]
