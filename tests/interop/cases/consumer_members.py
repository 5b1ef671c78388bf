"""Members of the consumer protocol (KIP-848): joining, reconciling, leaving."""

from collections.abc import Callable
from typing import Any

from interop.cases.consumer_kit import Party, even, two, wait
from oracle.compare import Cases, Differs, Probe

CASES = Cases("consumer-members")
case = CASES.case


def joins(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        party = Party(probe)
        a = party.member("a", version=version)
        a.join("joins")
        party.describe("stable", version)
        a.beat("short")
        a.full("full", [0, 1, 2, 3])
        a.beat("acknowledges", owned=[0, 1, 2, 3])
        party.listed("listed")
        a.leave("leaves")
        party.describe("empty", version)

    return run


for _version in (0, 1):
    CASES.add(f"joins_v{_version}", joins(_version))


@case()
def no_topics(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins for nothing", [])
    party.describe("alone")
    a.beat("stays")
    a.beat("wants the topic", subscribed_topic_names=[party.only_topic.name])
    party.describe("with the topic")


@case()
def a_topic_that_comes_later(probe: Probe) -> None:
    party = Party(probe, partitions=0)
    name = probe.name("later")
    a = party.member("a")
    a.join("joins", [name])
    party.describe("before")
    party.topic = probe.topic("later", 3)
    a.beat("sees it", until=lambda answer: answer["assignment"] is not None)
    a.full("has it", [0, 1, 2])
    party.describe("after")


@case()
def a_second_member(probe: Probe) -> None:
    party, a, b = two(probe)
    party.describe("b waits")
    a.beat("is told")
    party.describe("a gives up")
    a.beat("does not say")
    a.beat("has all", owned=[0, 1, 2, 3])
    a.full("has all, full", [0, 1, 2, 3])
    b.beat("waits")
    a.beat("has given up", owned=[0, 1])
    party.describe("a is done")
    b.beat("gets its half")
    party.describe("stable")
    b.beat("stays", owned=[2, 3])


for _name, _owned in (("less", [0]), ("nothing", []), ("same", [0, 1])):

    def lost_answers(probe: Probe, owned: Any = _owned) -> None:
        _, a, _ = two(probe)
        a.beat("is told")
        a.beat("has given up", owned=[0, 1])
        a.beat("comes with the epoch before", owned=owned, member_epoch=2)
        a.beat("goes on")

    CASES.add(f"a_lost_answer_owning_{_name}", lost_answers)


OWNED: dict[str, list[int] | None] = {"all": [0, 1, 2, 3], "unsaid": None, "one_of_the_other": [2]}
for _name, _said in OWNED.items():

    def fenced(probe: Probe, owned: Any = _said) -> None:
        _, a, _ = two(probe)
        a.beat("is told")
        a.beat("has given up", owned=[0, 1])
        a.beat("is fenced", owned=owned, member_epoch=2)
        a.beat("far behind", owned=owned, member_epoch=1)

    CASES.add(f"an_older_epoch_owning_{_name}", fenced)


@case()
def a_greater_epoch_is_fenced(probe: Probe) -> None:
    party, a, _ = two(probe)
    a.beat("too far", member_epoch=9)
    a.beat("as before")
    party.describe("unharmed")


@case()
def joining_again_acknowledges(probe: Probe) -> None:
    party, a, b = two(probe)
    a.beat("is told")
    a.join("joins again")
    b.beat("gets its half")
    party.describe("stable")
    a.join("joins once more")


@case()
def leaving_before_the_others_are_done(probe: Probe) -> None:
    party, a, b = even(probe)
    a.leave("leaves")
    party.describe("one is left")
    b.beat("gets all")
    party.describe("stable")
    b.leave("leaves, too")
    party.describe("empty")
    a.join("comes again")


@case()
def what_is_given_up_comes_back(probe: Probe) -> None:
    party, a, b = two(probe)
    a.beat("is told")
    b.leave("leaves")
    a.beat("has given up after all", owned=[0, 1])
    party.describe("has all again")
    a.beat("next")


@case()
def three_members(probe: Probe) -> None:
    party = Party(probe, partitions=6)
    a, b, c = (party.member(name) for name in "abc")
    a.join("joins")
    b.join("joins")
    c.join("joins")
    party.describe("all joined")
    a.beat("is told")
    a.beat("has given up", owned=[0, 1])
    party.describe("a is done")
    b.beat("gets some")
    c.beat("gets some")
    party.describe("stable")
    b.leave("leaves")
    a.beat("after b")
    c.beat("after b")
    party.describe("two")


@case()
def unknown_groups_and_members(probe: Probe) -> None:
    party = Party(probe)
    a, stranger = party.member("a"), party.member("stranger")
    for epoch in (1, -1):
        stranger.beat(f"no group, epoch {epoch}", member_epoch=epoch)
    party.member("s", instance="i").beat("no group, static", member_epoch=-2)
    a.join("joins")
    for epoch in (1, 2, 7, -1):
        stranger.beat(f"no member, epoch {epoch}", member_epoch=epoch)
    party.describe("unknown", 1, probe.name("nobody"), "")


BAD: dict[str, dict[str, Any]] = {
    "no member": {"member_id": ""},
    "blank member": {"member_id": "  "},
    "no member, stays": {"member_id": "", "member_epoch": 3},
    "no member, leaves": {"member_id": "", "member_epoch": -1},
    "no group": {"group_id": ""},
    "blank group": {"group_id": " "},
    "no instance": {"instance_id": ""},
    "blank instance": {"instance_id": " "},
    "no rack": {"rack_id": ""},
    "no timeout": {"rebalance_timeout": -1},
    "no timeout and owned unsaid": {"rebalance_timeout": -1, "owned": None},
    "owned unsaid": {"owned": None},
    "owns something": {"owned": [0]},
    "no topics": {"subscribed_topic_names": None},
    "leaves for a while": {"member_epoch": -2},
    "epoch -3": {"member_epoch": -3},
    "assignor": {"server_assignor": "none"},
    "assignor empty": {"server_assignor": ""},
    "assignor, leaving": {"server_assignor": "none", "member_epoch": -1},
    "group and assignor": {"group_id": "", "server_assignor": "none"},
    "timeout 0": {"rebalance_timeout": 0},
    "timeout -5": {"rebalance_timeout": -5},
}


def bad_requests(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        party = Party(probe)
        for label, fields in BAD.items():
            if version == 0 and label in ("no member",):
                continue  # the server makes an id
            party.member("m", version=version).join(label, **fields)

    return run


for _version in (0, 1):
    CASES.add(f"bad_requests_v{_version}", bad_requests(_version))


@case()
def a_member_id_of_the_server(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", version=0)
    answer = a.join(None, member_id="")
    probe.record("length", len(answer["member_id"]))
    probe.mask(answer["member_id"], "<member>")
    a.id = answer["member_id"]
    a.beat("stays")
    party.describe("known", 0)


@case()
def names_in_another_order(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    names = [party.only_topic.name, other.name]
    a = party.member("a")
    a.join("joins", names)
    a.beat("the other way round", subscribed_topic_names=names[::-1])
    a.beat("twice", subscribed_topic_names=names + names)
    a.beat("rack", rack_id="r")
    a.beat("timeout", rebalance_timeout=7)
    a.beat("assignor", server_assignor="range")
    party.describe("as said")
    a.beat("assignor back", server_assignor="uniform")
    party.describe("as said now")


@case()
def a_subscription_that_shrinks(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    a.beat("wants nothing", subscribed_topic_names=[])
    party.describe("gives up")
    a.beat("does not say")
    a.beat("still has some", owned=[0])
    a.beat("has given up", owned=[])
    party.describe("has nothing")


@case()
def a_subscription_that_shrinks_at_once(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    a.beat("wants nothing, has nothing", subscribed_topic_names=[], owned=[])
    party.describe("after")


@case()
def a_topic_that_grows(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    topic = party.only_topic
    row = {"name": topic.name, "count": 6, "assignments": None}
    probe.tell("CreatePartitions", 2, topics=[row], timeout=5000, validate_only=False)
    probe.await_topic(topic.name, 6)
    a.beat("sees them", until=lambda answer: answer["assignment"] is not None)
    party.describe("after")


@case()
def a_topic_that_goes(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    probe.tell("DeleteTopics", 5, topic_names=[party.only_topic.name], timeout=5000)
    probe.await_gone(party.only_topic.name)
    a.beat("sees it", until=lambda answer: answer["assignment"] is not None)
    party.describe("gives up")
    a.beat("has given up", owned=[])
    party.describe("after")


@case()
def static_members_are_not_replaced(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b", instance="i")
    a.join("joins")
    b.join("wants its place")
    a.join("joins again")
    a.beat("stays")
    party.describe("one member")
    b.beat("with its instance", member_epoch=2)
    b.leave("leaves with its instance")
    party.member("c", instance="j").beat("unknown instance", member_epoch=2)
    a.beat("without the instance", instance_id=None)
    a.leave("leaves without the instance", instance_id=None)
    party.describe("empty")


@case()
def static_members_come_back(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b", instance="i")
    a.join("joins")
    a.leave("leaves for a while", -2)
    party.describe("away")
    a.beat("with its old epoch", member_epoch=2)
    a.leave("leaves for a while again", -2)
    b.join("takes its place")
    party.describe("back")
    a.epoch = 2
    a.beat("is fenced")
    b.beat("stays")
    b.leave("leaves for a while, too", -2)
    b.join("comes back under the same id")
    party.describe("back again")


@case()
def a_static_member_comes_back_while_it_gives_up(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.leave("leaves for a while", -2)
    party.describe("away")
    b.beat("gets some")
    c = party.member("c", instance="i")
    c.join("takes its place")
    party.describe("back")
    b.beat("after")
    c.beat("after")


@case()
def a_static_member_comes_back_with_other_topics(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    a, b = party.member("a", instance="i"), party.member("b", instance="i")
    a.join("joins")
    a.leave("leaves for a while", -2)
    b.join("wants other topics", [other.name])
    party.describe("back")
    b.beat("next", owned={})
    party.describe("after")


@case()
def a_dynamic_member_becomes_static(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    a.instance = "i"
    a.beat("names an instance")
    a.join("joins with it")
    party.describe("static")
    a.beat("stays")


@case()
def a_full_group(probe: Probe) -> None:
    party = Party(probe)
    members = [party.member(name) for name in "abcd"]
    for member in members:
        member.join("joins")
    fifth = party.member("e")
    fifth.join("is one too many")
    fifth.beat("with an epoch", member_epoch=3)
    members[0].join("joins again")
    members[0].leave("leaves")
    fifth.join("fits now")


@case({"comes back": Differs("it takes a place that it has already; Apache Kafka counts it as one more (81)", 0)})
def a_static_member_of_a_full_group(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins")
    for name in "bcd":
        party.member(name).join("joins")
    a.leave("leaves for a while", -2)
    answer = party.member("e", instance="i").join(None)
    probe.record("comes back", answer["error_code"])


@case()
def a_revocation_that_takes_too_long(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins", rebalance_timeout=1000)
    b.join("joins")
    a.beat("is told")
    wait(0.6)
    a.beat("still has them", owned=[0, 1, 2, 3])
    wait(0.9)
    a.beat("is gone", owned=[0, 1, 2, 3])
    b.beat("gets all")
    party.describe("after")


@case()
def a_session_that_ends(probe: Probe) -> None:
    party = Party(probe)
    party.configure(heartbeat=500, session=1000)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    party.configure(session=60_000, heartbeat=5000)
    b.join("joins")
    wait(0.5)
    party.commit("commits", "a", 2, [0])
    wait(0.9)
    a.beat("is gone")
    b.beat("gets all")
    party.describe("after")


@case()
def a_static_member_that_stays_away(probe: Probe) -> None:
    party = Party(probe)
    party.configure(heartbeat=500, session=1000)
    a = party.member("a", instance="i")
    a.join("joins")
    a.leave("leaves for a while", -2)
    wait(1.5)
    party.describe("empty")


@case()
def an_assignment_that_waits(probe: Probe) -> None:
    party = Party(probe)
    party.configure(assignment=2000)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins at once")
    party.describe("assigning")
    a.beat("too soon")
    a.beat("wants nothing meanwhile", subscribed_topic_names=[])
    party.describe("gives up meanwhile")
    wait(2.1)
    b.beat("computes")
    party.describe("after")


@case()
def the_range_assignor(probe: Probe) -> None:
    party = Party(probe, partitions=5)
    a, b = party.member("a"), party.member("b", instance="z")
    a.join("joins", server_assignor="range")
    b.join("joins", server_assignor="range")
    party.describe("by range")
    c = party.member("c", instance="y")
    c.join("joins", server_assignor="uniform")
    party.describe("still by range")


@case()
def groups_that_are_deleted(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    probe.ask("has members", "DeleteGroups", 2, {"groups_names": [party.id]})
    a.leave("leaves")
    probe.ask("empty", "DeleteGroups", 2, {"groups_names": [party.id]})
    party.describe("gone")
    a.join("begins anew")


@case()
def what_the_older_requests_say_of_it(probe: Probe) -> None:
    party = Party(probe)
    party.member("a").join("joins")
    for version in (5, 6):
        body = {"groups": [party.id], "include_authorized_operations": True}
        probe.ask(f"DescribeGroups v{version}", "DescribeGroups", version, body)
    for label, states, types in (
        ("by type", [], ["Consumer"]),
        ("by classic", [], ["classic"]),
        ("by state", ["stable"], []),
        ("by another state", ["Assigning"], ["consumer"]),
        ("by an unknown word", ["steady"], ["konsumer"]),
    ):

        def own(answer: Any) -> Any:
            return [row for row in answer["groups"] if row["group_id"] == party.id]

        probe.ask(label, "ListGroups", 5, {"states_filter": states, "types_filter": types}, keep=own)
    party.listed("all")
