"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 74."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ListConfigResourcesRequest(Message):
    """API key 74, versions 0-1."""

    __slots__ = ("resource_types",)
    resource_types: Sequence[int]

    def __init__(self, *, resource_types: Sequence[int] = ()) -> None:
        self.resource_types = resource_types


class ConfigResource(Message):
    __slots__ = ("resource_name", "resource_type")
    resource_name: str
    resource_type: int

    def __init__(self, *, resource_name: str, resource_type: int = 16) -> None:
        self.resource_name = resource_name
        self.resource_type = resource_type


class ListConfigResourcesResponse(Message):
    """API key 74, versions 0-1."""

    __slots__ = ("throttle_time_ms", "error_code", "config_resources")
    throttle_time_ms: int
    error_code: int
    config_resources: Sequence[ConfigResource]

    def __init__(
        self, *, throttle_time_ms: int = 0, error_code: int, config_resources: Sequence[ConfigResource]
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.config_resources = config_resources
