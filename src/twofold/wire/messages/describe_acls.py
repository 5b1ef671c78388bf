"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 29."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribeAclsRequest(Message):
    """API key 29, versions 1-3."""

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


class AclDescription(Message):
    __slots__ = ("principal", "host", "operation", "permission_type")
    principal: str
    host: str
    operation: int
    permission_type: int

    def __init__(self, *, principal: str, host: str, operation: int, permission_type: int) -> None:
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class DescribeAclsResource(Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "acls")
    resource_type: int
    resource_name: str
    pattern_type: int
    acls: Sequence[AclDescription]

    def __init__(
        self, *, resource_type: int, resource_name: str, pattern_type: int = 3, acls: Sequence[AclDescription]
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.pattern_type = pattern_type
        self.acls = acls


class DescribeAclsResponse(Message):
    """API key 29, versions 1-3."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "resources")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: Sequence[DescribeAclsResource]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        resources: Sequence[DescribeAclsResource],
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.resources = resources
