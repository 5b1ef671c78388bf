"""Committed offsets: who may commit, what is read, deleted and expired."""

from typing import Any
from uuid import UUID

import pytest

from kits.coordinator.groups import WALL, World
from twofold.coordinator.group.context import MINUTE_MS
from twofold.coordinator.group.offsets import Commit, Committer, Wanted
from twofold.coordinator.group.records import GroupRecord, LogRecord, OffsetRecord
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import KafkaError

RETENTION = 10_080 * MINUTE_MS
T0 = {("t", 0): 5}


def refusal(world: World, **who: Any) -> int:
    try:
        codes = world.commit(T0, **who)
    except KafkaError as error:
        return error.code
    assert codes == [0]
    return 0


def in_state(world: World, state: GroupState) -> str:
    """A group with one member, brought into a state; the member's id."""
    if state is GroupState.DEAD:
        return "nobody"
    (member_id,) = world.stable()
    if state is GroupState.EMPTY:
        world.leave(member_id)
    elif state is not GroupState.STABLE:
        world.send_new()
        if state is GroupState.COMPLETING_REBALANCE:
            world.send_join(member_id)
    assert world.group_state() is state
    return member_id


STATES = [
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.DEAD,
]
# Who commits -> the answers in these states; of a group that does not exist (Dead) also from version 9 on.
COMMITTERS: dict[str, tuple[dict[str, str], list[int]]] = {
    "nobody": ({}, [0, 25, 25, 25, 0]),
    "the member": ({"member_id": "member", "generation": "now"}, [25, 0, 27, 0, 22]),
    "the member, a generation ago": ({"member_id": "member", "generation": "old"}, [25, 22, 22, 22, 22]),
    "a stranger": ({"member_id": "x", "generation": "now"}, [25, 25, 25, 25, 22]),
    "a stranger without generation": ({"member_id": "x"}, [0, 25, 25, 25, 0]),
    "the member without generation": ({"member_id": "member"}, [0, 22, 22, 22, 0]),
    "an unknown instance": ({"group_instance_id": "i"}, [0, 25, 25, 25, 0]),
}


@pytest.mark.parametrize("who", COMMITTERS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
def test_which_member_may_commit_in_which_state(who: str, state: GroupState) -> None:
    world = World()
    member_id = in_state(world, state)
    named, codes = COMMITTERS[who]
    fields: dict[str, Any] = {name: member_id if value == "member" else value for name, value in named.items()}
    if "generation" in fields:
        generation = 1 if state is GroupState.DEAD else world.generation()
        fields["generation"] = generation - (fields["generation"] == "old")
    assert refusal(world, **fields) == codes[STATES.index(state)]


def test_a_generation_of_a_group_that_does_not_exist() -> None:
    assert refusal(World(), generation=1, version=8) == 22
    assert refusal(World(), generation=1, version=9) == 69


def test_the_empty_group_id_takes_commits() -> None:
    world = World()
    assert refusal(world, group="") == 0
    assert world.offset(group="") == 5


def test_a_commit_creates_a_group_without_members() -> None:
    world = World()
    world.commit(T0)
    assert world.group_state() is GroupState.EMPTY
    assert world.membership.groups == {}
    assert [type(record) for record in world.log] == [OffsetRecord]


def test_the_last_commit_of_a_partition_wins_within_a_request_too() -> None:
    world = World()
    commits = [Commit("t", None, 0, offset, -1, None) for offset in (1, 2, 3)]
    result = world.offsets.commit(world.state, Committer("g"), commits, 8, world.now)
    assert world.apply(result) == [0, 0, 0]
    assert world.offset() == 3


def test_any_offset_is_taken_and_given_back() -> None:
    world = World()
    for offset in (-5, 0, 2**63 - 1):
        world.commit({("t", 0): offset})
        assert world.offset() == offset


def test_metadata_is_kept_and_null_is_nothing() -> None:
    world = World()
    commits = [Commit("t", None, 0, 1, 7, "mine"), Commit("t", None, 1, 1, -1, None)]
    world.apply(world.offsets.commit(world.state, Committer("g"), commits, 8, world.now))
    ((_, rows),) = world.offsets.fetch(world.state, "g", [Wanted("t", [0, 1, 2])], require_stable=False)
    assert [(row.offset, row.leader_epoch, row.metadata, row.error_code) for row in rows] == [
        (1, 7, "mine", 0),
        (1, -1, "", 0),
        (-1, -1, "", 0),
    ]


@pytest.mark.parametrize(
    ("metadata", "fits"), [("x" * 10, True), ("x" * 11, False), ("é" * 10, True), ("😀" * 5, True), ("😀" * 6, False)]
)
def test_the_limit_of_metadata_counts_characters_as_java_does(metadata: str, fits: bool) -> None:
    world = World(offset_metadata_max_bytes=10)
    commits = [Commit("t", None, 0, 1, -1, metadata), Commit("t", None, 1, 2, -1, "")]
    codes = world.apply(world.offsets.commit(world.state, Committer("g"), commits, 8, world.now))
    assert codes == [0 if fits else 12, 0]
    assert world.all_offsets() == ({("t", 0): 1} if fits else {}) | {("t", 1): 2}


def test_a_commit_keeps_the_session_alive() -> None:
    world = World()
    (member_id,) = world.stable()
    world.advance(9_000)
    world.commit(T0, member_id=member_id, generation=1)
    world.advance(9_000)
    assert world.members() == [member_id]


def test_commits_are_applied_in_time_that_does_not_depend_on_other_groups() -> None:
    """What a commit touches is its own group: everything else of the state is the same object."""
    world = World()
    for number in range(50):
        world.commit({("t", partition): 1 for partition in range(5)}, group=f"g{number}")
    before = world.state
    world.commit(T0, group="g7")
    assert world.state.groups is before.groups
    assert all(world.state.topics(f"g{n}") is before.topics(f"g{n}") for n in range(50) if n != 7)


# Reading


def test_what_was_never_committed_is_no_error() -> None:
    world = World()
    assert world.offset(group="unknown") == -1
    world.commit(T0)
    assert world.offset("u") == world.offset("t", 9) == -1


def test_everything_is_listed_in_order() -> None:
    world = World()
    world.commit({("b", 2): 1, ("b", 10): 2, ("a", 3): 3})
    rows = world.offsets.fetch_all(world.state, "g", require_stable=False)
    assert [(topic, [row.partition for row in found]) for topic, found in rows] == [("a", [3]), ("b", [2, 10])]
    assert world.offsets.fetch_all(world.state, "unknown", require_stable=False) == []


def test_an_offset_of_an_earlier_topic_of_the_same_name_is_not_told() -> None:
    world = World()
    old, new = UUID(int=1), UUID(int=2)
    commits = [Commit("t", old, 0, 5, -1, ""), Commit("t", None, 1, 6, -1, "")]
    world.apply(world.offsets.commit(world.state, Committer("g"), commits, 10, world.now))

    def told(topic_id: UUID | None) -> list[int]:
        ((_, rows),) = world.offsets.fetch(world.state, "g", [Wanted("t", [0, 1], topic_id)], require_stable=False)
        return [row.offset for row in rows]

    assert told(old) == told(None) == [5, 6]
    assert told(new) == [-1, 6]


# Deleting


def test_offsets_of_an_empty_group_are_deleted() -> None:
    world = World()
    world.commit({("t", 0): 1, ("t", 1): 2})
    result = world.offsets.delete(world.state, "g", [Wanted("t", [0, 0, 5])])
    assert result.records == [OffsetRecord("g", "t", 0, None)]
    assert world.apply(result) == [(Wanted("t", [0, 0, 5]), [0, 0, 0])]
    assert world.all_offsets() == {("t", 1): 2}


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    world = World()
    (member_id,) = world.stable(topics=("t",))
    world.commit({("t", 0): 1, ("u", 0): 2}, member_id=member_id, generation=1)
    rows = world.apply(world.offsets.delete(world.state, "g", [Wanted("t", [0]), Wanted("u", [0])]))
    assert [codes for _, codes in rows] == [[86], [0]]
    assert world.all_offsets() == {("t", 0): 1}


def test_a_consumer_group_whose_subscriptions_cannot_be_read_counts_as_subscribed_to_everything() -> None:
    world = World()
    world.stable(topics=("t",))
    world.membership.groups["g"].subscribed_topics = None
    ((_, codes),) = world.offsets.delete(world.state, "g", [Wanted("t", [0])]).response
    assert codes == [86]


@pytest.mark.parametrize(("group", "code"), [("", 24), ("unknown", 69), ("connect", 68)])
def test_groups_whose_offsets_cannot_be_deleted(group: str, code: int) -> None:
    world = World()
    world.stable(group="connect", protocol_type="connect")
    with pytest.raises(KafkaError) as refused:
        world.offsets.delete(world.state, group, [Wanted("t", [0])])
    assert refused.value.code == code


def test_a_group_is_deleted_with_everything_it_has() -> None:
    world = World()
    world.commit({("t", 0): 1, ("u", 1): 2})
    world.commit_in_transaction(7, {("t", 0): 3, ("v", 0): 4})
    records = world.offsets.delete_group(world.state, "g")
    assert records == [
        OffsetRecord("g", "t", 0, None),
        OffsetRecord("g", "u", 1, None),
        OffsetRecord("g", "v", 0, None),
        GroupRecord("g", None),
    ]
    world.write(records)
    assert world.state == world.machine.initial()
    world.end(7, committed=True)
    assert world.state == world.machine.initial()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
def test_only_groups_without_members_are_deleted(state: GroupState) -> None:
    world = World()
    in_state(world, state)
    if state is GroupState.EMPTY:
        assert world.offsets.delete_group(world.state, "g") == [GroupRecord("g", None)]
        return
    with pytest.raises(KafkaError) as refused:
        world.offsets.delete_group(world.state, "g")
    assert refused.value.code == (69 if state is GroupState.DEAD else 68)


def test_a_group_that_is_deleted_and_joined_again_begins_anew() -> None:
    world = World()
    (member_id,) = world.stable()
    world.leave(member_id)
    world.write(world.offsets.delete_group(world.state, "g"))
    world.membership.forget(world.state, "g")
    assert world.join().generation_id == 1


def test_offsets_of_deleted_topics_go_with_them() -> None:
    world = World()
    world.commit({("t", 0): 1, ("u", 0): 2, ("v", 0): 3})
    world.commit_in_transaction(7, {("t", 1): 3, ("w", 0): 9})
    world.write(world.offsets.delete_topics(world.state, "g", ["t", "u", "x"]))
    assert world.all_offsets() == {("v", 0): 3}
    assert list(world.state.open_partitions("g")) == [("w", 0)]
    assert world.offsets.delete_topics(world.state, "g", ["t"]) == []


# Expiring


def expire(world: World, group: str = "g") -> list[LogRecord]:
    records = world.offsets.expire(world.state, group, world.now)
    if records:
        world.write(records)
        world.membership.forget(world.state, group)
    return records


def test_offsets_without_members_expire_after_their_own_commit() -> None:
    world = World()
    world.commit({("t", 0): 1})
    world.wall_ms += 1_000
    world.commit({("t", 1): 1})
    world.wall_ms = WALL + RETENTION - 1
    assert expire(world) == []
    world.wall_ms += 1
    assert expire(world) == [OffsetRecord("g", "t", 0, None)]
    world.wall_ms += 1_000
    assert expire(world) == [OffsetRecord("g", "t", 1, None), GroupRecord("g", None)]
    assert world.state == world.machine.initial()


def test_offsets_of_a_group_that_had_members_expire_after_the_last_one_left() -> None:
    world = World()
    (member_id,) = world.stable()
    world.commit({("t", 0): 1}, member_id=member_id, generation=1)
    world.wall_ms += 2 * RETENTION
    assert expire(world) == [], "a member reads this topic"
    world.leave(member_id)
    world.wall_ms += RETENTION - 1
    assert expire(world) == []
    assert expire(world.restart()) == []
    world.wall_ms += 1
    assert expire(world.restart()) != []


def test_offsets_of_topics_that_no_member_reads_any_more_expire() -> None:
    world = World()
    (member_id,) = world.stable(topics=("t",))
    world.commit({("t", 0): 1, ("u", 0): 1}, member_id=member_id, generation=1)
    world.wall_ms += RETENTION
    assert expire(world) == [OffsetRecord("g", "u", 0, None)]


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE])
def test_nothing_expires_during_a_rebalance(state: GroupState) -> None:
    world = World()
    world.commit({("u", 0): 1})
    in_state(world, state)
    world.wall_ms += RETENTION
    assert expire(world) == []


def test_nothing_expires_while_members_of_an_unknown_type_are_there() -> None:
    world = World()
    world.commit({("u", 0): 1})
    world.stable(protocol_type="connect")
    world.wall_ms += RETENTION
    assert expire(world) == []


def test_an_offset_with_its_own_time_expires_then() -> None:
    world = World()
    world.commit({("t", 0): 1}, version=2, retention=5_000)
    world.commit({("t", 1): 1}, version=2, retention=2 * RETENTION)
    world.wall_ms += 4_999
    assert expire(world) == []
    world.wall_ms += 1
    assert expire(world) == [OffsetRecord("g", "t", 0, None)]
    world.wall_ms += RETENTION
    assert expire(world) == []


def test_a_partition_with_a_pending_offset_does_not_expire_and_neither_does_its_group() -> None:
    world = World()
    world.commit({("t", 0): 1, ("t", 1): 1})
    world.commit_in_transaction(7, {("t", 0): 2})
    world.wall_ms += RETENTION
    assert expire(world) == [OffsetRecord("g", "t", 1, None)]
    world.end(7, committed=False)
    assert expire(world) == [OffsetRecord("g", "t", 0, None), GroupRecord("g", None)]


def test_a_group_with_nothing_but_pending_offsets_stays_until_they_are_gone() -> None:
    """KAFKA-19163."""
    world = World()
    world.commit_in_transaction(7, {("t", 0): 2})
    world.wall_ms += RETENTION
    assert expire(world) == []
    world.end(7, committed=False)
    assert expire(world) == [GroupRecord("g", None)]


def test_an_empty_group_without_offsets_is_removed_but_not_while_a_member_joins() -> None:
    world = World()
    world.send_join()
    assert expire(world) == []
    world.advance(10_000)
    assert world.membership.groups == {}
    assert expire(world) == [GroupRecord("g", None)]
    assert expire(world, "unknown") == []
