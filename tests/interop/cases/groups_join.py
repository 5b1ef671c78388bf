"""JoinGroup: who may join, with what, and what the answer looks like in every version."""

from collections.abc import Callable
from typing import Any

from interop.cases.groups_kit import JOIN_VERSIONS, RANGE, Group, Member, alone, coordinated, subscription
from oracle.compare import Cases, Differs, Probe
from oracle.wire import decode_response, fit

CASES = Cases("join")
case = CASES.case

BAD_TEXTS = ("", " ", "ü", "a/b", "x" * 300)


def ask(probe: Probe, label: str, version: int, group_id: str, **over: Any) -> Any:
    """One JoinGroup that is answered at once, for those that are refused."""
    body = {
        "group_id": group_id,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    } | over
    return probe.ask(label, "JoinGroup", version, fit("JoinGroup", version, body))


def life(version: int) -> Callable[[Probe], None]:
    """A member alone, from its first join to the end of its group, in one version."""

    def run(probe: Probe) -> None:
        group = Group(probe)
        group.describe("before")
        member = group.member("member", version=version)
        if version >= 4:
            member.join("an id is given")
            # The oracle answers before the record of the new group is committed, and describes what is committed.
            group.await_state("Empty")
            group.describe("with an id given")
        member.join("joins")
        group.describe("joined")
        member.heartbeat("not synced yet")
        member.lead("syncs")
        group.describe("stable")
        member.heartbeat("stable")
        member.leave("leaves")
        member.heartbeat("left")
        group.describe("after")

    return run


for _version in JOIN_VERSIONS:
    CASES.add(f"life_of_one_member_v{_version}", life(_version))


@case()
def an_empty_group_id(probe: Probe) -> None:
    for version in JOIN_VERSIONS:
        ask(probe, f"v{version}", version, "")
        ask(probe, f"with a member id v{version}", version, "", member_id="ghost")


@case()
def group_ids_are_any_text(probe: Probe) -> None:
    for index, text in enumerate(BAD_TEXTS[1:]):
        group = Group(probe, text)
        member = group.member(f"member {index}")
        member.enter("joins")
        member.lead("syncs")
        group.describe(f"group {index}")


@case()
def an_unknown_member_id(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("nobody"))
    for version in JOIN_VERSIONS:
        ask(probe, f"no group v{version}", version, group_id, member_id="ghost")
    group = Group(probe)
    alone(group)
    for version in JOIN_VERSIONS:
        ask(probe, f"v{version}", version, group.id, member_id="ghost")
    group.describe("undisturbed")


@case()
def an_unknown_member_id_leaves_no_group_behind(probe: Probe) -> None:
    group = Group(probe)
    ask(probe, "join", 9, group.id, member_id="ghost")
    group.describe("v5")
    group.describe("v6", 6)


@case()
def every_request_without_an_id_is_given_another(probe: Probe) -> None:
    group = Group(probe)
    one, two = group.member("one"), group.member("two")
    one.join("first")
    two.join("second")
    probe.record("two ids", one.id != two.id)
    group.describe("nobody is a member yet")


@case()
def an_id_that_was_given_to_another_group(probe: Probe) -> None:
    one, two = Group(probe, "one"), Group(probe, "two")
    member = one.member("member").ask_for_id()
    ask(probe, "no group", 9, two.id, member_id=member.id)
    alone(two, "owner")
    ask(probe, "a group", 9, two.id, member_id=member.id)


@case()
def session_timeouts_have_bounds(probe: Probe) -> None:
    for version in (0, 1, 4, 9):
        group = Group(probe, f"v{version}")
        for timeout in (-1, 0, 1, 999, 1_800_001, 2**31 - 1):
            ask(probe, f"{timeout} v{version}", version, group.id, session_timeout=timeout)
        group.describe(f"no group by that, v{version}")
    for timeout in (1_000, 1_800_000):
        member = Group(probe, f"in bounds {timeout}").member(f"timeout {timeout}", session_ms=timeout)
        member.enter("joins")


@case()
def rebalance_timeouts_have_none(probe: Probe) -> None:
    for timeout in (-1, 0, 1, 2**31 - 1):
        member = Group(probe, f"group {timeout}").member(f"timeout {timeout}", rebalance_ms=timeout)
        member.enter("joins")


@case()
def the_session_timeout_is_checked_before_the_member(probe: Probe) -> None:
    group = Group(probe)
    alone(group)
    ask(probe, "both wrong", 9, group.id, member_id="ghost", session_timeout=1)
    ask(probe, "without a group", 9, "", session_timeout=1)


@case()
def protocols_must_be_there(probe: Probe) -> None:
    for version in (0, 3, 4, 6, 7, 9):
        group = Group(probe, f"v{version}")
        ask(probe, f"no protocols v{version}", version, group.id, protocols=[])
        ask(probe, f"no type v{version}", version, group.id, protocol_type="")
        ask(probe, f"neither v{version}", version, group.id, protocol_type="", protocols=[])
        group.describe(f"no group by that, v{version}")


@case()
def protocols_must_be_there_for_a_second_member_too(probe: Probe) -> None:
    group = Group(probe)
    alone(group)
    for version in (3, 9):
        ask(probe, f"no protocols v{version}", version, group.id, protocols=[])
        ask(probe, f"no type v{version}", version, group.id, protocol_type="")


@case()
def protocol_types_must_agree(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for version in JOIN_VERSIONS:
        ask(probe, f"v{version}", version, group.id, protocol_type="connect")
    member.heartbeat("undisturbed")


@case()
def members_must_share_a_protocol(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group, protocols=(("range", b"r"), ("sticky", b"s")))
    for version in JOIN_VERSIONS:
        rows = [{"name": "roundrobin", "metadata": b"x"}]
        ask(probe, f"v{version}", version, group.id, protocols=rows)
    ask(probe, "other case", 9, group.id, protocols=[{"name": "Range", "metadata": b"x"}])
    member.heartbeat("undisturbed")


@case()
def a_member_that_rejoins_alone_may_change_its_protocols(probe: Probe) -> None:
    member = alone(Group(probe))
    member.protocols = (("roundrobin", b"new"),)
    member.join("other protocol")
    member.lead("syncs")
    member.protocol_type = "connect"
    member.join("other type")
    member.group.describe("after")


@case()
def a_group_that_is_empty_takes_another_type(probe: Probe) -> None:
    group = Group(probe)
    alone(group).leave("leaves")
    group.describe("empty")
    other = group.member("other", protocol_type="connect", protocols=(("default", b"d"),))
    other.enter("joins")
    other.lead("syncs")
    group.describe("of another type")


NO_NAME = "a protocol may have any name, also none"


@case(
    {
        "member 0: joins": Differs(NO_NAME, {"protocol_name": ""}),
        "member 0: syncs": Differs(
            NO_NAME,
            {"error_code": 0, "protocol_type": "consumer", "protocol_name": "", "assignment": b"member 0"},
        ),
        "group 0": Differs(
            NO_NAME, {"groups[0].group_state": "Stable", "groups[0].members[0].member_assignment": b"member 0"}
        ),
    }
)
def odd_protocols_are_taken(probe: Probe) -> None:
    for index, protocols in enumerate(
        (
            (("", b""),),
            (("p", b""),),
            (("p", b"\0" * 10_000),),
            (("p", b"\xff\xff\0\0\0\0"),),
            tuple((f"p{number}", b"m") for number in range(50)),
        )
    ):
        group = Group(probe, f"group{index}")
        member = group.member(f"member {index}", protocols=protocols)
        member.enter("joins")
        member.lead("syncs")
        group.describe(f"group {index}")


def answered(name: str, metadata: bytes) -> Differs:
    member_id = f"differential-<uuid of {name}>"
    return Differs(
        "a member must not hang: the oracle never answers",
        {
            "error_code": 0,
            "generation_id": 1,
            "protocol_type": "consumer",
            "protocol_name": "p",
            "leader": member_id,
            "skip_assignment": False,
            "member_id": member_id,
            "members": [{"member_id": member_id, "group_instance_id": None, "metadata": metadata}],
        },
    )


TWICE, CUT = (("p", subscription("a")), ("p", subscription("b"))), (("p", subscription("a")[:6]),)


@case(
    {
        "a protocol twice: joins": answered("a protocol twice", subscription("a")),
        "a subscription cut short: joins": answered("a subscription cut short", subscription("a")[:6]),
    }
)
def protocols_that_the_oracle_trips_over(probe: Probe) -> None:
    for name, protocols in (("a protocol twice", TWICE), ("a subscription cut short", CUT)):
        member = Group(probe, name).member(name, protocols=protocols)
        member.send_enter()
        member.joined("joins", patience_s=0.5)


@case()
def the_leader_that_rejoins_starts_a_rebalance(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    for turn in range(3):
        member.join(f"again {turn}")
        group.describe(f"joined {turn}")
        member.lead(f"syncs {turn}")
    member.heartbeat("stable")
    member.heartbeat("of the first generation", generation_id=1)


@case()
def joining_again_before_the_sync(probe: Probe) -> None:
    group = Group(probe)
    member = group.member("member")
    member.enter("joins")
    member.join("the same again")
    member.protocols = (("range", subscription("changed")),)
    member.join("changed")
    member.lead("syncs")


@case()
def joining_again_without_the_id(probe: Probe) -> None:
    """Old clients get a second membership, and the group waits for the first."""
    group = Group(probe)
    one = alone(group, version=3)
    two = group.member("two", version=3)
    two.send_join()
    group.await_state("PreparingRebalance", 2)
    one.leave("leaves")
    two.joined("has the group")


@case()
def client_ids_are_part_of_member_ids(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("group"))
    connection = probe.connect()
    for label, client_id in (("none", None), ("empty", ""), ("other", "other"), ("with spaces", "a b ü")):
        body = {
            "group_id": group_id,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
        }
        connection.send("JoinGroup", 9, body, client_id=client_id)
        payload = connection.receive()
        assert payload is not None
        given = decode_response("JoinGroup", 9, payload)[1]["member_id"]
        probe.record(label, (given[:-36], given[-36:].count("-")))


@case()
def generations_go_on_where_a_group_was_empty(probe: Probe) -> None:
    group = Group(probe)
    for turn in range(3):
        member = group.member(f"member {turn}")
        member.enter("joins")
        member.lead("syncs")
        member.leave("leaves")
        group.describe(f"empty {turn}")


@case()
def what_the_leader_is_told(probe: Probe) -> None:
    """Metadata of the chosen protocol, of every member, in the versions that show them."""
    for version in (0, 4, 5, 7, 9):
        group = Group(probe, f"v{version}")
        protocols = (("range", subscription("a")), ("sticky", subscription("a", "b", version=1)))
        member = group.member(f"v{version}", version=version, protocols=protocols)
        member.enter("joins")


@case()
def a_join_that_waits_for_others_does_not_hold_up_other_connections(probe: Probe) -> None:
    group = Group(probe)
    one, two = alone(group, "one"), group.member("two")
    two.send_enter()
    one.heartbeat("told to rejoin", until=27)
    three: Member = group.member("three", protocols=RANGE)
    three.join("an id is given meanwhile")
    three.leave("and given back")
    one.join("rejoins")
    two.joined("is let in")
