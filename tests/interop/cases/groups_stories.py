"""Stories of several members: rebalances as each of them sees it. No answer depends on the clock."""

import time
from collections.abc import Callable
from typing import Any

from interop.cases.groups_kit import Group, Member, alone, settle, subscription
from interop.cases.groups_members import leave
from oracle.compare import Cases, Differs, Probe

CASES = Cases("stories")
case = CASES.case

CHANGED = (("range", subscription("another-topic")),)


def two_members(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        group = Group(probe)
        one = alone(group, "one", version=version)
        two = group.member("two", version=version)
        two.send_enter()
        one.heartbeat("is told", until=27)
        group.describe("one is missing")
        one.join("rejoins")
        two.joined("joins")
        group.describe("both joined")
        one.heartbeat("before the sync")
        two.send_sync()
        one.lead("assigns", one, two)
        two.synced("is assigned")
        one.heartbeat("stable")
        two.heartbeat("stable")
        one.heartbeat("of the first generation", generation_id=1)
        group.describe("stable")
        two.leave("leaves")
        one.heartbeat("is told again")
        one.join("is alone")
        group.describe("alone")

    return run


for _version in (0, 1, 3, 4, 5, 7, 9):
    CASES.add(f"two_members_v{_version}", two_members(_version))


def pair(probe: Probe, **options: object) -> tuple[Group, Member, Member]:
    """A stable group of two; the first leads."""
    group = Group(probe)
    leader = alone(group, "leader", **options)
    follower = group.member("follower", **options)
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("pair, rejoins")
    follower.joined("pair, joins")
    follower.send_sync()
    leader.lead("pair, assigns", leader, follower)
    follower.synced("pair, is assigned")
    return group, leader, follower


@case()
def a_follower_that_rejoins_unchanged_disturbs_nobody(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    follower.join("rejoins")
    leader.heartbeat("undisturbed")
    follower.sync("has its assignment")
    group.describe("as before")


@case()
def a_follower_that_rejoins_changed_starts_a_rebalance(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    follower.protocols = CHANGED
    follower.send_join()
    leader.heartbeat("is told", until=27)
    leader.join("rejoins")
    follower.joined("joins")
    group.describe("after")


@case()
def a_leader_that_rejoins_unchanged_starts_a_rebalance(probe: Probe) -> None:
    _, leader, follower = pair(probe)
    leader.send_join()
    follower.heartbeat("is told", until=27)
    follower.join("rejoins")
    leader.joined("leads again")


@case()
def a_follower_leads_when_the_leader_left(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    leader.leave("leaves")
    follower.heartbeat("is told")
    follower.sync("may not sync")
    follower.join("leads")
    follower.lead("assigns")
    group.describe("after")


@case()
def the_others_may_go_on_when_the_missing_one_leaves(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    follower.protocols = CHANGED
    follower.send_join()
    group.await_state("PreparingRebalance")
    leader.leave("leaves instead")
    follower.joined("joins")


@case()
def a_sync_that_waits_ends_when_somebody_joins(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    follower.send_sync()
    third = group.member("third")
    third.send_enter()
    follower.synced("is told to rejoin")
    leader.lead("may not assign any more", leader, follower)
    leader.heartbeat("is told")
    leader.send_join()
    follower.send_join()
    for member in (leader, follower, third):
        member.joined("joins again")


@case()
def a_sync_that_waits_ends_when_the_leader_leaves(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    follower.send_sync()
    leader.leave("leaves")
    follower.synced("is told to rejoin")
    follower.join("leads")


@case()
def a_follower_may_sync_after_the_leader(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    leader.lead("assigns", leader, follower)
    group.describe("stable already")
    follower.heartbeat("beats before it syncs")
    follower.sync("is assigned")
    follower.sync("asks again")


@case()
def a_follower_may_not_assign(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    follower.send_sync({leader.id: b"stolen", follower.id: b"mine"})
    leader.lead("assigns", leader, follower)
    follower.synced("is assigned")


@case()
def commits_while_the_group_rebalances(probe: Probe) -> None:
    topic = probe.topic()
    group, leader, follower = pair(probe)
    for version in (2, 7, 9):
        leader.commit(f"stable v{version}", topic, version=version)
    third = group.member("third")
    third.send_enter()
    group.await_state("PreparingRebalance", 3)
    for version in (2, 7, 9):
        leader.commit(f"preparing v{version}", topic, 6, version=version)
        leader.commit(f"preparing, old generation v{version}", topic, version=version, generation_id_or_member_epoch=1)
    leader.send_join()
    follower.send_join()
    for member in (leader, follower, third):
        member.joined("joins")
    for version in (2, 7, 9):
        follower.commit(f"completing v{version}", topic, 7, version=version)
        follower.commit(
            f"completing, old generation v{version}", topic, version=version, generation_id_or_member_epoch=2
        )
    follower.send_sync()
    third.send_sync()
    leader.lead("assigns", leader, follower, third)
    follower.synced("is assigned")
    third.synced("is assigned")
    follower.commit("stable again", topic, 8)
    follower.commit("stable again, old generation", topic, 9, generation_id_or_member_epoch=2)


@case()
def the_protocol_that_all_know_and_most_prefer(probe: Probe) -> None:
    a, b, c = ("a", b"a"), ("b", b"b"), ("c", b"c")
    group = Group(probe)
    members = [
        group.member("one", protocols=(a, b, c)),
        group.member("two", protocols=(b, a)),
        group.member("three", protocols=(b, c, a)),
    ]
    for count, member in enumerate(members):
        member.send_enter()
        if count == 0:
            member.joined("alone")
        else:
            group.await_state("PreparingRebalance", count + 1)
    members[0].send_join()
    for member in members:
        member.joined("together")
    group.describe("not synced")


@case()
def a_new_member_must_know_the_common_protocol(probe: Probe) -> None:
    group = Group(probe)
    one = alone(group, "one", protocols=(("a", b"a"), ("b", b"b")))
    two = group.member("two", protocols=(("b", b"b"), ("c", b"c")))
    two.send_enter()
    group.await_state("PreparingRebalance", 2)
    one.join("rejoins")
    two.joined("joins with b")
    three = group.member("three", protocols=(("a", b"a"), ("c", b"c")))
    three.join("knows what only one of them knows")
    one.heartbeat("undisturbed")


@case()
def cooperative_members_rebalance_twice(probe: Probe) -> None:
    """Revocation first: the client joins again with what it kept; generations just go on."""
    nothing = (("cooperative-sticky", subscription("owns-nothing", version=1)),)
    group, leader, follower = pair(probe, protocols=nothing)
    third = group.member("third", protocols=nothing)
    third.send_enter()
    group.await_state("PreparingRebalance", 3)
    for turn, owned in enumerate(("owns-all", "owns-less")):
        for member in (leader, follower):
            member.protocols = (("cooperative-sticky", subscription(owned, version=1)),)
            member.send_join()
        if turn:
            group.await_state("PreparingRebalance")
            third.send_join()
        for member in (leader, follower, third):
            member.joined(f"joins, {owned}")
        follower.send_sync()
        third.send_sync()
        leader.lead(f"assigns, {owned}", leader, follower, third)
        follower.synced(f"is assigned, {owned}")
        third.synced(f"is assigned, {owned}")
    group.describe("stable")


@case()
def five_members_settle(probe: Probe) -> None:
    group = Group(probe)
    members = [group.member(f"member {index}") for index in range(5)]
    members[0].enter("alone")
    for count, member in enumerate(members[1:], 2):
        member.send_enter()
        group.await_state("PreparingRebalance", count)
    members[0].send_join()
    answers = [member.joined("joins") for member in members]
    probe.record("generation", {answer["generation_id"] for answer in answers} == {2})
    for member in members[1:]:
        member.send_sync()
    members[0].lead("assigns", *members)
    for member in members[1:]:
        member.synced("is assigned")
    group.describe("stable")
    settled = members[:3]
    for member in members[3:]:
        member.leave("leaves")
    settled[1].heartbeat("is told")
    settle(settled, "again")


@case()
def a_member_that_does_not_rejoin_in_time_is_out(probe: Probe) -> None:
    group, leader, follower = pair(probe, rebalance_ms=1500)
    follower.protocols = CHANGED
    follower.send_join()
    follower.joined("joins without the other")
    leader.heartbeat("is a stranger")
    follower.lead("assigns")
    group.describe("after")


@case()
def a_member_that_does_not_sync_in_time_is_out(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader", rebalance_ms=1500)
    follower = group.member("follower", rebalance_ms=1500)
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    leader.lead("assigns", leader, follower)
    leader.heartbeat("is told in the end", until=27)
    follower.heartbeat("is a stranger")
    leader.join("is alone")


@case()
def a_member_without_heartbeats_is_out(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    silent = group.member("silent", session_ms=2000)
    silent.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    silent.joined("joins")
    leader.lead("assigns", leader, silent)
    silent.sync("is assigned")
    leader.heartbeat("is told in the end", until=27)
    silent.heartbeat("is a stranger")
    leader.join("is alone")


@case()
def an_id_that_was_given_holds_the_group_up_until_its_session_ends(probe: Probe) -> None:
    group = Group(probe)
    group.member("never seen again", session_ms=2000).ask_for_id()
    one = group.member("one")
    one.enter("joins in the end")
    group.describe("after")


@case()
def the_last_member_times_out(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group, session_ms=2000)
    group.await_state("Empty")
    member.heartbeat("is a stranger")
    group.describe("empty")


@case()
def a_join_that_waits_holds_up_its_own_connection(probe: Probe) -> None:
    group = Group(probe)
    one, two = alone(group, "one"), group.member("two")
    two.send_enter()
    two.connection.send("Metadata", 1, {"topics": []})
    group.await_state("PreparingRebalance", 2)
    two.joined("nothing yet", patience_s=0.2)
    one.join("rejoins")
    two.joined("joins")
    probe.record("then the other answer", two.connection.receive() is not None)


FORGOTTEN = "nobody is left without an answer: the oracle forgets it"
NO_JOIN: dict[str, Any] = {
    "error_code": 27,
    "generation_id": -1,
    "protocol_type": None,
    "protocol_name": None,
    "leader": "",
    "skip_assignment": False,
    "member_id": "differential-<uuid of follower>",
    "members": [],
}
NO_SYNC = {"error_code": 27, "protocol_type": None, "protocol_name": None, "assignment": b""}


@case({"follower: on its old connection": Differs(FORGOTTEN, NO_JOIN)})
def a_second_join_of_one_that_waits(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    follower.protocols = CHANGED
    follower.send_join()
    group.await_state("PreparingRebalance")
    first, follower.connection = follower.connection, probe.connect()
    follower.send_join()
    group.await_state("PreparingRebalance")
    leader.join("rejoins")
    follower.joined("joins on its new connection")
    follower.connection = first
    follower.joined("on its old connection", patience_s=0.3)


@case({"follower: on its old connection": Differs(FORGOTTEN, NO_SYNC)})
def a_second_sync_of_one_that_waits(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    follower.send_sync()
    follower.heartbeat_elsewhere("is there meanwhile")
    first, follower.connection = follower.connection, probe.connect()
    follower.send_sync()
    follower.heartbeat_elsewhere("is there still")
    leader.lead("assigns", leader, follower)
    follower.synced("is assigned on its new connection")
    follower.connection = first
    follower.synced("on its old connection", patience_s=0.3)


@case()
def one_that_waits_to_join_is_sent_away(probe: Probe) -> None:
    group, leader, follower = pair(probe)
    follower.protocols = CHANGED
    follower.send_join()
    group.await_state("PreparingRebalance")
    leave(probe, "somebody sends it away", 5, group.id, follower.id)
    follower.joined("is told")
    leader.heartbeat("is told")
    leader.join("is alone")


@case({"follower: is told": Differs(FORGOTTEN, NO_SYNC | {"error_code": 25})})
def one_that_waits_for_its_assignment_is_sent_away(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    follower.send_sync()
    follower.heartbeat_elsewhere("is there meanwhile")
    leave(probe, "somebody sends it away", 5, group.id, follower.id)
    follower.synced("is told", patience_s=0.3)
    leader.lead("is told", leader, follower)
    leader.join("is alone")


@case()
def the_leader_rejoins_before_the_sync(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    follower = group.member("follower")
    follower.send_enter()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    follower.joined("joins")
    leader.join("joins again, unchanged")
    follower.join("joins again, unchanged")
    follower.send_sync()
    follower.heartbeat_elsewhere("is there meanwhile")
    leader.protocols = CHANGED
    leader.send_join()
    follower.synced("is told to rejoin")
    follower.join("rejoins")
    leader.joined("joins, changed")


@case()
def a_group_that_is_full(probe: Probe) -> None:
    """`group.max.size` is 6."""
    group = Group(probe)
    members = [group.member(f"member {index}") for index in range(6)]
    members[0].enter("alone")
    for count, member in enumerate(members[1:], 2):
        member.send_enter()
        group.await_state("PreparingRebalance", count)
    early = group.member("early")
    early.join("while the others wait")
    early.leave("gives its id back")
    early.id = ""
    members[0].send_join()
    for member in members:
        member.joined("joins")
    early.join("once they are in")
    for member in members[1:]:
        member.send_sync()
    members[0].lead("assigns", *members)
    for member in members[1:]:
        member.synced("is assigned")
    for version in (3, 4, 9):
        group.member(f"late v{version}", version=version).join("joins a full group")
    group.member("static", instance="instance").join("joins a full group")
    members[5].leave("leaves")
    late = group.member("late")
    late.send_enter()
    group.await_state("PreparingRebalance", 6)
    for member in members[:5]:
        member.send_join()
    for member in (*members[:5], late):
        member.joined("joins again")


@case()
def a_static_member_that_does_not_rejoin_keeps_its_place(probe: Probe) -> None:
    group = Group(probe)
    static = alone(group, "static", instance="instance", rebalance_ms=1500)
    other = group.member("other", rebalance_ms=1500)
    other.send_enter()
    group.await_state("PreparingRebalance", 2)
    other.joined("joins without waiting for it any longer")
    group.describe("both are in")
    static.heartbeat("is behind")
    other.lead("assigns", other, static)
    static.heartbeat("is still behind")
    static.send_join()
    other.heartbeat("is told", until=27)
    other.join("rejoins")
    static.joined("is back")


@case()
def a_static_member_whose_session_ends_is_out(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    static = group.member("static", instance="instance", session_ms=2000)
    static.send_join()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    static.joined("joins")
    leader.lead("assigns", leader, static)
    static.sync("is assigned")
    leader.heartbeat("is told in the end", until=27)
    static.heartbeat("is a stranger")
    static.join("joins with its old id")
    leader.join("is alone")
    group.member("static again", instance="instance").send_join()
    group.await_state("PreparingRebalance", 2)


@case()
def heartbeats_and_commits_keep_a_session(probe: Probe) -> None:
    topic = probe.topic()
    member = alone(Group(probe), session_ms=2000)
    time.sleep(1.1)
    member.heartbeat("beats")
    time.sleep(1.1)
    member.commit("commits", topic)
    time.sleep(1.1)
    member.heartbeat("is in")
