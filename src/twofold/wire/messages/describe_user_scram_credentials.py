"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 50."""

from collections.abc import Sequence

from twofold.wire.message import Message


class UserName(Message):
    __slots__ = ("name",)
    name: str

    def __init__(self, *, name: str) -> None:
        self.name = name


class DescribeUserScramCredentialsRequest(Message):
    """API key 50, versions 0-0."""

    __slots__ = ("users",)
    users: Sequence[UserName] | None

    def __init__(self, *, users: Sequence[UserName] | None) -> None:
        self.users = users


class CredentialInfo(Message):
    __slots__ = ("mechanism", "iterations")
    mechanism: int
    iterations: int

    def __init__(self, *, mechanism: int, iterations: int) -> None:
        self.mechanism = mechanism
        self.iterations = iterations


class DescribeUserScramCredentialsResult(Message):
    __slots__ = ("user", "error_code", "error_message", "credential_infos")
    user: str
    error_code: int
    error_message: str | None
    credential_infos: Sequence[CredentialInfo]

    def __init__(
        self, *, user: str, error_code: int, error_message: str | None, credential_infos: Sequence[CredentialInfo]
    ) -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message
        self.credential_infos = credential_infos


class DescribeUserScramCredentialsResponse(Message):
    """API key 50, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[DescribeUserScramCredentialsResult]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        results: Sequence[DescribeUserScramCredentialsResult],
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = results
