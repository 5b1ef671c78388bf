"""PLAIN (RFC 4616): name and password in one token.

1. The token is `[authzid] NUL name NUL password`: exactly three parts, name and password not empty.
2. An unknown user fails with the words and the comparison of a known one.
3. An authorization id is empty or the user's own name.
"""

import hashlib
import hmac
from collections.abc import Mapping

from twofold.security.sasl import Authenticated, SaslError

PLAIN = "PLAIN"
_NO_PASSWORD = hashlib.sha256(b"no user has this").digest()


class PlainServer:
    """One exchange as a broker leads it. `users` has passwords by name."""

    __slots__ = ("_users", "authenticated")

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.authenticated: Authenticated | None = None

    def step(self, token: bytes) -> bytes:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslError("Authentication failed: the PLAIN token is not UTF-8") from None
        if len(parts) != 3:
            raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authzid, name, password = parts
        if not name:
            raise SaslError("Authentication failed: username not specified")
        if not password:
            raise SaslError("Authentication failed: password not specified")
        if not self._is_right(name, password):
            raise SaslError("Authentication failed: Invalid username or password")
        if authzid and authzid != name:
            raise SaslError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.authenticated = Authenticated(name)
        return b""

    def _is_right(self, name: str, password: str) -> bool:
        known = self._users.get(name)
        expected = _NO_PASSWORD if known is None else _digest(known)
        return hmac.compare_digest(_digest(password), expected) and known is not None


def _digest(text: str) -> bytes:
    """Of one length whatever the password is, because a comparison tells the length of what it compares."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
