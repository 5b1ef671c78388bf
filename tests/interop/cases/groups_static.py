"""Static members: a name of their own, a place that is kept, and a fence against a double."""

from typing import Any

from interop.cases.groups_join import ask as ask_to_join
from interop.cases.groups_kit import Group, Member, alone, coordinated, subscription
from interop.cases.groups_members import heartbeat, leave, sync
from oracle.compare import Cases, Probe

CASES = Cases("static")
case = CASES.case

VERSIONS = range(5, 10)
INSTANCE = "instance"


def static(group: Group, name: str = "member", **options: Any) -> Member:
    return alone(group, name, **{"instance": INSTANCE, **options})


def again(member: Member, name: str, **options: Any) -> Member:
    """The same instance after a restart: it has forgotten its member id."""
    return member.group.member(name, **{"instance": member.instance, "version": member.version, **options})


@case()
def a_static_member_needs_no_id(probe: Probe) -> None:
    for version in VERSIONS:
        group = Group(probe, f"v{version}")
        static(group, f"v{version}", version=version)
        group.describe(f"v{version}")


@case()
def a_restart_keeps_the_generation(probe: Probe) -> None:
    for version in VERSIONS:
        group = Group(probe, f"v{version}")
        one = static(group, f"one v{version}", version=version)
        two = again(one, f"two v{version}")
        two.join("joins")
        two.sync("syncs")
        two.heartbeat("beats")
        group.describe(f"v{version}")


@case()
def a_restart_with_another_subscription_rebalances(probe: Probe) -> None:
    for version in (5, 9):
        group = Group(probe, f"v{version}")
        one = static(group, f"one v{version}", version=version)
        two = again(one, f"two v{version}", protocols=(("range", subscription("other")),))
        two.join("joins")
        two.lead("syncs")
        group.describe(f"v{version}")


@case()
def a_restart_with_another_protocol(probe: Probe) -> None:
    group = Group(probe)
    one = static(group, "one")
    two = again(one, "two", protocols=(("sticky", subscription("other")),))
    two.join("joins")
    two.lead("syncs")
    group.describe("after")


@case()
def a_restart_before_the_sync_rebalances(probe: Probe) -> None:
    group = Group(probe)
    one = group.member("one", instance=INSTANCE)
    one.join("joins")
    two = again(one, "two")
    two.join("joins")
    two.lead("syncs")
    one.heartbeat("is fenced")


@case()
def the_old_member_is_fenced(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    one = static(group, "one")
    two = again(one, "two")
    two.join("joins")
    one.heartbeat("beats")
    one.sync("syncs")
    one.join("joins")
    one.commit("commits", topic)
    one.leave("leaves")
    two.heartbeat("still in")


@case()
def the_old_member_without_its_instance_is_a_stranger(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    one = static(group, "one")
    two = again(one, "two")
    two.join("joins")
    one.instance = None
    one.heartbeat("beats")
    one.sync("syncs")
    one.commit("commits", topic)
    one.leave("leaves")
    one.join("joins")
    two.heartbeat("still in")


@case()
def an_instance_that_nobody_knows(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    member = alone(group)
    member.instance = "other"
    member.heartbeat("beats")
    member.sync("syncs")
    member.join("joins")
    member.commit("commits", topic)
    member.leave("leaves")


@case()
def another_members_instance(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    static(group)
    for version in (3, 4):
        heartbeat(probe, f"beats v{version}", version, group.id, group_instance_id=INSTANCE)
    for version in (3, 5):
        sync(probe, f"syncs v{version}", version, group.id, group_instance_id=INSTANCE)
        leave(probe, f"leaves v{version}", version, group.id, ("ghost", INSTANCE))
    for version in VERSIONS:
        ask_to_join(probe, f"joins v{version}", version, group.id, member_id="ghost", group_instance_id=INSTANCE)
    stranger = group.member("stranger", instance=INSTANCE, id="ghost")
    for version in (7, 9):
        stranger.commit(f"commits v{version}", topic, version=version)


@case()
def a_static_member_may_leave_out_its_instance(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    member = static(group)
    member.instance = None
    member.heartbeat("beats")
    member.sync("syncs")
    member.commit("commits", topic)
    member.join("joins")
    member.group.describe("after")


@case()
def leaving_by_instance(probe: Probe) -> None:
    for version in (3, 4, 5):
        group = Group(probe, f"v{version}")
        member = static(group, f"v{version}")
        leave(probe, f"wrong member v{version}", version, group.id, ("ghost", INSTANCE))
        leave(probe, f"by instance v{version}", version, group.id, ("", INSTANCE))
        leave(probe, f"again v{version}", version, group.id, ("", INSTANCE))
        member.heartbeat("left")
        group.describe(f"after v{version}")


@case()
def leaving_by_both(probe: Probe) -> None:
    group = Group(probe)
    member = static(group)
    leave(probe, "leaves", 5, group.id, (member.id, INSTANCE))
    group.describe("after")


@case()
def leaving_by_member_id_alone(probe: Probe) -> None:
    for version in (0, 2, 3, 5):
        group = Group(probe, f"v{version}")
        member = static(group, f"v{version}")
        leave(probe, f"v{version}", version, group.id, member.id)
        group.describe(f"after v{version}")
        again(member, f"again v{version}").join("joins")


@case()
def an_administrator_removes_several(probe: Probe) -> None:
    group = Group(probe)
    member = static(group)
    rows = (("", "ghost"), ("", INSTANCE), (member.id, None), ("ghost", None))
    leave(probe, "several", 5, group.id, *rows)
    group.describe("after")


@case()
def an_instance_comes_back_after_it_left(probe: Probe) -> None:
    group = Group(probe)
    one = static(group, "one")
    one.leave("leaves")
    two = again(one, "two")
    two.join("joins")
    two.lead("syncs")
    one.heartbeat("its first life")


@case()
def the_old_id_with_the_instance_rejoins(probe: Probe) -> None:
    member = static(Group(probe))
    member.join("joins again")
    member.lead("syncs again")
    member.heartbeat("beats")


@case()
def a_follower_that_restarts_is_given_its_assignment(probe: Probe) -> None:
    for version in (5, 8, 9):
        group = Group(probe, f"v{version}")
        leader = alone(group, f"leader v{version}", version=version)
        one = group.member(f"one v{version}", version=version, instance=INSTANCE)
        one.send_join()
        group.await_state("PreparingRebalance", 2)
        leader.join("rejoins")
        one.joined("joins")
        one.send_sync()
        leader.lead("assigns", leader, one)
        one.synced("is assigned")
        two = again(one, f"two v{version}")
        two.join("restarts")
        two.sync("has its assignment")
        leader.heartbeat("undisturbed")
        group.describe(f"v{version}")


@case()
def a_leader_that_restarts_while_others_are_there(probe: Probe) -> None:
    for version in (5, 8, 9):
        group = Group(probe, f"v{version}")
        leader = static(group, f"leader v{version}", version=version)
        other = group.member(f"other v{version}", version=version)
        other.send_enter()
        group.await_state("PreparingRebalance", 2)
        leader.join("rejoins")
        other.joined("joins")
        other.send_sync()
        leader.lead("assigns", leader, other)
        other.synced("is assigned")
        restarted = again(leader, f"restarted v{version}")
        restarted.join("restarts")
        restarted.sync("has its assignment")
        other.heartbeat("undisturbed")
        group.describe(f"v{version}")


@case()
def a_double_takes_the_place_of_one_that_waits_to_join(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    one = group.member("one", instance=INSTANCE)
    one.send_join()
    group.await_state("PreparingRebalance", 2)
    two = again(one, "two")
    two.send_join()
    one.joined("is fenced while it waits")
    leader.join("rejoins")
    two.joined("joins")
    group.describe("after")


@case()
def a_double_takes_the_place_of_one_that_waits_for_its_assignment(probe: Probe) -> None:
    group = Group(probe)
    leader = alone(group, "leader")
    one = group.member("one", instance=INSTANCE)
    one.send_join()
    group.await_state("PreparingRebalance", 2)
    leader.join("rejoins")
    one.joined("joins")
    one.send_sync()
    two = again(one, "two")
    two.send_join()
    one.synced("is fenced while it waits")
    leader.heartbeat("is told", until=27)
    leader.join("rejoins again")
    two.joined("joins")


@case()
def two_instances(probe: Probe) -> None:
    group = Group(probe)
    one = static(group, "one", instance="first")
    two = group.member("two", instance="second")
    two.send_join()
    group.await_state("PreparingRebalance", 2)
    one.join("rejoins")
    two.joined("joins")
    two.send_sync()
    one.lead("assigns", one, two)
    two.synced("is assigned")
    group.describe("both")
    leave(probe, "both leave", 5, group.id, ("", "first"), ("", "second"))
    group.describe("after")


@case()
def instance_ids_of_any_form(probe: Probe) -> None:
    for index, text in enumerate(("", ".", "..", "a b", "ü", "x" * 249, "x" * 250)):
        group_id = coordinated(probe, probe.name(f"group{index}"))
        for version in (5, 9):
            member = Member(Group(probe, f"{index}v{version}"), f"{index} v{version}", instance=text, version=version)
            member.join("joins")
        heartbeat(probe, f"{index} beats", 4, group_id, group_instance_id=text)
        leave(probe, f"{index} leaves", 5, group_id, ("", text))
