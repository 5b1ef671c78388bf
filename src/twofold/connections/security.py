"""What makes a connection safe, by Kafka's names: `security.protocol`, `sasl.*`, `ssl.*`.

1. What cannot work is refused when the settings are read, with the setting and what to write instead. A setting that
   the chosen protocol or mechanism would not use is refused, too: its user would believe that it has an effect.
2. Secrets may be references (`references.py`). They are read anew for every connection and every login, so a password
   or a certificate that was replaced is used from then on.
3. No text of an error, and no text of an object, has a secret in it.
4. The name in the broker's certificate is compared with the address, unless
   `ssl.endpoint.identification.algorithm` is empty.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from twofold.connections.errors import SecretUnreadable
from twofold.connections.references import is_reference, read_text, resolve
from twofold.security.protocols import SecurityProtocol

if TYPE_CHECKING:
    from twofold.connections.sasl import SaslClient
    from twofold.security.jaas import JaasEntry

TokenProvider: TypeAlias = Callable[[], str]

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
USERNAME, PASSWORD = "sasl.username", "sasl.password"
TOKEN, TOKEN_FILE, TOKEN_PROVIDER = "sasl.oauthbearer.token", "sasl.oauthbearer.token.file", "sasl.oauth.token.provider"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
SECRETS = (JAAS, PASSWORD, TOKEN, "ssl.key.password", "ssl.keystore.key")
WITHOUT_VALUE: Mapping[str, str] = {"ssl.endpoint.identification.algorithm": "https"}
_TOKENS = (TOKEN, TOKEN_FILE, TOKEN_URL, TOKEN_PROVIDER)
_LOGINS = (JAAS, USERNAME, PASSWORD)

_NO_PEM_PASSWORD = "a PEM file has no password: leave it out; ssl.key.password is that of the private key"
_NO_CLASSES = "no class of Java is loaded here"
_NO_KERBEROS = "Kerberos (GSSAPI) is not supported: use sasl.mechanism=SCRAM-SHA-512"
_NO_TOKENS_BY_HTTP = (
    "tokens are not fetched over HTTP: let another program write them to the file of "
    f"{TOKEN_FILE}, or give the client a callable (sasl_oauth_token_provider)"
)
REFUSED: Mapping[str, str] = {
    "ssl.truststore.password": _NO_PEM_PASSWORD,
    "ssl.keystore.password": _NO_PEM_PASSWORD,
    "ssl.engine.factory.class": _NO_CLASSES,
    "sasl.client.callback.handler.class": _NO_CLASSES,
    "sasl.login.callback.handler.class": f"{_NO_CLASSES}: tokens come from {TOKEN_FILE}, or from a callable",
    "sasl.login.class": _NO_CLASSES,
    "sasl.kerberos.service.name": _NO_KERBEROS,
    "sasl.oauthbearer.jwt.retriever.class": f"{_NO_CLASSES}: tokens come from {TOKEN_FILE}, or from a callable",
    "sasl.oauthbearer.client.credentials.client.id": _NO_TOKENS_BY_HTTP,
    "sasl.oauthbearer.client.credentials.client.secret": _NO_TOKENS_BY_HTTP,
    "sasl.oauthbearer.scope": _NO_TOKENS_BY_HTTP,
}
"""Settings of Kafka's clients that would be believed, and have no effect here."""
WITHOUT_EFFECT = frozenset(
    [
        "security.providers",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ]
)
"""Settings of Kafka's clients about Java's own machinery: nothing is less safe without them."""


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """Made by `of`, which has checked it. `texts` are the settings that were given, their references unread."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    token_provider: TokenProvider | None = field(default=None, repr=False)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ConnectionSecurity":
        """From values by Kafka's names, None for what was not given; ValueError says what to write."""
        given = {name: value for name, value in values.items() if value is not None}
        provider = given.pop(TOKEN_PROVIDER, None)
        if provider is not None and not callable(provider):
            raise ValueError(f"{TOKEN_PROVIDER} is not callable: it takes nothing and returns a token")
        for name, value in given.items():
            if not isinstance(value, str):
                raise ValueError(f"{name} must be a text, not a {type(value).__name__}")
        texts = {name: text.strip() if name not in SECRETS else text for name, text in given.items()}
        protocol = _protocol(texts.pop(PROTOCOL, SecurityProtocol.PLAINTEXT))
        mechanism = texts.pop(MECHANISM, "").upper()
        _check_used(protocol, mechanism, texts, provider)
        found = cls(protocol, mechanism, texts, provider)
        if protocol.uses_sasl:
            found._check_login()
        return found

    @property
    def is_plain(self) -> bool:
        return self.protocol is SecurityProtocol.PLAINTEXT

    @property
    def has_key(self) -> bool:
        """Whether this client can show a certificate."""
        return any(name.startswith("ssl.keystore.") for name in self.texts)

    def check(self) -> None:
        """Read everything that a connection would read, except tokens; ValueError says what is wrong with it."""
        try:
            self.tls_context()
            if self.protocol.uses_sasl and not self._has_token:
                self.sasl_client()
        except SecretUnreadable as error:
            raise ValueError(str(error)) from None

    # For a connection. Both read files: not on an event loop.

    def tls_context(self) -> ssl.SSLContext | None:
        """None where the protocol has no TLS."""
        if not self.protocol.uses_tls:
            return None
        from twofold.security.tls import TlsError, TlsSettings

        texts = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
        texts |= {name: resolve(name, text) for name, text in self.texts.items() if name.startswith("ssl.")}
        try:
            return TlsSettings.of(texts).client_context()
        except TlsError as error:
            raise SecretUnreadable(str(error)) from None

    def sasl_client(self) -> "SaslClient":
        """One exchange, with the credentials as they are now."""
        from secrets import token_urlsafe

        from twofold.connections import sasl
        from twofold.security.sasl import SaslError
        from twofold.security.scram import ScramMechanism

        try:
            if self._has_token:
                return sasl.OAuthBearerClient(self._token())
            name, password = self._credentials()
            scram = ScramMechanism.of_name(self.mechanism)
            if scram is None:
                return sasl.PlainClient(name, password)
            return sasl.ScramSaslClient(scram, name, password, token_urlsafe(24))
        except (SaslError, ValueError) as error:
            raise SecretUnreadable(str(error)) from None

    @property
    def login(self) -> str:
        """For messages: which user by which mechanism."""
        try:
            user = "" if self._has_token else f"user {self._credentials()[0]!r}, "
        except SecretUnreadable:
            user = ""
        return f"{user}{MECHANISM}={self.mechanism}"

    @property
    def _has_token(self) -> bool:
        return self.mechanism == OAUTHBEARER

    def _token(self) -> str:
        if self.token_provider is not None:
            try:
                return str(self.token_provider())
            except Exception as error:
                # Its text is of the application, and may have the token in it.
                raise SecretUnreadable(f"{TOKEN_PROVIDER} has failed with a {type(error).__name__}") from error
        if TOKEN in self.texts:
            return resolve(TOKEN, self.texts[TOKEN]).strip()
        path = _token_file(self.texts)
        return read_text(f"{TOKEN_FILE} names", resolve(TOKEN_FILE, path)).strip()

    def _credentials(self) -> tuple[str, str]:
        jaas = self.texts.get(JAAS)
        if jaas is None:
            return resolve(USERNAME, self.texts[USERNAME]), resolve(PASSWORD, self.texts[PASSWORD])
        options = _jaas(jaas, self.mechanism).options
        return resolve(JAAS, options["username"]), resolve(JAAS, options["password"])

    # Checks

    def _check_login(self) -> None:
        known = ", ".join(MECHANISMS)
        if not self.mechanism:
            raise ValueError(
                f"{MECHANISM} is missing, and {PROTOCOL}={self.protocol} needs it: one of {known} (Kafka's default, "
                "GSSAPI, is not supported)"
            )
        if self.mechanism not in MECHANISMS:
            hint = ": Kerberos is not supported" if self.mechanism == "GSSAPI" else ""
            raise ValueError(f"{MECHANISM}={self.mechanism}{hint}: use one of {known}")
        if self._has_token:
            self._check_token()
        elif JAAS in self.texts:
            if not is_reference(self.texts[JAAS]):
                _jaas(self.texts[JAAS], self.mechanism)
        else:
            for name in (USERNAME, PASSWORD):
                if not self.texts.get(name):
                    raise ValueError(
                        f"{name} is missing, and {MECHANISM}={self.mechanism} needs it: set {USERNAME} and {PASSWORD}, "
                        f"or {JAAS}"
                    )

    def _check_token(self) -> None:
        given = [name for name in (TOKEN, TOKEN_FILE, TOKEN_URL) if name in self.texts]
        if self.token_provider is not None:
            given.append(TOKEN_PROVIDER)
        if len(given) != 1:
            said = f"there are {' and '.join(given)}" if given else "there is none"
            raise ValueError(
                f"{MECHANISM}=OAUTHBEARER needs one source of tokens, and {said}: set {TOKEN_FILE} to a file, {TOKEN} "
                "to a reference such as ${env:NAME}, or give the client a callable (sasl_oauth_token_provider)"
            )
        if TOKEN not in given and self.token_provider is None:
            _token_file(self.texts)
        jaas = self.texts.get(JAAS)
        if jaas is not None and not is_reference(jaas) and _jaas(jaas, self.mechanism).options:
            raise ValueError(
                f"{JAAS} has options for OAUTHBEARER, which have no effect: leave them out, and set {TOKEN_FILE}"
            )


PLAINTEXT = ConnectionSecurity()


def literal_secret(settings: Mapping[str, str]) -> str | None:
    """The name of a setting that holds a secret itself, and not a reference to one; None where all is well."""
    for name in SECRETS:
        text = settings.get(name)
        if text is None or is_reference(text):
            continue
        if name != JAAS or not _refers(text):
            return name
    return None


def _refers(line: str) -> bool:
    """Whether all that a jaas line says, except the name of the user, stands elsewhere."""
    from twofold.security.jaas import JaasError, parse_jaas

    try:
        options = parse_jaas(line).options
    except JaasError:
        return False  # what it is cannot be told
    return all(is_reference(value) for name, value in options.items() if name != "username")


def _protocol(text: str) -> SecurityProtocol:
    try:
        return SecurityProtocol(text.upper())
    except ValueError:
        raise ValueError(f"{PROTOCOL}={text!r} is none of {', '.join(SecurityProtocol)}") from None


def _check_used(
    protocol: SecurityProtocol, mechanism: str, texts: Mapping[str, str], provider: TokenProvider | None
) -> None:
    """Refuse what would have no effect."""
    names = [*texts, *([MECHANISM] if mechanism else []), *([TOKEN_PROVIDER] if provider is not None else [])]
    for name in names:
        if name in REFUSED:
            raise ValueError(f"{name} is not supported: {REFUSED[name]}")
        if name.startswith("ssl.") and not protocol.uses_tls and texts[name] != WITHOUT_VALUE.get(name):
            with_tls = SecurityProtocol.SASL_SSL if protocol.uses_sasl else SecurityProtocol.SSL
            raise ValueError(
                f"{name} has no effect with {PROTOCOL}={protocol}: set {PROTOCOL}={with_tls}, or leave it out"
            )
        if name.startswith("sasl.") and not protocol.uses_sasl:
            with_sasl = SecurityProtocol.SASL_SSL if protocol.uses_tls else "SASL_SSL or SASL_PLAINTEXT"
            raise ValueError(
                f"{name} has no effect with {PROTOCOL}={protocol}: set {PROTOCOL}={with_sasl}, or leave it out"
            )
        if name in _TOKENS and mechanism and mechanism != OAUTHBEARER:
            raise ValueError(f"{name} has no effect with {MECHANISM}={mechanism}: leave one of them out")
        if name in (USERNAME, PASSWORD) and mechanism == OAUTHBEARER:
            raise ValueError(f"{name} has no effect with {MECHANISM}={mechanism}, which logs in with a token")
        if name in (USERNAME, PASSWORD) and JAAS in texts:
            raise ValueError(f"{name} and {JAAS} both name a user: leave one of them out")


def _jaas(line: str, mechanism: str) -> "JaasEntry":
    from twofold.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, JaasError, parse_jaas

    try:
        entry = parse_jaas(resolve(JAAS, line) if is_reference(line) else line)
    except JaasError as error:
        raise ValueError(f"{JAAS} {error}") from None
    wanted = {PLAIN: PLAIN_MODULE, OAUTHBEARER: OAUTHBEARER_MODULE}.get(mechanism, SCRAM_MODULE)
    if entry.login_module != wanted:
        raise ValueError(f"{JAAS} names {entry.login_module}, and {MECHANISM}={mechanism} needs {wanted}")
    if entry.options.get("tokenauth", "").lower() == "true":
        raise ValueError(f"{JAAS} has tokenauth=true: delegation tokens are not supported, log in with a password")
    if mechanism != OAUTHBEARER and not (entry.username and entry.password):
        raise ValueError(f"{JAAS} has no username, or no password, for {MECHANISM}={mechanism}")
    return entry


def _token_file(texts: Mapping[str, str]) -> str:
    if TOKEN_FILE in texts:
        return texts[TOKEN_FILE]
    url = urlsplit(texts[TOKEN_URL])
    if url.scheme != "file":
        raise ValueError(f"{TOKEN_URL} is no file: URL: {_NO_TOKENS_BY_HTTP}")
    return unquote(url.path)
