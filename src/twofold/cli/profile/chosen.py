"""Which profile a command line uses.

1. `--bootstrap-server` wins, and no profile counts then: not even one that cannot be read. After it come `--profile`,
   the variable TWOFOLD_BOOTSTRAP_SERVER, the variable TWOFOLD_PROFILE, and the profile in use (`twofold profile use`).
   What was said in a command line, click tells: `-yb HOST:PORT` and `-bHOST:PORT` are ways to say it.
2. `--profile NAME` may stand anywhere in a command line before a `--`.
3. Only commands that ask a broker look at profiles: a broken file keeps no other command from its work.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

PROFILE_VARIABLE = "TWOFOLD_PROFILE"
SERVER_VARIABLE = "TWOFOLD_BOOTSTRAP_SERVER"
OPTION = "--profile"
ASK_A_BROKER = {"topic", "group", "cluster", "txn", "acl", "user", "quota", "produce", "consume", "doctor"}
PIPELINES = {"status", "recover", "prune"}  # the others go by the file of a pipeline
_HELP = {"-h", "--help"}


def profiles_file() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "twofold", "profiles.toml")


class Chosen(NamedTuple):
    """A profile, and the address that it stands for."""

    name: str
    server: str
    command_config: str = ""


_in_effect: list[Chosen] = []  # at most one


def in_effect() -> Chosen | None:
    """The profile whose address the running command asks."""
    import click
    from click.core import ParameterSource

    context = click.get_current_context(silent=True)
    source = context and context.get_parameter_source("bootstrap_server")
    return _in_effect[0] if _in_effect and source is not ParameterSource.COMMANDLINE else None


@contextmanager
def chosen(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The command line without `--profile`, and inside of the block that profile as the default server."""
    from twofold.cli.common import CliError

    rest, name = take_option(arguments)
    try:
        found = _choose(rest, name)
    except CliError:
        if not _may_name_server(rest):
            raise
        found = None
    if found is None:
        yield rest
        return
    before = os.environ.get(SERVER_VARIABLE)
    os.environ[SERVER_VARIABLE] = found.server
    _in_effect.append(found)
    try:
        yield rest
    finally:
        _in_effect.clear()
        if before is None:
            del os.environ[SERVER_VARIABLE]
        else:
            os.environ[SERVER_VARIABLE] = before


def take_option(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """The other words, and the last `--profile NAME` or `--profile=NAME`."""
    from twofold.cli.common import USAGE, CliError

    rest: list[str] = []
    name: str | None = None
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*rest, word, *words], name
        if word == OPTION:
            name = next(words, None)
            if name is None:
                raise CliError(f"{OPTION} names no profile: {OPTION} NAME", USAGE)
        elif word.startswith(f"{OPTION}="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, name


def _choose(arguments: Sequence[str], name: str | None) -> Chosen | None:
    if not _asks_a_broker(arguments) or not _HELP.isdisjoint(arguments):
        return None
    if name is None:
        if os.environ.get(SERVER_VARIABLE):
            return None
        name = os.environ.get(PROFILE_VARIABLE) or None
    if name is None and not os.path.exists(profiles_file()):
        return None
    from twofold.cli.profile.store import read_profiles

    profiles = read_profiles()
    name = name or profiles.current
    if name is None:
        return None
    profile = profiles.get(name)
    return Chosen(name, profile.resolved(), profile.command_config)


def _asks_a_broker(arguments: Sequence[str]) -> bool:
    first, second = (*arguments[:2], "", "")[:2]
    if first == "config":
        return any(word.partition("=")[0] == "--broker" for word in arguments)
    return first in ASK_A_BROKER or (first == "pipeline" and second in PIPELINES)


def _may_name_server(arguments: Sequence[str]) -> bool:
    return any(re.match(r"--bootstrap-server(=|$)|-[A-Za-z]*b", word) for word in arguments)
