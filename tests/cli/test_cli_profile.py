"""`twofold profile`: names for clusters, in a file that only its owner reads and that holds no secret."""

import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from kits.processes import commands
from kits.processes.asked import Asked
from kits.processes.commands import Done
from twofold.cli.app import make_root
from twofold.cli.common import CliError
from twofold.cli.profile import store
from twofold.cli.profile.chosen import take_option
from twofold.embedded import Broker

NO_SERVER = 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "config"


def profile_file(home: Path) -> Path:
    return home / "twofold" / "profiles.toml"


def twofold(home: Path, *words: str, code: int = 0, env: Mapping[str, str] = {}, server: str | None = None) -> Done:
    done = commands.run(*words, server=server, env={"XDG_CONFIG_HOME": str(home), **env})
    assert done.returncode == code, f"{words}: {done}"
    assert "Traceback" not in done.stderr
    return done


def dead_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_profiles_are_added_listed_used_shown_and_removed(home: Path) -> None:
    assert twofold(home, "profile", "list").stderr.startswith(f"no profile in {profile_file(home)}")
    twofold(home, "profile", "add", "dev", "-b", "127.0.0.1:9092", "--note", "my 'own' \"machine\"")
    twofold(home, "profile", "add", "prod", "-b", "kafka-1:9092,kafka-2:9092", "--use")
    listed = json.loads(twofold(home, "profile", "list", "--format", "json").stdout)
    assert [(row["name"], row["bootstrap_server"], row["in_use"]) for row in listed] == [
        ("dev", "127.0.0.1:9092", False),
        ("prod", "kafka-1:9092,kafka-2:9092", True),
    ]
    assert listed[0]["note"] == "my 'own' \"machine\""
    assert "prod (in use)" in twofold(home, "profile", "show").stdout
    twofold(home, "profile", "use", "dev")
    assert "dev (in use)" in twofold(home, "profile", "show").stdout
    assert twofold(home, "profile", "remove", "dev").stdout == "removed dev, and no profile is in use now\n"
    assert "no profile is in use" in twofold(home, "profile", "show", code=2).stderr
    assert "known are: prod" in twofold(home, "profile", "use", "dev", code=2).stderr
    twofold(home, "profile", "use", "prod")
    assert twofold(home, "profile", "use", "--none").stdout == "no profile is in use\n"


def test_only_its_owner_reads_the_file_whatever_the_umask_is(home: Path) -> None:
    before = os.umask(0)
    try:
        twofold(home, "profile", "add", "dev", "-b", "127.0.0.1:9092")
    finally:
        os.umask(before)
    file = profile_file(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) & 0o077 in (0, 0o055)
    assert [path.name for path in file.parent.iterdir()] == ["profiles.toml"], "nothing is left beside it"
    file.chmod(0o644)
    said = twofold(home, "profile", "list", code=1).stderr
    assert f"has mode 0644, and only its owner may read and write it: chmod 600 {file}" in said


def test_commands_at_the_same_time_lose_no_profile(home: Path) -> None:
    names = [f"cluster-{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: twofold(home, "profile", "add", name, "-b", "kafka:9092"), names))
    listed = json.loads(twofold(home, "profile", "list", "--format", "json").stdout)
    assert [row["name"] for row in listed] == names


def test_a_suspended_command_that_has_the_lock_holds_up_no_other_for_ever(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.setattr(store, "LOCK_PATIENCE_S", 0.1)
    folder = profile_file(home).parent
    folder.mkdir(parents=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CliError, match=r"another `twofold profile` has locked .* for 0.1 s"):
            store.change_profiles(lambda profiles: profiles)
    finally:
        os.close(held)
    store.change_profiles(lambda profiles: profiles)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("admin:hunter2@kafka:9092", "a profile keeps no user and no password"),
        ("SASL_SSL://kafka:9092", "is an address with SASL_SSL://"),
        ("kafka", "'kafka' in --bootstrap-server is not HOST:PORT"),
        ("env:", "refers to nothing: write env:NAME or file:PATH"),
    ],
)
def test_what_is_no_address_is_not_kept(home: Path, server: str, message: str) -> None:
    said = twofold(home, "profile", "add", "prod", "-b", server, code=2).stderr
    assert message in said and "hunter2" not in said
    assert not profile_file(home).exists()


def test_a_secret_in_the_file_is_refused_and_not_repeated(home: Path) -> None:
    twofold(home, "profile", "add", "prod", "-b", "kafka:9092")
    with profile_file(home).open("a") as file:
        file.write('"sasl.password" = "hunter2"\n')
    said = twofold(home, "profile", "list", code=1).stderr
    assert "profiles.prod has sasl.password" in said and "A profile keeps no secret" in said and "hunter2" not in said


def test_a_reference_is_read_when_a_command_runs(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "brokers"
    twofold(home, "profile", "add", "one", "-b", "env:BROKERS")
    twofold(home, "profile", "add", "two", "-b", f"file:{place}")
    assert "and the variable BROKERS is not set" in twofold(home, "--profile", "one", "topic", "list", code=1).stderr
    assert "No such file" in twofold(home, "--profile", "two", "topic", "list", code=1).stderr
    with Broker() as broker:
        place.write_text(f"{broker.bootstrap_servers}\n")
        twofold(home, "topic", "list", "--profile", "one", env={"BROKERS": broker.bootstrap_servers})
        twofold(home, "--profile=two", "topic", "list")
    assert "env:BROKERS" in profile_file(home).read_text()


@pytest.mark.parametrize("content", [b"hunter2", b"admin:hunter2@kafka:9092", b"hunter2\xff\xfe:1", b"env:hunter2"])
def test_what_a_reference_leads_to_is_not_repeated_unless_it_is_an_address(
    home: Path, tmp_path: Path, content: bytes
) -> None:
    place = tmp_path / "brokers"
    place.write_bytes(content)
    twofold(home, "profile", "add", "one", "-b", f"file:{place}", "--use")
    for words in (("topic", "list"), ("profile", "show")):
        done = twofold(home, *words, code=1)
        assert "profile one" in done.stderr and "no address of the form HOST:PORT" in done.stderr
        assert "hunter2" not in done.stderr + done.stdout


def test_a_reference_to_a_file_without_an_end_is_read_no_further_than_an_address_is_long(home: Path) -> None:
    twofold(home, "profile", "add", "one", "-b", "file:/dev/zero")
    assert "no address" in twofold(home, "profile", "show", "one", code=1).stderr


def test_a_bootstrap_server_wins_over_every_profile(home: Path) -> None:
    dead = dead_address()
    twofold(home, "profile", "add", "dead", "-b", dead, "--use")
    assert dead in twofold(home, "topic", "list", "--timeout", "0.2", code=NO_SERVER).stderr
    with Broker() as broker:
        twofold(home, "topic", "list", "-b", broker.bootstrap_servers, "--profile", "dead")
        twofold(home, "topic", "list", f"--bootstrap-server={broker.bootstrap_servers}")
        twofold(home, "topic", "list", server=broker.bootstrap_servers)  # by the environment
        twofold(home, "profile", "add", "here", "-b", broker.bootstrap_servers)
        twofold(home, "topic", "list", "--profile", "here", server=dead)
        twofold(home, "topic", "list", env={"TWOFOLD_PROFILE": "here"})


def destructive() -> dict[str, tuple[str, ...]]:
    place = ("--topic", "t", "--partition", "0")
    return {
        "topic delete": ("t", "--yes"),
        "topic delete-records": ("t", "--before", "0=end", "--yes"),
        "topic reassign": ("t", "--to", "1", "--yes"),
        "topic elect-leaders": ("t", "--unclean", "--yes"),
        "group delete": ("g", "--yes"),
        "group reset-offsets": ("g", "--topic", "t", "--to-earliest", "--execute"),
        "cluster features set": ("metadata.version=1", "--yes"),
        "txn abort": (*place, "--start-offset", "0", "--yes"),
        "txn repair": ("--all", "--yes"),
        "txn complete": ("--transactional-id", "x", "--state", "1:0", "--commit", "--yes"),
        "txn terminate": ("--transactional-id", "x", "--yes"),
        "pipeline recover": ("--prefix", "p", "--yes"),
        "pipeline prune": ("--prefix", "p", "--keep", "1", "--yes"),
        "acl remove": ("--all", "--yes"),
        "user remove": ("alice", "--yes"),
    }


@pytest.mark.parametrize("command", destructive())
def test_the_profile_is_shown_before_anything_destructive(home: Path, command: str) -> None:
    dead = dead_address()
    twofold(home, "profile", "add", "prod", "-b", dead, "--use")
    words = (*command.split(), *destructive()[command], "--timeout", "0.2")
    done = twofold(home, *words, code=NO_SERVER)
    assert done.stderr.splitlines()[0] == f"profile prod: {dead}", done.stderr
    assert not twofold(home, *words, "-b", dead, code=NO_SERVER).stderr.startswith("profile")


@pytest.mark.parametrize("said", [["-b{}"], ["-yb", "{}"], ["-yb{}"], ["--bootstrap-server={}"]], ids=" ".join)
def test_no_profile_is_shown_where_the_command_line_names_another_server(home: Path, said: list[str]) -> None:
    """However it is said: the profile of production must not stand above what is deleted elsewhere."""
    dead, prod = dead_address(), "127.0.0.1:1"
    twofold(home, "profile", "add", "prod", "-b", prod, "--use")
    words = ("topic", "delete", "t", "--yes", "--timeout", "0.2", *(word.format(dead) for word in said))
    done = twofold(home, *words, code=NO_SERVER)
    assert "prod" not in done.stderr and prod not in done.stderr and dead in done.stderr
    profile_file(home).write_text("garbage")
    assert dead in twofold(home, *words, code=NO_SERVER).stderr


def test_a_word_that_looks_like_the_option_and_is_none_takes_no_profile_away(home: Path) -> None:
    dead = dead_address()
    twofold(home, "profile", "add", "prod", "-b", dead, "--use")
    done = twofold(home, "group", "reset-offsets", "g", "--topic", "-b", "--to-earliest", "--timeout", "0.2", code=3)
    assert dead in done.stderr and "(profile prod)" in done.stderr


def test_no_destructive_command_is_left_out() -> None:
    def walk(group: click.Group, path: str = "") -> dict[str, click.Command]:
        found: dict[str, click.Command] = {}
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                found |= walk(command, f"{path}{name} ")
            elif command is not None and not command.hidden:
                found[f"{path}{name}"] = command
        return found

    asking = {
        name
        for name, command in walk(make_root()).items()
        if {"yes", "execute"} & {str(parameter.name) for parameter in command.params}
    }
    assert asking == set(destructive())


def test_the_profile_is_shown_before_the_question(home: Path) -> None:
    with Broker() as broker:
        twofold(home, "profile", "add", "prod", "-b", broker.bootstrap_servers)
        twofold(home, "topic", "create", "t", server=broker.bootstrap_servers)
        given = {"XDG_CONFIG_HOME": str(home)}
        with Asked(broker.bootstrap_servers, "topic", "delete", "t", "--profile", "prod", env=given) as asked:
            assert re.match(rf"profile prod: {broker.bootstrap_servers}\n.*Delete t at", asked.question, re.S)
            assert asked.answer("n").code == 1


def test_a_broken_file_keeps_no_other_command_from_its_work(home: Path) -> None:
    profile_file(home).parent.mkdir(parents=True)
    profile_file(home).write_text("garbage")
    profile_file(home).chmod(0o600)
    assert "is not TOML" in twofold(home, "topic", "list", code=1).stderr
    twofold(home, "topic", "list", "--help")
    twofold(home, "config", "check", "-o", "num.partitions=3")
    twofold(home, "version")


@pytest.mark.parametrize(
    ("words", "rest", "name"),
    [
        (["topic", "list"], ["topic", "list"], None),
        (["--profile", "a", "topic", "list"], ["topic", "list"], "a"),
        (["topic", "--profile=a", "list", "--profile", "b"], ["topic", "list"], "b"),
        (["produce", "--", "--profile", "a"], ["produce", "--", "--profile", "a"], None),
    ],
)
def test_the_option_may_stand_anywhere(words: list[str], rest: list[str], name: str | None) -> None:
    assert take_option(words) == (rest, name)
