"""SyncGroup, Heartbeat and LeaveGroup of members that are known, unknown or late."""

from typing import Any

from interop.cases.groups_kit import (
    HEARTBEAT_VERSIONS,
    LEAVE_VERSIONS,
    SYNC_VERSIONS,
    Group,
    alone,
    committed,
    coordinated,
)
from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("members")
case = CASES.case


def sync(probe: Probe, label: str, version: int, group_id: str, **over: Any) -> Any:
    body = {"group_id": group_id, "generation_id": 1, "member_id": "ghost", "assignments": []}
    body |= {"protocol_type": "consumer", "protocol_name": "range"} | over
    return probe.ask(label, "SyncGroup", version, fit("SyncGroup", version, body))


def heartbeat(probe: Probe, label: str, version: int, group_id: str, **over: Any) -> Any:
    body = {"group_id": group_id, "generation_id": 1, "member_id": "ghost"} | over
    return probe.ask(label, "Heartbeat", version, fit("Heartbeat", version, body))


def leave(probe: Probe, label: str, version: int, group_id: str, *members: str | tuple[str, str | None]) -> Any:
    rows = [
        {"member_id": row, "group_instance_id": None, "reason": "a case"}
        if isinstance(row, str)
        else {"member_id": row[0], "group_instance_id": row[1], "reason": None}
        for row in members
    ]
    first = members[0] if members and isinstance(members[0], str) else ""
    body = {"group_id": group_id, "member_id": first, "members": rows}
    return probe.ask(label, "LeaveGroup", version, fit("LeaveGroup", version, body))


# SyncGroup


@case()
def sync_of_nobody(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("nobody"))
    for version in SYNC_VERSIONS:
        sync(probe, f"no group v{version}", version, group_id)
        sync(probe, f"empty group id v{version}", version, "")
        sync(probe, f"no member id v{version}", version, group_id, member_id="")


@case()
def sync_of_strangers_and_of_other_generations(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for version in SYNC_VERSIONS:
        sync(probe, f"stranger v{version}", version, group.id)
        for generation in (0, 2, -1, 2**31 - 1):
            label = f"generation {generation} v{version}"
            sync(probe, label, version, group.id, member_id=member.id, generation_id=generation)
        sync(probe, f"right v{version}", version, group.id, member_id=member.id)
    sync(probe, "both wrong", 5, group.id, generation_id=7)


@case()
def sync_names_the_protocol_from_version_5(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for label, kind, name in (
        ("both", "consumer", "range"),
        ("neither", None, None),
        ("type only", "consumer", None),
        ("name only", None, "range"),
        ("other type", "connect", "range"),
        ("other name", "consumer", "sticky"),
        ("empty type", "", "range"),
        ("empty name", "consumer", ""),
    ):
        more = {"protocol_type": kind, "protocol_name": name}
        sync(probe, label, 5, group.id, member_id=member.id, **more)
        sync(probe, f"{label}, wrong generation", 5, group.id, member_id=member.id, generation_id=9, **more)
        sync(probe, f"{label}, stranger", 5, group.id, **more)


@case()
def the_leader_assigns_once(probe: Probe) -> None:
    group = Group(probe)
    member = group.member("member")
    member.enter("joins")
    member.sync("assigns", {member.id: b"first", "ghost": b"for nobody"})
    member.sync("assigns again", {member.id: b"second"})
    member.sync("asks")
    group.describe("the first one counts")


@case()
def a_leader_may_assign_nothing(probe: Probe) -> None:
    for version in (0, 5, 9):
        group = Group(probe, f"v{version}")
        member = group.member(f"v{version}", version=version)
        member.enter("joins")
        member.sync("assigns nothing")
        member.sync("asks again")
        group.describe(f"v{version}")


@case()
def a_leader_may_assign_to_others_only(probe: Probe) -> None:
    group = Group(probe)
    member = group.member("member")
    member.enter("joins")
    member.sync("assigns to a stranger", {"ghost": b"for nobody"})
    group.describe("after")


@case()
def a_large_assignment(probe: Probe) -> None:
    group = Group(probe)
    member = group.member("member")
    member.enter("joins")
    answer = member.sync("assigns", {member.id: b"x" * 200_000})
    probe.record("length", len(answer["assignment"]))


@case()
def sync_of_a_member_that_left(probe: Probe) -> None:
    member = alone(Group(probe))
    member.leave("leaves")
    member.sync("syncs")


@case()
def sync_of_an_id_that_was_only_given(probe: Probe) -> None:
    group = Group(probe)
    pending = group.member("pending").ask_for_id()
    pending.sync("in an empty group", generation_id=0)
    pending.heartbeat("in an empty group, beats", generation_id=0)
    alone(group)
    pending.sync("in a stable group", generation_id=1)
    pending.heartbeat("in a stable group, beats", generation_id=1)


# Heartbeat


@case()
def heartbeats_of_nobody(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("nobody"))
    for version in HEARTBEAT_VERSIONS:
        heartbeat(probe, f"no group v{version}", version, group_id)
        heartbeat(probe, f"empty group id v{version}", version, "")
        heartbeat(probe, f"no member id v{version}", version, group_id, member_id="")


@case()
def heartbeats_of_strangers_and_of_other_generations(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for version in HEARTBEAT_VERSIONS:
        heartbeat(probe, f"stranger v{version}", version, group.id)
        for generation in (0, 1, 2, -1, 2**31 - 1):
            label = f"generation {generation} v{version}"
            heartbeat(probe, label, version, group.id, member_id=member.id, generation_id=generation)
        heartbeat(probe, f"no member id v{version}", version, group.id, member_id="")
    heartbeat(probe, "both wrong", 4, group.id, generation_id=7)


@case()
def heartbeats_in_an_empty_group(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    member.leave("leaves")
    for version in HEARTBEAT_VERSIONS:
        heartbeat(probe, f"v{version}", version, group.id, member_id=member.id)


@case()
def heartbeats_of_a_group_of_offsets_only(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    committed(probe, group_id, topic, {0: 5})
    heartbeat(probe, "beats", 4, group_id)
    sync(probe, "syncs", 5, group_id)
    leave(probe, "leaves", 2, group_id, "ghost")
    leave(probe, "leaves v5", 5, group_id, "ghost")


# LeaveGroup


@case()
def nobody_leaves(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("nobody"))
    for version in LEAVE_VERSIONS:
        leave(probe, f"no group v{version}", version, group_id, "ghost")
        leave(probe, f"empty group id v{version}", version, "", "ghost")
        leave(probe, f"no member id v{version}", version, group_id, "")
    for version in (3, 5):
        leave(probe, f"no members v{version}", version, group_id)
        leave(probe, f"no members, empty group id v{version}", version, "")


@case()
def strangers_leave(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for version in LEAVE_VERSIONS:
        leave(probe, f"v{version}", version, group.id, "ghost")
        leave(probe, f"no member id v{version}", version, group.id, "")
    for version in (3, 4, 5):
        leave(probe, f"no members v{version}", version, group.id)
        leave(probe, f"unknown instance v{version}", version, group.id, ("", "ghost"))
        leave(probe, f"member and unknown instance v{version}", version, group.id, (member.id, "ghost"))
    member.heartbeat("still in")


@case()
def several_leave_at_once(probe: Probe) -> None:
    for version in (3, 4, 5):
        group = Group(probe, f"v{version}")
        member = alone(group, f"v{version}")
        leave(probe, f"several v{version}", version, group.id, "ghost", member.id, "other ghost")
        group.describe(f"after v{version}")
        leave(probe, f"again v{version}", version, group.id, "ghost", member.id)


@case()
def the_same_member_twice_in_one_request(probe: Probe) -> None:
    for version in (3, 5):
        group = Group(probe, f"v{version}")
        member = alone(group, f"v{version}")
        leave(probe, f"twice v{version}", version, group.id, member.id, member.id)


@case()
def an_id_that_was_only_given_is_given_back(probe: Probe) -> None:
    for version in LEAVE_VERSIONS:
        group = Group(probe, f"v{version}")
        pending = group.member(f"pending v{version}").ask_for_id()
        leave(probe, f"leaves v{version}", version, group.id, pending.id)
        pending.join("joins with it")
        group.describe(f"after v{version}")


@case()
def a_member_that_left_is_a_stranger(probe: Probe) -> None:
    for version in LEAVE_VERSIONS:
        group = Group(probe, f"v{version}")
        member = alone(group, f"v{version}")
        leave(probe, f"leaves v{version}", version, group.id, member.id)
        leave(probe, f"leaves again v{version}", version, group.id, member.id)
        member.join("joins with its old id")
