"""The leader's rules one by one: watermark, followers' fetches, in-sync replicas."""

from typing import NamedTuple

import pytest

from twofold.replication.isr import IsrMember, Reaction
from twofold.replication.leader import NEVER_MS, Follower, FollowerFetch, LeaderState
from twofold.wire.messages.alter_partition import PartitionDataResult

NOW = 1_000_000
LAG_MS = 30_000


class State(NamedTuple):
    replicas: tuple[int, ...] = (1, 2, 3)
    isr: tuple[int, ...] = (1, 2, 3)
    leader_epoch: int = 4
    partition_epoch: int = 7


class Broker(NamedTuple):
    epoch: int = 50
    is_active: bool = True


BROKERS = {name: Broker() for name in (1, 2, 3, 4)}


def begin(log_end=10, **fields):
    return LeaderState.begin(1, State(**fields), log_end, NOW)


def fetched(leading, replica, offset, *, log_end=10, now_ms=NOW, start=0, epoch=50):
    return leading.fetched(replica, FollowerFetch(offset, start, epoch), log_end, now_ms)


def high_watermark(leading, current=0, *, log_end=10, min_in_sync=1, brokers=BROKERS, now_ms=NOW):
    return leading.high_watermark(
        current, log_end, min_in_sync=min_in_sync, brokers=brokers.get, now_ms=now_ms, lag_ms=LAG_MS
    )


def row(error_code=0, *, isr=(1, 2), leader_epoch=4, partition_epoch=8):
    return PartitionDataResult(
        partition_index=0, error_code=error_code, leader_id=1, leader_epoch=leader_epoch, isr=isr,
        partition_epoch=partition_epoch,
    )  # fmt: skip


# --- beginning ---


def test_a_new_leader_epoch_knows_nothing_of_any_follower():
    leading = begin(isr=(1, 2), log_end=10)
    assert leading.followers == {2: Follower(caught_up_ms=NOW), 3: Follower(caught_up_ms=NEVER_MS)}
    assert (leading.epoch_start, leading.isr.committed, leading.isr.pending) == (10, (1, 2), None)


def test_a_leader_without_followers_has_its_own_end_as_high_watermark():
    assert high_watermark(begin(replicas=(1,), isr=(1,)), min_in_sync=2) == 10


def test_a_newer_partition_epoch_keeps_what_is_known_and_ends_what_is_pending():
    leading = fetched(begin(isr=(1, 2)), 3, 10)
    leading = leading.asking(leading.expansion(3, 0, BROKERS.get))
    updated = leading.updated(State((1, 3, 4), (1,), 4, 9))
    assert updated.followers == {3: leading.followers[3], 4: Follower()}
    assert (updated.isr.committed, updated.isr.pending, updated.partition_epoch) == ((1,), None, 9)


@pytest.mark.parametrize("partition_epoch", [6, 7])
def test_metadata_that_says_nothing_new_ends_nothing(partition_epoch):
    leading = fetched(begin(isr=(1, 2)), 3, 10)
    leading = leading.asking(leading.expansion(3, 0, BROKERS.get))
    assert leading.updated(State((1, 2, 3), (1,), 4, partition_epoch)) is leading


# --- the high watermark ---


def test_the_high_watermark_waits_for_the_slowest_member_and_for_those_that_have_not_fetched():
    leading = fetched(begin(), 2, 8)
    assert high_watermark(leading, 3) == 3, "3 has not fetched"
    leading = fetched(leading, 3, 6)
    assert high_watermark(leading, 3) == 6
    assert high_watermark(leading, 7) == 7, "it never falls"


def test_a_replica_that_fell_out_of_the_isr_holds_nothing_back():
    leading = fetched(fetched(begin(isr=(1, 2)), 2, 8), 3, 2, now_ms=NOW - LAG_MS - 1)
    assert high_watermark(leading) == 8


@pytest.mark.parametrize(
    ("broker", "epoch", "age_ms", "expected"),
    [
        (Broker(), 50, 0, 6),
        (Broker(), 50, LAG_MS, 6),
        (Broker(), 50, LAG_MS + 1, 9),
        (Broker(is_active=False), 50, 0, 9),
        (Broker(epoch=51), 50, 0, 9),
        (Broker(epoch=51), -1, 0, 6),
        (None, 50, 0, 9),
    ],
    ids=["caught up", "just so", "too long ago", "fenced", "another process", "without an epoch", "unregistered"],
)
def test_a_replica_that_is_about_to_join_holds_the_high_watermark_back(broker, epoch, age_ms, expected):
    leading = fetched(begin(isr=(1, 2)), 3, 6, log_end=6, now_ms=NOW - age_ms, epoch=epoch)
    leading = fetched(leading, 2, 9)
    brokers = {**BROKERS, 3: broker}
    assert high_watermark(leading, brokers=brokers) == expected


def test_with_fewer_in_sync_than_min_insync_replicas_it_stays():
    leading = fetched(begin(isr=(1, 2)), 2, 10)
    assert high_watermark(leading, 4, min_in_sync=3) == 4
    assert high_watermark(leading, 4, min_in_sync=2) == 10
    leading = fetched(begin(replicas=(1, 2), isr=(1, 2)), 2, 10)
    assert high_watermark(leading, 4, min_in_sync=3) == 10, "no more than there are replicas"


# --- fetches ---


def test_a_follower_is_caught_up_when_it_has_what_there_was_at_its_fetch_before():
    leading = fetched(begin(), 2, 4, log_end=10, now_ms=NOW + 1)
    assert leading.followers[2].caught_up_ms == NOW
    leading = fetched(leading, 2, 10, log_end=20, now_ms=NOW + 2)
    assert leading.followers[2].caught_up_ms == NOW + 1, "the end of then is reached"
    leading = fetched(leading, 2, 15, log_end=30, now_ms=NOW + 3)
    assert leading.followers[2].caught_up_ms == NOW + 1
    leading = fetched(leading, 2, 30, log_end=30, now_ms=NOW + 4)
    assert leading.followers[2].caught_up_ms == NOW + 4


@pytest.mark.parametrize(("epoch", "stale"), [(49, True), (50, False), (51, False), (-1, False)])
def test_a_fetch_of_a_process_that_is_over_is_refused(epoch, stale):
    assert begin().is_stale(FollowerFetch(0, 0, epoch), Broker()) == stale
    assert not begin().is_stale(FollowerFetch(0, 0, epoch), None)


# --- joining and leaving ---


def test_a_follower_joins_with_the_epoch_of_its_fetch():
    leading = fetched(fetched(begin(isr=(1, 2)), 2, 9, epoch=-1), 3, 10)
    change = leading.expansion(3, 10, BROKERS.get)
    assert change.members == (IsrMember(1), IsrMember(2), IsrMember(3, 50))
    assert (change.leader_epoch, change.partition_epoch, change.joining) == (4, 7, 3)
    leading = leading.asking(change)
    assert (leading.isr.committed, leading.isr.maximal) == ((1, 2), (1, 2, 3))


def test_a_follower_must_reach_the_high_watermark_and_the_start_of_the_epoch():
    leading = begin(isr=(1, 2), log_end=10)
    assert fetched(leading, 3, 9).expansion(3, 5, BROKERS.get) is None, "below the start of the epoch"
    assert fetched(leading, 3, 11, log_end=20).expansion(3, 12, BROKERS.get) is None, "below the high watermark"
    assert fetched(leading, 3, 12, log_end=20).expansion(3, 12, BROKERS.get) is not None


@pytest.mark.parametrize("broker", [None, Broker(is_active=False), Broker(epoch=51)])
def test_what_the_controller_would_refuse_is_not_proposed(broker):
    leading = fetched(begin(isr=(1, 2)), 3, 10)
    assert leading.expansion(3, 0, {**BROKERS, 3: broker}.get) is None


def test_one_change_at_a_time():
    leading = fetched(fetched(begin(isr=(1,)), 2, 10), 3, 10)
    leading = leading.asking(leading.expansion(2, 0, BROKERS.get))
    assert leading.expansion(3, 0, BROKERS.get) is None
    assert leading.shrinking(99, NOW + 10**9, LAG_MS) is None


def test_a_member_leaves_when_it_was_not_at_the_end_for_too_long():
    leading = fetched(fetched(begin(), 2, 10, now_ms=NOW + 1), 3, 9, now_ms=NOW + 1)
    assert leading.shrinking(10, NOW + LAG_MS, LAG_MS) is None
    change = leading.shrinking(10, NOW + LAG_MS + 1, LAG_MS)
    assert (change.broker_ids, change.joining) == ((1, 2), None)
    assert leading.shrinking(10, NOW + 10**9, LAG_MS).broker_ids == (1, 2), "an idle one at the end stays"
    leading = leading.asking(change)
    assert leading.isr.maximal == (1, 2, 3), "until the controller has said so, it holds the high watermark back"


def test_an_isr_of_one_does_not_shrink():
    assert begin(isr=(1,)).shrinking(99, NOW + 10**9, LAG_MS) is None


# --- answers ---


def proposed():
    leading = fetched(begin(isr=(1, 2)), 3, 10)
    change = leading.expansion(3, 0, BROKERS.get)
    return leading.asking(change), change


@pytest.mark.parametrize("partition_epoch", [7, 8], ids=["nothing to do", "changed"])
def test_a_success_is_the_new_state(partition_epoch):
    leading, change = proposed()
    after, reaction = leading.answered(change, row(isr=(1, 2, 3), partition_epoch=partition_epoch))
    assert (after.isr.committed, after.isr.pending, after.partition_epoch) == ((1, 2, 3), None, partition_epoch)
    assert reaction is Reaction.COMMITTED


@pytest.mark.parametrize("fields", [{"leader_epoch": 3}, {"leader_epoch": 5}, {"partition_epoch": 6}])
def test_a_success_of_another_time_is_ignored(fields):
    leading, change = proposed()
    assert leading.answered(change, row(**fields)) == (leading, Reaction.IGNORED)


def test_a_success_that_the_metadata_has_told_already_does_not_end_the_next_change():
    leading, change = proposed()
    told = leading.updated(State((1, 2, 3), (1, 2, 3), 4, 8))
    behind = told.asking(told.shrinking(10, NOW + 10**9, LAG_MS))
    assert behind.isr.pending is not None
    assert behind.answered(change, row(isr=(1, 2, 3))) == (behind, Reaction.IGNORED)


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (55, Reaction.ROLLED_BACK), (107, Reaction.ROLLED_BACK),
        (3, Reaction.LEFT_PENDING), (100, Reaction.LEFT_PENDING), (74, Reaction.LEFT_PENDING),
        (95, Reaction.LEFT_PENDING), (42, Reaction.LEFT_PENDING), (108, Reaction.LEFT_PENDING),
        (41, Reaction.SEND_AGAIN), (-1, Reaction.SEND_AGAIN), (56, Reaction.SEND_AGAIN), (7, Reaction.SEND_AGAIN),
    ],
)  # fmt: skip
def test_what_an_error_does_to_a_change(code, reaction):
    leading, change = proposed()
    after, found = leading.answered(change, row(code))
    assert found is reaction
    assert after.isr.committed == (1, 2)
    assert (after.isr.pending is None) == (reaction is Reaction.ROLLED_BACK)
    other = leading.updated(State((1, 2, 3), (1,), 4, 9))
    assert other.answered(change, row(code)) == (other, Reaction.IGNORED), "no change is pending any more"


# --- the low watermark ---


def test_records_are_deleted_when_every_replica_that_lives_has_deleted_them():
    leading = fetched(begin(), 2, 10, start=6)
    assert leading.low_watermark(8, BROKERS.get) == -1, "3 has not said where it starts"
    assert leading.low_watermark(8, {**BROKERS, 3: Broker(is_active=False)}.get) == 6
    leading = fetched(leading, 3, 10, start=9)
    assert leading.low_watermark(8, BROKERS.get) == 6
    leading = fetched(leading, 2, 10, start=8)
    assert leading.low_watermark(8, BROKERS.get) == 8
