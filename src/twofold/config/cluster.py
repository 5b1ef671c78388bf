"""What the settings say of the cluster that a broker belongs to: one of this node alone, or one of other controllers.

1. `process.roles=broker` makes a broker a member: it needs addresses of controllers, and a node id of its own.
2. The controllers are found at `controller.quorum.bootstrap.servers`, or else at the addresses of
   `controller.quorum.voters`.
3. How to talk to them is what the first of `controller.listener.names` says: its protocol by
   `listener.security.protocol.map`, its keys and its login by `listener.name.NAME.*`, and SASL by
   `sasl.mechanism.controller.protocol`. A name without a protocol has PLAINTEXT as long as the map is not set, as in
   Kafka.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from twofold.config.definition import ConfigError
from twofold.config.listeners import protocols
from twofold.config.settings import Settings
from twofold.security.protocols import SecurityProtocol

EVERY_DIRECTORY = "*"
ROLES = "process.roles"
BOOTSTRAP = "controller.quorum.bootstrap.servers"
CORDONED = "cordoned.log.dirs"
TWO_PHASE = "transaction.two.phase.commit.enable"
HEARTBEATS = "transaction.heartbeat.enable"
CONTROLLER = "CONTROLLER"  # how the listener of controllers is called where no setting says it
_OF_CLIENTS = (
    "ssl.cipher.suites", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location", "ssl.keystore.type",
    "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.type",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """How to connect to a listener of other nodes: the settings of a client, by Kafka's names."""

    listener: str
    protocol: SecurityProtocol
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of_client(self, mechanism: str) -> dict[str, str]:
        """With `security.protocol` and, where it is needed, the mechanism."""
        found = {"security.protocol": str(self.protocol), **self.texts}
        if self.protocol.uses_sasl:
            found["sasl.mechanism"] = mechanism
        return found


def is_member(settings: Settings) -> bool:
    """Whether this broker belongs to controllers elsewhere."""
    return settings.list("process.roles") == ("broker",)


def serves_heartbeats(settings: Settings) -> bool:
    """Not in a cluster: the state of an id may move to a broker that knows no heartbeats."""
    return settings.bool("transaction.heartbeat.enable") and not is_member(settings)


def bootstrap_addresses(settings: Settings) -> tuple[str, ...]:
    """HOST:PORT of controllers."""
    found = settings.list("controller.quorum.bootstrap.servers")
    return found or tuple(voter.partition("@")[2] for voter in settings.list("controller.quorum.voters"))


def check_member(settings: Settings) -> None:
    """Raise a ConfigError for what keeps a broker from being a member."""
    if not bootstrap_addresses(settings):
        raise _error(settings, ROLES, "broker", f"needs controllers: set {BOOTSTRAP}=HOST:PORT (--join HOST:PORT)")
    for address in bootstrap_addresses(settings):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _error(settings, BOOTSTRAP, address, "is not HOST:PORT")
    if not settings.is_set("node.id"):
        raise ConfigError("node.id", None, "must be set (-o node.id=N): each node of a cluster has an id of its own")
    for key in (TWO_PHASE, HEARTBEATS):
        if settings.is_set(key) and settings.bool(key):
            raise _error(
                settings, key, "true", "is not served by a broker in a cluster yet: leave it out, or run one node"
            )
    controller_security(settings)
    _check_cordoned(settings)


def all_cordoned(settings: Settings) -> bool:
    """Whether no directory gets new partitions by itself."""
    cordoned = settings.list("cordoned.log.dirs")
    wanted = set(map(posixpath.normpath, _data_directories(settings)))
    return EVERY_DIRECTORY in cordoned or (bool(cordoned) and wanted <= set(map(posixpath.normpath, cordoned)))


def _check_cordoned(settings: Settings) -> None:
    known = set(map(posixpath.normpath, _data_directories(settings)))
    for directory in settings.list("cordoned.log.dirs"):
        if directory != EVERY_DIRECTORY and posixpath.normpath(directory) not in known:
            raise _error(settings, CORDONED, directory, "is none of log.dirs")


def _data_directories(settings: Settings) -> tuple[str, ...]:
    return settings.list("log.dirs") or settings.list("log.dir")


def controller_listener(settings: Settings) -> str:
    names = settings.list("controller.listener.names")
    return names[0].upper() if names else CONTROLLER


def controller_security(settings: Settings) -> PeerSecurity:
    return peer_security(settings, controller_listener(settings), settings.string("sasl.mechanism.controller.protocol"))


def inter_broker_listener(settings: Settings) -> str:
    """The listener at which brokers find each other."""
    name = settings.optional_string("inter.broker.listener.name")
    return name.upper() if name else settings.string("security.inter.broker.protocol")


def inter_broker_security(settings: Settings) -> PeerSecurity:
    mechanism = settings.string("sasl.mechanism.inter.broker.protocol")
    return peer_security(settings, inter_broker_listener(settings), mechanism)


def peer_security(settings: Settings, listener: str, mechanism: str) -> PeerSecurity:
    protocol = _protocol(settings, listener)
    texts: dict[str, str] = {}
    if protocol.uses_tls:
        for key in _OF_CLIENTS:
            text = _text(settings, listener, key)
            if text is not None:
                texts[key] = text
        texts.setdefault("ssl.keystore.type", "PEM")
        texts.setdefault("ssl.truststore.type", "PEM")
        if "ssl.keystore.location" not in texts and "ssl.keystore.key" not in texts:
            del texts["ssl.keystore.type"]
    if protocol.uses_sasl:
        login = _text(settings, listener, "sasl.jaas.config", mechanism)
        if login is None:
            name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
            raise ConfigError(name, None, f"must name the user that this broker logs in as at the listener {listener}")
        texts["sasl.jaas.config"] = login
    return PeerSecurity(listener, protocol, texts)


def _protocol(settings: Settings, listener: str) -> SecurityProtocol:
    text = protocols(settings).get(listener, "")
    if not text and not settings.is_set("listener.security.protocol.map"):
        text = SecurityProtocol.PLAINTEXT
    if text not in list(SecurityProtocol):
        raise ConfigError(
            "listener.security.protocol.map",
            settings.string("listener.security.protocol.map"),
            f"must have an entry {listener}:PROTOCOL, with one of {', '.join(SecurityProtocol)}",
        )
    return SecurityProtocol(text)


def _text(settings: Settings, listener: str, key: str, mechanism: str | None = None) -> str | None:
    """As it is written for the listener, or for all."""
    given = settings.given.get(settings.listener_name(listener, key, mechanism))
    return None if given is None else given.text


def _error(settings: Settings, key: str, value: str, allowed: str) -> ConfigError:
    given = settings.given.get(key)
    return ConfigError(key, value, allowed, given.source if given else "")
