"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 44."""

from collections.abc import Sequence

from twofold.wire.message import Message


class AlterableConfig(Message):
    __slots__ = ("name", "config_operation", "value")
    name: str
    config_operation: int
    value: str | None

    def __init__(self, *, name: str, config_operation: int, value: str | None) -> None:
        self.name = name
        self.config_operation = config_operation
        self.value = value


class AlterConfigsResource(Message):
    __slots__ = ("resource_type", "resource_name", "configs")
    resource_type: int
    resource_name: str
    configs: Sequence[AlterableConfig]

    def __init__(self, *, resource_type: int, resource_name: str, configs: Sequence[AlterableConfig]) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = configs


class IncrementalAlterConfigsRequest(Message):
    """API key 44, versions 0-1."""

    __slots__ = ("resources", "validate_only")
    resources: Sequence[AlterConfigsResource]
    validate_only: bool

    def __init__(self, *, resources: Sequence[AlterConfigsResource], validate_only: bool) -> None:
        self.resources = resources
        self.validate_only = validate_only


class AlterConfigsResourceResponse(Message):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name")
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str

    def __init__(self, *, error_code: int, error_message: str | None, resource_type: int, resource_name: str) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class IncrementalAlterConfigsResponse(Message):
    """API key 44, versions 0-1."""

    __slots__ = ("throttle_time_ms", "responses")
    throttle_time_ms: int
    responses: Sequence[AlterConfigsResourceResponse]

    def __init__(self, *, throttle_time_ms: int = 0, responses: Sequence[AlterConfigsResourceResponse]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses
