"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 30."""

from collections.abc import Sequence

from twofold.wire.message import Message


class AclCreation(Message):
    __slots__ = (
        "resource_type",
        "resource_name",
        "resource_pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def __init__(
        self,
        *,
        resource_type: int,
        resource_name: str,
        resource_pattern_type: int = 3,
        principal: str,
        host: str,
        operation: int,
        permission_type: int,
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.resource_pattern_type = resource_pattern_type
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class CreateAclsRequest(Message):
    """API key 30, versions 1-3."""

    __slots__ = ("creations",)
    creations: Sequence[AclCreation]

    def __init__(self, *, creations: Sequence[AclCreation]) -> None:
        self.creations = creations


class AclCreationResult(Message):
    __slots__ = ("error_code", "error_message")
    error_code: int
    error_message: str | None

    def __init__(self, *, error_code: int, error_message: str | None) -> None:
        self.error_code = error_code
        self.error_message = error_message


class CreateAclsResponse(Message):
    """API key 30, versions 1-3."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[AclCreationResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[AclCreationResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
