"""The settings of a broker that concern its logs."""

from dataclasses import dataclass

from twofold.config.settings import Settings


@dataclass(frozen=True, slots=True)
class CleanerOptions:
    enabled: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 134_217_728
    load_factor: float = 0.9
    max_bytes_per_second: float = 1.7976931348623157e308

    @classmethod
    def from_settings(cls, settings: Settings) -> "CleanerOptions":
        return cls(
            enabled=settings.bool("log.cleaner.enable"),
            backoff_ms=settings.int("log.cleaner.backoff.ms"),
            dedupe_buffer_bytes=settings.int("log.cleaner.dedupe.buffer.size"),
            load_factor=settings.float("log.cleaner.io.buffer.load.factor"),
            max_bytes_per_second=settings.float("log.cleaner.io.max.bytes.per.second"),
        )


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The names are those of server.properties."""

    open_files: int | None = None  # by default what the limit of the process allows
    reserve_bytes: int = 0
    dir_failure_timeout_ms: int = 30_000
    retention_check_interval_ms: int = 300_000
    initial_task_delay_ms: int = 30_000
    flush_offset_checkpoint_interval_ms: int = 60_000
    flush_start_offset_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    transaction_verification_enabled: bool = True
    cleaner: CleanerOptions = CleanerOptions()

    @classmethod
    def from_settings(cls, settings: Settings) -> "LogOptions":
        return cls(
            reserve_bytes=settings.int("log.reserve.bytes"),
            dir_failure_timeout_ms=settings.int("log.dir.failure.timeout.ms"),
            retention_check_interval_ms=settings.int("log.retention.check.interval.ms"),
            initial_task_delay_ms=settings.int("log.initial.task.delay.ms"),
            flush_offset_checkpoint_interval_ms=settings.int("log.flush.offset.checkpoint.interval.ms"),
            flush_start_offset_checkpoint_interval_ms=settings.int("log.flush.start.offset.checkpoint.interval.ms"),
            high_watermark_checkpoint_interval_ms=settings.int("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms=settings.int("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms=settings.int("producer.id.expiration.check.interval.ms"),
            transaction_verification_enabled=settings.bool("transaction.partition.verification.enable"),
            cleaner=CleanerOptions.from_settings(settings),
        )
