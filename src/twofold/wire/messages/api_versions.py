"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 18."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ApiVersionsRequest(Message):
    """API key 18, versions 0-4."""

    __slots__ = ("client_software_name", "client_software_version")
    client_software_name: str
    client_software_version: str

    def __init__(self, *, client_software_name: str = "", client_software_version: str = "") -> None:
        self.client_software_name = client_software_name
        self.client_software_version = client_software_version


class ApiVersion(Message):
    __slots__ = ("api_key", "min_version", "max_version")
    api_key: int
    min_version: int
    max_version: int

    def __init__(self, *, api_key: int, min_version: int, max_version: int) -> None:
        self.api_key = api_key
        self.min_version = min_version
        self.max_version = max_version


class SupportedFeatureKey(Message):
    __slots__ = ("name", "min_version", "max_version")
    name: str
    min_version: int
    max_version: int

    def __init__(self, *, name: str, min_version: int, max_version: int) -> None:
        self.name = name
        self.min_version = min_version
        self.max_version = max_version


class FinalizedFeatureKey(Message):
    __slots__ = ("name", "max_version_level", "min_version_level")
    name: str
    max_version_level: int
    min_version_level: int

    def __init__(self, *, name: str, max_version_level: int, min_version_level: int) -> None:
        self.name = name
        self.max_version_level = max_version_level
        self.min_version_level = min_version_level


class ApiVersionsResponse(Message):
    """API key 18, versions 0-4."""

    __slots__ = (
        "error_code",
        "api_keys",
        "throttle_time_ms",
        "supported_features",
        "finalized_features_epoch",
        "finalized_features",
        "zk_migration_ready",
    )
    error_code: int
    api_keys: Sequence[ApiVersion]
    throttle_time_ms: int
    supported_features: Sequence[SupportedFeatureKey]
    finalized_features_epoch: int
    finalized_features: Sequence[FinalizedFeatureKey]
    zk_migration_ready: bool

    def __init__(
        self,
        *,
        error_code: int,
        api_keys: Sequence[ApiVersion],
        throttle_time_ms: int = 0,
        supported_features: Sequence[SupportedFeatureKey] = (),
        finalized_features_epoch: int = -1,
        finalized_features: Sequence[FinalizedFeatureKey] = (),
        zk_migration_ready: bool = False,
    ) -> None:
        self.error_code = error_code
        self.api_keys = api_keys
        self.throttle_time_ms = throttle_time_ms
        self.supported_features = supported_features
        self.finalized_features_epoch = finalized_features_epoch
        self.finalized_features = finalized_features
        self.zk_migration_ready = zk_migration_ready
