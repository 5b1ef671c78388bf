"""What one listener asks of its clients while it runs: the context of TLS, the users, the keys of tokens.

1. Files are looked at again, at most once per second, when a client comes. New certificates and keys count for new
   connections. What cannot be read keeps the old ones, and the log says so.
2. With SSL the user is the name in the client's certificate by `ssl.principal.mapping.rules`; without a certificate it
   is ANONYMOUS. With SASL it is the one of the mechanism, whatever the certificate says.
"""

import logging
import secrets
import ssl
from collections.abc import Callable

from twofold.broker.network.admission import ListenerLimits
from twofold.broker.network.authentication import AuthenticationPolicy
from twofold.config.definition import ConfigError
from twofold.config.listener_security import ListenerSecurity, MechanismSettings, TokenSource, listener_securities
from twofold.config.settings import Settings
from twofold.runtime.api import Runtime
from twofold.security.distinguished_names import certificate_name, mapped_user
from twofold.security.oauth import OAUTHBEARER, BadKeySet, KeySet, OauthServer, check_token
from twofold.security.plain import PLAIN, PlainServer
from twofold.security.protocols import SecurityProtocol
from twofold.security.sasl import Authenticated, SaslServer
from twofold.security.scram import ScramMechanism, ScramServer, ScramUsers

ANONYMOUS = "ANONYMOUS"
LOOK_AGAIN_S = 1.0
NONCE_BYTES = 24

log = logging.getLogger(__name__)


class WatchedFiles:
    """Tells when one of a few files has changed."""

    def __init__(self, runtime: Runtime, paths: tuple[str, ...]) -> None:
        self._runtime = runtime
        self._paths = paths
        self._looked_s = runtime.clock.monotonic()
        self._seen = self._look()

    def have_changed(self) -> bool:
        now_s = self._runtime.clock.monotonic()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return False
        self._looked_s = now_s
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(self._state(path) for path in self._paths)

    def _state(self, path: str) -> tuple[int, int] | None:
        try:
            return self._runtime.disk.modified_ms(path), self._runtime.disk.file_size(path)
        except OSError:
            return None


class ListenerGuard:
    """Of one listener. `secret` makes the salts of users that do not exist, and lasts longer than the process."""

    def __init__(
        self,
        runtime: Runtime,
        security: ListenerSecurity,
        users: Callable[[], ScramUsers],
        secret: Callable[[], bytes],
    ) -> None:
        """Raises a ConfigError where a file or a key cannot be used."""
        self.security = security
        self._runtime = runtime
        self._users = users
        self._secret = secret
        self._context = self.security.server_context()
        self._tls_files = WatchedFiles(runtime, security.tls.files() if security.tls else ())
        self._keys: dict[str, TokenKeys] = {
            one.name: TokenKeys(runtime, one.tokens) for one in security.mechanisms.values() if one.tokens
        }
        self.policy = self._make_policy() if security.protocol.uses_sasl else None

    @property
    def is_open_to_all(self) -> bool:
        """There is nothing to do before a request is handled."""
        return self._context is None and self.policy is None

    @property
    def uses_tls(self) -> bool:
        return self._context is not None

    def context(self) -> ssl.SSLContext:
        """For a new connection."""
        if self._tls_files.have_changed():
            self._renew_context()
        assert self._context is not None
        return self._context

    def user_of(self, certificate: bytes | None) -> str | None:
        """Of a client's certificate in DER; None where no rule has a name for it."""
        if certificate is None or self.security.protocol.uses_sasl:
            return ANONYMOUS
        try:
            name = certificate_name(certificate)
        except ValueError:
            return None
        return mapped_user(self.security.mapping_rules, name)

    def warn(self) -> None:
        if PLAIN in self.security.mechanisms and not self.uses_tls:
            log.warning("the listener %s has PLAIN without TLS: passwords cross the network in plain text",
                        self.security.name)  # fmt: skip

    def _renew_context(self) -> None:
        try:
            self._context = self.security.server_context()
        except ConfigError as error:
            log.error("the listener %s keeps its certificates, because the new ones cannot be used: %s",
                      self.security.name, error)  # fmt: skip
        else:
            log.info("the listener %s has new certificates for new connections", self.security.name)

    def _make_policy(self) -> AuthenticationPolicy:
        mechanisms = self.security.mechanisms
        return AuthenticationPolicy(
            mechanisms=tuple(mechanisms),
            new_exchange=lambda name: self._new_exchange(mechanisms[name]),
            max_reauth_ms={name: one.max_reauth_ms for name, one in mechanisms.items()},
            max_frame_bytes=self.security.max_receive_bytes,
        )

    def _new_exchange(self, mechanism: MechanismSettings) -> SaslServer:
        if mechanism.name == PLAIN:
            return PlainServer(mechanism.users)
        if mechanism.name == OAUTHBEARER:
            return OauthServer(self._keys[mechanism.name].check)
        scram = ScramMechanism.of_name(mechanism.name)
        assert scram is not None
        return ScramServer(scram, self._users(), secrets.token_urlsafe(NONCE_BYTES), self._secret())


class ListenerGuards:
    """Of all listeners of one broker, by name. `users` are those of SCRAM."""

    def __init__(self, runtime: Runtime, secret: Callable[[], bytes]) -> None:
        self._runtime = runtime
        self.users = ScramUsers()
        self._secret = secret
        self._guards: dict[str, ListenerGuard] = {}

    def make(self, settings: Settings) -> None:
        """As the settings say, or raise a ConfigError."""
        self._guards = {
            one.name: ListenerGuard(self._runtime, one, lambda: self.users, self._secret)
            for one in listener_securities(settings)
        }
        for guard in self._guards.values():
            guard.warn()

    def of(self, name: str) -> ListenerGuard | None:
        """None where the listener lets every client in."""
        guard = self._guards[name]
        return None if guard.is_open_to_all else guard

    def limits(self) -> dict[str, ListenerLimits]:
        return {
            name: ListenerLimits(guard.security.max_connections, guard.security.max_creation_rate)
            for name, guard in self._guards.items()
        }

    def protocols(self) -> dict[str, SecurityProtocol]:
        return {name: guard.security.protocol for name, guard in self._guards.items()}


class TokenKeys:
    """The keys of a JWK set in a file."""

    def __init__(self, runtime: Runtime, source: TokenSource) -> None:
        self._runtime = runtime
        self._source = source
        self._keys = self._read()
        self._file = WatchedFiles(runtime, (source.key_file,))

    def check(self, token: str) -> Authenticated:
        if self._file.have_changed():
            self._renew()
        return check_token(token, self._keys, self._source.rules, self._runtime.clock.wall_ms() / 1000)

    def _read(self) -> KeySet:
        path = self._source.key_file
        key = "sasl.oauthbearer.jwks.endpoint.url"
        try:
            file = self._runtime.disk.open(path)
        except OSError as error:
            raise ConfigError(key, f"file://{path}", f"cannot be read: {error.strerror}") from None
        try:
            return KeySet.of_json(file.read(0, file.size()))
        except BadKeySet as error:
            raise ConfigError(key, f"file://{path}", str(error)) from None
        finally:
            file.close()

    def _renew(self) -> None:
        try:
            self._keys = self._read()
        except ConfigError as error:
            log.error("the old keys of tokens are kept, because the new ones cannot be used: %s", error)
        else:
            log.info("%s has new keys of tokens", self._source.key_file)
