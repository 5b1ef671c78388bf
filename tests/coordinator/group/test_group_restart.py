"""What a new coordinator makes of the log of the old one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kits.coordinator.groups import REBALANCE, SESSION, World, subscription
from twofold.coordinator.group.overview import describe_group, list_groups
from twofold.coordinator.group.records import (
    GroupRecord,
    GroupValue,
    LogRecord,
    OffsetRecord,
    OffsetValue,
    TransactionEnd,
    encode_offset_value,
)
from twofold.coordinator.group.state import GroupMachine, GroupsState, committed, log_offset
from twofold.coordinator.group.states import GroupState


def test_members_survive_with_a_full_session_each() -> None:
    world = World()
    first, second = world.stable(2)
    world.advance(SESSION - 1)
    world = world.restart()
    assert world.members() == [first, second]
    assert world.group_state() is GroupState.STABLE
    world.advance(SESSION - 1)
    assert world.heartbeat(first, 1) == 0
    assert world.sync(first, 1).assignment == first.encode()
    world.advance(1)
    assert world.members() == [first]


def test_a_rebalance_that_was_under_way_is_forgotten_and_begins_again_with_the_next_join() -> None:
    world = World()
    (first,) = world.stable()
    newcomer, _ = world.send_new()
    world.send_join(first)
    assert world.generation() == 2
    world = world.restart()
    assert (world.generation(), world.members()) == (1, [first])
    assert world.heartbeat(newcomer, 2) == 25
    assert world.heartbeat(first, 2) == 22
    answer = world.join(first)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 2, first)


def test_followers_join_again_after_a_restart_with_the_protocols_they_have() -> None:
    world = World()
    first, second = world.stable(2, protocols=("range", "sticky"))
    world = world.restart()
    world.send_join(second, protocols=("range", "sticky"))
    token = world.send_join(first, protocols=("range", "sticky"))
    assert world.answer(token).protocol_name == "range"


def test_an_empty_group_keeps_its_generation() -> None:
    world = World()
    (first,) = world.stable()
    world.leave(first)
    world = world.restart()
    assert world.group_state() is GroupState.EMPTY
    assert world.membership.groups == {}
    assert world.join().generation_id == 3


def test_groups_whose_emptiness_is_in_the_log_take_no_memory() -> None:
    world = World()
    for number in range(20):
        (member,) = world.stable(group=f"g{number}")
        world.leave(member, group=f"g{number}")
    assert world.membership.groups == {}
    assert len(world.state.groups) == 20
    assert len(world.membership.deadlines) == 0


def test_open_transactions_go_on() -> None:
    world = World()
    world.commit({("t", 0): 1})
    world.commit_in_transaction(7, {("t", 0): 2})
    world = world.restart()
    assert world.offset(stable=True) == "unstable"
    world.end(7, committed=True)
    assert world.offset(stable=True) == 2
    assert world.restart().offset() == 2


def test_subscriptions_are_known_after_a_restart() -> None:
    world = World()
    world.stable(topics=("t", "u"))
    world = world.restart()
    group = world.membership.groups["g"]
    assert group.subscribed_topics == frozenset({"t", "u"})
    assert [group.is_subscribed_to(topic) for topic in "tux"] == [True, True, False]


def test_the_pending_sync_of_the_old_coordinator_is_not_enforced() -> None:
    world = World()
    (first,) = world.stable()
    world = world.restart()
    for _ in range(2 * REBALANCE // 5_000):
        world.advance(5_000)
        assert world.heartbeat(first, 1) == 0


# Groups as administrators see them


def test_groups_are_listed_by_state_and_type() -> None:
    world = World()
    world.commit({("t", 0): 1}, group="simple")
    world.stable(group="stable")
    world.join(group="completing")
    (first,) = world.stable(group="gone")
    world.leave(first, group="gone")

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, tuple[str, str]]:
        rows = list_groups(world.state, world.membership, states, types)
        return {row.group_id: (row.state, row.protocol_type) for row in rows}

    assert listed() == {
        "simple": ("Empty", ""),
        "stable": ("Stable", "consumer"),
        "completing": ("CompletingRebalance", "consumer"),
        "gone": ("Empty", "consumer"),
    }
    assert set(listed(("EMPTY", "unknown"))) == {"simple", "gone"}
    assert set(listed((), ("Classic",))) == set(listed())
    assert listed((), ("consumer",)) == listed((), ("unknown",)) == {}


def test_subscriptions_are_shown_of_a_stable_group_only_and_assignments_until_the_next() -> None:
    world = World()
    (first,) = world.stable()
    group = describe_group(world.state, world.membership, "g")
    assert group is not None
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (row,) = group.members
    assert (row.member_id, row.client_id, row.client_host) == (first, "c", "/10.0.0.1")
    assert (row.member_metadata, row.member_assignment) == (subscription("t"), first.encode())
    world.send_new()
    group = describe_group(world.state, world.membership, "g")
    assert group is not None
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert [(row.member_metadata, row.member_assignment) for row in group.members] == [
        (b"", first.encode()),
        (b"", b""),
    ]
    assert describe_group(world.state, world.membership, "unknown") is None


# The state is a function of the log

names = st.sampled_from(["a", "b"])
values = st.none() | st.builds(lambda n: encode_offset_value(OffsetValue(n, commit_timestamp_ms=n)), st.integers(0, 99))
producers = st.sampled_from([-1, -1, 1, 2])
records = st.one_of(
    st.builds(OffsetRecord, names, names, st.integers(0, 1), values, producers, st.just(0)),
    st.builds(GroupRecord, names, st.none() | st.builds(GroupValue, names, st.integers(0, 5))),
    st.builds(TransactionEnd, st.sampled_from([1, 2]), st.just(0), st.just(0), st.booleans()),
)


def model(log: list[LogRecord]) -> tuple[dict, dict, dict]:
    """The rules of loading a group, written down as plainly as possible."""
    main: dict[tuple[str, str, int], tuple[int, int]] = {}
    pending: dict[int, dict[tuple[str, str, int], tuple[int, int]]] = {}
    groups: dict[str, GroupValue] = {}
    for offset, record in enumerate(log):
        if isinstance(record, GroupRecord):
            groups.pop(record.group_id, None)
            if record.value is not None:
                groups[record.group_id] = record.value
        elif isinstance(record, TransactionEnd):
            for key, entry in pending.pop(record.producer_id, {}).items():
                if record.committed and (key not in main or main[key][0] < entry[0]):
                    main[key] = entry
        elif isinstance(record, OffsetRecord):
            key = record[:3]
            if record.value is None:
                main.pop(key, None)
                for entries in pending.values():
                    entries.pop(key, None)
                continue
            groups.setdefault(record.group_id, GroupValue())
            target = main if record.producer_id == -1 else pending.setdefault(record.producer_id, {})
            target[key] = (offset, record.value[9])
    return main, {producer: entries for producer, entries in pending.items() if entries}, groups


def as_plain(state: GroupsState) -> tuple[dict, dict, dict]:
    main = {
        (group, topic, partition): (log_offset(stored), committed(stored).offset)
        for group, topics in state.offsets.items()
        for topic, partitions in topics.items()
        for partition, stored in partitions.items()
    }
    pending = {
        producer: {key: (log_offset(stored), committed(stored).offset) for key, stored in entries.items()}
        for producer, entries in state.pending.items()
    }
    return main, pending, dict(state.groups)


@given(st.lists(records, max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_the_same_records_in_any_slices_give_the_state_that_the_rules_say(
    log: list[LogRecord], cuts: list[int]
) -> None:
    machine = GroupMachine()
    at_once = machine.apply_all(machine.initial(), enumerate(log))
    assert as_plain(at_once) == model(log)
    sliced = machine.initial()
    bounds = sorted({0, len(log), *(min(cut, len(log)) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        sliced = machine.apply_all(sliced, enumerate(log[start:end], start))
    assert sliced == at_once
    opened = {(g, *at, p) for g, rows in at_once.open.items() for at, ps in rows.items() for p in ps}
    assert opened == {(*key, producer) for producer, entries in at_once.pending.items() for key in entries}


@given(st.lists(records, max_size=30))
def test_what_a_state_was_is_not_changed_by_what_follows(log: list[LogRecord]) -> None:
    machine = GroupMachine()
    states = [machine.initial()]
    for offset, record in enumerate(log):
        states.append(machine.apply(states[-1], record, offset))
    for length, state in enumerate(states):
        assert as_plain(state) == model(log[:length])
