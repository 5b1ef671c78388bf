"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 42."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """API key 42, versions 0-2."""

    groups_names: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: str
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """API key 42, versions 0-2."""

    throttle_time_ms: int = 0
    results: Sequence[DeletableGroupResult]
