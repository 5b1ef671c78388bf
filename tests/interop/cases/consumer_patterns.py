"""Patterns of topics that members of the consumer protocol subscribe to: matched by the server, ten seconds apart."""

import os
from typing import Any

from interop.cases.consumer_classic import Old, unresolved
from interop.cases.consumer_kit import Modern, Party, wait
from interop.cases.groups_kit import Answer
from oracle.compare import Cases, Probe

CASES = Cases("consumer-patterns")
case = CASES.case

RESOLVED_S = 0.2
"""Both servers match the topics of a test in a few milliseconds."""


def resolved(answer: Answer) -> bool:
    """The member has partitions."""
    return bool(answer["assignment"] and answer["assignment"]["topic_partitions"])


def joined(party: Party, name: str, pattern: str) -> Modern:
    """A member whose pattern is resolved, and which has what matches."""
    member = party.member(name)
    member.join("joins", [], subscribed_topic_regex=party.probe.name(pattern))
    member.beat("has it", until=resolved)
    return member


@case()
def a_pattern_that_changes(probe: Probe) -> None:
    """The heartbeat that brings another pattern sees that the one before was resolved just now, and waits. It also
    takes the one before away, so that the next heartbeat waits for nothing."""
    party = Party(probe)
    party.new_topic("other", 2)
    a = joined(party, "a", "top.*")
    a.beat("takes another", subscribed_topic_regex=probe.name("oth.*"))
    wait(RESOLVED_S)
    party.describe("stands for nothing yet")
    a.beat("has given up", owned=[])
    a.beat("has the other", owned=[], until=resolved)
    party.describe("resolved")


@case()
def a_second_pattern_within_ten_seconds(probe: Probe) -> None:
    """Scenario 32: it is resolved together with the first one, and not before ten seconds have passed since."""
    party = Party(probe)
    party.new_topic("other", 2)
    a = joined(party, "a", "top.*")
    b = party.member("b")
    b.join("brings a second one", [], subscribed_topic_regex=probe.name("oth.*"))
    wait(RESOLVED_S)
    b.beat("waits")
    a.beat("waits, too")
    wait(RESOLVED_S)
    party.describe("not resolved")


def after_ten_seconds(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    a = joined(party, "a", "top.*")
    b = party.member("b")
    b.join("brings a second one", [], subscribed_topic_regex=probe.name("oth.*"))
    wait(10.3)
    a.beat("asks for it")
    b.beat("has it", until=resolved)
    a.beat("stays")
    party.describe("resolved")
    probe.record("topic", b.beat("owns it", owned={other: [0, 1]})["error_code"])


if os.environ.get("TWOFOLD_LONG"):
    CASES.add("a_second_pattern_after_ten_seconds", after_ten_seconds)


@case()
def a_new_topic_within_ten_seconds(probe: Probe) -> None:
    party = Party(probe)
    a = joined(party, "a", "top.*")
    party.new_topic_of_others("topical", 2)
    a.beat("does not see it")
    wait(RESOLVED_S)
    a.beat("does not see it yet")
    party.describe("as before")


@case()
def a_topic_that_goes(probe: Probe) -> None:
    """It leaves the pattern when that is resolved again; until then it is passed over."""
    party = Party(probe)
    other = party.new_topic("topical", 2)
    a = joined(party, "a", "top.*")
    party.drop(other)
    a.beat("sees it", until=unresolved)
    a.beat("has given up", owned=[0, 1, 2, 3])
    party.describe("without it")


@case()
def a_pattern_of_several_members(probe: Probe) -> None:
    """It goes with its last member, and is resolved anew for the next one at once."""
    party = Party(probe)
    a = joined(party, "a", "top.*")
    pattern = probe.name("top.*")
    b, c = party.member("b"), party.member("c")
    b.join("takes the same", [], subscribed_topic_regex=pattern)
    c.join("takes the same with a name", subscribed_topic_regex=pattern)
    party.describe("three")
    c.beat("gives the pattern up", subscribed_topic_regex="")
    a.leave("leaves")
    b.beat("gets some", owned=[])
    party.describe("one has it")
    b.leave("leaves")
    c.leave("leaves")
    d = joined(party, "d", "top.*")
    d.leave("leaves")
    party.describe("empty")


@case()
def patterns_are_checked_when_they_are_new(probe: Probe) -> None:
    party = Party(probe)
    a = joined(party, "a", "top.*")
    for pattern in ("(", "a(?=b)", "[", "a**"):
        a.beat(f"takes {pattern}", subscribed_topic_regex=pattern)
    party.describe("unharmed")
    b = party.member("b")
    b.join("joins with a bad one", [], subscribed_topic_regex="(?!a)")
    b.beat("is no member", member_epoch=1)
    a.beat("stays")
    a.leave("leaves with a bad one", subscribed_topic_regex="(")


@case()
def a_bad_pattern_makes_no_group(probe: Probe) -> None:
    party = Party(probe)
    party.member("a").join("joins", [], subscribed_topic_regex="(")
    party.describe("no group")
    party.listed("not listed")


@case()
def a_pattern_of_internal_topics(probe: Probe) -> None:
    party = Party(probe, partitions=0)
    a = party.member("a")
    a.join("joins", [], subscribed_topic_regex="__consumer_off.*")
    for _ in range(200):
        answer = a.ask(None)
        if resolved(answer):
            break
        wait(0.01)
    (row,) = answer["assignment"]["topic_partitions"]
    probe.record("partitions", sorted(row["partitions"]))
    a.leave("leaves")


SUBSCRIPTIONS: tuple[dict[str, Any], ...] = ({"subscribed_topic_names": None}, {"subscribed_topic_names": []})


@case()
def a_pattern_that_is_empty(probe: Probe) -> None:
    """It stands for none, and joining with it alone is enough."""
    party = Party(probe)
    for name, fields in zip("ab", SUBSCRIPTIONS, strict=True):
        party.member(name).join("joins", subscribed_topic_regex="", **fields)
    party.describe("no topics")


@case()
def a_pattern_beside_the_same_name(probe: Probe) -> None:
    """Names and a pattern are a union; each may go alone."""
    party = Party(probe)
    name = party.only_topic.name
    a = party.member("a")
    a.join("joins", subscribed_topic_regex=probe.name("top.*"))
    a.beat("is resolved", until=lambda answer: answer["member_epoch"] == 3)
    a.beat("drops the name", subscribed_topic_names=[])
    party.describe("the pattern is left")
    a.beat("takes the name back", subscribed_topic_names=[name])
    a.beat("drops the pattern", subscribed_topic_regex="")
    party.describe("the name is left")
    a.beat("drops the name, too", subscribed_topic_names=[])
    a.beat("has given up", owned=[])
    party.describe("nothing is left")


@case()
def a_member_with_a_pattern_turns_classic(probe: Probe) -> None:
    """A static member of the new protocol goes away; the classic one in its place has names."""
    party = Party(probe)
    party.member("keeper").join("joins")
    a = party.member("a", instance="i")
    a.join("joins", [], subscribed_topic_regex=probe.name("top.*"))
    a.beat("is resolved", until=lambda answer: answer["member_epoch"] == 3)
    old = Old(party, "old", instance="i")
    old.join("takes its place")
    party.describe("no pattern", keep=without_ids)


def without_ids(answer: Answer) -> Answer:
    """What is wanted, by whom: which partitions they are to have goes by ids, and the server makes one."""
    for group in answer["groups"]:
        for member in group["members"]:
            del member["assignment"], member["target_assignment"]
    return answer


@case()
def a_pattern_upgrades_a_classic_group(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    new = party.member("new")
    new.join("joins", [], subscribed_topic_regex=probe.name("top.*"), server_assignor="range")
    wait(RESOLVED_S)
    new.beat("waits for partitions", until=lambda answer: answer["member_epoch"] == 2)
    old.heartbeat("is told")
    party.describe("upgraded", keep=without_ids)
