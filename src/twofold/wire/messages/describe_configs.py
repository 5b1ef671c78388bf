"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 32."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribeConfigsResource(Message):
    __slots__ = ("resource_type", "resource_name", "configuration_keys")
    resource_type: int
    resource_name: str
    configuration_keys: Sequence[str] | None

    def __init__(
        self, *, resource_type: int, resource_name: str, configuration_keys: Sequence[str] | None = ()
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configuration_keys = configuration_keys


class DescribeConfigsRequest(Message):
    """API key 32, versions 1-4."""

    __slots__ = ("resources", "include_synonyms", "include_documentation")
    resources: Sequence[DescribeConfigsResource]
    include_synonyms: bool
    include_documentation: bool

    def __init__(
        self,
        *,
        resources: Sequence[DescribeConfigsResource],
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> None:
        self.resources = resources
        self.include_synonyms = include_synonyms
        self.include_documentation = include_documentation


class DescribeConfigsSynonym(Message):
    __slots__ = ("name", "value", "source")
    name: str
    value: str | None
    source: int

    def __init__(self, *, name: str, value: str | None, source: int) -> None:
        self.name = name
        self.value = value
        self.source = source


class DescribeConfigsResourceResult(Message):
    __slots__ = (
        "name",
        "value",
        "read_only",
        "config_source",
        "is_sensitive",
        "synonyms",
        "config_type",
        "documentation",
    )
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: Sequence[DescribeConfigsSynonym]
    config_type: int
    documentation: str | None

    def __init__(
        self,
        *,
        name: str,
        value: str | None,
        read_only: bool,
        config_source: int = -1,
        is_sensitive: bool,
        synonyms: Sequence[DescribeConfigsSynonym],
        config_type: int = 0,
        documentation: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_sensitive = is_sensitive
        self.synonyms = synonyms
        self.config_type = config_type
        self.documentation = documentation


class DescribeConfigsResult(Message):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name", "configs")
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: Sequence[DescribeConfigsResourceResult]

    def __init__(
        self,
        *,
        error_code: int,
        error_message: str | None,
        resource_type: int,
        resource_name: str,
        configs: Sequence[DescribeConfigsResourceResult],
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = configs


class DescribeConfigsResponse(Message):
    """API key 32, versions 1-4."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[DescribeConfigsResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[DescribeConfigsResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
