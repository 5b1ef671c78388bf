"""Power cuts at any disk operation of any workload.

After a cut the log is a prefix of what was appended, holds all that was synced, has no torn batch, and what it says
about producers, indexes, epochs and stability is what a fresh replay of the same bytes says. A seed that fails prints
how to run it alone: `TWOFOLD_SEED=<seed> pytest tests/log/recovery/test_log_power_cuts.py`.
"""

import asyncio
import os
from random import Random
from typing import Any

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, data_batch, marker
from kits.log.replay import assert_derived_state_is_a_replay, stored_batches
from twofold.log.api import Origin
from twofold.runtime.sim.disk import CutMode, PowerCut
from twofold.wire.errors import KafkaError, KafkaStorageError

SEEDS = [int(os.environ["TWOFOLD_SEED"])] if "TWOFOLD_SEED" in os.environ else range(600)
CUTS = 3
STEPS = 40


class Workload:
    """Random use of one log, and what a reader may expect to find after a cut."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        mode = self.random.choice((CutMode.ORDERED, CutMode.REORDERED))
        self.kit = Kit(
            seed=seed,
            mode=mode,
            segment_bytes=self.random.choice((400, 900, 3000, 10_000)),
            index_interval_bytes=self.random.choice((0, 150, 600)),
            flush_messages=self.random.choice((1, 7, 2**63 - 1, 2**63 - 1)),
            retention_bytes=self.random.choice((-1, -1, 2500)),
        )
        self.batches: list[bytes] = []  # every batch in the log, in order, as it was stored
        self.synced = 0  # how many of them must survive
        self.start = 0  # the log start that was asked for and confirmed
        self.in_doubt: list[bytes] | None = None  # what the log was before an operation that the cut interrupted
        self.producers: dict[int, tuple[int, int, bool]] = {}
        self.leader_epoch = 0

    @property
    def log(self) -> Any:
        return self.kit.log

    def run(self) -> None:
        for _ in range(CUTS):
            self.kit.disk.cut_power_after(self.random.choice((self.random.randrange(60), self.random.randrange(600))))
            try:
                for _ in range(STEPS):
                    self.step()
            except PowerCut:
                pass
            self.kit.disk.crash()
            self.kit.start()
            self.check()

    def step(self) -> None:
        actions = (self.append_plain, self.append_plain, self.append_idempotent, self.append_transactional)
        rare = (self.end_transaction, self.roll, self.flush, self.sync, self.truncate, self.retain, self.restart)
        last = (self.start_anew, self.end_transaction, self.advance_start, self.new_epoch)
        self.random.choice(actions + actions + rare + last)()

    # Actions

    def append(self, batch: bytes, origin: Origin = Origin.CLIENT) -> bool:
        end, segments = self.log.log_end_offset, self.log._segments.all
        expected = bytearray(batch)
        expected[0:8] = end.to_bytes(8, "big")
        expected[12:16] = self.leader_epoch.to_bytes(4, "big")
        self.batches.append(bytes(expected))
        try:
            self.log.append(batch, origin=origin, leader_epoch=self.leader_epoch, transaction_version=0)
        except KafkaStorageError:
            raise
        except KafkaError:
            self.batches.pop()
            return False
        assert segments is self.log._segments.all
        if self.random.random() < 0.8:
            self.log.advance_high_watermark(self.log.log_end_offset)
        self.note_synced()
        return True

    def note_synced(self) -> None:
        """Batches below the recovery point must survive."""
        self.synced = sum(1 for batch in self.batches if int.from_bytes(batch[:8], "big") < self.log.recovery_point)

    def value(self) -> bytes:
        return bytes([self.random.randrange(256)]) * self.random.choice((0, 10, 50, 200))

    def append_plain(self) -> None:
        timestamp = NOW + self.random.randrange(-1000, 1000)
        self.append(data_batch(self.random.randint(1, 3), value=self.value(), timestamp=timestamp))

    def append_idempotent(self) -> None:
        self.append_as(self.random.randrange(3), txn=False)

    def append_transactional(self) -> None:
        self.append_as(10 + self.random.randrange(4), txn=True)

    def append_as(self, pid: int, *, txn: bool) -> None:
        known = {row.producer_id: row for row in self.log.producers()}.get(pid)
        epoch = known.producer_epoch if known else 0
        seq = known.last_sequence + 1 if known else 0
        if self.random.random() < 0.1:
            epoch, seq = epoch + 1, 0
        self.append(data_batch(self.random.randint(1, 3), pid=pid, epoch=epoch, seq=seq, txn=txn, value=self.value()))

    def end_transaction(self) -> None:
        opened = [row for row in self.log.producers() if row.current_txn_start_offset >= 0]
        if opened:
            row = self.random.choice(opened)
            commit = self.random.random() < 0.5
            batch = marker(row.producer_id, row.producer_epoch, commit=commit, coordinator_epoch=1)
            self.append(batch, Origin.COORDINATOR)

    def new_epoch(self) -> None:
        self.leader_epoch += 1
        self.log.assign_leader_epoch(self.leader_epoch)

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush(self.random.choice((None, self.random.randrange(self.log.log_end_offset + 1))))
        self.note_synced()

    def sync(self) -> None:
        asyncio.run(self.log.sync())
        self.synced = len(self.batches)
        self.note_synced()
        assert self.synced == len(self.batches)

    def truncate(self) -> None:
        if self.random.random() < 0.5 or not self.batches:
            return
        offset = self.random.randrange(self.log.log_start_offset, self.log.log_end_offset + 1)
        keep = sum(1 for batch in self.batches if _last_offset(batch) < offset)
        self.in_doubt = list(self.batches)
        self.synced = min(self.synced, keep)
        self.log.truncate_to(offset)
        del self.batches[keep:]
        self.in_doubt = None
        self.note_synced()

    def start_anew(self) -> None:
        """What a follower does whose leader no longer has what it needs next."""
        if self.random.random() < 0.9 or self.log.log_start_offset == self.log.log_end_offset:
            return
        offset = self.log.log_end_offset + self.random.choice((-1, 0, 5))
        self.in_doubt, self.batches = self.batches, []
        self.synced = 0
        self.log.truncate_fully_and_start_at(max(0, offset))
        self.in_doubt = None

    def advance_start(self) -> None:
        if self.random.random() < 0.3:
            offset = self.random.randrange(self.log.log_start_offset, self.log.high_watermark + 1)
            self.log.advance_log_start(offset)

    def retain(self) -> None:
        self.log.apply_retention(NOW)

    def restart(self) -> None:
        if self.random.random() < 0.3:
            before = self.log.producers()
            self.kit.restart()
            assert [row[:3] for row in self.log.producers()] == [row[:3] for row in before]
            self.synced = len(self.batches)
            self.check(clean=True)

    # After a cut

    def check(self, *, clean: bool = False) -> None:
        log = self.log
        found = stored_batches(log)
        candidates = [self.batches] if self.in_doubt is None else [self.batches, self.in_doubt]
        assert any(self.is_suffix_of_prefix(found, batches) for batches in candidates), "not what was appended"
        assert log.failure is None
        if clean:
            assert log.log_end_offset == _end(self.batches, log)
        synced_end = _last_offset(self.batches[self.synced - 1]) + 1 if self.synced else 0
        assert log.log_end_offset >= synced_end, "something that was synced is gone"
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        self.batches = self.prefix_up_to(log.log_end_offset, found)
        assert_derived_state_is_a_replay(log, self.batches)
        self.synced = min(self.synced, len(self.batches))
        self.in_doubt = None

    def is_suffix_of_prefix(self, found: list[bytes], batches: list[bytes]) -> bool:
        """Whole batches without a hole: the log start may have moved, the end may have been lost."""
        if not found:
            return self.log.log_end_offset in (0, self.log.log_start_offset)
        found, batches = _without_epochs(found), _without_epochs(batches)
        try:
            first = batches.index(found[0])
        except ValueError:
            return False
        return batches[first : first + len(found)] == found

    def prefix_up_to(self, end: int, found: list[bytes]) -> list[bytes]:
        source = self.batches
        if self.in_doubt is not None:
            # Cut short while it was truncated or started anew: what it was before, or what it was to become.
            before = end > _end(source, self.log) or (not source and bool(found or self.log.producers()))
            source = self.in_doubt if before else source
        return [batch for batch in source if _last_offset(batch) < end][: -len(found) or None] + found


def _without_epochs(batches: list[bytes]) -> list[bytes]:
    """The leader epoch is not covered by the CRC: a hole of just these four bytes, which no disk makes, goes unseen."""
    return [batch[:12] + batch[16:] for batch in batches]


def _last_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")


def _end(batches: list[bytes], log: Any) -> int:
    return max(_last_offset(batches[-1]) + 1 if batches else 0, log.log_start_offset)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_power_cut_the_log_is_a_prefix_with_all_that_was_synced(seed: int) -> None:
    workload = Workload(seed)
    try:
        workload.run()
    except Exception as error:
        error.add_note(f"run it alone: TWOFOLD_SEED={seed} pytest {__file__}")
        raise


def test_the_directory_of_a_partition_is_durable_after_the_first_sync() -> None:
    for seed in range(50):
        kit = Kit(seed=seed)
        kit.data()
        kit.log.flush()
        kit.crash()
        assert kit.log.log_end_offset == 1, seed
        assert kit.disk.exists(f"{DATA}/{TP}")
