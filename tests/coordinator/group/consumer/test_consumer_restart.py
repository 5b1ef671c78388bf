"""What the log says of consumer groups: a coordinator that begins anywhere in it goes on from there."""

import pytest

from kits.coordinator.consumers import REBALANCE, SESSION, ConsumerWorld, Topics, assigned
from twofold.coordinator.group.consumer.records import (
    CURRENT,
    GROUP_EPOCH,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    ConsumerGroupRecord,
    Current,
    MemberSubscription,
)
from twofold.coordinator.group.consumer.state import ConsumerGroupState
from twofold.coordinator.group.records import GroupRecord, GroupValue, LogRecord, decode, encode_key, encode_value
from twofold.machine.schema import MalformedRecord
from twofold.wire.errors import FencedMemberEpoch, UnknownMemberId


def types(log: list[LogRecord]) -> list[int]:
    return [record.type for record in log if isinstance(record, ConsumerGroupRecord)]


def shared() -> ConsumerWorld:
    """a was told to give up 2 and 3, for b."""
    world = ConsumerWorld(Topics(t=4))
    world.join("a")
    world.join("b")
    world.beat("a", 2)
    return world


def test_records_are_in_the_order_in_which_apache_kafka_loads_them():
    world = ConsumerWorld(Topics(t=4))
    world.join("a")
    assert types(world.log) == [SUBSCRIPTION, GROUP_EPOCH, TARGET, TARGET_EPOCH, CURRENT]
    before = len(world.log)
    world.beat("a", 2)
    assert world.log[before:] == []
    world.beat("a", -1)
    gone = world.log[before:]
    assert types(gone) == [CURRENT, TARGET, SUBSCRIPTION, GROUP_EPOCH]
    assert [record.value is None for record in gone if isinstance(record, ConsumerGroupRecord)] == [
        True, True, True, False,
    ]  # fmt: skip


def test_a_member_without_a_classic_part_says_so_in_one_byte():
    """Apache Kafka writes the null of this tagged field."""
    record = ConsumerGroupRecord(SUBSCRIPTION, "g", "m", MemberSubscription(None, None, "c", "/h", ("t",), "", 5, None))
    assert encode_key(record) == b"\0\5\0\1g\0\1m"
    assert encode_value(record) == b"\0\0\0\0\2c\3/h\2\2t\1\0\0\0\5\0\1\0\1\0"


def test_a_group_goes_on_after_a_restart():
    world = shared().restart()
    group = world.group
    assert (group.epoch, group.target_epoch, group.state) == (3, 3, ConsumerGroupState.RECONCILING)
    answer = world.beat("a", 2, owned={"t": [0, 1, 2, 3]})
    assert (answer.member_epoch, assigned(answer)) == (2, None)
    answer = world.beat("a", 2, owned={"t": [0, 1]})
    assert answer.member_epoch == 3
    answer = world.beat("b", 3)
    assert assigned(answer) == {world.topics.known["t"].topic_id: [2, 3]}


def test_a_restart_after_any_batch_leaves_each_partition_one_holder_and_epochs_that_do_not_fall():
    world = shared()
    world.beat("a", 2, owned={"t": [0, 1]})
    world.beat("b", 3)
    world.join("c", instance="i")
    world.beat("a", 3)
    world.beat("a", 3, owned={"t": [0]})
    world.beat("b", 3, owned={"t": [2]})
    world.beat("c", -2, instance="i")
    world.join("d", instance="i")
    world.beat("b", -1)
    epochs = []
    for end in world.batches:
        group = world.restart(world.log[:end]).group
        held = [place for member in group.members.values() for place in member.holds()]
        assert len(held) == len(set(held))
        epochs.append((group.epoch, group.target_epoch))
    assert epochs == sorted(epochs) and len(epochs) >= 8


def test_after_a_restart_a_member_has_a_whole_session_and_a_revocation_its_whole_time():
    world = shared()
    world.advance(SESSION - 1)
    world = world.restart()
    world.advance(SESSION - 1)
    world.beat("a", 2)
    world.beat("b", 3)
    world.advance(REBALANCE - SESSION)
    assert "a" in world.group.members
    world.beat("b", 3)
    world.advance(1)
    with pytest.raises(UnknownMemberId):
        world.beat("a", 2)


def test_a_member_of_before_kip_1251_has_had_its_partitions_since_its_epoch():
    record = ConsumerGroupRecord(CURRENT, "g", "m", Current(7, 6, 0, {}))
    raw = encode_value(record)
    assert raw is not None
    topic = b"\2" + bytes(15) + b"\1" + b"\2\0\0\0\3" + b"\0"
    old = raw[: 2 + 9] + topic + b"\1" + b"\0"
    read = decode(encode_key(record), old)
    assert isinstance(read, ConsumerGroupRecord) and isinstance(read.value, Current)
    assert [dict(held) for held in read.value.assigned.values()] == [{3: 7}]


def test_of_two_that_seem_to_hold_a_partition_the_higher_epoch_wins():
    """A compacted log may have lost the record in which the first gave it up."""
    world = ConsumerWorld(Topics(t=1))
    topic = world.topics.known["t"].topic_id
    held = {topic: {0: 1}}
    records: list[LogRecord] = [
        ConsumerGroupRecord(CURRENT, "g", "new", Current(5, 4, 0, held)),
        ConsumerGroupRecord(CURRENT, "g", "old", Current(3, 2, 0, held)),
    ]
    for log in (records, records[::-1]):
        group = world.restart(log).group
        assert dict(group.holders) == {(topic, 0): "new"}
        gone = ConsumerGroupRecord(CURRENT, "g", "old", None)
        assert dict(world.restart([*log, gone]).group.holders) == {(topic, 0): "new"}


def test_removals_of_what_is_unknown_are_passed_over():
    removals: list[LogRecord] = [
        ConsumerGroupRecord(kind, "g", "m" if kind in (SUBSCRIPTION, TARGET, CURRENT) else "", None)
        for kind in (SUBSCRIPTION, TARGET, CURRENT, TARGET_EPOCH, GROUP_EPOCH)
    ]
    world = ConsumerWorld(Topics(t=1), list(removals))
    assert not world.state.consumers
    world.join("a")
    assert not world.restart([*world.log, *removals[-1:]]).state.consumers


def test_a_simple_group_makes_room_and_a_classic_one_does_not():
    begins = ConsumerGroupRecord(SUBSCRIPTION, "g", "m", MemberSubscription())
    world = ConsumerWorld(Topics(t=1), [GroupRecord("g", GroupValue()), begins])
    assert "g" in world.state.consumers and "g" not in world.state.groups
    with pytest.raises(MalformedRecord, match="classic group g"):
        ConsumerWorld(Topics(t=1), [GroupRecord("g", GroupValue("consumer", 1)), begins])


def test_a_member_in_a_state_of_a_later_version_begins_anew_with_nothing():
    world = ConsumerWorld(Topics(t=4))
    world.join("a")
    current = world.group.members["a"].current._replace(state=9, epoch=2)
    world = world.restart([*world.log, ConsumerGroupRecord(CURRENT, "g", "a", current)])
    world.topics.grow("t", 5)
    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 2, owned={"t": [0]})
    assert world.join("a").member_epoch == 3
