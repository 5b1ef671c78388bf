"""Members of both protocols in one group, groups that change their type (reference 8), offsets by epoch (7), patterns
(5) and configurations of groups (9)."""

import struct
from typing import Any

from interop.cases.consumer_kit import GROUP_RESOURCE, Modern, Party, alter_group, counted, even, wait
from interop.cases.groups_kit import Answer, Member, commit_rows
from oracle.compare import Cases, Probe, Topic
from oracle.wire import fit

CASES = Cases("consumer-classic")
case = CASES.case


def wanted(topic: Topic, owned: tuple[int, ...] = (), *, version: int = 1) -> bytes:
    """A subscription to one topic, with what the member owns of it."""
    name = topic.name.encode()
    out = struct.pack(">hih", version, 1, len(name)) + name + struct.pack(">i", -1)
    if version >= 1 and owned:
        out += struct.pack(">ih", 1, len(name)) + name + struct.pack(f">i{len(owned)}i", len(owned), *owned)
    elif version >= 1:
        out += struct.pack(">i", 0)
    return out


def assigned(topic: Topic, partitions: tuple[int, ...], user_data: bytes = b"", version: int = 1) -> bytes:
    name = topic.name.encode()
    out = struct.pack(">hih", version, 1, len(name)) + name
    out += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return out + (struct.pack(">i", len(user_data)) + user_data if user_data else struct.pack(">i", -1))


class Old(Member):
    """A member of the classic protocol in the group of a party."""

    def __init__(self, party: Party, name: str, **options: Any) -> None:
        self.party = party
        self.topic = party.only_topic
        options.setdefault("protocols", (("range", wanted(self.topic)),))
        super().__init__(party, name, **options)  # type: ignore[arg-type]

    def _learn(self, answer: Answer) -> None:
        super()._learn(answer)
        if self.id and not self.id.startswith(self.name):
            self.probe.mask(self.id, f"<id of {self.name}>")

    def owns(self, *owned: int) -> None:
        self.protocols = (("range", wanted(self.topic, owned)),)

    def alone(self, partitions: tuple[int, ...] = (0, 1, 2, 3), user_data: bytes = b"") -> "Old":
        self.enter("alone, joined")
        self.sync("alone, synced", {self.id: assigned(self.topic, partitions, user_data)})
        return self


def mixed(probe: Probe) -> tuple[Party, Old, Modern]:
    """A classic member with all four partitions, and one of the consumer protocol that waits for its half."""
    party = Party(probe)
    old = Old(party, "old").alone()
    new = party.member("new")
    new.join("joins")
    return party, old, new


def mixed_and_settled(probe: Probe) -> tuple[Party, Old, Modern]:
    party, old, new = mixed(probe)
    old.heartbeat("is told")
    old.owns(0, 1, 2, 3)
    old.join("joins with all")
    old.sync("is told what stays")
    old.heartbeat("is told again")
    old.owns(0, 1)
    old.join("joins with less")
    old.sync("has its half")
    new.beat("gets its half")
    party.describe("settled")
    return party, old, new


@case()
def an_upgrade(probe: Probe) -> None:
    party, old, new = mixed(probe)
    party.describe("upgraded")
    party.listed("upgraded, listed")
    old.heartbeat("of another generation", generation_id=7)
    old.heartbeat("of nobody", member_id="nobody")
    old.sync("has to join first")
    old.heartbeat("is told")
    old.owns(0, 1, 2, 3)
    old.join("joins with all")
    party.describe("first round")
    old.sync("is told what stays")
    old.sync("of another type", protocol_type="connect")
    old.sync("of another name", protocol_name="roundrobin")
    old.heartbeat("is told again")
    old.owns(0, 1)
    old.join("joins with less")
    old.sync("has its half")
    old.heartbeat("is done")
    new.beat("gets its half")
    party.describe("settled")
    new.beat("stays")


@case()
def an_upgrade_by_nobody(probe: Probe) -> None:
    party = Party(probe)
    Old(party, "old").alone()
    new = party.member("new")
    new.beat("has an epoch", member_epoch=1)
    new.leave("leaves")
    new.leave("leaves for a while", -2, instance_id="i")


@case()
def an_upgrade_of_another_type(probe: Probe) -> None:
    party = Party(probe)
    Old(party, "old", protocol_type="connect").alone()
    party.member("new").join("joins")


@case()
def an_upgrade_with_user_data(probe: Probe) -> None:
    party = Party(probe)
    Old(party, "old").alone(user_data=b"secret")
    party.member("new").join("joins")


@case()
def an_upgrade_before_the_sync(probe: Probe) -> None:
    """The assignor `range` goes by the order of ids, `uniform` by their hashes: those of the server are chance."""
    party = Party(probe)
    old = Old(party, "old")
    old.enter("joins")
    new = party.member("new")
    new.join("joins", server_assignor="range")
    old.sync("has to join first")
    party.describe("upgraded")


@case()
def an_upgrade_while_members_wait(probe: Probe) -> None:
    party = Party(probe, partitions=6)
    old = Old(party, "old").alone((0, 1, 2, 3, 4, 5))
    second = Old(party, "second")
    second.send_enter()
    party.member("new").join("joins")
    second.joined("is told to come again")
    old.heartbeat("is told")
    party.describe("upgraded", keep=counted)


@case()
def its_own_member_upgrades_it(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    new = party.member("old", id=old.id)
    new.join("joins as a new one")
    party.describe("no rebalance")
    old.heartbeat("is no classic member any more")


@case()
def a_classic_member_that_turns_new(probe: Probe) -> None:
    party, old, _ = mixed_and_settled(probe)
    turned = party.member("turned", id=old.id)
    turned.epoch = old.generation
    turned.beat("beats in the new way")
    party.describe("both new")


@case()
def an_empty_group_changes_its_type(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    old.leave("leaves")
    new = party.member("new")
    new.join("begins at epoch 2")
    party.commit("commits", "new", 2, [0])
    party.listed("consumer")
    new.leave("leaves")
    third = Old(party, "third").alone()
    party.listed("classic")
    party.fetch("offsets stay", None, -1)
    third.leave("leaves")


@case()
def the_last_new_member_leaves(probe: Probe) -> None:
    party, old, new = mixed_and_settled(probe)
    new.leave("leaves")
    party.listed("classic")
    party.describe("no consumer group")
    body: Answer = {"groups": [party.id], "include_authorized_operations": False}
    probe.ask("described", "DescribeGroups", 5, body)
    old.heartbeat("is told to rebalance")
    old.join("leads")
    old.sync("has all", {old.id: assigned(party.only_topic, (0, 1, 2, 3))})
    old.heartbeat("stable")


@case()
def a_classic_member_leaves(probe: Probe) -> None:
    party, old, new = mixed_and_settled(probe)
    old.leave("leaves")
    party.describe("assigning")
    new.beat("gets all")
    party.describe("after")
    old.heartbeat("is gone")


@case()
def new_members_are_removed_by_leave_group(probe: Probe) -> None:
    party, _, b = even(probe)
    rows = [{"member_id": name, "group_instance_id": None, "reason": None} for name in ("a", "nobody", "")]
    body: Answer = {"group_id": party.id, "members": rows}
    probe.ask("leave", "LeaveGroup", 5, body)
    b.beat("gets all")
    party.describe("after")


@case()
def classic_members_join_a_consumer_group(probe: Probe) -> None:
    party = Party(probe, partitions=6)  # for three members as for two: none has one more
    new = party.member("new")
    new.join("joins")
    for label, over in (
        ("short session", {"session_timeout": 1}),
        ("another type", {"protocol_type": "connect"}),
        ("no protocol", {"protocols": []}),
        ("unreadable", {"protocols": [{"name": "range", "metadata": b"?"}], "member_id": "x"}),
    ):
        Old(party, label).join("joins", **over)
    old = Old(party, "old")
    old.join("needs an id")
    old.join("joins")
    party.describe("two")
    old.sync("has nothing yet")
    old.heartbeat("waits")
    new.beat("is told")
    new.beat("has given up", owned=[0, 1, 2])
    old.heartbeat("may have more")
    old.join("joins again")
    old.sync("has its half")
    old.heartbeat("is done")
    party.describe("settled")
    stranger = Old(party, "stranger", id="made-up")
    stranger.join("joins with an id of its own")
    party.describe("three")
    other = Old(party, "other", protocols=(("sticky", wanted(party.only_topic)),), id="another")
    other.join("has no protocol in common")


@case()
def static_members_of_both_kinds(probe: Probe) -> None:
    party = Party(probe)
    keeper = party.member("keeper")
    keeper.join("joins")
    old = Old(party, "old", instance="i")
    old.join("joins")
    old.heartbeat("is there", group_instance_id="j")
    again = Old(party, "again", instance="i")
    again.join("takes its place")
    old.heartbeat("is fenced")
    wrong = Old(party, "wrong", instance="i", id="nobody")
    wrong.join("has another id")
    unknown = Old(party, "unknown", instance="k", id="nobody")
    unknown.join("is unknown")
    new = party.member("new", instance="i")
    new.join("takes its place in the new way")
    again.heartbeat("is fenced, too")
    party.describe("after")


@case()
def the_last_new_member_is_replaced(probe: Probe) -> None:
    party = Party(probe)
    new = party.member("new", instance="i")
    new.join("joins")
    old = Old(party, "old", instance="i")
    old.join("takes its place")
    old.sync("has what it had")
    old.heartbeat("stable")
    party.listed("classic")


@case()
def a_classic_member_that_does_not_come_back(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old", rebalance_ms=1000).alone()
    new = party.member("new")
    new.join("joins")
    old.heartbeat("is told")
    wait(1.4)
    old.heartbeat("is gone")
    new.beat("gets all")


@case()
def a_classic_member_that_does_not_sync(probe: Probe) -> None:
    party = Party(probe)
    new = party.member("new")
    new.join("joins")
    old = Old(party, "old", rebalance_ms=1000)
    old.enter("joins")
    wait(1.4)
    old.heartbeat("is gone")


# --- offsets ---


@case()
def commits_by_epoch(probe: Probe) -> None:
    party, a, b = even(probe)
    party.commit("own epoch", "a", 3, [0])
    party.commit("own epoch, not its own", "a", 3, [2])
    party.commit("epoch before, what it kept", "a", 2, [0, 1])
    party.commit("epoch before, what it gave up", "a", 2, [2])
    party.commit("epoch before, both", "a", 2, [0, 2])
    party.commit("before it had them", "b", 2, [2])
    party.commit("a greater epoch", "a", 4, [0])
    party.commit("epoch -1", "a", -1, [0])
    party.commit("of nobody", "nobody", 3, [0])
    party.commit("anonymous", "", -1, [0])
    party.commit("with a wrong instance", "a", 3, [0], group_instance_id="i")
    party.commit("by topic id", "a", 3, [0], version=10)
    for version in (2, 5, 8):
        party.commit(f"v{version}", "a", 3, [0], version=version)
    for member, epoch in (("a", 3), ("a", 2), ("a", 4), ("nobody", 3), ("", -1), ("a", -1), (None, -1)):
        party.fetch(f"fetch of {member} {epoch}", member, epoch)
    a.leave("leaves")
    b.leave("leaves")
    party.commit("anonymous, empty", "", -1, [0])
    party.commit("anybody, empty", "who", -1, [0])
    party.commit("an epoch, empty", "who", 1, [0])


@case()
def commits_while_giving_up(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    party.commit("what it gives up", "a", 2, [0, 1, 2, 3])
    a.beat("has given up", owned=[0, 1])
    party.commit("what it gave up", "a", 3, [2])


@case()
def commits_of_static_members(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b", instance="i")
    a.join("joins")
    a.leave("leaves for a while", -2)
    party.commit("away", "a", -2, [0])
    party.commit("away, old epoch", "a", 2, [0])
    b.join("comes back")
    party.commit("back", "b", 2, [0])
    party.commit("back, older", "b", 1, [0])
    party.commit("of the former id", "a", 2, [0])


@case()
def commits_of_classic_members(probe: Probe) -> None:
    party, old, _ = mixed_and_settled(probe)
    party.commit("own generation", old.id, old.generation, [0])
    party.commit("own generation v8", old.id, old.generation, [0], version=8)
    party.commit("older, kept", old.id, old.generation - 1, [0])
    party.commit("older, given up", old.id, old.generation - 1, [3])
    party.commit("greater", old.id, old.generation + 1, [0])
    party.fetch("fetch", old.id, old.generation)
    party.fetch("fetch, older", old.id, old.generation - 1)


@case()
def commits_of_no_group(probe: Probe) -> None:
    party = Party(probe)
    for version in (2, 8, 9):
        party.commit(f"epoch v{version}", "a", 1, [0], version=version)
    party.commit("anonymous", "", -1, [0])
    party.listed("a simple group")
    party.member("a").join("takes the simple group")
    party.fetch("offsets stay", "a", 2)


@case()
def offsets_that_are_deleted(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other")
    a = party.member("a")
    a.join("joins")
    party.commit("commits", "a", 2, [0])
    body = {"group_id": party.id, "generation_id_or_member_epoch": 2, "member_id": "a"}
    body["topics"] = commit_rows(other, {0: 5})
    probe.ask("commits the other", "OffsetCommit", 9, fit("OffsetCommit", 9, body))
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0}]} for topic in (party.only_topic, other)]
    probe.ask("deletes", "OffsetDelete", 0, {"group_id": party.id, "topics": rows})
    party.fetch("after", "a", 2)


# --- patterns ---


def unresolved(answer: Answer) -> bool:
    return answer["assignment"] is not None


@case()
def a_pattern(probe: Probe) -> None:
    party = Party(probe)
    party.new_topic("topical", 2)
    a = party.member("a")
    a.join("joins", None, subscribed_topic_regex=probe.name("topic.*"), server_assignor="range")
    a.beat("has both", until=unresolved)
    party.describe("resolved")
    b = party.member("b")
    b.join("takes the same", None, subscribed_topic_regex=probe.name("topic.*"), server_assignor="range")
    a.beat("is told")
    a.beat("wants names instead", subscribed_topic_regex="", subscribed_topic_names=[party.only_topic.name], owned=[])
    party.describe("one by name")
    b.leave("leaves")
    a.beat("after", owned=[])
    party.describe("after")


@case()
def a_pattern_and_names(probe: Probe) -> None:
    party = Party(probe)
    party.new_topic("second", 1)
    a = party.member("a")
    a.join("joins", subscribed_topic_regex=probe.name("sec.nd"))
    a.beat("has both", until=unresolved)
    party.describe("resolved")


@case()
def patterns_that_match_nothing(probe: Probe) -> None:
    party = Party(probe)
    party.member("a").join("part of a name", None, subscribed_topic_regex=probe.name("topi"))
    wait(0.3)
    party.describe("no topics")


PATTERNS = ("(", "a(?=b)", "a++", "(?>a)", r"a\Z", r"\Ca", "(?x)a", "a{1001}", r"(a)\1", "[", "*")
GOOD = ("(?i)ab", "(?P<n>a)", "(?<n>a)", r"\pN", "[[:alpha:]]", r"\Qa\E", r"a\z", "a{1000}", "", "__.*")


@case()
def patterns_that_are_refused(probe: Probe) -> None:
    party = Party(probe)
    for pattern in PATTERNS:
        party.member("a").join(f"pattern {pattern}", None, subscribed_topic_regex=pattern)
    for number, pattern in enumerate(GOOD):
        other = Party(probe, f"group-{number}", partitions=0)
        answer = other.member("a").join(None, None, subscribed_topic_regex=pattern)
        probe.record(f"pattern {pattern}", answer["error_code"])


# --- configurations ---


def row(name: str, value: str | None, operation: int = 0) -> Answer:
    return {"name": name, "config_operation": operation, "value": value}


SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms",
)  # fmt: skip
ALTERATIONS = {
    "too short": [row(SESSION, "10")],
    "too long": [row(SESSION, "60001")],
    "no number": [row(SESSION, "x")],
    "unknown": [row("consumer.nothing", "1")],
    "append": [row(SESSION, "50000", 2)],
    "subtract": [row(SESSION, "50000", 3)],
    "session below the broker's heartbeat": [row(SESSION, "3000")],
    "heartbeat and session": [row(SESSION, "2000"), row(HEARTBEAT, "2000")],
    "null": [row(SESSION, None)],
    "twice": [row(SESSION, "50000"), row(SESSION, "50001")],
    "good": [row(SESSION, "50000"), row(HEARTBEAT, "6000"), row(INTERVAL, "10")],
    "heartbeat above its session": [row(HEARTBEAT, "15000"), row(SESSION, "14000")],
    "delete": [row(INTERVAL, None, 1)],
    "delete what is not set": [row(INTERVAL, None, 1)],
}


@case()
def configurations(probe: Probe) -> None:
    group = probe.name("group")
    for label, rows in ALTERATIONS.items():
        alter_group(probe, label, group, rows)
    alter_group(probe, "no name", "", [row(SESSION, "50000")])

    def own(answer: Answer) -> Any:
        kept = ("consumer.session", "consumer.heartbeat", "consumer.assignment.interval")
        for result in answer["results"]:
            result["configs"] = [config for config in result["configs"] if config["name"].startswith(kept)]
        return answer

    for version in (1, 4):
        for label, name in (("own", group), ("of none", probe.name("none")), ("no name", "")):
            resource = {"resource_type": GROUP_RESOURCE, "resource_name": name, "configuration_keys": None}
            body: Answer = {"resources": [resource], "include_synonyms": True}
            if version >= 3:
                body["include_documentation"] = False
            probe.ask(f"described {label} v{version}", "DescribeConfigs", version, body, keep=own)

    def listed(answer: Answer) -> Any:
        return [found for found in answer["config_resources"] if found["resource_name"] == group]

    probe.ask("listed", "ListConfigResources", 1, {"resource_types": [GROUP_RESOURCE]}, keep=listed)
    alter_group(probe, "all deleted", group, [row(SESSION, None, 1), row(HEARTBEAT, None, 1)])
    probe.ask(
        "not listed",
        "ListConfigResources",
        1,
        {"resource_types": [GROUP_RESOURCE]},
        keep=listed,
        until=lambda answer: not listed(answer),
    )


@case()
def a_heartbeat_interval_of_its_own(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    party.configure(heartbeat=6000)
    a.beat("has it")
    party.configure(heartbeat=None)
    a.beat("has it no more")
