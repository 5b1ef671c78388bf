"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 30."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreation:
    resource_type: int
    resource_name: str
    resource_pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsRequest:
    """API key 30, versions 1-3."""

    creations: Sequence[AclCreation]


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreationResult:
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAclsResponse:
    """API key 30, versions 1-3."""

    throttle_time_ms: int = 0
    results: Sequence[AclCreationResult]
