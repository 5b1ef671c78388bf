"""What a heartbeat of the consumer protocol may lack and may say (KIP-848); topics that come and go; timers."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from interop.cases.consumer_kit import Party, even, two, wait
from interop.cases.groups_kit import UNKNOWN_MEMBER, Answer
from oracle.compare import Cases, Probe, Topic

CASES = Cases("consumer-heartbeats")
case = CASES.case

NOWHERE = Topic("nowhere", UUID(int=7))
PROMPT_MS, PATIENT_MS = 0, 15_000


def fails_with(code: int) -> Callable[[Answer], bool]:
    return lambda answer: answer["error_code"] == code


def has_assignment(answer: Answer) -> bool:
    return answer["assignment"] is not None


# --- fields ---


@case()
def what_a_full_request_is(probe: Probe) -> None:
    """The whole assignment is told to a member that says all that it is to say; a pattern stands for names."""
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    timeout, owned = {"rebalance_timeout": 60_000}, {"owned": [0, 1, 2, 3]}
    names, pattern = {"subscribed_topic_names": [party.only_topic.name]}, {"subscribed_topic_regex": ""}
    for label, fields in (
        ("timeout", timeout),
        ("names", names),
        ("owned", owned),
        ("timeout and names", timeout | names),
        ("timeout and owned", timeout | owned),
        ("names and owned", names | owned),
        ("all", timeout | names | owned),
        ("a pattern for names", timeout | pattern | owned),
        ("owns nothing", timeout | names | {"owned": []}),
        ("another timeout", {"rebalance_timeout": 0} | names | owned),
    ):
        a.beat(label, **fields)
    party.describe("as before")


LATER: dict[str, dict[str, Any]] = {
    "no member": {"member_id": ""},
    "no group": {"group_id": ""},
    "no instance": {"instance_id": ""},
    "blank instance": {"instance_id": "\t"},
    "no rack": {"rack_id": ""},
    "assignor": {"server_assignor": "none"},
    "assignor empty": {"server_assignor": ""},
    "assignor in capitals": {"server_assignor": "Uniform"},
    "assignor, as a stranger": {"server_assignor": "none", "member_id": "stranger"},
    "an instance of nobody": {"instance_id": "i"},
    "below all epochs": {"member_epoch": -3},
    "leaves for a while": {"member_epoch": -2},
    "leaves for a while as nobody": {"member_epoch": -2, "instance_id": "i"},
    "leaves, assignor": {"member_epoch": -1, "server_assignor": ""},
    "leaves, rack": {"member_epoch": -1, "rack_id": " "},
    "the greatest epoch": {"member_epoch": 2**31 - 1},
}


def later_heartbeats(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        party = Party(probe)
        a = party.member("a", version=version)
        a.join("joins")
        for label, fields in LATER.items():
            a.ask(label, **({"member_epoch": 2} | fields))
        a.epoch = 2
        a.beat("stays")
        party.describe("unharmed", version)

    return run


for _version in (0, 1):
    CASES.add(f"later_heartbeats_v{_version}", later_heartbeats(_version))


@case()
def partitions_that_nobody_knows(probe: Probe) -> None:
    """A member may say that it owns what does not exist: only what it has to give up counts."""
    party, a, b = two(probe)
    rows = [{"topic_id": party.only_topic.id, "partitions": [index]} for index in (0, 1)]
    a.beat("is told")
    a.beat("a topic that does not exist, and what it gives up", owned={NOWHERE: [0], party.only_topic: [3]})
    a.beat("a topic that does not exist", owned={NOWHERE: [0]})
    b.beat("gets its half", topic_partitions=rows)
    b.beat("partitions that do not exist", owned=[-1, 99])
    a.beat("the epoch before, with a topic that does not exist", owned={NOWHERE: [0]}, member_epoch=2)
    a.beat("the epoch before, with a partition that does not exist", owned=[0, 99], member_epoch=2)
    a.beat("the epoch before, a topic twice", topic_partitions=rows, member_epoch=2)
    a.beat("the epoch before, a partition twice", topic_partitions=[rows[0], rows[0]], member_epoch=2)
    party.describe("after")


@case()
def names_that_no_topic_can_have(probe: Probe) -> None:
    party = Party(probe)
    a = party.member("a")
    a.join("joins", ["", "a b", "x" * 300, ".", party.only_topic.name, "é"])
    party.describe("subscribed")
    a.beat("wants only these", subscribed_topic_names=["", "."], owned=[])
    party.describe("after")


@case()
def an_internal_topic_by_name(probe: Probe) -> None:
    party = Party(probe, partitions=0)
    a = party.member("a")
    answer = a.join(None, ["__consumer_offsets"])
    (row,) = answer["assignment"]["topic_partitions"]
    probe.record("partitions", sorted(row["partitions"]))
    a.leave("leaves")


@case()
def a_member_in_the_older_version(probe: Probe) -> None:
    """Version 0 has no pattern: one that version 1 has set stays."""
    party = Party(probe)
    a = party.member("a")
    a.join("joins", None, subscribed_topic_regex=probe.name("top.c"))
    a.beat("has it", until=has_assignment)
    a.version = 0
    a.beat("short")
    a.full("full, in version 0", [0, 1, 2, 3])
    party.describe("as before", 0)
    a.beat("wants nothing by name", subscribed_topic_names=[])
    party.describe("after")


@case()
def members_that_have_left(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.leave("leaves, and says much", subscribed_topic_names=["x"], owned=[0], rebalance_timeout=5)
    for epoch in (2, 3, -1):
        a.beat(f"is gone, epoch {epoch}", member_epoch=epoch)
    party.commit("is gone, commits", "a", 2, [0])
    b.leave("leaves with another instance", instance_id="i")
    b.leave("leaves")
    b.leave("leaves an empty group")
    b.beat("a heartbeat to an empty group", member_epoch=3)
    party.describe("empty")


@case()
def a_member_that_leaves_while_it_gives_up(probe: Probe) -> None:
    party, a, b = two(probe)
    a.beat("is told")
    a.leave("leaves")
    party.describe("assigning")
    b.beat("gets all")
    party.describe("stable")


@case()
def a_member_that_joins_again_while_it_waits(probe: Probe) -> None:
    party, a, b = two(probe)
    b.join("joins again")
    b.full("says all", [])
    party.describe("still waits")
    a.beat("is told")
    b.join("joins once more")
    a.beat("has given up", owned=[0, 1])
    b.join("joins, and gets its half")
    b.full("says all again", [2, 3])
    party.describe("stable")


@case()
def the_epoch_before_is_forgotten(probe: Probe) -> None:
    """A subscription that stands for no topics yet is a step of its own: the epoch before is the current one then."""
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins for nothing", [])
    b.join("joins")
    a.beat("is in the new epoch")
    a.beat("comes with the epoch before", owned=[], member_epoch=1)
    a.epoch = 2
    a.beat("takes a pattern", subscribed_topic_regex=probe.name("none.*"))
    a.beat("comes with the epoch before again", owned=[], member_epoch=1)


@case()
def many_come_and_go(probe: Probe) -> None:
    party = Party(probe, partitions=7)
    members = {name: party.member(name) for name in "abcd"}
    told: dict[str, int] = dict.fromkeys("abcd", 0)

    def round_of(names: str, label: str) -> None:
        for name in names * 2:
            told[name] += 1
            owned = probe_owned[name]
            answer = members[name].beat(f"{label} {told[name]}", owned=owned)
            if answer["assignment"] is not None:
                rows = answer["assignment"]["topic_partitions"]
                probe_owned[name] = sorted(rows[0]["partitions"]) if rows else []
        party.describe(label)

    probe_owned: dict[str, list[int]] = {name: [] for name in "abcd"}
    for count in range(1, 5):
        name = "abcd"[count - 1]
        rows = members[name].join("joins")["assignment"]["topic_partitions"]
        probe_owned[name] = sorted(rows[0]["partitions"]) if rows else []
        round_of("abcd"[:count], f"with {count}")
    for name in "bd":
        members[name].leave("leaves")
    round_of("ac", "without b and d")


# --- what members want, and what exists of it ---


@case()
def another_topic_while_it_gives_up(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    names = [party.only_topic.name, other.name]
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("wants one more", subscribed_topic_names=names)
    party.describe("gives up first")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    party.describe("after")


@case()
def less_while_it_gives_up(probe: Probe) -> None:
    party, a, b = two(probe)
    a.beat("is told")
    a.beat("wants nothing", subscribed_topic_names=[])
    party.describe("gives up all")
    a.beat("has given up some", owned=[0])
    a.beat("has given up all", owned=[])
    b.beat("gets all")
    party.describe("after")


@case()
def nothing_while_it_waits(probe: Probe) -> None:
    party, a, b = two(probe)
    b.beat("wants nothing any more", subscribed_topic_names=[])
    party.describe("one wants something")
    a.beat("keeps all")
    b.beat("wants it again", subscribed_topic_names=[party.only_topic.name])
    party.describe("both again")


@case()
def a_topic_that_grows_while_it_is_given_up(probe: Probe) -> None:
    party, a, b = two(probe)
    a.beat("is told")
    party.grow(party.only_topic, 6)
    a.beat("is still to give up")
    party.describe("grown")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets some")
    a.beat("next")
    party.describe("after")


@case()
def a_topic_that_is_made_again(probe: Probe) -> None:
    party = Party(probe)
    first = party.only_topic
    a = party.member("a")
    a.join("joins")
    party.drop(first)
    again = probe.topic("topic", 2)
    party.hears_of(again, 2)
    a.beat("gives up the one that is gone")
    party.describe("of two topics")
    a.beat("has given it up", owned=[])
    a.beat("owns the new one", owned={again: [0, 1]})
    party.describe("after")


@case()
def one_topic_of_two_goes(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    names = [party.only_topic.name, other.name]
    a, b = party.member("a"), party.member("b")
    a.join("joins", names, server_assignor="range")
    b.join("joins", names, server_assignor="range")
    a.beat("is told")
    a.beat("has given up", owned={party.only_topic: [0, 1], other: [0]})
    b.beat("gets its half")
    party.commit("commits", "b", 3, [1], topic=other)
    party.drop(other)
    b.beat("sees it", until=has_assignment)
    party.describe("gives up")
    b.beat("has given up", owned=[2, 3])
    a.beat("sees it too")
    a.beat("has given up, too", owned=[0, 1])
    party.describe("after")


@case()
def votes_for_an_assignor(probe: Probe) -> None:
    party = Party(probe, partitions=6)
    a, b, c = (party.member(name) for name in "abc")
    a.join("no vote")
    party.describe("the first")
    a.beat("votes", server_assignor="range")
    party.describe("one vote")
    b.join("votes", server_assignor="uniform")
    c.join("votes", server_assignor="uniform")
    party.describe("two to one")
    c.beat("changes its mind", server_assignor="range")
    party.describe("one to two")
    a.leave("leaves")
    c.leave("leaves")
    b.beat("computes")
    party.describe("the only vote")


# --- time ---


@case()
def no_time_to_give_up(probe: Probe) -> None:
    """A rebalance timeout of nothing is accepted, and is over at once."""
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins", rebalance_timeout=0)
    b.join("joins", rebalance_timeout=-5)
    a.beat("is told")
    a.beat("is gone", until=fails_with(UNKNOWN_MEMBER))
    b.beat("gets all")
    party.describe("after")


@case()
def time_to_give_up_that_changes(probe: Probe) -> None:
    """The timeout that held when the member was told holds; the next one is another."""
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("has less time", rebalance_timeout=1)
    wait(0.1)
    a.beat("is still there", owned=[0, 1, 2, 3])
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    party.member("c").join("joins")
    party.member("d").join("joins")
    a.beat("is told again")
    a.beat("is gone", until=fails_with(UNKNOWN_MEMBER))


@case()
def only_heartbeats_keep_a_session(probe: Probe) -> None:
    """Commits do not, and heartbeats that fail do not (scenario 18)."""
    party = Party(probe)
    party.configure(heartbeat=500, session=1000)
    a, b, c = (party.member(name) for name in "abc")
    for member in (a, b, c):
        member.join("joins")
    for number in range(2):
        wait(0.4)
        party.commit(f"a commits {number}", "a", 2, [0])
        b.beat(f"fails {number}", member_epoch=9)
        c.beat(f"is served {number}")

    def is_refused(answer: Answer) -> bool:
        return bool(answer["topics"][0]["partitions"][0]["error_code"])

    party.commit("a is gone", "a", 2, [0], until=is_refused)
    b.beat("is gone", member_epoch=9, until=fails_with(UNKNOWN_MEMBER))
    c.beat("is still there")


@case()
def an_interval_that_changes(probe: Probe) -> None:
    party = Party(probe)
    party.configure(assignment=PATIENT_MS)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins at once")
    a.beat("too soon")
    party.describe("assigning")
    party.configure(assignment=PROMPT_MS)
    b.beat("computes", until=lambda answer: answer["member_epoch"] == 3)
    a.beat("is told")
    party.describe("after")


@case()
def members_that_go_while_an_assignment_waits(probe: Probe) -> None:
    party = Party(probe)
    a, b, c = (party.member(name) for name in "abc")
    a.join("joins")
    party.configure(assignment=PATIENT_MS)
    b.join("joins")
    c.join("joins")
    b.leave("leaves again")
    a.leave("leaves, too")
    party.describe("one that has nothing")
    c.beat("waits")
    party.configure(assignment=PROMPT_MS)
    c.beat("gets all", until=has_assignment)
    party.describe("after")


@case()
def a_session_timeout_of_its_own(probe: Probe) -> None:
    """What the group sets counts from the next heartbeat on."""
    party, a, b = even(probe)
    party.configure(heartbeat=500, session=1000)
    a.beat("knows", until=lambda answer: answer["heartbeat_interval"] == 500)
    a.beat("is gone", member_epoch=9, until=fails_with(UNKNOWN_MEMBER))
    b.beat("is there, because it had the old one")
    party.describe("after")
