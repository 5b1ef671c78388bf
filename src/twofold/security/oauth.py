"""OAUTHBEARER (RFC 7628) with signed tokens: JSON Web Tokens whose keys are in a JWK set.

1. A token is signed with RSA, RSA-PSS, an elliptic curve or Ed25519. It is never unsigned, and never signed with a
   shared secret. The key is the one that `kid` names; without a `kid` each key that fits the algorithm is tried.
2. `exp`, `iat` and the claim of the name are required. A token that has expired is refused, whatever the clock skew;
   one that is not valid yet (`nbf`) is refused beyond the skew. `iat` may lie ahead.
3. `aud` and `iss` are required, and compared, where an audience or an issuer is expected.
4. `scope` may be a string or a list without blank or repeated elements. It grants nothing.
5. A bad token is answered with a JSON text, and the exchange fails at whatever the client sends next.
6. No error quotes a token or a claim.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from twofold.security.sasl import Authenticated, SaslError

OAUTHBEARER = "OAUTHBEARER"
INVALID_TOKEN = '{"status":"invalid_token"}'
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x21-\x7e \t\r\n]+"
# The claims are checked here: `jwt` would take the time of the machine.
_SIGNATURE_ONLY: Any = {"verify_signature": True} | {
    f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
}
_CLIENT_FIRST = re.compile(rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+={_VALUE}\x01)*)\x01")
_BEARER = re.compile(r"bearer +(?P<token>[-A-Za-z0-9._~+/]+=*)", re.IGNORECASE)


class InvalidToken(Exception):
    """A token that is not accepted. The text is for the broker's log, and quotes nothing of the token."""


class BadKeySet(ValueError):
    """A text that is no JWK set, or has no key that can be used."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say."""

    audience: tuple[str, ...] = ()
    issuer: str | None = None
    clock_skew_s: int = 30
    name_claim: str = "sub"
    scope_claim: str = "scope"


@dataclass(frozen=True, slots=True)
class KeySet:
    """Public keys: (kid, algorithm or None, key type, key)."""

    keys: tuple[tuple[str | None, str | None, str, Any], ...]

    @classmethod
    def of_json(cls, text: str | bytes) -> "KeySet":
        import json

        import jwt

        try:
            read = json.loads(text)
            entries = read["keys"]
            found = []
            for entry in entries:
                if entry.get("use", "sig") != "sig" or entry.get("kty") not in KEY_TYPES.values():
                    continue
                try:
                    key = jwt.PyJWK(entry).key
                except jwt.PyJWTError:
                    continue
                if hasattr(key, "private_bytes"):
                    key = key.public_key()
                found.append((entry.get("kid"), entry.get("alg"), entry["kty"], key))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadKeySet("is no JWK set (RFC 7517)") from None
        if not found:
            raise BadKeySet("has no public key that signs tokens (RSA, EC, OKP)")
        return cls(tuple(found))

    def fitting(self, kid: str | None, algorithm: str) -> Iterable[Any]:
        kind = KEY_TYPES[algorithm[:2]]
        for key_id, key_algorithm, key_type, key in self.keys:
            if key_type == kind and key_algorithm in (None, algorithm) and kid in (None, key_id):
                yield key


def check_token(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> Authenticated:
    """Whose token it is, or an InvalidToken."""
    claims = _signed_claims(token, keys)
    expires_s = _number(claims, "exp")
    _number(claims, "iat")
    if expires_s <= now_s:
        raise InvalidToken("it has expired")
    if "nbf" in claims and _number(claims, "nbf") > now_s + rules.clock_skew_s:
        raise InvalidToken("it is not valid yet (nbf)")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidToken("its issuer is not sasl.oauthbearer.expected.issuer")
    if rules.audience and not set(rules.audience).intersection(_texts(claims, "aud")):
        raise InvalidToken("its audience is not in sasl.oauthbearer.expected.audience")
    scopes = _texts(claims, rules.scope_claim)
    if len(set(scopes)) < len(scopes) or not all(scope.strip() for scope in scopes):
        raise InvalidToken(f"its claim {rules.scope_claim} has a blank or repeated element")
    name = claims.get(rules.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise InvalidToken(f"it has no name (the claim {rules.name_claim})")
    return Authenticated(name.strip(), int(expires_s * 1000))


class OauthServer:
    """One exchange as a broker leads it. `check` tells whose a token is, or raises InvalidToken."""

    __slots__ = ("_check", "_has_failed", "authenticated", "why")

    def __init__(self, check: Callable[[str], Authenticated]) -> None:
        self._check = check
        self._has_failed = False
        self.why = ""  # for the broker's log
        self.authenticated: Authenticated | None = None

    def step(self, token: bytes) -> bytes:
        if self._has_failed:
            raise SaslError(INVALID_TOKEN)
        found = _CLIENT_FIRST.fullmatch(_text(token))
        if found is None:
            raise SaslError("Authentication failed: its first message is not that of an OAUTHBEARER client")
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
        bearer = _BEARER.fullmatch(pairs.get("auth", ""))
        if bearer is None:
            raise SaslError("Authentication failed: its first message has no bearer token (auth=Bearer ...)")
        try:
            who = self._check(bearer["token"])
        except InvalidToken as error:
            self.why = str(error)
            self._has_failed = True
            return INVALID_TOKEN.encode()
        authzid = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        if authzid and authzid != who.name:
            raise SaslError("Authentication failed: the authorization id differs from the name in the token")
        self.authenticated = who
        return b""


def _signed_claims(token: str, keys: KeySet) -> dict[str, Any]:
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise InvalidToken("it is no JSON Web Token") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise InvalidToken("its algorithm is not accepted: it is unsigned, or signed with a shared secret")
    is_known = False
    for key in keys.fitting(kid, algorithm):
        is_known = True
        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=[algorithm], options=_SIGNATURE_ONLY)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return claims
    raise InvalidToken("its signature is wrong" if is_known else "no key of the JWK set fits it (kid, algorithm)")


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise InvalidToken(f"its claim {name} is missing or no time")
    return value


def _texts(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    if value is None:
        return ()
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
        raise InvalidToken(f"its claim {name} is neither a string nor a list of strings")
    return tuple(values)


def _text(token: bytes) -> str:
    try:
        return token.decode("ascii")
    except UnicodeDecodeError:
        raise SaslError("Authentication failed: the OAUTHBEARER message is not ASCII") from None
