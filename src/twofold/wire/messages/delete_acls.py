"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 31."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilter:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int = 3
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsRequest:
    """API key 31, versions 1-3."""

    filters: Sequence[DeleteAclsFilter]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsMatchingAcl:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    pattern_type: int = 3
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsFilterResult:
    error_code: int
    error_message: str | None
    matching_acls: Sequence[DeleteAclsMatchingAcl]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAclsResponse:
    """API key 31, versions 1-3."""

    throttle_time_ms: int = 0
    filter_results: Sequence[DeleteAclsFilterResult]
