"""The list of commands: what it says is what the commands say, and help costs no imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kits.processes import commands
from twofold.cli.app import NOUNS, SERVE_HELP, VERBS, make_root
from twofold.cli.declare import short_help
from twofold.cli.main import main
from twofold.version import VERSION

HEAVY = ("asyncio", "rich", "kio", "uvloop", "pydantic", "twofold.client", "twofold.wire", "twofold.broker")


def test_the_list_of_commands_says_what_each_command_says_of_itself() -> None:
    root = make_root()
    context = click.Context(root)
    for name, place in (NOUNS | VERBS).items():
        command = root.get_command(context, name)
        assert command is not None and place.help == short_help(command.help or ""), name
    serve = root.get_command(context, "serve")
    assert serve is not None and short_help(serve.help or "") == SERVE_HELP


def imported_by(*arguments: str) -> set[str]:
    program = (
        "import sys, json\nfrom twofold.cli.main import main\n"
        f"code = main({list(arguments)!r})\nprint(json.dumps([code, *sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    code, *names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stdout + done.stderr
    return set(names)


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["--version"], ["completion", "bash"]])
def test_help_version_and_completion_import_neither_client_nor_tables(arguments: list[str]) -> None:
    assert not imported_by(*arguments) & set(HEAVY)


def test_a_noun_imports_no_other_noun() -> None:
    names = imported_by("topic", "--help")
    assert "twofold.cli.topic.commands" in names
    assert not names & {"twofold.cli.cluster", "twofold.cli.txn.commands", "twofold.cli.log.commands", "rich"}


def test_version_is_an_option_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["-V"], ["version"], ["version", "--format", "json"]):
        assert main(arguments) == 0
        assert VERSION in capsys.readouterr().out
    assert commands.run("--version").stdout == f"twofold {VERSION}\n"


def test_help_whose_reader_has_gone_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "twofold", "--help"], stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


# Completion


def completed(line: str, *, shell: str = "bash") -> list[str]:
    """What the shell is told when Tab is pressed at the end of the line."""
    words = line.split(" ")
    environment = {
        "_TWOFOLD_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    done = commands.run(env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nouns_verbs_options_and_choices_are_completed() -> None:
    assert completed("twofold t") == ["plain,topic", "plain,txn"]
    assert set(completed("twofold topic de")) == {"plain,delete", "plain,delete-records", "plain,describe"}
    assert completed("twofold topic list --format ") == ["plain,table", "plain,json"]
    assert "plain,--listen" in completed("twofold serve --l")
    assert completed("twofold cluster features s") == ["plain,set"]


def test_a_shell_that_took_the_script_completes(tmp_path: Path) -> None:
    """In a real bash: the script is evaluated, and its function is called as Tab calls it."""
    program = (
        'eval "$(twofold completion bash)"\n'
        "COMP_WORDS=(twofold topic list --f); COMP_CWORD=3\n"
        "$(complete -p twofold | sed 's/.*-F \\([^ ]*\\).*/\\1/') twofold\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("--format\n", "", 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    done = commands.run("completion", shell)
    assert done.returncode == 0 and f"_TWOFOLD_COMPLETE={shell}_complete" in done.stdout
    assert commands.run("completion", "csh").returncode == 2
