"""An LSO that is held for longer than transaction.max.timeout.ms: said once, with the one who holds it."""

import dataclasses
import logging

import pytest

from kits.node.markers import begin, delete, lead
from kits.node.running import running
from kits.node.sockets import on_loop
from twofold.broker.partitions.held_lso import CHECK_INTERVAL_S, HeldLso
from twofold.log.api import TransactionMarker
from twofold.log.segments.segment import Segment

LIMIT_MS = 900_000


class Watch:
    """A check of one broker, at times that the test chooses."""

    def __init__(self, node, caplog):
        self.node = node
        self.limit_ms = LIMIT_MS
        self.held = HeldLso(node.broker.replicas, node.broker.runtime, lambda: self.limit_ms)
        self.now_ms = node.broker.runtime.clock.wall_ms()
        self._caplog = caplog
        node.broker.logs.environment.clock = self  # what is appended is appended at the test's time

    def wall_ms(self):
        return self.now_ms

    def monotonic(self):
        return self.now_ms / 1000

    def check(self, after_ms=0):
        """What a look says, `after_ms` later than the last one."""
        self.now_ms += after_ms
        self._caplog.clear()
        self.held.check(self.now_ms)
        return [r.getMessage() for r in self._caplog.records if r.name == "twofold.broker.partitions.held_lso"]


def watched(tmp_path, caplog, test):
    caplog.set_level(logging.INFO, "twofold.broker.partitions.held_lso")

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 3)
            await test(node, Watch(node, caplog))

    scenario()


def end(node, pid=7, epoch=1, index=0):
    node.broker.replicas.leader("t", index).append_markers([TransactionMarker(pid, epoch, 0, True)])


def test_a_producer_that_holds_the_stable_offset_too_long_is_named_once(tmp_path, caplog):
    async def test(node, watch):
        node.log("t", 1)
        assert watch.check() == []
        begin(node, "t", 1, pid=8, epoch=4)
        end(node, pid=8, epoch=5, index=1)
        begin(node, "t", 1, pid=42, epoch=3)
        assert watch.check(1000) == []
        assert watch.check(LIMIT_MS - 1000) == []
        (line,) = watch.check(1)
        for words in ("t-1", "offset 2", "producer 42", "epoch 3", f"transaction.max.timeout.ms={LIMIT_MS}"):
            assert words in line
        assert [watch.check(LIMIT_MS) for _ in range(3)] == [[], [], []]
        end(node, pid=42, epoch=4, index=1)
        (line,) = watch.check(1)
        assert "ended" in line and "producer 42" in line
        assert watch.check(1) == []

    watched(tmp_path, caplog, test)


def test_a_new_transaction_at_the_stable_offset_has_its_own_time(tmp_path, caplog):
    async def test(node, watch):
        begin(node, "t", pid=1)
        watch.check(LIMIT_MS)
        begin(node, "t", pid=2)
        assert len(watch.check(1)) == 1
        end(node, pid=1)
        (over,) = watch.check(1)
        assert "producer 1 " in over
        assert watch.check(LIMIT_MS - 2) == []
        (line,) = watch.check(1)
        assert "producer 2," in line

    watched(tmp_path, caplog, test)


def test_the_time_of_the_append_counts_whatever_the_records_say(tmp_path, caplog):
    """A client may send the records of last year."""

    async def test(node, watch):
        begin(node, "t", 0, ago_ms=LIMIT_MS * 10)
        begin(node, "t", 1, ago_ms=-60_000)
        assert watch.check() == []
        assert watch.check(LIMIT_MS) == []
        assert [line.split(":")[0] for line in watch.check(1)] == ["t-0", "t-1"]

    watched(tmp_path, caplog, test)


def test_only_leaders_look_and_deleted_topics_are_forgotten(tmp_path, caplog):
    async def test(node, watch):
        begin(node, "t", 0)
        begin(node, "t", 1)
        watch.check()
        lead(node, "t", 0, leader=-1, isr=())
        assert len(watch.check(LIMIT_MS + 1)) == 1
        assert [name.partition for name in watch.held.holders] == [1]
        await delete(node, "t")
        assert watch.check(1) == [], "it did not end"
        assert watch.held.holders == {}

    watched(tmp_path, caplog, test)


def test_a_changed_limit_counts_at_the_next_look(tmp_path, caplog):
    async def test(node, watch):
        begin(node, "t")
        watch.check()
        assert watch.check(5001) == []
        watch.limit_ms = 5000
        assert len(watch.check()) == 1

    watched(tmp_path, caplog, test)


def test_a_clock_that_jumps_back_reports_no_partition(tmp_path, caplog):
    async def test(node, watch):
        begin(node, "t")
        watch.check()
        assert watch.check(-10 * LIMIT_MS) == []
        assert len(watch.check(11 * LIMIT_MS + 1)) == 1

    watched(tmp_path, caplog, test)


def test_a_look_reads_no_files_and_passes_over_partitions_without_transactions(
    tmp_path, caplog, monkeypatch: pytest.MonkeyPatch
):
    async def test(node, watch):
        for index in range(3):
            begin(node, "t", index)
        watch.check()
        read = []
        monkeypatch.setattr(Segment, "headers", lambda self, *position: read.append(position))
        monkeypatch.setattr(Segment, "read", lambda self, *positions: read.append(positions))
        end(node)
        begin(node, "t", 0, epoch=1)
        for _ in range(3):
            watch.check(1000)
        assert read == []
        assert len(watch.held.holders) == 3

    watched(tmp_path, caplog, test)


def test_the_look_is_repeated_until_the_broker_stops(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            slept = []

            class Timers:
                def call_later(self, delay_s, callback):
                    raise AssertionError("not used here")

                async def sleep(self, delay_s):
                    slept.append(delay_s)
                    if len(slept) == 4:
                        raise InterruptedError

            runtime = dataclasses.replace(node.broker.runtime, timers=Timers())
            held = HeldLso(node.broker.replicas, runtime, lambda: LIMIT_MS)
            with pytest.raises(InterruptedError):
                await held.run()
            assert slept == [CHECK_INTERVAL_S] * 4

    scenario()
