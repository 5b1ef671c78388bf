"""Random faults of the disk, one after the other, under a producer that retries: what was acknowledged is there once.

Every append is synced before it is acknowledged. Faults come at any file; a failed sync may lie afterwards. The log is
mended, or the process is killed before that could happen, or the power is cut.
"""

import asyncio
import os
from random import Random

import pytest

from kits.log.partition import TP, Kit, data_batch, headers
from twofold.log.api import Bound
from twofold.runtime.sim.disk import CutMode
from twofold.wire.errors import KafkaStorageError

SEEDS = range(400 if os.environ.get("TWOFOLD_LONG") else 60)
FILES = (".log", ".index", ".snapshot", ".tmp", "leader-epoch", "partition.metadata", f"/{TP}", "/data")


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        mode = self.random.choice(list(CutMode))
        self.kit = Kit(seed=seed, mode=mode, segment_bytes=400, index_interval_bytes=100, flush_messages=1)
        self.acknowledged = 0

    def hurt(self) -> None:
        disk, match, times = self.kit.disk, self.random.choice(FILES), self.random.choice((1, 1, 2, 5))
        if self.random.random() < 0.4:
            disk.fail_writes(times, match=match)
        else:
            disk.fail_syncs(times, match=match, lose=self.random.random() < 0.7)

    def end(self) -> None:
        """The process dies; a disk that failed may work again for the next one."""
        power_cut = self.random.random() < 0.6
        self.kit.disk.crash(power_cut=power_cut)
        for _ in range(20):
            try:
                self.kit.start()
                if self.kit.log.failure is None:
                    break
            except OSError:
                pass  # nothing can be started on a directory that cannot be written to
            self.kit.disk.crash(power_cut=False)
        self.check()

    def mend(self) -> None:
        for _ in range(20):
            try:
                self.kit.log = asyncio.run(self.kit.manager.mend(self.kit.log))
                return
            except (OSError, KafkaStorageError):
                continue
        raise AssertionError("it could not be mended")

    def produce(self) -> None:
        """One batch, sent again until it is acknowledged."""
        batch = data_batch(self.acknowledged % 3 + 1, pid=7, seq=sum(n % 3 + 1 for n in range(self.acknowledged)))
        for _ in range(50):
            try:
                self.kit.append(batch)
                break
            except KafkaStorageError:
                if self.random.random() < 0.3:
                    self.end()
                else:
                    self.mend()
        else:
            raise AssertionError("it is refused for ever")
        self.acknowledged += 1

    def check(self) -> None:
        log = self.kit.log
        offset, found = log.log_start_offset, []
        while offset < log.log_end_offset:
            read = headers(log.read(offset, 1000, Bound.LOG_END).records)
            found += [header.base_sequence for header in read]
            offset = read[-1].next_offset
        expected = [sum(n % 3 + 1 for n in range(number)) for number in range(self.acknowledged + 1)]
        assert found in (expected[:-1], expected), "all that was acknowledged, once, and at most what was sent since"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives_any_faults_in_a_row(seed: int) -> None:
    story = Story(seed)
    for _ in range(30):
        if story.random.random() < 0.5:
            story.hurt()
        if story.random.random() < 0.1:
            story.end()
        story.produce()
    story.kit.disk.clear_faults()
    story.end()
    story.check()
