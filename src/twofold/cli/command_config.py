"""The settings of the clients that commands make: the file of `--command-config`, or of the profile in effect.

1. One file serves all commands: settings of producers and consumers are passed over by a command that makes neither. A
   name that no client of Kafka knows is refused, because a setting that was meant is missing then.
2. What the command line says itself counts more than the file. An address in the file that differs from the one that
   the command asks is refused: credentials go to the cluster that they were written for.
3. A profile's file belongs to its address: with another `--bootstrap-server` it does not count.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from twofold.cli import declare
from twofold.cli.common import COMMAND_CONFIG, DEFAULT_SERVER, USAGE, CliError
from twofold.cli.profile.chosen import in_effect
from twofold.cli.sources import UsageError, read_properties

if TYPE_CHECKING:
    from twofold.client.config import ClientConfig

C = TypeVar("C", bound="ClientConfig")
OPTION = COMMAND_CONFIG.names[0]
SERVERS = "bootstrap.servers"


def command_config() -> str | None:
    """The path of the file that counts for the running command."""
    given = declare.beside_value(COMMAND_CONFIG)
    if given is not None:
        return given
    profile = in_effect()
    return (profile.command_config or None) if profile is not None else None


def where_from() -> str:
    """For a message about what the settings say."""
    path = command_config()
    if path is None:
        return f"No settings for the connection are given: write them into a file for {OPTION}."
    return f"The settings of the connection are those of {path}."


def make_config(
    config: type[C],
    bootstrap_server: str,
    values: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    *,
    from_file: Mapping[str, str] | None = None,
) -> C:
    """A client's settings by Kafka's names: `values` of the command line count more than the file, and the file more
    than `defaults`. `from_file` are settings that stand in for the file's."""
    from twofold.client.config import from_dotted

    known = {name.replace("_", ".") for name in config.__dataclass_fields__}
    if from_file is None:
        from_file = file_settings(bootstrap_server)
    from_file = {name: value for name, value in from_file.items() if name in known}
    before = {"client.id": "twofold-cli", **(defaults or {})}
    return from_dotted(config, {**before, **from_file, **values, SERVERS: bootstrap_server})


def given_keywords(bootstrap_server: str) -> dict[str, Any]:
    """What the file says of every client, as keyword arguments."""
    from twofold.client.config import ClientConfig

    found = make_config(ClientConfig, bootstrap_server, {})
    names = [name.replace(".", "_") for name in file_settings(bootstrap_server)]
    return {name: getattr(found, name) for name in names if name in ClientConfig.__dataclass_fields__}


def file_settings(bootstrap_server: str) -> dict[str, str]:
    """What the file says of clients, by Kafka's names; nothing where there is no file."""
    path = command_config()
    if path is None:
        return {}
    try:
        found = read_properties(path, OPTION)
    except UsageError as error:
        raise CliError(str(error), USAGE) from None
    _check_names(path, found)
    server = found.pop(SERVERS, bootstrap_server)
    if server != bootstrap_server:
        whose = "" if bootstrap_server != DEFAULT_SERVER else " (the default)"
        raise CliError(
            f"{OPTION} {path} has {SERVERS}={server}, and this command asks {bootstrap_server}{whose}: add "
            f"--bootstrap-server {server}, or take it out of the file",
            USAGE,
        )
    return found


def settings_by_reference(bootstrap_server: str | None) -> dict[str, str]:
    """What the file says, for a program that shows its settings: secrets are references to the file."""
    path = command_config()
    if path is None:
        return {}
    from twofold.connections.security import SECRETS, literal_secret

    found = file_settings(bootstrap_server or DEFAULT_SERVER)
    for name in SECRETS:
        if name in found and literal_secret({name: found[name]}) is not None:
            found[name] = f"${{file:{os.path.abspath(path)}:{name}}}"
    return found


def _check_names(path: str, found: Mapping[str, str]) -> None:
    import difflib

    from twofold.client.config import ConsumerConfig, ProducerConfig
    from twofold.connections.security import REFUSED, WITHOUT_EFFECT
    from twofold.spark import kafka_names

    ours = {name.replace("_", ".") for kind in (ConsumerConfig, ProducerConfig) for name in kind.__dataclass_fields__}
    others = {
        *WITHOUT_EFFECT,
        *kafka_names.COMMON_WITHOUT_EFFECT,
        *kafka_names.CONSUMER_WITHOUT_EFFECT,
        *kafka_names.PRODUCER_WITHOUT_EFFECT,
    }
    for name in found:
        if name in REFUSED:
            raise CliError(f"{OPTION} {path}: {name} is not supported: {REFUSED[name]}", USAGE)
        if name not in ours and name not in others:
            near = difflib.get_close_matches(name, sorted(ours), n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise CliError(f"{OPTION} {path}: no client has a setting {name}{hint}", USAGE)
