"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 31."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DeleteAclsFilter(Message):
    __slots__ = (
        "resource_type_filter",
        "resource_name_filter",
        "pattern_type_filter",
        "principal_filter",
        "host_filter",
        "operation",
        "permission_type",
    )
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int

    def __init__(
        self,
        *,
        resource_type_filter: int,
        resource_name_filter: str | None,
        pattern_type_filter: int = 3,
        principal_filter: str | None,
        host_filter: str | None,
        operation: int,
        permission_type: int,
    ) -> None:
        self.resource_type_filter = resource_type_filter
        self.resource_name_filter = resource_name_filter
        self.pattern_type_filter = pattern_type_filter
        self.principal_filter = principal_filter
        self.host_filter = host_filter
        self.operation = operation
        self.permission_type = permission_type


class DeleteAclsRequest(Message):
    """API key 31, versions 1-3."""

    __slots__ = ("filters",)
    filters: Sequence[DeleteAclsFilter]

    def __init__(self, *, filters: Sequence[DeleteAclsFilter]) -> None:
        self.filters = filters


class DeleteAclsMatchingAcl(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def __init__(
        self,
        *,
        error_code: int,
        error_message: str | None,
        resource_type: int,
        resource_name: str,
        pattern_type: int = 3,
        principal: str,
        host: str,
        operation: int,
        permission_type: int,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.pattern_type = pattern_type
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class DeleteAclsFilterResult(Message):
    __slots__ = ("error_code", "error_message", "matching_acls")
    error_code: int
    error_message: str | None
    matching_acls: Sequence[DeleteAclsMatchingAcl]

    def __init__(
        self, *, error_code: int, error_message: str | None, matching_acls: Sequence[DeleteAclsMatchingAcl]
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.matching_acls = matching_acls


class DeleteAclsResponse(Message):
    """API key 31, versions 1-3."""

    __slots__ = ("throttle_time_ms", "filter_results")
    throttle_time_ms: int
    filter_results: Sequence[DeleteAclsFilterResult]

    def __init__(self, *, throttle_time_ms: int = 0, filter_results: Sequence[DeleteAclsFilterResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.filter_results = filter_results
