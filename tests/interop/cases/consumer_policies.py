"""Groups under `group.consumer.migration.policy` other than bidirectional, and groups that a restart interrupts.

Stories are told to both servers under the first policy, go on after both were started again, and end under another
one. They are not in the suite of all cases: `test_differential_policies` starts servers of its own for them.
"""

from collections.abc import Callable, Generator

from interop.cases.consumer_classic import Old, mixed, mixed_and_settled
from interop.cases.consumer_kit import Party, even, two
from interop.cases.consumer_patterns import joined
from interop.cases.consumer_static import remove
from interop.cases.groups_kit import coordinated
from oracle.compare import Case, Cases, Differs, Probe

UPGRADE, DOWNGRADE, DISABLED = Cases("policy-upgrade"), Cases("policy-downgrade"), Cases("policy-disabled")
STORIES: list[Case] = []
Story = Callable[[Probe], Generator[None]]


def story(run: Story) -> Story:
    """What comes after its `yield` happens after a restart."""
    STORIES.append(Case(run.__name__, "restart", run))  # type: ignore[arg-type]
    return run


# --- upgrade ---

TOLD = Differs(
    "the partitions of a member that left would stay unread where only classic members are left", {"error_code": 27}
)


@UPGRADE.case({"old: is told that more is free": TOLD})
def the_last_new_member_leaves(probe: Probe) -> None:
    """The group stays a consumer group, of classic members alone."""
    party, old, new = mixed_and_settled(probe)
    new.leave("leaves")
    party.listed("still consumer")
    party.describe("assigning")
    old.heartbeat("is told that more is free")
    old.owns(0, 1)
    old.join("joins")
    old.sync("has all")
    party.describe("stable")


@UPGRADE.case()
def the_last_new_member_is_replaced(probe: Probe) -> None:
    party = Party(probe)
    party.member("new", instance="i").join("joins")
    old = Old(party, "old", instance="i")
    old.join("takes its place")
    old.sync("has what it had")
    old.heartbeat("is done")
    party.listed("still consumer")
    party.describe("stable")


# --- downgrade ---


@DOWNGRADE.case()
def a_classic_group_stays_classic(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    party.member("new").join("is refused")
    old.heartbeat("is not told")
    party.listed("classic")


@DOWNGRADE.case()
def a_consumer_group_turns_classic(probe: Probe) -> None:
    party = Party(probe)
    new = party.member("new")
    new.join("joins")
    old = Old(party, "old")
    old.enter("joins")
    new.leave("leaves")
    party.listed("classic")
    party.member("again").join("is refused")
    old.heartbeat("is told", until=22)


# --- disabled (scenario 44) ---


@DISABLED.case()
def neither_kind_joins_the_other(probe: Probe) -> None:
    classic, consumer = Party(probe, "classic"), Party(probe, "consumer", partitions=0)
    consumer.topic = classic.topic
    old = Old(classic, "old").alone()
    new = consumer.member("new")
    new.join("joins")
    classic.member("stranger").join("a new member of a classic group")
    consumer_old = Old(consumer, "stranger of old")
    consumer_old.join("a classic member of a consumer group")
    Old(consumer, "static", instance="i").join("a static one")
    Old(consumer, "version 3", version=3).join("one that needs no id")
    Old(consumer, "short", id="x", session_ms=1).join("one with a short session")
    Old(consumer, "its own id", id="new").join("the member itself")
    old.heartbeat("stays")
    new.beat("stays")
    for party in (classic, consumer):
        party.listed(f"{party.id} as it was")


@DISABLED.case()
def empty_groups_change_their_kind(probe: Probe) -> None:
    party = Party(probe)
    old = Old(party, "old").alone()
    party.commit("commits", old.id, 1, [0], version=8)
    old.leave("leaves")
    new = party.member("new")
    new.join("joins")
    party.listed("consumer")
    new.leave("leaves")
    again = Old(party, "again").alone()
    party.listed("classic")
    party.fetch("offsets stay", None, -1)
    again.leave("leaves")


# --- interrupted ---


def back(party: Party, *members: Old) -> None:
    """The coordinator has loaded the group; classic members have connections of their own."""
    coordinated(party.probe, party.id)
    for member in members:
        member.connection = party.probe.connect()


@story
def a_member_that_gives_up(probe: Probe) -> Generator[None]:
    """Scenario 46."""
    party, a, b = two(probe)
    a.beat("is told")
    party.describe("before")
    yield
    back(party)
    party.describe("after")
    a.beat("does not say")
    a.full("says that it has all", [0, 1, 2, 3])
    b.beat("waits")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    a.beat("comes with the epoch before", owned=[0], member_epoch=2)
    party.describe("stable")


@story
def epochs_of_before(probe: Probe) -> Generator[None]:
    """What a member had since which epoch, for commits and for a lost answer."""
    party, a, b = even(probe)
    yield
    back(party)
    a.beat("comes with the epoch before", owned=[0, 1], member_epoch=2)
    for label, member, epoch, partition in (
        ("what it kept", "a", 2, 0), ("what it gave up", "a", 2, 2), ("before it had it", "b", 2, 2),
        ("now", "b", 3, 2), ("a greater epoch", "b", 4, 2),
    ):  # fmt: skip
        party.commit(label, member, epoch, [partition])
    b.beat("too far", member_epoch=4)
    b.beat("stays", member_epoch=3)


@story
def a_static_member_that_is_away(probe: Probe) -> Generator[None]:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b")
    a.join("joins")
    b.join("joins")
    a.leave("leaves for a while", -2)
    yield
    back(party)
    party.describe("away")
    b.beat("waits")
    again = party.member("again", instance="i")
    again.join("comes back")
    party.commit("with an epoch of before", "again", 2, [0])
    again.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    a.beat("the former one is fenced", member_epoch=2)


@story
def a_group_of_both_kinds(probe: Probe) -> Generator[None]:
    """With the policy that lets no classic member in any more: one that is in may stay, and cannot join again."""
    party, old, new = mixed(probe)
    old.heartbeat("is told")
    old.owns(0, 1, 2, 3)
    old.join("joins with all")
    party.describe("before")
    yield
    back(party, old)
    party.describe("after")
    old.sync("is told what stays")
    old.heartbeat("is to join again")
    old.join("is not let in any more")
    new.beat("waits")
    old.leave("leaves")
    new.beat("gets all")
    party.describe("of one kind")


@story
def a_classic_member_alone(probe: Probe) -> Generator[None]:
    party, old, new = mixed_and_settled(probe)
    yield
    back(party, old)
    remove(party, "the new one goes", (new.id, None))
    party.listed("still consumer")
    old.commit("commits", party.only_topic)


@story
def a_pattern(probe: Probe) -> Generator[None]:
    """What it stands for, and when that was found out."""
    party = Party(probe)
    other = party.new_topic("other", 2)
    a = joined(party, "a", "top.*")
    yield
    back(party)
    a.beat("stays")
    b = party.member("b")
    b.join("takes the same", [], subscribed_topic_regex=probe.name("top.*"))
    a.beat("is told")
    c = party.member("c")
    c.join("takes a name", [other.name])
    party.describe("after")


@story
def an_empty_group(probe: Probe) -> Generator[None]:
    party, a, b = two(probe)
    a.leave("leaves")
    b.leave("leaves, too")
    party.commit("anonymous", "", -1, [0])
    yield
    back(party)
    party.describe("empty")
    party.fetch("committed", None, -1)
    b.join("joins anew")


@story
def an_assignment_that_waits(probe: Probe) -> Generator[None]:
    """When the last one was computed, and the configuration of the group."""
    party = Party(probe)
    party.configure(assignment=15_000, heartbeat=6000)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins at once")
    yield
    back(party)
    party.describe("assigning")
    b.beat("waits")
    party.configure(assignment=0)
    b.beat("computes", until=lambda answer: answer["member_epoch"] == 3)
    a.beat("is told")


@story
def topics_that_changed(probe: Probe) -> Generator[None]:
    """Nobody has asked since: the first heartbeat after the restart finds out."""
    party = Party(probe)
    a = party.member("a")
    a.join("joins")
    other = Party(probe, "other-group", partitions=0)
    other.topic = other.new_topic("gone", 4)
    b = other.member("b")
    b.join("joins")
    party.grow(party.only_topic, 6)
    other.drop(other.only_topic)
    yield
    back(party)
    back(other)
    party.describe("grown, before")
    a.beat("sees more")
    other.describe("gone, before")
    b.beat("sees less")
    b.beat("has given up", owned=[])


@story
def a_deleted_group(probe: Probe) -> Generator[None]:
    party, a, b = two(probe)
    for member in (a, b):
        member.leave("leaves")
    probe.tell("DeleteGroups", 2, groups_names=[party.id])
    yield
    back(party)
    party.describe("gone")
    party.listed("not listed")
    a.join("begins anew")
