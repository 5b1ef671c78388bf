"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 50."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UserName:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    """API key 50, versions 0-0."""

    users: Sequence[UserName] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    user: str
    error_code: int
    error_message: str | None
    credential_infos: Sequence[CredentialInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    """API key 50, versions 0-0."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    results: Sequence[DescribeUserScramCredentialsResult]
