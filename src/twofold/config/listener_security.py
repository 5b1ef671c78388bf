"""What a listener asks of its clients, from the settings: protocol, TLS, mechanisms, users, tokens.

1. Every listener has a security protocol by `listener.security.protocol.map`; its own name may be one.
2. `listener.name.NAME.KEY` wins over KEY, and `listener.name.NAME.MECHANISM.KEY` over both. A prefix that no listener
   has is an error, and so are settings of TLS or SASL where no listener uses them: they would be believed.
3. `ssl.client.auth` without a prefix does not count for SASL_SSL, as in Kafka: SASL names the user.
4. PLAIN needs its users in `sasl.jaas.config`, and OAUTHBEARER the file with the keys that sign tokens: unsigned tokens
   are never taken. What is none of PLAIN, SCRAM and OAUTHBEARER is refused.
5. No error shows a secret.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from twofold.config.cluster import PeerSecurity, controller_security, is_member
from twofold.config.definition import INT_MAX, ConfigError, Value, text_of
from twofold.config.keys import DEFINITIONS, LISTENER_PREFIX, listener_key, security
from twofold.config.keys.key import SettingKey
from twofold.config.listeners import listen_addresses, parse_address, protocols
from twofold.config.settings import Settings
from twofold.extras import MissingExtra, require
from twofold.security.addresses import bare_host, java_address
from twofold.security.distinguished_names import BadRule, MappingRule, parse_rules
from twofold.security.jaas import PLAIN_MODULE, JaasError, parse_jaas
from twofold.security.oauth import OAUTHBEARER, TokenRules
from twofold.security.plain import PLAIN
from twofold.security.protocols import SecurityProtocol
from twofold.security.scram import ScramMechanism
from twofold.security.tls import ClientAuth, TlsError, TlsSettings

MECHANISMS = (PLAIN, *(mechanism.mechanism_name for mechanism in ScramMechanism), OAUTHBEARER)
_TLS, _SASL = "ssl.", "sasl."
# Of clients and of other nodes too, or without harm: they may stand in a file although no listener needs them.
_HARMLESS = frozenset(
    {
        "sasl.server.max.receive.size",
        "connections.max.reauth.ms",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
    }
)


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where the keys of tokens are, and what tokens must say."""

    key_file: str
    rules: TokenRules


@dataclass(frozen=True, slots=True)
class MechanismSettings:
    name: str
    max_reauth_ms: int = 0
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The passwords of PLAIN."""
    tokens: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """`name` is the listener's, in capitals."""

    name: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    mapping_rules: tuple[MappingRule, ...] = ()
    mechanisms: Mapping[str, MechanismSettings] = field(default_factory=dict)
    max_receive_bytes: int = 524_288
    max_connections: int = INT_MAX
    max_creation_rate: int = INT_MAX

    def server_context(self) -> ssl.SSLContext | None:
        """Of TLS, made of the files as they are now; a ConfigError where they cannot be used."""
        if self.tls is None:
            return None
        try:
            return self.tls.server_context()
        except TlsError as error:
            raise ConfigError(error.setting, error.value, f"{error.reason} (listener {self.name})") from None


def listener_securities(settings: Settings) -> list[ListenerSecurity]:
    """Of each listener for clients, or a ConfigError."""
    found = [_listener_security(settings, address.name) for address in listen_addresses(settings)]
    peers = [controller_security(settings)] if is_member(settings) else []
    for name in settings.given:
        _check_use(settings, name, found, peers)
    return found


def per_ip_overrides(settings: Settings) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: the limit of each address, as Java writes it."""
    entries = (entry.rpartition(":") for entry in settings.string("max.connections.per.ip.overrides").split(","))
    return {java_address(bare_host(host)): int(limit) for host, _, limit in entries if limit}


def _listener_security(settings: Settings, name: str) -> ListenerSecurity:
    text = protocols(settings).get(name, "")
    if text not in list(SecurityProtocol):
        raise ConfigError(
            "listener.security.protocol.map",
            settings.string("listener.security.protocol.map"),
            f"must have an entry {name}:PROTOCOL, with one of {', '.join(SecurityProtocol)}, for the listener {name}",
        )
    protocol = SecurityProtocol(text)
    read = _Reader(settings, name)
    return ListenerSecurity(
        name=name,
        protocol=protocol,
        tls=_tls(read, protocol) if protocol.uses_tls else None,
        mapping_rules=_mapping_rules(read) if protocol is SecurityProtocol.SSL else (),
        mechanisms={one.name: one for one in _mechanisms(read)} if protocol.uses_sasl else {},
        max_receive_bytes=read.int("sasl.server.max.receive.size"),
        max_connections=read.int("max.connections"),
        max_creation_rate=read.int("max.connection.creation.rate"),
    )


class _Reader:
    """The values of one listener."""

    def __init__(self, settings: Settings, listener: str, mechanism: str | None = None) -> None:
        self.settings = settings
        self.listener = listener
        self.mechanism = mechanism

    def __call__(self, key: str) -> Value:
        return self.settings.for_listener(self.listener, key, self.mechanism)

    def text(self, key: str) -> str | None:
        value = self(key)
        return value if isinstance(value, str) and value.strip() else None

    def list(self, key: str) -> tuple[str, ...]:
        value = self(key)
        return tuple(item for item in value if item) if isinstance(value, tuple) else ()

    def int(self, key: str) -> int:
        value = self(key)
        assert isinstance(value, int)
        return value

    def name(self, key: str) -> str:
        return self.settings.listener_name(self.listener, key, self.mechanism)

    def own_name(self, key: str) -> str:
        """What to call the setting where it is not written down."""
        mechanism = "" if self.mechanism is None else f"{self.mechanism.lower()}."
        return f"{LISTENER_PREFIX}{self.listener.lower()}.{mechanism}{key}"

    def error(self, key: str, allowed: str, *, is_secret: bool = False) -> ConfigError:
        name = self.name(key)
        given = self.settings.given.get(name)
        value = None if is_secret else text_of(self(key))
        return ConfigError(name, value, allowed, given.source if given else "")


def _tls(read: _Reader, protocol: SecurityProtocol) -> TlsSettings:
    client_auth = read.text("ssl.client.auth") or ClientAuth.NONE
    if protocol is SecurityProtocol.SASL_SSL and read.name("ssl.client.auth") == "ssl.client.auth":
        client_auth = ClientAuth.NONE
    return TlsSettings(
        keystore_type=read.text("ssl.keystore.type") or "JKS",
        keystore_location=read.text("ssl.keystore.location"),
        keystore_key=read.text("ssl.keystore.key"),
        keystore_certificate_chain=read.text("ssl.keystore.certificate.chain"),
        key_password=read.text("ssl.key.password"),
        truststore_type=read.text("ssl.truststore.type") or "JKS",
        truststore_location=read.text("ssl.truststore.location"),
        truststore_certificates=read.text("ssl.truststore.certificates"),
        client_auth=ClientAuth(client_auth),
        enabled_protocols=read.list("ssl.enabled.protocols") or ("TLSv1.2", "TLSv1.3"),
        cipher_suites=read.list("ssl.cipher.suites"),
    )


def _mapping_rules(read: _Reader) -> tuple[MappingRule, ...]:
    text = read.text("ssl.principal.mapping.rules") or "DEFAULT"
    try:
        rules = parse_rules(text)
        if read.text("ssl.client.auth") not in (None, ClientAuth.NONE):
            require("security", "ssl.client.auth")
    except (BadRule, MissingExtra) as error:
        raise read.error("ssl.principal.mapping.rules", str(error)) from None
    return rules


def _mechanisms(read: _Reader) -> Iterator[MechanismSettings]:
    names = read.list("sasl.enabled.mechanisms")
    known = ", ".join(MECHANISMS)
    if not names:
        raise read.error("sasl.enabled.mechanisms", f"must name some of {known}: no client could log in")
    for name in names:
        if name not in MECHANISMS:
            raise read.error("sasl.enabled.mechanisms", f"Twofold has no {name}; set it to some of {known}")
        own = _Reader(read.settings, read.listener, name)
        handler = own.text("sasl.server.callback.handler.class")
        if handler is not None and not (name == OAUTHBEARER and handler == security.OAUTH_HANDLER):
            raise own.error("sasl.server.callback.handler.class", "Twofold runs no Java class; remove the setting")
        yield MechanismSettings(
            name=name,
            max_reauth_ms=max(0, own.int("connections.max.reauth.ms")),
            users=_plain_users(own) if name == PLAIN else {},
            tokens=_tokens(own) if name == OAUTHBEARER else None,
        )


def _plain_users(own: _Reader) -> dict[str, str]:
    key = "sasl.jaas.config"
    line = own.text("sasl.jaas.config") if own.name(key) != key else None
    if line is None:
        raise ConfigError(
            own.own_name(key), None, f'must name the users: {PLAIN_MODULE} required user_NAME="PASSWORD";'
        )
    try:
        entry = parse_jaas(line)
    except JaasError as error:
        raise own.error(key, str(error), is_secret=True) from None
    if entry.login_module != PLAIN_MODULE:
        raise own.error(key, f"must have the login module {PLAIN_MODULE}", is_secret=True)
    users = entry.users
    if not users:
        raise own.error(key, 'names no user (user_NAME="PASSWORD"): no client could log in', is_secret=True)
    if "" in users or "" in users.values():
        raise own.error(key, "has a user with an empty name or an empty password", is_secret=True)
    return users


def _tokens(own: _Reader) -> TokenSource:
    key = "sasl.oauthbearer.jwks.endpoint.url"
    url = own.text("sasl.oauthbearer.jwks.endpoint.url")
    if url is None:
        raise ConfigError(own.own_name(key), None, "must name the file with the keys that sign tokens: file:///...")
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise own.error(key, "must be a file on this machine: file:///...")
    try:
        require("security", OAUTHBEARER)
    except MissingExtra as error:
        raise own.error("sasl.enabled.mechanisms", str(error)) from None
    rules = TokenRules(
        audience=own.list("sasl.oauthbearer.expected.audience"),
        issuer=own.text("sasl.oauthbearer.expected.issuer"),
        clock_skew_s=own.int("sasl.oauthbearer.clock.skew.seconds"),
        name_claim=own.text("sasl.oauthbearer.sub.claim.name") or "sub",
        scope_claim=own.text("sasl.oauthbearer.scope.claim.name") or "scope",
    )
    return TokenSource(unquote(parts.path), rules)


def _check_use(settings: Settings, name: str, listeners: list[ListenerSecurity], peers: Sequence[PeerSecurity]) -> None:
    """Raise for a setting of security that no listener obeys, and no connection to another node."""
    given = settings.given[name]
    of_listener = listener_key(name)
    if of_listener is not None:
        if not _asks(of_listener.key, given.text) or any(of_listener.listener == peer.listener for peer in peers):
            return
        _check_prefix(settings, name, listeners)
        listeners = [one for one in listeners if one.name == of_listener.listener]
        if not listeners:
            return  # one of the quorum's
    key = DEFINITIONS.get(name) if of_listener is None else of_listener.key
    if key is None or not key.effect or key.name in _HARMLESS or not _asks(key, given.text):
        return
    shown = None if key.is_sensitive else given.text
    if of_listener is None and key.name.startswith(_TLS) and any(peer.protocol.uses_tls for peer in peers):
        return
    if key.name.startswith(_TLS) and not any(one.protocol.uses_tls for one in listeners):
        raise ConfigError(name, shown, f"no listener uses TLS{_how('SSL')}", given.source)
    if key.name.startswith(_SASL) and not any(one.protocol.uses_sasl for one in listeners):
        raise ConfigError(name, shown, f"no listener uses SASL{_how('SASL_SSL')}", given.source)
    if name == "sasl.jaas.config":
        mechanism = next(iter(listeners[0].mechanisms), PLAIN).lower()
        named = f"{LISTENER_PREFIX}{listeners[0].name.lower()}.{mechanism}.sasl.jaas.config"
        raise ConfigError(name, None, f"belongs to one mechanism of one listener; name it {named}", given.source)


def _asks(key: SettingKey, text: str) -> bool:
    """Whether a value asks for anything."""
    return key.parse(text) not in (key.default, "", ())


def _how(protocol: str) -> str:
    return (
        f", and every client could connect without; give one this protocol ({protocol}://HOST:PORT in listeners, or "
        "listener.security.protocol.map), or remove the setting"
    )


def _check_prefix(settings: Settings, name: str, listeners: list[ListenerSecurity]) -> None:
    given = settings.given[name]
    listener = name.removeprefix(LISTENER_PREFIX).partition(".")[0]
    if listener != listener.lower():
        raise ConfigError(name, None, "the listener's name is written in lower case here", given.source)
    of_listener = listener_key(name)
    assert of_listener is not None
    all_names = {parse_address(text, "listeners").name for text in settings.list("listeners")}
    if of_listener.listener not in all_names:
        named = ", ".join(sorted(all_names))
        raise ConfigError(
            name, None, f"there is no listener {of_listener.listener}; listeners has {named}", given.source
        )
    found = next((one for one in listeners if one.name == of_listener.listener), None)
    if found is not None and of_listener.mechanism is not None and of_listener.mechanism not in found.mechanisms:
        raise ConfigError(
            name,
            None,
            f"{found.name} has no mechanism {of_listener.mechanism} in sasl.enabled.mechanisms; add it there, or "
            "remove the setting",
            given.source,
        )
