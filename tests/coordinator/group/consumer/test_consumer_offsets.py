"""Offsets of consumer groups where no other server is asked: fetches that name only an epoch, and expiry."""

import pytest

from kits.coordinator.consumers import WALL, ConsumerWorld, Topics
from twofold.coordinator.group.consumer.offsets import check_fetch
from twofold.coordinator.group.context import GroupConfig, Instant
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.offsets import Commit, Committer, Offsets
from twofold.coordinator.group.records import OffsetRecord
from twofold.wire.errors import NONE, OffsetMetadataTooLarge, StaleMemberEpoch, UnknownMemberId

WEEK_MS = 7 * 24 * 3_600_000


def test_a_fetch_without_a_member_and_with_an_epoch_is_of_an_unknown_member():
    world = ConsumerWorld(Topics(t=1))
    world.join("a")
    check_fetch(world.group, None, -1)
    with pytest.raises(UnknownMemberId):
        check_fetch(world.group, None, 2)


def test_an_older_epoch_is_not_asked_for_the_partition_of_an_offset_that_is_refused_anyway():
    world = ConsumerWorld(Topics(t=2, u=1))
    world.join("a")
    world.beat("a", 2, topics=["t", "u"])
    assert world.group.members["a"].epoch == 3
    offsets = Offsets(GroupConfig(), Membership(GroupConfig(), lambda: "x"))
    known = world.topics.known
    kept = Commit("t", known["t"].topic_id, 0, 5, -1, "")
    later = Commit("u", known["u"].topic_id, 0, 5, -1, "")
    too_long = later._replace(metadata="x" * 5000)
    committer = Committer("g", 2, "a")
    assert offsets.commit(world.state, committer, [kept, too_long], 9, world.now).response == [
        NONE,
        OffsetMetadataTooLarge.code,
    ]
    with pytest.raises(StaleMemberEpoch):
        offsets.commit(world.state, committer, [kept, later], 9, world.now)


def test_offsets_expire_by_their_own_time_beside_members_that_read_something_else():
    world = ConsumerWorld(Topics(t=1, u=1))
    world.join("a")
    config = GroupConfig()
    offsets = Offsets(config, Membership(config, lambda: "x"))
    commits = [Commit(name, world.topics.known[name].topic_id, 0, 5, -1, "") for name in ("t", "u")]
    result = offsets.commit(world.state, Committer("g", 2, "a"), commits, 9, world.now)
    state = world.machine.apply_all(world.state, enumerate(result.records, len(world.log)))
    assert offsets.expire(state, "g", Instant(WALL + WEEK_MS - 1, 0)) == []
    assert offsets.expire(state, "g", Instant(WALL + WEEK_MS, 0)) == [OffsetRecord("g", "u", 0, None)]
