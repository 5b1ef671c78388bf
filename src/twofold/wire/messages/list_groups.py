"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 16."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """API key 16, versions 0-5."""

    states_filter: Sequence[str] = ()
    types_filter: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """API key 16, versions 0-5."""

    error_code: int
    groups: Sequence[ListedGroup]
    throttle_time_ms: int = 0
