"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 32."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource:
    resource_type: int
    resource_name: str
    configuration_keys: Sequence[str] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """API key 32, versions 1-4."""

    resources: Sequence[DescribeConfigsResource]
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsSynonym:
    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    name: str
    value: str | None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool
    synonyms: Sequence[DescribeConfigsSynonym]
    config_type: int = 0
    documentation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult:
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: Sequence[DescribeConfigsResourceResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """API key 32, versions 1-4."""

    throttle_time_ms: int = 0
    results: Sequence[DescribeConfigsResult]
