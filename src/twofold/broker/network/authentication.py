"""The way of one connection to its user with SASL, and back to it: a pure machine.

1. Before a user is known a client may send ApiVersions, as often as it is answered with an error and once without, and
   SaslHandshake. Anything else ends the connection without an answer.
2. After SaslHandshake version 1 tokens come in SaslAuthenticate, after version 0 as frames of their own. Another
   request in their place is answered with ILLEGAL_SASL_STATE (34), late, and the connection ends.
3. A failure is answered late (58; after version 0 not at all), and the connection ends. Nothing is read meanwhile.
4. An authentication may have a lifetime: the shorter of what `connections.max.reauth.ms` allows and what is left of the
   credential. When it is over, the next request ends the connection, unless it is a SaslHandshake.
5. With a lifetime a client may authenticate again at any time, but not within a second: the same user, by the same
   mechanism. Another user is a failure; another mechanism fails at its first token, without an answer.

Frames go in, steps come out; the server carries them out in order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from twofold.broker.api.api_versions import is_software_named
from twofold.security.sasl import Authenticated, SaslError, SaslServer
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.errors import (
    NONE,
    IllegalSaslState,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from twofold.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from twofold.wire.messages.sasl_handshake import SaslHandshakeResponse

SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
HANDSHAKE_KEY = SASL_HANDSHAKE.to_bytes(2, "big")
MIN_REAUTHENTICATION_MS = 1000


@dataclass(frozen=True, slots=True)
class PassOn:
    """The dispatcher handles the request."""


@dataclass(frozen=True, slots=True)
class SendAtOnce:
    frame: bytes | bytearray


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """The error in the shape of the request's API. `reason`: the connection ends after that, and the answer is late."""

    error: KafkaError
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SendLateAndClose:
    """Without a frame the client hears nothing but the end."""

    frame: bytes | bytearray | None
    reason: str


@dataclass(frozen=True, slots=True)
class CloseAtOnce:
    reason: str


AuthenticationStep: TypeAlias = PassOn | SendAtOnce | SendRefusal | SendLateAndClose | CloseAtOnce
PASS_ON = PassOn()


@dataclass(frozen=True, slots=True)
class AuthenticationPolicy:
    """What a listener offers. `new_exchange` begins an exchange of one of its mechanisms."""

    mechanisms: tuple[str, ...]
    new_exchange: Callable[[str], SaslServer]
    max_reauth_ms: Mapping[str, int]
    max_frame_bytes: int = 524_288


class Stage(Enum):
    FIRST = auto()  # no handshake yet
    TOKENS = auto()  # in SaslAuthenticate
    RAW_TOKENS = auto()  # without a header
    OPEN = auto()
    OVER = auto()  # nothing more is read


class Authentication:
    """One connection. `now_ms` is a clock that only goes ahead, `wall_ms` the one that credentials expire by."""

    __slots__ = ("_policy", "_stage", "_knows_versions", "_mechanism", "_exchange", "_version",
                 "_authenticated_ms", "_expires_ms", "_used_mechanism", "user")  # fmt: skip

    def __init__(self, policy: AuthenticationPolicy) -> None:
        self._policy = policy
        self._stage = Stage.FIRST
        self._knows_versions = False
        self._mechanism = ""
        self._exchange: SaslServer | None = None
        self._version = 0  # of the last SaslAuthenticate
        self._authenticated_ms = 0
        self._expires_ms: int | None = None
        self._used_mechanism = ""
        self.user: str | None = None

    @property
    def is_open(self) -> bool:
        """A user is known, and requests are handled."""
        return self._stage is Stage.OPEN

    @property
    def is_finished(self) -> bool:
        """It is open for good: this machine has nothing more to say."""
        return self._stage is Stage.OPEN and self._expires_ms is None

    @property
    def max_frame_bytes(self) -> int | None:
        """How long a frame may be as long as there is no user."""
        return self._policy.max_frame_bytes if self.user is None else None

    def passes(self, key: bytes, now_ms: int) -> bool:
        """Whether a request with this key, the first two bytes of its frame, is for the dispatcher without a look."""
        return (
            self._stage is Stage.OPEN
            and (self._expires_ms is None or now_ms < self._expires_ms)
            and key != HANDSHAKE_KEY
        )

    def receive(self, frame: bytes, now_ms: int, wall_ms: int) -> AuthenticationStep:
        if self._stage is Stage.OVER:
            return CloseAtOnce("it goes on after it was refused")
        if self._stage is Stage.RAW_TOKENS:
            return self._token(frame, now_ms, wall_ms)
        try:
            header = codec.decode_request_header(frame)
        except codec.Undecodable:
            return self._end(CloseAtOnce("its first bytes are no request of Kafka's"))
        api = APIS.get(header.api_key)
        if api is None:
            return self._end(CloseAtOnce(f"API key {header.api_key} does not exist"))
        if self._stage is Stage.OPEN:
            return self._when_open(frame, header, now_ms)
        if self._stage is Stage.TOKENS:
            return self._tokens(frame, header, now_ms, wall_ms)
        if header.api_key == API_VERSIONS:
            return self._api_versions(frame, header)
        if header.api_key == SASL_HANDSHAKE:
            return self._handshake(frame, header)
        return self._end(CloseAtOnce(f"it sent {api.name} before it was authenticated (security.protocol is SASL_*)"))

    def _end(self, step: AuthenticationStep) -> AuthenticationStep:
        self._stage = Stage.OVER
        return step

    # --- before the tokens ---

    def _api_versions(self, frame: bytes, header: codec.RequestHeader) -> AuthenticationStep:
        if self._knows_versions:
            return self._end(CloseAtOnce("it sent ApiVersions again before it was authenticated"))
        if APIS[API_VERSIONS].serves(header.version):
            try:
                request = codec.decode_request(API_VERSIONS, header.version, frame, header.body_offset)
            except codec.Undecodable:
                return self._end(CloseAtOnce("its ApiVersions request cannot be read"))
            self._knows_versions = is_software_named(request, header.version)
        return PASS_ON

    def _handshake(self, frame: bytes, header: codec.RequestHeader) -> AuthenticationStep:
        version = header.version
        if not APIS[SASL_HANDSHAKE].serves(version):
            return self._end(CloseAtOnce(f"SaslHandshake version {version} is not served"))
        try:
            mechanism = codec.decode_request(SASL_HANDSHAKE, version, frame, header.body_offset).mechanism
        except codec.Undecodable:
            return self._end(CloseAtOnce("its SaslHandshake request cannot be read"))
        offered = self._policy.mechanisms
        if mechanism not in offered:
            answer = SaslHandshakeResponse(error_code=UnsupportedSaslMechanism.code, mechanisms=offered)
            named = ",".join(offered)
            reason = f"it asks for the SASL mechanism {mechanism[:32]!r}, and sasl.enabled.mechanisms={named}"
            return self._end(SendLateAndClose(_encoded(answer, header), reason))
        self._mechanism = mechanism
        self._exchange = self._policy.new_exchange(mechanism)
        self._stage = Stage.TOKENS if version else Stage.RAW_TOKENS
        return SendAtOnce(_encoded(SaslHandshakeResponse(error_code=NONE, mechanisms=offered), header))

    # --- tokens ---

    def _tokens(self, frame: bytes, header: codec.RequestHeader, now_ms: int, wall_ms: int) -> AuthenticationStep:
        if header.api_key != SASL_AUTHENTICATE:
            name = APIS[header.api_key].name
            if self._is_other_mechanism():
                return self._end(SendLateAndClose(None, "it authenticates again by another mechanism"))
            return self._end(SendRefusal(_illegal(), f"it sent {name} where a SASL token was expected"))
        if not APIS[SASL_AUTHENTICATE].serves(header.version):
            return self._end(CloseAtOnce(f"SaslAuthenticate version {header.version} is not served"))
        try:
            request = codec.decode_request(SASL_AUTHENTICATE, header.version, frame, header.body_offset)
        except codec.Undecodable:
            return self._end(CloseAtOnce("its SaslAuthenticate request cannot be read"))
        return self._token(request.auth_bytes, now_ms, wall_ms, header)

    def _token(
        self, token: bytes, now_ms: int, wall_ms: int, header: codec.RequestHeader | None = None
    ) -> AuthenticationStep:
        if self._is_other_mechanism():
            return self._end(SendLateAndClose(None, "it authenticates again by another mechanism"))
        exchange = self._exchange
        assert exchange is not None
        try:
            answer = exchange.step(bytes(token))
            found = exchange.authenticated
            if found is not None:
                self._check_user(found)
        except SaslError as error:
            return self._failed(str(error), exchange, header)
        lifetime_ms = 0 if found is None else self._open(found, now_ms, wall_ms)
        if header is None:
            return SendAtOnce(len(answer).to_bytes(4, "big") + answer)
        response = SaslAuthenticateResponse(
            error_code=NONE, error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )
        return SendAtOnce(_encoded(response, header))

    def _failed(self, text: str, exchange: SaslServer, header: codec.RequestHeader | None) -> AuthenticationStep:
        why = getattr(exchange, "why", "") or text
        reason = f"SASL authentication by {self._mechanism} failed: {why}"
        if header is None:
            return self._end(SendLateAndClose(None, reason))
        response = SaslAuthenticateResponse(
            error_code=SaslAuthenticationFailed.code, error_message=text, auth_bytes=b""
        )
        return self._end(SendLateAndClose(_encoded(response, header), reason))

    def _check_user(self, found: Authenticated) -> None:
        if self.user is not None and found.name != self.user:
            raise SaslError("Cannot change principals during re-authentication: this connection has another user")

    def _is_other_mechanism(self) -> bool:
        return self.user is not None and self._mechanism != self._used_mechanism

    # --- when a user is known ---

    def _open(self, found: Authenticated, now_ms: int, wall_ms: int) -> int:
        """The lifetime that the client is told; 0 for none."""
        limits = [] if found.expires_ms is None else [found.expires_ms - wall_ms]
        max_reauth_ms = self._policy.max_reauth_ms.get(self._mechanism, 0)
        if max_reauth_ms > 0:
            limits.append(max_reauth_ms)
        self.user = found.name
        self._used_mechanism = self._mechanism
        self._stage = Stage.OPEN
        self._exchange = None
        self._authenticated_ms = now_ms
        lifetime_ms = max(0, min(limits, default=0))
        self._expires_ms = now_ms + lifetime_ms if limits else None
        return lifetime_ms

    def _when_open(self, frame: bytes, header: codec.RequestHeader, now_ms: int) -> AuthenticationStep:
        if self._expires_ms is None:
            return PASS_ON
        if header.api_key == SASL_HANDSHAKE and APIS[SASL_HANDSHAKE].serves(header.version):
            if now_ms - self._authenticated_ms < MIN_REAUTHENTICATION_MS:
                return SendRefusal(_illegal())
            return self._handshake(frame, header)
        if now_ms >= self._expires_ms:
            return self._end(CloseAtOnce("its authentication has expired, and it did not authenticate again"))
        return PASS_ON


def _illegal() -> IllegalSaslState:
    return IllegalSaslState("this request does not belong here in the SASL exchange")


def _encoded(message: SaslHandshakeResponse | SaslAuthenticateResponse, header: codec.RequestHeader) -> bytearray:
    return codec.encode_response(message, header.api_key, header.version, header.correlation_id)
