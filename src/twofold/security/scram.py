"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both ends, without channel binding.

1. Names and values are ASCII, and there is no SASLprep, as in Kafka. In a name `,` is `=2C` and `=` is `=3D`.
2. A server answers an unknown user as a known one: a salt that is always the same for that name, in the form that the
   salts of known users have, with the iterations of one of them, and the failure at the second message. It compares in
   constant time.
3. A server takes the flag `n` only, an authorization id that is empty or the user's own, and extensions, which count
   as signed but mean nothing. `tokenauth=true` asks for a delegation token and fails.
4. The header that the client repeats in its last message is compared with the one that it sent first.
5. A client refuses fewer than 4,096 iterations, and more than it should compute for a hostile server.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from twofold.security.sasl import Authenticated, SaslError

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16_384  # of a credential that is stored
MAX_CLIENT_ITERATIONS = 1_000_000

SALT_BYTES = 24  # of the salts that our own clients make
TEXT_SALT_BITS = 130  # of those of Apache Kafka's clients: a number with the digits of base 36

_TEXT_SALT = re.compile(rb"[0-9a-z]{20,26}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST = re.compile(rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]+){_EXTENSIONS}")
_CLIENT_FINAL = re.compile(
    rf"(?P<signed>c=(?P<header>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>{_VALUE})|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ScramMechanism(IntEnum):
    """The codes are those of the protocol and of stored records."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @classmethod
    def of_name(cls, name: str) -> "ScramMechanism | None":
        return next((mechanism for mechanism in cls if mechanism.mechanism_name == name), None)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a password. Its text shows none of it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class CredentialForm(NamedTuple):
    """What a client sees of a credential besides the bytes of its salt."""

    iterations: int = MIN_ITERATIONS
    salt_bytes: int | None = SALT_BYTES
    """None for a salt as Apache Kafka's clients make it."""

    @classmethod
    def of(cls, salt: bytes, iterations: int) -> "CredentialForm":
        return cls(iterations, None if _TEXT_SALT.fullmatch(salt) else len(salt))


class ScramUsers:
    """The users that a server knows: none. Those of a broker are in its metadata."""

    def credential_of(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return None

    def forms_of(self, mechanism: ScramMechanism) -> Mapping[CredentialForm, int]:
        """The forms of the credentials of a mechanism, with the number of users that have each."""
        return {}


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_from_salted_password(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    client_key = _hmac(mechanism, salted_password, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=_hash(mechanism, client_key),
        server_key=_hmac(mechanism, salted_password, b"Server Key"),
        iterations=iterations,
    )


class ScramServer:
    """One exchange as a broker leads it. `nonce` is fresh and printable; `secret` stays the same for the broker's life.

    The secret makes the salts of users that do not exist.
    """

    __slots__ = ("_mechanism", "_users", "_nonce", "_secret", "_header", "_name", "_credential", "_signed",
                 "_full_nonce", "authenticated")  # fmt: skip

    def __init__(self, mechanism: ScramMechanism, users: ScramUsers, nonce: str, secret: bytes) -> None:
        self._mechanism = mechanism
        self._users = users
        self._nonce = nonce
        self._secret = secret
        self._header = ""
        self._name = ""
        self._full_nonce = ""
        self._signed = ""
        self._credential: ScramCredential | None = None
        self.authenticated: Authenticated | None = None

    def step(self, token: bytes) -> bytes:
        return self._final(token) if self._signed else self._first(token)

    def _first(self, token: bytes) -> bytes:
        found = _CLIENT_FIRST.fullmatch(_text(token, self._failure("its first message is not ASCII")))
        if found is None:
            raise self._failure("its first message is not that of a SCRAM client without channel binding")
        name = _unescape(found["name"])
        authzid = found["authzid"]
        if authzid is not None and _unescape(authzid) != name:
            raise self._failure("the authorization id differs from the user name")
        if ",tokenauth=true" in found["extensions"].lower():
            raise self._failure("there are no delegation tokens")
        credential = self._users.credential_of(name, self._mechanism)
        if credential is not None and credential.iterations < MIN_ITERATIONS:
            credential = None
        self._credential = credential
        salt, iterations = self._pretended(name) if credential is None else (credential.salt, credential.iterations)
        self._name = name
        self._header = found["header"]
        self._full_nonce = found["nonce"] + self._nonce
        first = f"r={self._full_nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        self._signed = f"{found['bare']},{first}"
        return first.encode()

    def _final(self, token: bytes) -> bytes:
        found = _CLIENT_FINAL.fullmatch(_text(token, self._failure("its last message is not ASCII")))
        if found is None:
            raise self._failure("its last message is not that of a SCRAM client")
        # librdkafka before 2.6.1 puts its own nonce in front of the whole once more; Apache Kafka lets it in as well.
        if not found["nonce"].endswith(self._full_nonce):
            raise self._failure("the nonce of its last message is another")
        if base64.b64decode(found["header"]) != self._header.encode():
            raise self._failure("its last message repeats another header than it sent")
        credential = self._credential or self._nobody()
        signed = f"{self._signed},{found['signed']}".encode()
        proof = base64.b64decode(found["proof"])
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        if len(proof) != len(signature):
            raise self._refusal()
        is_right = hmac.compare_digest(_hash(self._mechanism, _xor(proof, signature)), credential.stored_key)
        if not is_right or self._credential is None:
            raise self._refusal()
        self.authenticated = Authenticated(self._name)
        return b"v=" + base64.b64encode(_hmac(self._mechanism, credential.server_key, signed))

    def _pretended(self, name: str) -> tuple[bytes, int]:
        """The salt and iterations of a user that does not exist."""
        label = f"{self._mechanism.mechanism_name}\0{name}".encode()
        form = _drawn(self._users.forms_of(self._mechanism), hmac.digest(self._secret, b"form\0" + label, "sha256"))
        return _salt(self._secret, label, form.salt_bytes), form.iterations

    def _nobody(self) -> ScramCredential:
        key = hashlib.new(self._mechanism.hash_name, self._secret).digest()
        return ScramCredential(salt=b"", stored_key=key, server_key=key, iterations=MIN_ITERATIONS)

    def _refusal(self) -> SaslError:
        return SaslError(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism.mechanism_name}"
        )

    def _failure(self, why: str) -> SaslError:
        return SaslError(f"Authentication failed with SASL mechanism {self._mechanism.mechanism_name}: {why}")


class ScramClient:
    """One exchange as a client leads it: `first`, then `answer` to the server's first, then `check` its last."""

    __slots__ = ("_mechanism", "_name", "_password", "_nonce", "_bare", "_signature")

    def __init__(
        self,
        mechanism: ScramMechanism,
        name: str,
        password: str,
        nonce: str,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        """`nonce` is fresh, printable and has no comma."""
        self._mechanism = mechanism
        self._name = name
        self._password = password
        self._nonce = nonce
        more = "".join(f",{key}={value}" for key, value in (extensions or {}).items())
        self._bare = f"n={_escape(name)},r={nonce}{more}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, server_first: bytes) -> bytes:
        text = _text(server_first, SaslError("the broker's first SCRAM message is not ASCII"))
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise SaslError("the broker's first SCRAM message cannot be read")
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise SaslError("the broker's first SCRAM message does not continue the client's nonce")
        iterations = int(found["iterations"]) if len(found["iterations"]) < 10 else MAX_CLIENT_ITERATIONS + 1
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise SaslError(
                f"the broker asks for {found['iterations'][:20]} SCRAM iterations; "
                f"from {MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS} are accepted"
            )
        salted = salted_password(self._mechanism, self._password, base64.b64decode(found["salt"]), iterations)
        without_proof = f"c=biws,r={found['nonce']}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        proof = _xor(client_key, _hmac(self._mechanism, _hash(self._mechanism, client_key), signed))
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._signature = _hmac(self._mechanism, server_key, signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise a SaslError unless the server has shown that it knows the credential."""
        found = _SERVER_FINAL.fullmatch(_text(server_final, SaslError("the broker's last SCRAM message is not ASCII")))
        if found is None:
            raise SaslError("the broker's last SCRAM message cannot be read")
        if found["error"] is not None:
            raise SaslError(f"the broker refused the SCRAM login: {found['error']}")
        if not self._signature or not hmac.compare_digest(base64.b64decode(found["signature"]), self._signature):
            raise SaslError("the broker does not know the password: its SCRAM signature is wrong")


def _drawn(forms: Mapping[CredentialForm, int], chance: bytes) -> CredentialForm:
    """One of the forms, each as often as users have it. One user more changes it for few names."""
    place = int.from_bytes(chance[:8], "big") * sum(forms.values()) >> 64
    for form in sorted(forms, key=lambda form: (form.iterations, form.salt_bytes or 0)):
        place -= forms[form]
        if place < 0:
            return form
    return CredentialForm()


def _salt(secret: bytes, label: bytes, length: int | None) -> bytes:
    needed = 32 if length is None else length
    blocks = (hmac.digest(secret, label + number.to_bytes(4, "big"), "sha256") for number in range(needed // 32 + 1))
    found = b"".join(blocks)[:needed]
    if length is not None:
        return found
    number, text = int.from_bytes(found, "big") >> (256 - TEXT_SALT_BITS), ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text.encode()


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, message: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, message).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(token: bytes, failure: SaslError) -> str:
    try:
        return token.decode("ascii")
    except UnicodeDecodeError:
        raise failure from None


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
