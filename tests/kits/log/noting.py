"""A log on a disk in memory whose owner notes what it hears: for tests of the parts of a log."""

from random import Random

from kits.log.partition import DATA, NOW, TP, FakeClock, data_batch, make_runtime
from twofold.config.topic import LogConfig
from twofold.log.environment import LogEnvironment
from twofold.log.log import PartitionLog
from twofold.log.recovery.opening import list_directory
from twofold.log.segments.files import FilePool
from twofold.runtime.sim.disk import SimDisk

DIRECTORY = f"{DATA}/{TP}"


class NotingOwner:
    """Notes what a log tells its owner."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def recovery_point_changed(self, log: PartitionLog) -> None:
        self.heard.append(f"recovery point {log.recovery_point}")

    def log_start_changed(self, log: PartitionLog) -> None:
        self.heard.append(f"log start {log.log_start_offset}")

    def high_watermark_fell(self, log: PartitionLog) -> None:
        self.heard.append(f"high watermark {log.high_watermark}")

    def cleaned_offset_changed(self, log: PartitionLog) -> None:
        self.heard.append(f"cleaned offset {log.cleaned_offset}")

    def log_failed(self, log: PartitionLog) -> None:
        self.heard.append(f"failed: {log.failure}")

    def segment_rolled(self, log: PartitionLog) -> None:
        self.heard.append(f"rolled, {log.segment_count} segments")

    def flush_wanted(self, log: PartitionLog, delay_ms: int) -> None:
        self.heard.append(f"flush in {delay_ms} ms")


class Place:
    """A log on a disk in memory, whose owner notes what it hears."""

    def __init__(self, **config: int) -> None:
        self.disk = SimDisk(Random(0), now_ms=lambda: NOW)
        self.disk.make_dirs(DATA)
        self.clock = FakeClock()
        self.owner = NotingOwner()
        self.config = LogConfig(**config)  # type: ignore[arg-type]
        self.log = self.new_log()

    def new_log(self, *, exists: bool = False, closed_cleanly: bool = False, recovery_point: int = 0) -> PartitionLog:
        runtime = make_runtime(self.disk, self.clock)
        environment = LogEnvironment(
            runtime.disk,
            runtime.clock,
            runtime.random,
            runtime.blocking,
            runtime.spawn,
            FilePool(self.disk, 100),
            owner=self.owner,
            verification_enabled=False,
        )
        return PartitionLog(
            environment,
            DIRECTORY,
            TP,
            self.config,
            listing=list_directory(self.disk, DIRECTORY) if exists else None,
            closed_cleanly=closed_cleanly,
            recovery_point=recovery_point,
        )

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(data_batch(), leader_epoch=0)
        self.log.advance_high_watermark(self.log.log_end_offset)
