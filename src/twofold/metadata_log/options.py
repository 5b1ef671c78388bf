"""The settings of a node that concern the files of its metadata log."""

from dataclasses import dataclass

from twofold.config.settings import Settings
from twofold.config.topic import LogConfig

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class MetadataLogOptions:
    """The defaults are Kafka's. A retention below 0 is none."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    retention_bytes: int = 100 * 1024 * 1024
    retention_ms: int = 7 * DAY_MS
    delete_delay_ms: int = 60_000

    @classmethod
    def from_settings(cls, settings: Settings) -> "MetadataLogOptions":
        unbounded = settings.optional_int("internal.metadata.log.segment.bytes")
        return cls(
            segment_bytes=settings.int("metadata.log.segment.bytes") if unbounded is None else unbounded,
            segment_ms=settings.int("metadata.log.segment.ms"),
            retention_bytes=settings.int("metadata.max.retention.bytes"),
            retention_ms=settings.int("metadata.max.retention.ms"),
            delete_delay_ms=settings.int("internal.metadata.delete.delay.millis"),
        )

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes, segment_ms=self.segment_ms, file_delete_delay_ms=self.delete_delay_ms
        )
