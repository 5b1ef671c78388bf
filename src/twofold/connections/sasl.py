"""The client's end of the SASL mechanisms. Pure: what is sent first, and what answers a token of the broker.

PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; GSSAPI needs Kerberos, which is not supported.
"""

from typing import Protocol

from twofold.security.sasl import SaslError
from twofold.security.scram import ScramClient, ScramMechanism

_STOP = b"\x01"  # what ends an OAUTHBEARER exchange that the broker has refused


class SaslClient(Protocol):
    def first(self) -> bytes: ...

    def next(self, token: bytes) -> bytes | None:
        """The answer to a token of the broker; None when the exchange is done. SaslError where the token is wrong."""
        ...


class PlainClient:
    __slots__ = ("_first",)

    def __init__(self, name: str, password: str) -> None:
        if "\0" in name or "\0" in password:
            raise SaslError("PLAIN cannot carry a NUL in a name or a password")
        self._first = f"\0{name}\0{password}".encode()

    def first(self) -> bytes:
        return self._first

    def next(self, token: bytes) -> bytes | None:
        return None


class ScramSaslClient:
    """The broker proves that it knows the password, too."""

    __slots__ = ("_client", "_is_last")

    def __init__(self, mechanism: ScramMechanism, name: str, password: str, nonce: str) -> None:
        self._client = ScramClient(mechanism, name, password, nonce)
        self._is_last = False

    def first(self) -> bytes:
        return self._client.first()

    def next(self, token: bytes) -> bytes | None:
        if self._is_last:
            self._client.check(token)
            return None
        self._is_last = True
        return self._client.answer(token)


class OAuthBearerClient:
    __slots__ = ("_token",)

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or any(letter.isspace() or not letter.isprintable() for letter in token):
            raise SaslError("the OAUTHBEARER token is empty, or has characters that a token cannot have")
        self._token = token

    def first(self) -> bytes:
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def next(self, token: bytes) -> bytes | None:
        # A broker that refuses tells why, in JSON, and waits for this before it ends the exchange.
        return _STOP if token else None
