"""What the suites of the log share: a runtime on a disk in memory, batches, a log that can crash and come back."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, cast

from twofold.config.topic import LogConfig
from twofold.log.api import AppendResult, Origin, TransactionMarker
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager, LogOptions
from twofold.records.batch import BatchBuilder, Header, iter_headers
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker
from twofold.runtime.api import Disk, Network, Runtime
from twofold.runtime.sim.disk import CutMode, SimDisk
from twofold.types import ProducerEpoch, ProducerId, TopicPartition

NOW = 1_700_000_000_000
TP = TopicPartition("events", 0)
DATA = "/data"


class FakeClock:
    def __init__(self, now_ms: int = NOW) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class FakeTimers:
    """Timers that fire when a test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.pending.append((delay_s, callback))
        return None

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def no_spawn(coroutine: Coroutine[Any, Any, Any], *, name: str) -> Any:
    """Where no loop runs, background syncs do not either."""
    try:
        return asyncio.get_running_loop().create_task(coroutine, name=name)
    except RuntimeError:
        coroutine.close()
        return None


def make_runtime(disk: Disk, clock: FakeClock | None = None, *, seed: int = 0) -> Runtime:
    return Runtime(
        clock=clock or FakeClock(),
        timers=FakeTimers(),
        disk=disk,
        network=cast(Network, None),
        random=Random(seed),
        spawn=no_spawn,
        blocking=run_inline,
    )


def data_batch(
    count: int = 1,
    *,
    pid: int = -1,
    epoch: int = 0,
    seq: int = 0,
    txn: bool = False,
    timestamp: int = NOW,
    value: bytes = b"value",
    codec: Codec = Codec.NONE,
    step_ms: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    key: bytes | None = None,
) -> bytes:
    builder = BatchBuilder(
        codec,
        producer_id=pid,
        producer_epoch=epoch if pid >= 0 else -1,
        base_sequence=seq if pid >= 0 else -1,
        transactional=txn,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    for index in range(count):
        builder.add(key, value, timestamp + index * step_ms)
    return builder.build()


def marker(
    pid: int,
    epoch: int = 0,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    timestamp: int = NOW,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    return end_transaction_marker(
        commit=commit,
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


class Kit:
    """A data directory with one log of interest, on a disk that can lose power."""

    def __init__(
        self,
        *,
        seed: int = 0,
        config: LogConfig | None = None,
        options: LogOptions | None = None,
        mode: CutMode = CutMode.ORDERED,
        **overrides: Any,
    ) -> None:
        self.clock = FakeClock()
        self.disk = SimDisk(Random(seed), cut_mode=mode, now_ms=self.clock.wall_ms)
        self.config = replace(config or LogConfig(), **overrides)
        self.options = options or LogOptions(transaction_verification_enabled=False)
        self.manager: LogManager
        self.log: PartitionLog
        self.start()

    def start(self) -> PartitionLog:
        self.manager = LogManager(make_runtime(self.disk, self.clock), DATA, self.options, default_config=self.config)
        self.manager.load()
        self.log = self.manager.get_or_create(TP, None, self.config)
        return self.log

    def stop(self) -> None:
        asyncio.run(self.manager.close())

    def restart(self) -> PartitionLog:
        """A clean shutdown and a start."""
        self.stop()
        return self.start()

    def crash(self, *, power_cut: bool = True) -> PartitionLog:
        self.disk.crash(power_cut=power_cut)
        return self.start()

    def keep_times(self) -> None:
        """What a running broker does every minute."""
        asyncio.run(self.manager.keep_producer_times())

    # Appending in few words

    def append(self, batch: bytes, **options: Any) -> AppendResult:
        options.setdefault("leader_epoch", 0)
        result = self.log.append(batch, **options)
        self.log.advance_high_watermark(self.log.log_end_offset)
        return result

    def data(
        self, pid: int = -1, seq: int = 0, epoch: int = 0, *, count: int = 1, txn: bool = False, **more: Any
    ) -> int:
        """Append as a client; returns the base offset."""
        options = {name: more.pop(name) for name in ("guard", "transaction_version", "origin") if name in more}
        return self.append(data_batch(count, pid=pid, seq=seq, epoch=epoch, txn=txn, **more), **options).base_offset

    def mark(self, pid: int, epoch: int = 0, *, commit: bool = True, tv: int = 0, ce: int = 0, **more: Any) -> int:
        batch = marker(pid, epoch, commit=commit, coordinator_epoch=ce, **more)
        return self.append(batch, origin=Origin.COORDINATOR, transaction_version=tv).base_offset


def marker_of(
    pid: int, epoch: int, coordinator_epoch: int = 0, commit: bool = True, version: int = 2, *, by_hand: bool = False
) -> TransactionMarker:
    return TransactionMarker(ProducerId(pid), ProducerEpoch(epoch), coordinator_epoch, commit, version, by_hand)


def headers(records: bytes) -> list[Header]:
    return [header for _, header in iter_headers(records)]
