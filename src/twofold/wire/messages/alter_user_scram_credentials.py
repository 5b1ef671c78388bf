"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 51."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ScramCredentialDeletion(Message):
    __slots__ = ("name", "mechanism")
    name: str
    mechanism: int

    def __init__(self, *, name: str, mechanism: int) -> None:
        self.name = name
        self.mechanism = mechanism


class ScramCredentialUpsertion(Message):
    __slots__ = ("name", "mechanism", "iterations", "salt", "salted_password")
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __init__(self, *, name: str, mechanism: int, iterations: int, salt: bytes, salted_password: bytes) -> None:
        self.name = name
        self.mechanism = mechanism
        self.iterations = iterations
        self.salt = salt
        self.salted_password = salted_password


class AlterUserScramCredentialsRequest(Message):
    """API key 51, versions 0-0."""

    __slots__ = ("deletions", "upsertions")
    deletions: Sequence[ScramCredentialDeletion]
    upsertions: Sequence[ScramCredentialUpsertion]

    def __init__(
        self, *, deletions: Sequence[ScramCredentialDeletion], upsertions: Sequence[ScramCredentialUpsertion]
    ) -> None:
        self.deletions = deletions
        self.upsertions = upsertions


class AlterUserScramCredentialsResult(Message):
    __slots__ = ("user", "error_code", "error_message")
    user: str
    error_code: int
    error_message: str | None

    def __init__(self, *, user: str, error_code: int, error_message: str | None) -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message


class AlterUserScramCredentialsResponse(Message):
    """API key 51, versions 0-0."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[AlterUserScramCredentialsResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[AlterUserScramCredentialsResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
