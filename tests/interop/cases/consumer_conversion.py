"""Groups that turn from classic to consumer and back while they have members, and classic members in between."""

import struct
from typing import Any

from interop.cases.consumer_classic import Old, assigned, mixed, mixed_and_settled, wanted
from interop.cases.consumer_kit import Modern, Party, counted
from interop.cases.consumer_static import remove
from interop.cases.groups_kit import UNKNOWN_MEMBER, Answer
from oracle.compare import Cases, Probe, Topic

CASES = Cases("consumer-conversion")
case = CASES.case


def members_of(probe: Probe, party: Party, count: int) -> list[Old]:
    """A classic group of static members, stable: instances make it easy to tell them apart."""
    members = [Old(party, f"old{number}", instance=f"i{number}") for number in range(count)]
    first, *others = members
    first.join("joins alone")
    for member in (*others, first):
        member.send_join()
    for member in members:
        member.joined("joined")
    shares = {member.id: assigned(party.only_topic, (number,)) for number, member in enumerate(members)}
    for number, member in enumerate(members):
        member.send_sync(shares if number == 0 else {})
    for member in members:
        member.synced("synced")
    return members


# --- upgrades ---


@case()
def an_upgrade_of_static_members(probe: Probe) -> None:
    party = Party(probe)
    one, two = members_of(probe, party, 2)
    new = party.member("new")
    new.join("joins", server_assignor="range")
    party.describe("upgraded", keep=counted)
    for member in (one, two):
        member.heartbeat("is told")
    again = Old(party, "again", instance="i0")
    again.join("takes the place of the first")
    one.heartbeat("is fenced")
    one.leave("leaves in vain")
    party.describe("replaced", keep=counted)


@case()
def an_upgrade_of_as_many_as_a_group_may_have(probe: Probe) -> None:
    """Four are as many as a consumer group may have: there is no room for a fifth, and the group stays what it is."""
    party = Party(probe)
    members = members_of(probe, party, 4)
    party.member("new").join("finds no room")
    party.listed("classic")
    members[0].heartbeat("is not told")
    remove(party, "the last one goes", ("", "i3"))
    party.listed("classic, rebalancing")


@case()
def an_upgrade_of_more_than_a_consumer_group_may_have(probe: Probe) -> None:
    party = Party(probe)
    members = members_of(probe, party, 5)
    party.member("new").join("is refused")
    members[4].heartbeat("is not told")
    party.listed("classic")


@case()
def an_upgrade_of_a_topic_that_is_gone(probe: Probe) -> None:
    """What was assigned of it is left out."""
    party = Party(probe)
    other = party.new_topic("other", 2)
    old = Old(party, "old", instance="i", protocols=(("range", both(party.only_topic, other)),))
    old.join("joins")
    old.sync("synced", {old.id: assigned(party.only_topic, (0, 1, 2, 3))})
    party.drop(party.only_topic)
    new = party.member("new")
    new.join("joins", [other.name], server_assignor="range")
    party.describe("upgraded")
    old.heartbeat("is told")


def both(first: Topic, second: Topic) -> bytes:
    """A subscription to two topics."""
    names = sorted((first.name.encode(), second.name.encode()))
    out = struct.pack(">hi", 1, len(names)) + b"".join(struct.pack(">h", len(name)) + name for name in names)
    return out + struct.pack(">ii", -1, 0)


@case()
def an_upgrade_of_an_unreadable_assignment(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old")
    old.enter("joins")
    old.sync("synced", {old.id: b"\x00\x01\x00\x00"})
    party.member("new").join("is refused")
    party.listed("classic")


@case()
def an_upgrade_by_a_static_member(probe: Probe) -> None:
    """The classic member with the same instance gives its place, and its partitions, to the one that comes."""
    party = Party(probe)
    old = Old(party, "old", instance="i").alone()
    new = party.member("new", instance="i")
    new.join("takes its place")
    party.describe("no rebalance")
    party.listed("consumer")
    old.heartbeat("is fenced")
    new.beat("stays", owned=[0, 1, 2, 3])


@case()
def an_upgrade_with_other_topics(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    old = Old(party, "old").alone()
    new = party.member("new")
    new.join("wants another topic", [other.name])
    party.describe("each its own")
    old.heartbeat("is told of the new epoch")
    old.owns(0, 1, 2, 3)
    old.join("joins")
    old.sync("keeps all")
    old.heartbeat("is done")


@case()
def an_upgrade_with_nothing_wanted(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    new = party.member("new")
    new.join("wants nothing", [])
    party.describe("upgraded")
    old.heartbeat("goes on")
    old.sync("may sync again")


# --- downgrades ---


@case()
def a_downgrade_by_an_administrator(probe: Probe) -> None:
    party, old, new = mixed_and_settled(probe)
    remove(party, "the new one is removed", (new.id, None))
    party.listed("classic")
    new.beat("is no member of a consumer group")
    new.leave("cannot leave either")
    old.heartbeat("is to join")
    old.join("leads")
    old.sync("has all", {old.id: assigned(party.only_topic, (0, 1, 2, 3))})


@case()
def a_downgrade_by_the_end_of_a_session(probe: Probe) -> None:
    party = Party(probe)
    party.configure(heartbeat=500, session=1000)
    old = Old(party, "old").alone()
    party.member("new").join("joins")
    old.heartbeat("is told")
    old.heartbeat("is told to rebalance, in the generation of the group", until=22)
    party.listed("classic")


@case()
def a_downgrade_with_other_topics(probe: Probe) -> None:
    """The last new member is replaced by a classic one that wants something else: all of them have to join again."""
    party = Party(probe)
    other = party.new_topic("other", 2)
    new = party.member("new", instance="i")
    new.join("joins")
    old = Old(party, "old", instance="i", protocols=(("range", wanted(other)),))
    old.join("takes its place")
    party.listed("classic, rebalancing")
    old.heartbeat("has to join", generation_id=2)


@case()
def no_downgrade_while_new_members_are_left(probe: Probe) -> None:
    party = Party(probe)
    one, two = party.member("one", instance="i"), party.member("two", instance="j")
    one.join("joins")
    two.join("joins")
    old = Old(party, "old", instance="i")
    old.join("takes a place")
    party.listed("still consumer")
    two.beat("is there")
    remove(party, "the other goes", ("", "j"))
    party.listed("classic")


@case()
def no_downgrade_without_classic_members(probe: Probe) -> None:
    party, old, new = mixed(probe)
    remove(party, "both go at once", (old.id, None), (new.id, None))
    party.listed("an empty consumer group")
    party.describe("empty")


# --- classic members in a consumer group ---


@case()
def classic_members_of_several_versions(probe: Probe) -> None:
    """Each joins beside a consumer member, syncs, beats and leaves. From version 4 on it needs an id first."""
    party = Party(probe)
    keeper = party.member("keeper")
    keeper.join("joins", [])
    for version in (0, 3, 4, 9):
        old = Old(party, f"v{version}", version=version)
        old.enter("joins")
        old.sync("has all")
        old.heartbeat("is done")
        old.leave("leaves")
    party.describe("the keeper is left")


@case()
def consumer_members_ask_in_the_old_way(probe: Probe) -> None:
    party = Party(probe)
    new, static = party.member("new"), party.member("static", instance="i")
    new.join("joins")
    static.join("joins")
    for name, instance in (("new", None), ("static", "i"), ("static", None), ("new", "i")):
        old = Old(party, f"{name} as {instance}", id=name, instance=instance)
        for generation in (2, 3):
            old.generation, old.protocol = generation, "range"
            old.heartbeat(f"heartbeat {generation}")
            old.sync(f"sync {generation}")
    party.describe("unharmed")


@case()
def a_consumer_member_turns_classic(probe: Probe) -> None:
    """It joins under its own id in the old way, with other members of the new protocol around."""
    party = Party(probe)
    keeper, turns = party.member("keeper"), party.member("turns")
    keeper.join("joins", [])
    turns.join("joins")
    old = Old(party, "turned", id="turns")
    old.owns(0, 1, 2, 3)
    old.join("joins in the old way")
    old.sync("keeps what it had")
    party.describe("of both kinds")
    turns.epoch = old.generation
    turns.beat("turns back")
    old.heartbeat("is no classic member any more")
    party.describe("both new")


@case()
def a_classic_member_that_wants_something_else(probe: Probe) -> None:
    party, old, new = mixed_and_settled(probe)
    other = party.new_topic_of_others("other", 1)
    old.protocols = (("range", wanted(other)),)
    old.join("wants another topic")
    old.sync("has it")
    party.describe("another epoch")
    new.beat("gets the rest", owned=[2, 3])
    old.heartbeat("is done")


@case()
def a_classic_member_with_several_protocols(probe: Probe) -> None:
    """Its first one is the one of its answers; what all classic members list decides who may join."""
    party = Party(probe, partitions=6)
    party.member("new").join("joins")
    subscription = wanted(party.only_topic)
    first = Old(party, "first", id="first", protocols=(("sticky", subscription), ("range", subscription)))
    first.join("lists two")
    first.sync("of its second one", protocol_name="range")
    first.sync("of its first one")
    second = Old(party, "second", id="second", protocols=(("cooperative", subscription), ("range", subscription)))
    second.join("lists one in common")
    third = Old(party, "third", id="third", protocols=(("cooperative", subscription), ("sticky", subscription)))
    third.join("lists each of them, none in common")
    party.describe("three", keep=counted)


@case()
def a_classic_member_that_falls_silent(probe: Probe) -> None:
    """Its session is its own, and commits do not keep it."""
    party, old, new = mixed(probe)
    short = Old(party, "short", id="short", session_ms=1000)
    short.join("joins")
    party.commit("short commits", "short", short.generation, [0], version=8)

    def is_gone(answer: Answer) -> bool:
        return bool(answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_MEMBER)

    party.commit("short is gone", "short", short.generation, [0], version=8, until=is_gone)
    new.beat("goes on")
    old.heartbeat("is told")


@case()
def a_full_group_and_classic_members(probe: Probe) -> None:
    party = Party(probe)
    for name in "abc":
        party.member(name).join("joins", [])
    last = Old(party, "last", id="last", instance="i")
    last.join("is an unknown member")
    last.id = ""
    last.join("is the fourth")
    fifth = Old(party, "fifth", id="fifth")
    fifth.join("is one too many")
    fifth.id = ""
    fifth.join("is one too many without an id")
    last.join("joins again")
    party.member("sixth").join("is one too many")


@case()
def an_empty_consumer_group_and_a_made_up_id(probe: Probe) -> None:
    party = Party(probe)
    new = party.member("new")
    new.join("joins")
    new.leave("leaves")
    old = Old(party, "old", id="made-up")
    old.join("is unknown")
    static = Old(party, "static", id="made-up", instance="i")
    static.join("is unknown, too")
    for api, label in ((old.heartbeat, "heartbeat"), (old.sync, "sync")):
        api(f"{label} to an empty group", generation_id=1)
    old.leave("leaves")
    party.listed("as it is")


def leave_in_the_old_way(member: Modern, party: Party, label: str, version: int) -> Any:
    body: Answer = {"group_id": party.id}
    if version < 3:
        body["member_id"] = member.id
    else:
        body["members"] = [{"member_id": member.id, "group_instance_id": None}]
    return party.probe.ask(label, "LeaveGroup", version, body)


@case()
def consumer_members_leave_in_the_old_way(probe: Probe) -> None:
    party = Party(probe)
    for version in range(5):
        member = party.member(f"m{version}")
        member.join("joins")
        leave_in_the_old_way(member, party, f"leaves v{version}", version)
        leave_in_the_old_way(member, party, f"leaves again v{version}", version)
    party.describe("empty")
