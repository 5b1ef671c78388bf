"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 15."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """API key 15, versions 0-6."""

    groups: Sequence[str] = ()
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: str
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: int
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: Sequence[DescribedGroupMember]
    authorized_operations: int = -2147483648
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """API key 15, versions 0-6."""

    groups: Sequence[DescribedGroup]
    throttle_time_ms: int = 0
