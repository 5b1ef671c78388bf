"""The file of the profiles: names for clusters, and which of them is in use.

1. Only its owner reads and writes it (mode 0600, its folder 0700). A file that others may touch is refused: they could
   send a command that deletes to another cluster.
2. It holds no secret. A value is a text, or a reference that is read when a command runs: `env:NAME` is a variable of
   the environment, `file:PATH` the content of a file. `command-config` is the path of the file with the settings of the
   client, which may have secrets.
3. It is replaced as a whole, under a lock: two commands at once lose nothing, and a crash leaves the old one or the new
   one.
"""

import fcntl
import os
import re
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from json import dumps
from pathlib import Path

from twofold.cli.common import USAGE, CliError
from twofold.cli.profile.chosen import profiles_file

FILE_MODE = 0o600
FOLDER_MODE = 0o700
MAX_REFERENCE_BYTES = 64 * 1024
LOCK_PATIENCE_S = 10.0
LOOK_S = 0.02
SERVER, CONFIG, NOTE = "bootstrap-server", "command-config", "note"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRETIVE = re.compile(r"password|secret|token|credential|jaas|sasl|ssl|key", re.I)
_HEADER = "# Clusters of `twofold profile`. Values may be references: env:NAME or file:PATH.\n"


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    bootstrap_server: str  # or a reference
    note: str = ""
    command_config: str = ""  # a path, or empty

    def resolved(self) -> str:
        """The address, read now if it is a reference."""
        kind, separator, place = self.bootstrap_server.partition(":")
        if not separator or kind not in ("env", "file"):
            return self.bootstrap_server
        found = os.environ.get(place) if kind == "env" else _read_reference(self, place)
        if not found or not found.strip():
            what = f"the variable {place}" if kind == "env" else f"the file {place}"
            raise CliError(f"profile {self.name}: {SERVER} is {self.bootstrap_server}, and {what} is not set or empty")
        address = found.strip()
        if not _is_address(address):  # it may be a secret of something else: not repeated
            raise CliError(
                f"profile {self.name}: {SERVER} is {self.bootstrap_server}, and there is no address of the form "
                "HOST:PORT[,...] there"
            )
        return address

    @property
    def is_reference(self) -> bool:
        return self.bootstrap_server.startswith(("env:", "file:"))


def _read_reference(profile: Profile, place: str) -> str:
    try:
        with open(os.path.expanduser(place), "rb") as file:
            return file.read(MAX_REFERENCE_BYTES).decode(errors="replace")
    except OSError as error:
        raise CliError(
            f"profile {profile.name}: {SERVER} is {profile.bootstrap_server}, which cannot be read: {error.strerror}"
        ) from None


@dataclass(frozen=True, slots=True)
class Profiles:
    """What the file says."""

    current: str | None = None
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none yet; `twofold profile add` makes one"
            raise CliError(f"there is no profile {name!r}; known are: {known}", USAGE)
        return found

    def with_profile(self, profile: Profile) -> "Profiles":
        return replace(self, by_name={**self.by_name, profile.name: profile})

    def without(self, name: str) -> "Profiles":
        left = {known: profile for known, profile in self.by_name.items() if known != name}
        return Profiles(None if self.current == name else self.current, left)


def profiles_path() -> Path:
    return Path(profiles_file())


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CliError(f"{name!r} is no name for a profile: use letters, digits, '.', '_' and '-', at most 64", USAGE)
    return name


def check_server(server: str) -> str:
    """An address that a client can use, or a reference to one. A user and a password are not repeated."""
    from twofold.connections.connection import parse_addresses

    if server.startswith(("env:", "file:")):
        if server.partition(":")[2]:
            return server
        raise CliError(f"--bootstrap-server {server} refers to nothing: write env:NAME or file:PATH", USAGE)
    if "@" in server:
        raise CliError(
            "--bootstrap-server has an '@': a profile keeps no user and no password; write them into the file of "
            "--command-config",
            USAGE,
        )
    try:
        parse_addresses(server)
    except ValueError as error:
        raise CliError(str(error).replace("bootstrap_servers", "--bootstrap-server"), USAGE) from None
    return server


def _is_address(text: str) -> bool:
    from twofold.connections.connection import parse_addresses

    try:
        parse_addresses(text)
    except ValueError:
        return False
    return text.isprintable() and "@" not in text and "\ufffd" not in text


def read_profiles() -> Profiles:
    path = profiles_path()
    try:
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            content = tomllib.load(file)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path} is not TOML: {error}") from None
    return _parse(path, content)


def _check_owner(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~FILE_MODE:
        raise CliError(f"{path} has mode {mode:04o}, and only its owner may read and write it: chmod 600 {path}")
    if status.st_uid != os.geteuid():
        raise CliError(f"{path} belongs to user {status.st_uid}, and you are user {os.geteuid()}")


def _parse(path: Path, content: Mapping[str, object]) -> Profiles:
    tables = content.get("profiles", {})
    current = content.get("current")
    if not isinstance(tables, dict) or not isinstance(current, str | None):
        raise CliError(f"{path}: `profiles` is a table of tables, and `current` is the name of one")
    by_name = {name: _parse_one(path, name, table) for name, table in tables.items()}
    if current is not None and current not in by_name:
        raise CliError(f"{path}: current is {current!r}, and there is no such profile")
    return Profiles(current, by_name)


def _parse_one(path: Path, name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise CliError(f"{path}: profiles.{name} is no table")
    for key, value in table.items():
        if key not in (SERVER, CONFIG, NOTE):
            secret = f". A profile keeps no secret: write it into the file of {CONFIG}" * bool(_SECRETIVE.search(key))
            raise CliError(f"{path}: profiles.{name} has {key}; known are {SERVER}, {CONFIG} and {NOTE}{secret}")
        if not isinstance(value, str):
            raise CliError(f"{path}: {key} of profiles.{name} is no text")
    if SERVER not in table:
        raise CliError(f"{path}: profiles.{name} has no {SERVER}")
    return Profile(check_name(name), check_server(table[SERVER]), table.get(NOTE, ""), table.get(CONFIG, ""))


def change_profiles(change: Callable[[Profiles], Profiles]) -> Profiles:
    """Read, change and replace the file, alone."""
    path = profiles_path()
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        with _locked(path.parent):
            changed = change(read_profiles())
            _write(path, _encode(changed))
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None
    return changed


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(folder, descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, descriptor: int) -> None:
    """Another command has it for a moment, unless that command is suspended."""
    end = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise CliError(
                    f"another `twofold profile` has locked {folder} for {LOCK_PATIENCE_S:g} s: let it go on, or end it"
                ) from None
            time.sleep(LOOK_S)


def _encode(profiles: Profiles) -> str:
    lines = [_HEADER]
    if profiles.current is not None:
        lines.append(f"current = {dumps(profiles.current)}\n")
    for name in sorted(profiles.by_name):
        profile = profiles.by_name[name]
        lines += [f"\n[profiles.{dumps(name)}]\n", f"{SERVER} = {_text(profile.bootstrap_server)}\n"]
        if profile.command_config:
            lines.append(f"{CONFIG} = {_text(profile.command_config)}\n")
        if profile.note:
            lines.append(f"{NOTE} = {_text(profile.note)}\n")
    return "".join(lines)


def _text(value: str) -> str:
    """A text of TOML: JSON's, which allows one character more."""
    return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask took away, or an older file had
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(new, path)
