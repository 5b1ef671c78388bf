"""OAUTHBEARER: which tokens are accepted, and that an unsigned one never is."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from kits.security.sasl_wire import oauth_first
from twofold.security.oauth import (
    INVALID_TOKEN,
    BadKeySet,
    InvalidToken,
    KeySet,
    OauthServer,
    TokenRules,
    check_token,
)
from twofold.security.sasl import Authenticated, SaslError

NOW_S = 1_800_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "alice", "exp": NOW_S + 100, "iat": NOW_S}


def jwk(key: Any, algorithm: Any, **more: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return found | more


RSA_JWK = jwk(RSA_KEY, jwt.algorithms.RSAAlgorithm, kid="rsa")
EC_JWK = jwk(EC_KEY, jwt.algorithms.ECAlgorithm, kid="ec")
ED_JWK = jwk(ED_KEY, jwt.algorithms.OKPAlgorithm, kid="ed")
KEYS = KeySet.of_json(json.dumps({"keys": [RSA_JWK, EC_JWK, ED_JWK]}))


def token(claims: dict[str, Any] = CLAIMS, key: Any = EC_KEY, algorithm: str = "ES256", **header: str) -> str:
    return jwt.encode(claims, key, algorithm, headers=header)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


def unsigned(claims: dict[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def checked(text: str, rules: TokenRules | None = None, keys: KeySet = KEYS) -> Authenticated:
    return check_token(text, keys, rules or TokenRules(), NOW_S)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (RSA_KEY, "RS256", "rsa"),
        (RSA_KEY, "PS512", "rsa"),
        (EC_KEY, "ES256", "ec"),
        (ED_KEY, "EdDSA", "ed"),
    ],
)
def test_a_signed_token_is_its_subjects_with_or_without_a_key_id(key: Any, algorithm: str, kid: str) -> None:
    expected = Authenticated("alice", (NOW_S + 100) * 1000)
    assert checked(token(CLAIMS, key, algorithm)) == expected
    assert checked(token(CLAIMS, key, algorithm, kid=kid)) == expected


def test_a_token_is_never_taken_unsigned_or_by_a_shared_secret() -> None:
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    by_secret = jwt.encode({}, "x" * 32, "HS256").split(".")
    forged = by_secret[0] + "." + token().split(".")[1]
    import hashlib
    import hmac

    signature = base64.urlsafe_b64encode(hmac.digest(public, forged.encode(), hashlib.sha256)).rstrip(b"=").decode()
    for bad in (unsigned(CLAIMS), f"{forged}.{signature}", token().rsplit(".", 1)[0] + "."):
        with pytest.raises(InvalidToken):
            checked(bad)


@pytest.mark.parametrize(
    ("claims", "rules"),
    [
        (without("exp"), {}),
        (without("iat"), {}),
        (without("sub"), {}),
        (CLAIMS | {"exp": NOW_S}, {}),
        (CLAIMS | {"exp": NOW_S - 1}, {}),
        (CLAIMS | {"exp": "soon"}, {}),
        (CLAIMS | {"exp": True}, {}),
        (CLAIMS | {"nbf": NOW_S + 31}, {}),
        (CLAIMS | {"sub": " "}, {}),
        (CLAIMS | {"sub": 7}, {}),
        (CLAIMS | {"scope": ["a", "a"]}, {}),
        (CLAIMS | {"scope": ["a", " "]}, {}),
        (CLAIMS | {"scope": 7}, {}),
        (CLAIMS, {"audience": ("kafka",)}),
        (CLAIMS | {"aud": "other"}, {"audience": ("kafka",)}),
        (CLAIMS, {"issuer": "https://id"}),
        (CLAIMS | {"iss": "https://other"}, {"issuer": "https://id"}),
        (CLAIMS, {"name_claim": "email"}),
    ],
)
def test_a_token_without_what_it_must_say_is_refused(claims: dict[str, Any], rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        checked(token(claims), TokenRules(**rules))


@pytest.mark.parametrize(
    ("claims", "rules"),
    [
        (CLAIMS | {"iat": NOW_S + 1000}, {}),
        (CLAIMS | {"nbf": NOW_S + 30}, {}),
        (CLAIMS | {"scope": "read write"}, {}),
        (CLAIMS | {"scope": ["read", "write"]}, {}),
        (CLAIMS | {"aud": ["x", "kafka"], "iss": "https://id"}, {"audience": ("kafka",), "issuer": "https://id"}),
        (CLAIMS | {"email": "alice"}, {"name_claim": "email"}),
    ],
)
def test_a_token_that_says_what_is_expected_is_accepted(claims: dict[str, Any], rules: dict[str, Any]) -> None:
    assert checked(token(claims), TokenRules(**rules)).name == "alice"


def test_a_key_that_is_not_in_the_set_signs_nothing() -> None:
    for bad in (token(key=OTHER_KEY), token(key=OTHER_KEY, kid="ec"), token(kid="unknown")):
        with pytest.raises(InvalidToken):
            checked(bad)
    only_256 = KeySet.of_json(json.dumps({"keys": [RSA_JWK | {"alg": "RS256"}]}))
    with pytest.raises(InvalidToken):
        checked(token(CLAIMS, RSA_KEY, "RS512"), keys=only_256)
    for_encryption = {"keys": [EC_JWK | {"use": "enc"}]}
    with pytest.raises(BadKeySet):
        KeySet.of_json(json.dumps(for_encryption))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"keys": 3}', '{"keys": ["x"]}', '{"keys": [{"kty": "oct", "k": "eA"}]}']
)
def test_a_text_without_keys_is_no_key_set(text: str) -> None:
    with pytest.raises(BadKeySet):
        KeySet.of_json(text)


def test_a_bad_token_is_answered_with_json_and_fails_at_the_next_message() -> None:
    for following in (b"\x01", oauth_first(token())):
        made = OauthServer(checked)
        assert made.step(oauth_first(token(without("sub")))) == INVALID_TOKEN.encode()
        assert made.why and "alice" not in made.why
        with pytest.raises(SaslError, match="invalid_token"):
            made.step(following)
        assert made.authenticated is None


def test_the_token_comes_with_any_extensions_and_the_own_authorization_id() -> None:
    made = OauthServer(checked)
    assert made.step(b"n,a=alice,\x01auth=bearer " + token().encode() + b"\x01trace=on\x01\x01") == b""
    assert made.authenticated is not None


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=bob,\x01auth=Bearer TOKEN\x01\x01",
        b"n,,\x01auth=Basic TOKEN\x01\x01",
        b"n,,\x01trace=on\x01\x01",
        b"n,,\x01auth=Bearer TOKEN\x01key1=x\x01\x01",
        b"n,,auth=Bearer TOKEN",
        b"",
        "n,,\x01auth=Bearer ü\x01\x01".encode(),
    ],
)
def test_another_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslError):
        OauthServer(checked).step(message.replace(b"TOKEN", token().encode()))


@given(st.one_of(st.text(max_size=100), st.binary(min_size=1, max_size=60).map(lambda data: token() + data.hex())))
def test_a_text_without_a_meaning_is_an_invalid_token_and_nothing_else(text: str) -> None:
    with pytest.raises(InvalidToken):
        checked(text)


@given(st.binary(max_size=200))
def test_bytes_without_a_meaning_are_refused_and_nothing_else(message: bytes) -> None:
    with pytest.raises(SaslError):
        OauthServer(checked).step(message)
