"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 74."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesRequest:
    """API key 74, versions 0-1."""

    resource_types: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    resource_name: str
    resource_type: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponse:
    """API key 74, versions 0-1."""

    throttle_time_ms: int = 0
    error_code: int
    config_resources: Sequence[ConfigResource]
