"""Where a broker listens and what it tells clients about that."""

from dataclasses import dataclass

from twofold.config.settings import Settings

EVERYWHERE = ("", "0.0.0.0", "::")


class ListenerError(ValueError):
    """A listener that cannot be opened as written; the text names the setting."""


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


def parse_address(text: str, setting: str) -> ListenerAddress:
    """NAME://HOST:PORT, the host perhaps empty or in brackets."""
    name, scheme, rest = text.strip().partition("://")
    host, colon, port = rest.rpartition(":")
    if not name or not scheme or not colon or not port.isdecimal() or int(port) > 65535:
        raise ListenerError(f"{setting}={text} is not NAME://HOST:PORT with a port from 0 to 65535")
    return ListenerAddress(name.upper(), host.removeprefix("[").removesuffix("]"), int(port))


def parse_host_port(text: str, setting: str) -> ListenerAddress:
    """HOST:PORT as the address of a listener that is named after its setting."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ListenerError(f"{setting}={text} is not HOST:PORT with a port from 0 to 65535 (0 chooses one)")
    return ListenerAddress(setting, host.removeprefix("[").removesuffix("]"), int(port))


def listen_addresses(settings: Settings) -> list[ListenerAddress]:
    """The listeners of clients; those named in controller.listener.names are the quorum's."""
    quorum = {name.upper() for name in settings.list("controller.listener.names")}
    found = [parse_address(text, "listeners") for text in settings.list("listeners")]
    found = [address for address in found if address.name not in quorum]
    if not found:
        raise ListenerError("listeners names no listener for clients: add PLAINTEXT://HOST:PORT")
    names = [address.name for address in found]
    if len(set(names)) < len(names):
        raise ListenerError(f"listeners={','.join(map(str, found))} has a name twice: each listener needs its own")
    return found


def with_ports(settings: Settings, bound: list[ListenerAddress]) -> str:
    """The setting `listeners` with the ports that were chosen for 0."""
    ports = {address.name: address.port for address in bound}
    found = [parse_address(text, "listeners") for text in settings.list("listeners")]
    return ",".join(str(ListenerAddress(at.name, at.host, ports.get(at.name, at.port))) for at in found)


def protocols(settings: Settings) -> dict[str, str]:
    """The security protocol of each listener by its name."""
    pairs = (entry.partition(":") for entry in settings.string("listener.security.protocol.map").split(","))
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def advertised_addresses(settings: Settings, bound: list[ListenerAddress], hostname: str) -> list[ListenerAddress]:
    """What clients are told: advertised.listeners, or the listeners as they were opened.

    Port 0 in advertised.listeners stands for the port that was chosen. An address that means "all of this host" is
    told as the host's name, because no client can connect to it.
    """
    texts = settings.list("advertised.listeners")
    if not texts:
        return [
            ListenerAddress(address.name, hostname if address.host in EVERYWHERE else address.host, address.port)
            for address in bound
        ]
    ports = {address.name: address.port for address in bound}
    found = []
    for text in texts:
        address = parse_address(text, "advertised.listeners")
        if address.name not in ports:
            raise ListenerError(f"advertised.listeners={text} has no counterpart in listeners")
        if address.host in EVERYWHERE:
            raise ListenerError(f"advertised.listeners={text}: clients need a host that they can connect to")
        found.append(ListenerAddress(address.name, address.host, address.port or ports[address.name]))
    return found
