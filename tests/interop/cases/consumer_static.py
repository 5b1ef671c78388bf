"""Static members of the consumer protocol: away, back, replaced, removed, and with instance ids of others."""

from typing import Any

from interop.cases.consumer_kit import Party, even, two
from interop.cases.groups_kit import Answer
from oracle.compare import Cases, Differs, Probe

CASES = Cases("consumer-static")
case = CASES.case

AWAY = -2


def remove(party: Party, label: str, *rows: tuple[str, str | None], version: int = 5) -> None:
    """LeaveGroup with rows of member and instance id, as administrators send it."""
    members = [{"member_id": member, "group_instance_id": instance, "reason": "a case"} for member, instance in rows]
    body: Answer = {"group_id": party.id, "members": members}
    if version < 5:
        for row in members:
            del row["reason"]
    party.probe.ask(label, "LeaveGroup", version, body)


@case()
def it_leaves_for_good_after_a_while(probe: Probe) -> None:
    party, a, b = two(probe, instance="i")
    assert b.epoch == 0, "the place is taken"
    a.leave("leaves for a while", AWAY)
    party.describe("away")
    a.leave("leaves for good")
    party.describe("empty")
    a.leave("leaves for a while once more", AWAY)
    b.join("joins again")


@case()
def it_is_removed_while_it_is_away(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.leave("leaves for a while", AWAY)
    b.beat("waits")
    remove(party, "removed", ("", "i"))
    b.beat("gets all")
    party.describe("after")
    c = party.member("c", instance="i")
    c.join("is a new member")
    party.describe("both")


@case()
def members_that_administrators_name(probe: Probe) -> None:
    party = Party(probe)
    party.member("a", instance="i").join("joins")
    party.member("b", instance="j").join("joins")
    party.member("c", instance="k").join("joins")
    remove(party, "wrong ones", ("a", "j"), ("b", "nothing"), ("", "nothing"), ("nobody", None), ("", None), ("", ""))
    party.describe("all are there")
    remove(party, "right ones", ("a", "i"), ("", "j"), ("c", None), ("c", None), ("c", "k"))
    party.describe("nobody is there")
    remove(party, "of an empty group", ("a", "i"), ("", None))


for _version in (3, 4):

    def removals(probe: Probe, version: int = _version) -> None:
        party = Party(probe)
        party.member("a", instance="i").join("joins")
        party.member("b").join("joins")
        remove(party, "both and a stranger", ("", "i"), ("b", None), ("x", None), version=version)
        party.describe("empty")

    CASES.add(f"removals_v{_version}", removals)


@case()
def two_of_them_change_places(probe: Probe) -> None:
    """Each comes back under the other's id: what counts is the instance."""
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b", instance="j")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    a.leave("leaves for a while", AWAY)
    b.leave("leaves for a while", AWAY)
    party.describe("both away")
    c, d = party.member("c", instance="j"), party.member("d", instance="i")
    c.join("comes back as j")
    d.join("comes back as i")
    party.describe("both back")
    for member, owned in ((c, [2, 3]), (d, [0, 1])):
        member.beat("owns what the other had", owned=owned)


@case()
def others_come_while_it_is_away(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b")
    a.join("joins")
    a.leave("leaves for a while", AWAY)
    b.join("joins")
    b.beat("waits")
    party.describe("its partitions are kept")
    back = party.member("back", instance="i")
    back.join("comes back")
    back.beat("gives up", owned=[0, 1])
    b.beat("gets its half")
    party.describe("settled")


@case()
def others_go_while_it_is_away(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a"), party.member("b", instance="i")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    b.leave("leaves for a while", AWAY)
    a.leave("leaves for good")
    party.describe("only one, away")
    b.join("comes back under the same id")
    party.describe("has all")
    b.beat("stays", owned=[0, 1, 2, 3])


@case()
def its_epochs_when_it_is_back(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins")
    a.leave("leaves for a while", AWAY)
    for epoch in (1, 2, 3):
        a.beat(f"away, epoch {epoch}", member_epoch=epoch, owned=[])
    back = party.member("back", instance="i")
    back.join("comes back")
    for epoch in (1, 3):
        back.beat(f"back, epoch {epoch}", member_epoch=epoch, owned=[])
    back.epoch = 2
    back.beat("back, its epoch")
    back.join("joins while it is there")
    a.leave("the former one leaves for a while", AWAY)
    a.leave("the former one leaves")
    party.describe("only the one that is back")


@case()
def it_comes_back_again_and_again(probe: Probe) -> None:
    party, a, b = even(probe)
    c = party.member("c", instance="i")
    c.join("joins")
    a.beat("next", owned=[0, 1])
    b.beat("next", owned=[2, 3])
    for number in range(3):
        c.leave(f"leaves for a while {number}", AWAY)
        c.join(f"comes back {number}")
    a.beat("gives up", owned=[0])
    b.beat("gives up", owned=[2])
    c.beat("gets what is free")
    party.describe("after")


@case()
def it_has_another_rack_and_timeout_when_it_is_back(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins", rack_id="r1", server_assignor="range")
    a.leave("leaves for a while", AWAY)
    back = party.member("back", instance="i")
    back.join("comes back", rack_id="r2", rebalance_timeout=5)
    party.describe("no rebalance")


@case()
def it_takes_a_pattern_when_it_is_back(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins")
    a.leave("leaves for a while", AWAY)
    back = party.member("back", instance="i")
    back.join("comes back", [], subscribed_topic_regex=probe.name("top.*"))
    back.beat("has it again", until=lambda answer: answer["assignment"] and answer["assignment"]["topic_partitions"])
    party.describe("after")


@case()
def a_dynamic_member_takes_its_place(probe: Probe) -> None:
    """It is a member already, and then the static one: one of the two is gone."""
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    a.leave("leaves for a while", AWAY)
    b.instance = "i"
    b.join("takes the place")
    party.describe("one member")
    b.beat("goes on", owned=[0, 1])
    b.beat("and on", owned=[0, 1, 2, 3])
    party.describe("after")


OLD_PLACE = Differs(
    "a place belongs to the one instance id that its member has; Apache Kafka keeps the id before until its next start",
    {"error_code": 25, "error_message": "<text>", "member_id": None, "member_epoch": 0, "heartbeat_interval": 0},
)


@case({"a: with the instance before": OLD_PLACE})
def it_changes_its_instance(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins")
    a.instance = "j"
    a.beat("names another instance")
    a.join("joins with it")
    a.beat("stays")
    party.describe("the new instance")
    a.beat("with the instance before", instance_id="i")


@case()
def it_is_there_twice(probe: Probe) -> None:
    """A second process with the same instance id, and with its member id."""
    party = Party(probe)
    a, twin = party.member("a", instance="i"), party.member("a", instance="i")
    a.join("joins")
    twin.join("the twin joins")
    twin.epoch = 2
    twin.beat("the twin knows the epoch")
    twin.leave("the twin leaves for a while", AWAY)
    a.beat("is fenced")
    twin.join("the twin comes back")
    a.epoch = 2
    a.beat("is served again, as the twin")
    party.describe("one member")


@case()
def instances_of_many(probe: Probe) -> None:
    """`range` sorts static members by their instance, before dynamic ones; all of a full group come back."""
    party = Party(probe, partitions=8)
    places: dict[str, Any] = {"z1": "c", "z2": "a", "z3": None, "z4": "b"}
    members = {name: party.member(name, instance=instance) for name, instance in places.items()}
    for member in members.values():
        member.join("joins", server_assignor="range")
    party.describe("by instance")
    for member in members.values():
        if member.instance is not None:
            member.leave("leaves for a while", AWAY)
            member.join("comes back")
    party.describe("as before")
