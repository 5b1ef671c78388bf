"""Where the settings of a start come from: a file, the environment and the command line. The later wins.

`serve` starts with them, `config` and `doctor` look at them. Imports wait until they are needed: a server has 0.3 s
until its first acknowledged produce.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.config.settings import Settings, Source

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "./twofold-data"  # also the default of log.dir


class UsageError(Exception):
    """The command line or a setting is wrong: exit code 2."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of the command line that are settings."""

    listen: str | None = None
    advertise: str | None = None
    data: str | None = None
    metrics: str | None = None
    config: str | None = None
    option: Sequence[str] = ()
    join: str | None = None
    coordinators_only: bool = False


def collect_sources(options: StartOptions) -> "list[Source]":
    from twofold.config.settings import Source, data_settings, environment_values

    file = {} if options.config is None else read_properties(options.config)
    sources = [
        Source(str(options.config), file, lenient=True),
        Source("the environment", environment_values(os.environ)),
    ]
    chosen: dict[str, str] = {}
    for option in options.option:
        key, separator, value = option.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"-o {option!r} is not of the form key=value")
        chosen[key.strip()] = value.strip()
    if options.listen is not None:
        chosen["listeners"] = _listener(options.listen)
    if options.data is not None:
        chosen |= data_settings(options.data)
    if options.metrics is not None:
        chosen["metrics.listener"] = options.metrics
    if options.join is not None:
        chosen |= {"process.roles": "broker", "controller.quorum.bootstrap.servers": _controllers(options.join)}
    if options.coordinators_only:
        chosen["cordoned.log.dirs"] = "*"
    sources.append(Source("the command line", chosen))
    if not any("listeners" in source.texts for source in sources):
        sources.insert(0, Source("the default", {"listeners": _listener(DEFAULT_LISTEN)}))
    if options.advertise is not None:
        chosen["advertised.listeners"] = _advertised(options.advertise, sources)
    return sources


def read_properties(path: str, option: str = "--config") -> dict[str, str]:
    from twofold.config.settings import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except OSError as error:
        raise UsageError(f"cannot read {option} {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"cannot read {option} {path}: {error}") from None


def _listener(listen: str) -> str:
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {listen!r} is not HOST:PORT with a port from 0 to 65535 (0 chooses one)")
    return f"PLAINTEXT://{host}:{port}"


def _controllers(join: str) -> str:
    for address in join.split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"--join {join!r} is not HOST:PORT of a controller, or several separated by commas")
    return join


def _advertised(advertise: str, sources: "list[Source]") -> str:
    """HOST or HOST:PORT as the advertised address of the one listener; without a port it is the listener's."""
    from twofold.config.listeners import EVERYWHERE, listen_addresses
    from twofold.config.settings import Settings

    keys = ("listeners", "controller.listener.names")
    texts = {key: source.texts[key] for source in sources for key in keys if key in source.texts}
    found = listen_addresses(Settings.from_mapping(texts))
    if len(found) > 1:
        names = ", ".join(address.name for address in found)
        raise UsageError(
            f"--advertise {advertise} is one address, and there are {len(found)} listeners ({names}): set "
            "advertised.listeners"
        )
    is_bare = ":" not in advertise or advertise.endswith("]") or (advertise.count(":") > 1 and "]" not in advertise)
    host, port = (advertise, str(found[0].port)) if is_bare else advertise.rsplit(":", 1)
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535 or host in EVERYWHERE or not _is_host(host):
        raise UsageError(f"--advertise {advertise!r} is not HOST or HOST:PORT that clients can connect to")
    return f"{found[0].name}://[{host}]:{port}" if ":" in host else f"{found[0].name}://{host}:{port}"


def _is_host(text: str) -> bool:
    """A name or an address: `http://kafka:9092` and `PLAINTEXT://kafka` are neither."""
    from ipaddress import AddressValueError, IPv6Address

    if ":" not in text:
        return not set(text) & set("/[]@,") and not any(letter.isspace() for letter in text)
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def make_settings(sources: "list[Source]") -> "Settings":
    from twofold.config.settings import Settings

    try:
        return Settings.from_sources(*sources)
    except ValueError as error:
        raise UsageError(str(error)) from None


def data_folder(options: StartOptions, settings: "Settings") -> str:
    from twofold.config.definition import ConfigError
    from twofold.config.settings import data_directory

    if options.data is not None:
        return options.data
    try:
        return data_directory(settings)
    except ConfigError as error:
        raise UsageError(f"{error} with --data") from None
