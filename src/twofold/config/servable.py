"""Whether a broker may be started with its settings: asked once, before anything is opened or written.

A node is broker and controller of a cluster of its own, or with `process.roles=broker` a member of another one. A
setting that says what is not so would be believed and not obeyed, so it stops the start
(`twofold.config.keys.missing`). Most are decided by their value alone. Here are the others:

1. listeners for clients have all that their security protocols need (`twofold.config.listener_security`);
2. the voters are this node, by its id, unless it is a member (`twofold.config.cluster`);
3. the addresses of the quorum are this node's, unless it is a member: a host of its listeners or its own name, and the
   port of its listener for controllers, if it has one;
4. the metadata log is in the data directory;
5. the settings of the authorizer need one;
6. what holds for groups that set nothing of their own lies within the bounds for those that do.
"""

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from twofold.config.authorization import authorizer_settings
from twofold.config.cluster import CORDONED, check_member, is_member
from twofold.config.definition import ConfigError
from twofold.config.group import check_group_bounds
from twofold.config.keys import refusal
from twofold.config.keys.missing import (
    AUTHORIZER,
    CLUSTER,
    DELEGATION_TOKENS,
    KERBEROS,
    METADATA_DIRECTORY,
    REPLICAS,
    SASL,
    TLS,
    MissingPart,
)
from twofold.config.listener_security import listener_securities
from twofold.config.listeners import EVERYWHERE, ListenerAddress, listen_addresses, parse_address
from twofold.config.settings import Settings

_SECRETIVE = (AUTHORIZER, DELEGATION_TOKENS, KERBEROS, SASL, TLS)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _Problem(NamedTuple):
    setting: str
    value: str | None
    missing: MissingPart


def check_servable(settings: Settings, *, hostname: str) -> None:
    """Raise a ConfigError that names what must not be believed, and what to do."""
    found = list(dict.fromkeys(_problems(settings, hostname)))
    if not found:
        if is_member(settings):
            check_member(settings)
        else:
            _check_alone(settings)
        authorizer_settings(settings)
        listener_securities(settings)
        check_group_bounds(settings)
        return
    setting, value, missing = found[0]
    others = [problem.setting for problem in found[1:] if problem.setting != setting]
    also = f". Refused as well: {', '.join(dict.fromkeys(others))}" if others else ""
    given = settings.given.get(setting)
    raise ConfigError(setting, value, f"{missing}{also}", given.source if given else "")


def _problems(settings: Settings, hostname: str) -> Iterator[_Problem]:
    listen_addresses(settings)
    for name, given in settings.given.items():
        missing = refusal(name, given.text)
        if missing is not None and not (missing is REPLICAS and is_member(settings)):  # of the controllers' topics
            yield _Problem(name, None if missing in _SECRETIVE else given.text, missing)
    if not is_member(settings):
        yield from _quorum(settings, hostname)
    directory = settings.optional_string("metadata.log.dir")
    if directory and posixpath.normpath(directory) not in map(posixpath.normpath, _data_directories(settings)):
        yield _Problem("metadata.log.dir", directory, METADATA_DIRECTORY)


def _check_alone(settings: Settings) -> None:
    if settings.list("cordoned.log.dirs"):
        given = settings.given[CORDONED]
        raise ConfigError(
            CORDONED, given.text, "is for members of a cluster: a node alone would have no place for topics; remove it",
            given.source,
        )  # fmt: skip


def _quorum(settings: Settings, hostname: str) -> Iterator[_Problem]:
    node_id = str(settings.int("node.id"))
    for voter in settings.list("controller.quorum.voters"):
        if voter.partition("@")[0] != node_id:
            yield _Problem("controller.quorum.voters", voter, CLUSTER)
    for address in settings.list("controller.quorum.bootstrap.servers"):
        if not _is_this_node(address, settings, hostname):
            yield _Problem("controller.quorum.bootstrap.servers", address, CLUSTER)


def _is_this_node(address: str, settings: Settings, hostname: str) -> bool:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    listeners = _all_listeners(settings)
    hosts = {listener.host.lower() for listener in listeners if listener.host not in EVERYWHERE}
    quorum = {name.upper() for name in settings.list("controller.listener.names")}
    ports = {str(listener.port) for listener in listeners if listener.name in quorum}
    is_here = host in hosts | _LOOPBACK or _is_one_name(host, hostname.lower())
    return is_here and (port in ports or not ports)


def _is_one_name(one: str, other: str) -> bool:
    """Also where one of them has its domain and the other has not."""
    return one == other or one == other.partition(".")[0] or one.partition(".")[0] == other


def _all_listeners(settings: Settings) -> list[ListenerAddress]:
    return [parse_address(text, name) for name in ("listeners", "advertised.listeners") for text in settings.list(name)]


def _data_directories(settings: Settings) -> tuple[str, ...]:
    return settings.list("log.dirs") or settings.list("log.dir")
