"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 57."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdateKey:
    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest:
    """API key 57, versions 0-2."""

    timeout_ms: int = 60000
    feature_updates: Sequence[FeatureUpdateKey]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatableFeatureResult:
    feature: str
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse:
    """API key 57, versions 0-2."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    results: Sequence[UpdatableFeatureResult] = ()
