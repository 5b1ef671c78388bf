"""`twofold metadata shell`: completed transactions only, an open one marked; typed, as arguments and from a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kits.metadata.files import (
    BEGIN,
    END,
    EPOCH,
    Folder,
    Run,
    empty_folder,
    partition,
    real_folders,
    run_metadata,
    story_folder,
    topic,
)
from twofold.cli.common import OutputFormat
from twofold.cli.metadata.image import Loaded, load_image
from twofold.cli.metadata.shell import Shell
from twofold.controller.image import MetadataImage, TopicImage
from twofold.controller.records import Config
from twofold.machine.maps import Map

folder, story, folders, run = empty_folder, story_folder, real_folders, run_metadata

# -- shell


def test_the_shell_shows_completed_transactions_only_and_marks_the_open_one(story: Folder, run: Run) -> None:
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 0 and out.split() == ["t1", "t2", "t4"]
    assert "OPEN TRANSACTION growth: begun at offset 13, 2 records so far" in err and "not shown" in err
    assert run("shell", story.data, "cat", "/image/topics/byName/t2/1")[1].startswith("replicas=[1] isr=[1] leader=1")
    code, out, _ = run("shell", story.data, "cat", "/local/transaction", "--format", "json")
    value = {"start_offset": 13, "name": "growth", "records": 2, "state": "open: not shown in /image"}
    assert code == 0 and json.loads(out) == {"path": "/local/transaction", "value": value}
    assert json.loads(run("shell", story.data, "cat", "/image/provenance", "--format", "json")[1])["value"] == {
        "offset": 12, "epoch": EPOCH, "timestamp": 1011
    }  # fmt: skip
    story.append(END)
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName", "/local")
    assert (code, err) == (0, "") and "t5" in out and "transaction" not in out


def test_the_image_is_the_newest_snapshot_and_the_log_behind_it(story: Folder, run: Run) -> None:
    story.append(END)
    first = story.roll()
    story.snapshot(topic(1), topic(8))
    story.append(BEGIN, topic(9), END)
    for _ in range(2):
        code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
        assert (code, err) == (0, "") and out.split() == ["t1", "t8", "t9"]
        first.unlink(missing_ok=True)
    assert run("shell", story.data, "cat", "/local/snapshot")[1].startswith(f"{17:020d}-")


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(story: Folder, run: Run) -> None:
    story.append(END)
    older = story.snapshot(topic(1), topic(8))
    story.append(topic(9))
    newest = story.snapshot(topic(1))
    newest.write_bytes(newest.read_bytes()[:-3])
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 0 and out.split() == ["t1", "t8", "t9"] and str(newest) in err
    older.write_bytes(b"")
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 0 and out.split() == ["t1", "t2", "t4", "t5", "t9"] and str(older) in err


def test_a_log_whose_beginning_is_missing_is_told(story: Folder, run: Run) -> None:
    story.append(END)
    story.roll().unlink()
    story.append(topic(9))
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 1 and out.split() == ["t9"] and "begins at offset 17 and there is no snapshot" in err


def test_files_can_be_named_as_apache_kafkas_shell_wants_them(story: Folder, run: Run) -> None:
    snapshot = story.snapshot(topic(7))
    assert run("shell", "--snapshot", snapshot, "ls", "/image/topics/byName")[1] == "t7\n"
    assert run("shell", "-s", story.segment, "ls", "/image/topics/byName")[1].split() == ["t1", "t2", "t4"]
    assert run("shell", "--directory", story.log, "ls", "/image/topics/byName")[1] == "t7\n"
    code, _, err = run("shell", "--snapshot", snapshot, "--directory", story.log)
    assert code == 2 and "one of them" in err
    assert run("shell")[0] == 2


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["ls"], "image\nlocal\n"),
        (["ls", "/image/topics"], "byId\nbyName\n"),
        (["ls", "/image/topics/byName/t1/0"], "0\n"),
        (["ls", "/image/topics/byName/{t1,t2}"], "/image/topics/byName/t1:\n0\nid\nname\n\n"
         "/image/topics/byName/t2:\n0\n1\nid\nname\n"),
        (["ls", "/image/topics/by?d/*g"], "0\n1\nid\nname\n"),
        (["cat", "/image/topics/byName/t[12]/name"], "t1\nt2\n"),
        (["cat", "/image/../image/./topics//byName/t1/id"], "AAAAAAAAAAAAAAAAAAAAAQ\n"),
        (["cat", "/image/features/metadataVersion"], "30 (4.3-IV0)\n"),
        (["cat", "/image/producerIds/nextProducerId"], "0\n"),
        (["find", "/image/topics/byId"], "/image/topics/byId\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAQ\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAQ/0\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAQ/id\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAQ/name\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAg\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAg/0\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAg/1\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAg/id\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAg/name\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAABA\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAABA/id\n"
         "/image/topics/byId/AAAAAAAAAAAAAAAAAAAABA/name\n"),
        (["tree", "/image/features"], "metadataVersion:\n  30 (4.3-IV0)\n"),
        (["pwd"], "/\n"), (["cd", "/image"], ""), (["exit"], ""), (["quit"], ""), (["history"], ""),
        (["man", "cat"], "cat PATH...\n    Print the value of files.\n"),
    ],
)  # fmt: skip
def test_commands(story: Folder, run: Run, words: list[str], out: str) -> None:
    code, told, _ = run("shell", story.data, *words)
    assert (code, told) == (0, out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "nope: no such command; there are cat, cd"),
        (["cat"], "cat: name a file"),
        (["cat", "/image"], "cat: /image: it is a folder"),
        (["cat", "/image/topics/byName/t3/0"], "t3/0: there is nothing of that name"),
        (["cat", "/image/topics/byName/t1/00"], "nothing of that name"),
        (["cat", "/image/topics/byName/t1/0/x"], "nothing of that name"),
        (["cat", "/image/topics/byId/AAAAAAAAAAAAAAAAAAAAAR"], "nothing of that name"),
        (["ls", "/image/topics/byName/z*"], "z*: there is nothing of that name"),
        (["cd", "/image/*"], "this is 10 places"),
        (["cd", "/image/provenance"], "cd: /image/provenance: it is no folder"),
        (["cd", "/image", "/local"], "'/local' is too much; usage: cd [PATH]"),
        (["man"], "man: name a command"),
        (["man", "nope"], "nope: no such command"),
        (["history", "x"], "'x' is no number"),
        (["history", "9" * 5000], "is no number"),
        (["cat", "/image/topics/byName/t1/" + "9" * 5000], "nothing of that name"),
        (["cat", "/image/cluster/brokers/-1"], "nothing of that name"),
    ],
)
def test_commands_that_cannot_be_done_say_why_and_the_exit_code_is_1(
    story: Folder, run: Run, words: list[str], message: str
) -> None:
    code, _, err = run("shell", story.data, *words)
    assert code == 1 and message in err


def test_programs_get_json(story: Folder, run: Run) -> None:
    def told(*words: str) -> list[Any]:
        code, out, _ = run("shell", story.data, "--format", "json", *words)
        assert code == 0
        return [json.loads(line) for line in out.splitlines()]

    assert told("ls", "/image/topics/byName/t4", "/image/provenance") == [
        {"path": "/image/provenance", "entries": None},
        {"path": "/image/topics/byName/t4", "entries": ["id", "name"]},
    ]
    assert told("find", "/image/topics/byName/t4")[0] == {"path": "/image/topics/byName/t4"}
    (tree,) = told("tree", "/image/topics/byName")
    assert tree["tree"]["t2"]["1"]["replicas"] == [1] and sorted(tree["tree"]) == ["t1", "t2", "t4"]
    assert told("pwd") == [{"path": "/"}]


def test_secrets_stay_in_the_file(folders: dict[str, Path], folder: Folder, run: Run) -> None:
    kafka = folders["folder-kafka-4.3.1"]
    code, out, _ = run("shell", kafka, "cat", "/image/scram/SCRAM-SHA-256/somebody")
    assert code == 0 and out.count("(hidden)") == 3 and "iterations=4096" in out
    folder.append(Config(4, "1", "listener.name.x.ssl.key.password", "hunter2"), Config(4, "1", "a", "b"))
    assert "hunter2" not in run("shell", folder.data, "tree")[1] + run("dump", folder.data)[1]
    assert run("shell", folder.data, "cat", "/image/configs/BROKER:1/a")[1] == "b\n"


def test_names_from_the_log_cannot_drive_the_terminal(folder: Folder, run: Run) -> None:
    folder.append(Config(32, "\x1b[31mred", "a\nb", "\x1b[0m"))
    for words in (["ls", "/image/configs"], ["find"], ["tree"]):
        out = run("shell", folder.data, *words)[1]
        assert "\x1b" not in out and "u001b" in out
    assert "\x1b" not in run("dump", folder.data)[1]


class Untouchable:
    """Partitions that nobody may look at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody looked at the partitions: {name}")

    __iter__ = __len__ = __contains__ = __getitem__ = None


def test_a_topic_is_listed_without_a_look_at_its_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    topic_id = UUID(int=1)
    big = TopicImage("big", topic_id, Untouchable())  # type: ignore[arg-type]
    image = MetadataImage(topics=Map({"big": big}), topic_names=Map({topic_id: "big"}))
    loaded = Loaded(Path("x"), image, 0, 0, None, None, 0, None, None)
    shell = Shell(loaded, OutputFormat.TABLE)
    for line in ("ls /image/topics", "ls /image/topics/*", "cd /image/topics/byName/big", "cat id name", "pwd"):
        assert shell.run_line(line) == 0
    assert shell.completions("/image/topics/byName/b", is_first=False) == ["/image/topics/byName/big/"]
    assert capsys.readouterr().out.splitlines()[-1] == "/image/topics/byName/big"
    with pytest.raises(AssertionError, match="looked at"):
        shell.run_line("cat 0")


def test_completion(story: Folder, folders: dict[str, Path]) -> None:
    shell = Shell(load_image(story.data, lambda _: lambda _: None), OutputFormat.TABLE)
    assert shell.completions("c", is_first=True) == ["cat ", "cd "]
    assert shell.completions("", is_first=False) == ["image/", "local/"]
    assert shell.completions("/image/t", is_first=False) == ["/image/topics/"]
    assert shell.completions("/image/prov", is_first=False) == ["/image/provenance "]
    assert shell.completions("/nowhere/x", is_first=False) == []
    shell.run_line("cd image/topics/byName")
    assert shell.completions("t", is_first=False) == ["t1/", "t2/", "t4/"]
    assert shell.completions("../byName/t1/", is_first=False) == [
        f"../byName/t1/{name} " for name in ("0", "id", "name")
    ]


# -- as processes


def environment() -> dict[str, str]:
    return {**os.environ, "TERM": "dumb", "COLUMNS": "80", "PYTHONUNBUFFERED": "1"}


def shell_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twofold", "metadata", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment(), **options
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def test_commands_from_a_pipe_run_one_after_the_other(story: Folder) -> None:
    script = "cd /image/topics\n\nls\nnope\nls 'un\nhistory 1\nquit\npwd\n"
    done = shell_process("shell", story.data, input=script)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["byId", "byName", "    5  history 1"]
    assert "nope: no such command" in done.stderr and "No closing quotation" in done.stderr
    assert shell_process("shell", story.data, input="pwd").stdout == "/\n"
    garbage = shell_process("shell", story.data, input="\udcff\udcfe", encoding="utf-8", errors="surrogateescape")
    assert garbage.returncode == 1 and "no such command" in garbage.stderr


def test_a_reader_that_goes_away_is_no_error_of_ours(folder: Folder) -> None:
    folder.append(*(topic(number) for number in range(20000)))
    command = f"{sys.executable} -m twofold metadata dump {folder.data} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 141 and done.stderr == ""


class Terminal:
    """The shell at a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(
                sys.executable, [sys.executable, "-m", "twofold", "metadata", *map(str, arguments)], environment()
            )
        self.said = ""

    def until(self, pattern: str, patience_s: float = 30) -> str:
        """What was said up to this."""
        deadline = time.monotonic() + patience_s
        while (match := re.search(pattern, self.said)) is None:
            ready, _, _ = select.select([self._fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"not said within {patience_s} s: {pattern}\n{self.said}"
            self.said += os.read(self._fd, 65536).decode()
        said, self.said = self.said[: match.end()], self.said[match.end() :]
        return said

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C until this is said: Python notices one that comes just before it waits for a key only with the key."""
        for _ in range(10):
            self.type("\x03")
            with suppress(AssertionError):
                self.until(pattern, patience_s=3)
                return
        self.until(pattern, patience_s=3)

    def exit_code(self) -> int:
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:
            pass  # the other end is closed
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(story: Folder) -> Terminal:
    found = Terminal("shell", story.data)
    banner = found.until(">> ")
    assert "*** OPEN TRANSACTION growth" in banner and "Metadata at offset 12" in banner
    return found


def test_a_person_types_completes_gives_up_and_leaves(terminal: Terminal) -> None:
    terminal.type("ls /im\ttop\t\r")
    assert "ls /image/topics/" in terminal.until("byId +byName")
    terminal.until(">> ")
    terminal.type("cat /ima")
    terminal.until("cat /ima")
    terminal.interrupt(">> ")
    terminal.type("nope\r")
    terminal.until("no such command")
    terminal.until(">> ")
    terminal.type("cd /local\rls\r")
    terminal.until("source +transaction +version")
    terminal.until(">> ")
    terminal.type("\x1b[A\x1b[A\x1b[A\r")
    terminal.until("no such command")
    terminal.until(">> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize("word", ["exit", "quit"])
def test_exit_and_quit_leave(terminal: Terminal, word: str) -> None:
    terminal.type(f"{word}\r")
    assert terminal.exit_code() == 0


def test_ctrl_c_gives_up_a_command_and_the_shell_goes_on(folder: Folder) -> None:
    folder.append(topic(1), *(partition(1, index) for index in range(20_000)))
    terminal = Terminal("shell", folder.data)
    terminal.until(">> ")
    terminal.type("tree\r")
    terminal.until("replicas=")
    terminal.interrupt("\n>> ")
    terminal.type("pwd\r")
    terminal.until("pwd\r\n/\r\n>> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_ctrl_c_ends_a_script(story: Folder) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "twofold", "metadata", "shell", str(story.data)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("pwd\n")
    process.stdin.flush()
    assert process.stdout.readline() == "/\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err
