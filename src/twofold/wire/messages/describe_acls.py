"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 29."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsRequest:
    """API key 29, versions 1-3."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int = 3
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDescription:
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResource:
    resource_type: int
    resource_name: str
    pattern_type: int = 3
    acls: Sequence[AclDescription]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeAclsResponse:
    """API key 29, versions 1-3."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    resources: Sequence[DescribeAclsResource]
