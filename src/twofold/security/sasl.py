"""What all SASL mechanisms share: how an exchange fails, and what it has found when it is done."""

from dataclasses import dataclass
from typing import Protocol


class SaslError(Exception):
    """An exchange that failed. The text goes to the other end: it tells neither a secret nor whether a user exists."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The user of a finished exchange. `expires_ms` is the end of its credential by the wall clock, if it has one."""

    name: str
    expires_ms: int | None = None


class SaslServer(Protocol):
    """One exchange as the broker leads it: a token of the client in, the answer out."""

    @property
    def authenticated(self) -> Authenticated | None:
        """None until the exchange is done."""
        ...

    def step(self, token: bytes) -> bytes:
        """The answer to a token, or a SaslError. Call only while `authenticated` is None."""
        ...
