"""The programs of a database server and the account that they run under.

`tools/install-test-tools.sh` unpacks Debian's packages into .cache; a server that the system has is used as well. A
program that cannot be found skips the test with that command. PostgreSQL refuses to run as root, so servers of a test
run by root have an account without rights.
"""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from oracle.processes import spawn, stop, wait_until

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
CACHE = ROOT / ".cache"
PATIENCE_S = 60.0


class Folder:
    """Of one server: its data, its output, and a copy of its programs where its account could not read them."""

    def __init__(self, name: str, account: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"twofold-{name}-"))
        self.data = self.path / "data"
        self.output = self.path / "output.log"
        self._account = _known_account(account) if os.geteuid() == 0 else None
        self.data.mkdir()
        if self._account is not None:
            for folder in (self.path, self.data):
                os.chown(folder, self._account.pw_uid, self._account.pw_gid)

    def command(self, words: Sequence[str], libraries: Sequence[Path] = ()) -> list[str]:
        """The words as the server's own account runs them; it ends with the test session."""
        command = ["env", f"LD_LIBRARY_PATH={':'.join(map(str, libraries))}", *words] if libraries else [*words]
        if self._account is None:
            return command
        ids = ["--reuid", str(self._account.pw_uid), "--regid", str(self._account.pw_gid), "--clear-groups"]
        return ["setpriv", *ids, "--pdeathsig", "KILL", "--", *command]

    def readable(self, unpacked: Path) -> Path:
        """The unpacked programs, or a copy of them where a folder above keeps other accounts out."""
        if self._account is None or all(folder.stat().st_mode & 0o001 for folder in (unpacked, *unpacked.parents)):
            return unpacked
        copy = self.path / "programs"
        if not copy.exists():
            shutil.copytree(unpacked, copy, symlinks=True)
        return copy

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class ServerProcess:
    """A server that is started, stopped, killed and paused; its children are killed and paused with it."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str], ready: Callable[[], bool]) -> None:
        self._process = spawn(command, output=self._folder.output, cwd=self._folder.path)
        wait_until(ready, self._process, patience_s=PATIENCE_S, output=self._folder.output)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server is not running"
        stop(self._process, how=how, patience_s=PATIENCE_S)
        self._process = None

    def kill(self) -> None:
        """kill -9 of the server and of all its children, which are in sessions of their own."""
        if self._process is not None:
            family = self._pause_all()
            self._signal_all(family, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None
            for pid in family:
                _wait_for_end(pid)

    def pause(self) -> None:
        self._pause_all()

    def resume(self) -> None:
        assert self._process is not None, "the server is not running"
        self._signal_all(_family(self._process.pid), signal.SIGCONT)

    def _pause_all(self) -> list[int]:
        assert self._process is not None, "the server is not running"
        self._signal_all([self._process.pid], signal.SIGSTOP)  # first, so that it has no further children
        family = _family(self._process.pid)
        self._signal_all(family, signal.SIGSTOP)
        return family

    @staticmethod
    def _signal_all(pids: Sequence[int], how: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue


def run_once(command: list[str], given: str = "") -> None:
    """A program that makes a data folder."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def missing(what: str, tool: str) -> None:
    """Skip the test that asked for a server which is not here."""
    pytest.skip(f"{what} is not installed: bash tools/install-test-tools.sh {tool} (root on Debian unpacks it)")


def _known_account(name: str) -> pwd.struct_passwd:
    """The account that the database's package makes, or the one that every system has."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed, and a database server does not run as root (Debian: util-linux)")
    for known in (name, "nobody"):
        try:
            return pwd.getpwnam(known)
        except KeyError:
            continue
    pytest.skip(f"there is neither an account {name!r} nor 'nobody', and a database server does not run as root")


def _family(pid: int) -> list[int]:
    """A process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in _family(int(child)))]


def _wait_for_end(pid: int) -> None:
    """Of a process that was killed and is not our child: what it held is free once it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        select.select([descriptor], [], [], PATIENCE_S)
    finally:
        os.close(descriptor)
