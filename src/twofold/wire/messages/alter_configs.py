"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 33."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: Sequence[AlterableConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """API key 33, versions 0-2."""

    resources: Sequence[AlterConfigsResource]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """API key 33, versions 0-2."""

    throttle_time_ms: int = 0
    responses: Sequence[AlterConfigsResourceResponse]
