"""What is on disk, and what a failed write or sync means for a log."""

from random import Random

import pytest

from kits.log.noting import DIRECTORY, Place
from kits.log.partition import NOW, data_batch
from twofold.log.durability.flush_plan import FlushPlan
from twofold.log.durability.points import Durability
from twofold.log.recovery.rescue import has_sync_failed
from twofold.runtime.sim.disk import SimDisk
from twofold.wire.errors import KafkaStorageError

# Health


def test_a_failed_write_stops_appends_and_is_told_once() -> None:
    place = Place()
    health = place.log._health
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match="cannot be written: broken"):
            health.fail("cannot be written", OSError("broken"), only_written=True)
    assert place.owner.heard == ["failed: cannot be written: broken"]
    assert not health.sync_failed
    with pytest.raises(KafkaStorageError, match="was not opened again since: cannot be written: broken"):
        place.append()


def test_a_failed_sync_is_marked_in_the_directory_for_the_next_process() -> None:
    place = Place()
    place.append()
    with pytest.raises(KafkaStorageError):
        place.log._health.fail("cannot be synced", OSError("broken"))
    assert place.log.sync_failed
    assert has_sync_failed(place.disk, DIRECTORY)


def test_a_log_that_failed_keeps_its_reason_when_it_is_closed() -> None:
    closed, failed = Place(), Place()
    closed.log._health.close()
    assert closed.log.failure == "it is closed"
    with pytest.raises(KafkaStorageError):
        failed.log._health.fail("cannot be written", OSError("broken"))
    failed.log._health.close()
    assert failed.log.failure == "cannot be written: broken"


def test_a_sync_that_fails_after_its_log_went_has_nothing_to_mend() -> None:
    place = Place()
    health, place.log = place.log._health, place.new_log()
    with pytest.raises(KafkaStorageError):
        health.fail("cannot be synced", OSError("broken"))
    assert place.owner.heard == []


# Durability


def test_only_a_plan_that_ran_and_was_not_overtaken_by_a_cut_moves_the_recovery_point() -> None:
    disk = SimDisk(Random(0), now_ms=lambda: NOW)
    durability = Durability(3)
    durability.note_epochs()
    plan = FlushPlan(disk, 9, 5, durability.generation)
    plan.cover(durability.epochs)
    durability.done(plan)
    assert (durability.recovery_point, bool(durability.epochs)) == (3, True), "it did not run"
    plan.run()
    durability.note_epochs()
    durability.done(plan)
    assert (durability.recovery_point, durability.derived_point) == (9, 5)
    assert durability.epochs, "an epoch began after the plan was made"
    late = FlushPlan(disk, 20, 20, durability.generation)
    late.run()
    assert durability.cut(7)
    durability.done(late)
    assert durability.recovery_point == 7


def test_what_changes_a_log_is_written_again_when_it_closes() -> None:
    place = Place()
    durability = place.log._durability
    durability.unchanged_since_clean_shutdown = True
    assert place.log.prepare_close() is None
    for change in (lambda log: log.append(data_batch(), leader_epoch=0), lambda log: log.assign_leader_epoch(4)):
        log = place.new_log(closed_cleanly=True)
        assert log._durability.unchanged_since_clean_shutdown
        change(log)
        assert not log._durability.unchanged_since_clean_shutdown


def test_one_timer_of_flush_ms_runs_at_a_time() -> None:
    place = Place(flush_ms=500)
    place.append(3)
    assert place.owner.heard == ["flush in 500 ms"]
    place.log.begin_scheduled_flush()
    place.append()
    assert place.owner.heard == ["flush in 500 ms"] * 2
