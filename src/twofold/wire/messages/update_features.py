"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 57."""

from collections.abc import Sequence

from twofold.wire.message import Message


class FeatureUpdateKey(Message):
    __slots__ = ("feature", "max_version_level", "allow_downgrade", "upgrade_type")
    feature: str
    max_version_level: int
    allow_downgrade: bool
    upgrade_type: int

    def __init__(
        self, *, feature: str, max_version_level: int, allow_downgrade: bool = False, upgrade_type: int = 1
    ) -> None:
        self.feature = feature
        self.max_version_level = max_version_level
        self.allow_downgrade = allow_downgrade
        self.upgrade_type = upgrade_type


class UpdateFeaturesRequest(Message):
    """API key 57, versions 0-2."""

    __slots__ = ("timeout_ms", "feature_updates", "validate_only")
    timeout_ms: int
    feature_updates: Sequence[FeatureUpdateKey]
    validate_only: bool

    def __init__(
        self, *, timeout_ms: int = 60000, feature_updates: Sequence[FeatureUpdateKey], validate_only: bool = False
    ) -> None:
        self.timeout_ms = timeout_ms
        self.feature_updates = feature_updates
        self.validate_only = validate_only


class UpdatableFeatureResult(Message):
    __slots__ = ("feature", "error_code", "error_message")
    feature: str
    error_code: int
    error_message: str | None

    def __init__(self, *, feature: str, error_code: int, error_message: str | None) -> None:
        self.feature = feature
        self.error_code = error_code
        self.error_message = error_message


class UpdateFeaturesResponse(Message):
    """API key 57, versions 0-2."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[UpdatableFeatureResult]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        results: Sequence[UpdatableFeatureResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = results
