"""Groups of the consumer protocol as administrators see, configure and delete them."""

from collections.abc import Callable
from typing import Any

from interop.cases.consumer_classic import HEARTBEAT, INTERVAL, SESSION, Old, row
from interop.cases.consumer_kit import DELETE, GROUP_RESOURCE, Party, alter_group, two
from interop.cases.groups_kit import Answer, committed
from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("consumer-admin")
case = CASES.case


# --- described ---


def groups_of_every_kind(probe: Probe) -> list[str]:
    party = Party(probe)
    party.member("a").join("joins")
    empty = Party(probe, "empty", partitions=0)
    empty.topic = party.topic
    gone = empty.member("gone")
    gone.join("joins, in a group that empties")
    gone.leave("leaves")
    classic = Party(probe, "classic", partitions=0)
    classic.topic = party.topic
    Old(classic, "old").alone()
    simple = Party(probe, "simple", partitions=0)
    committed(probe, simple.id, party.only_topic, {0: 5})
    return [party.id, empty.id, classic.id, simple.id, probe.name("none"), ""]


@case()
def descriptions_of_every_kind(probe: Probe) -> None:
    groups = groups_of_every_kind(probe)
    for version in (0, 1):
        for operations in (False, True):
            body = {"group_ids": groups, "include_authorized_operations": operations}
            probe.ask(f"all v{version}, operations {operations}", "ConsumerGroupDescribe", version, body)
        body = {"group_ids": [groups[0], groups[1], groups[0]], "include_authorized_operations": False}
        probe.ask(f"one twice v{version}", "ConsumerGroupDescribe", version, body)


@case()
def old_descriptions_of_every_kind(probe: Probe) -> None:
    groups = [group for group in groups_of_every_kind(probe) if "simple" not in group]
    for version in range(7):
        body = fit("DescribeGroups", version, {"groups": groups, "include_authorized_operations": True})
        probe.ask(f"all v{version}", "DescribeGroups", version, body, keep=without_ids)


def without_ids(answer: Answer) -> Answer:
    """The classic member's subscription and assignment are compared elsewhere."""
    for group in answer["groups"]:
        group["members"] = len(group["members"])
    return answer


@case()
def a_description_of_a_member_that_says_everything(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic("other", 2)
    a = party.member("a", instance="i")
    names = [party.only_topic.name, other.name]
    a.join("joins", names, rack_id="rack", server_assignor="range", subscribed_topic_regex="x")
    party.member("b").join("joins", [])
    for version in (0, 1):
        party.describe(f"both v{version}", version)


# --- listed ---


def listed(probe: Probe, label: str, states: list[str], types: list[str], version: int = 5) -> None:
    """Of all groups, those of this case."""

    def own(answer: Answer) -> Any:
        return [found for found in answer["groups"] if found["group_id"].startswith(probe.name(""))]

    body = fit("ListGroups", version, {"states_filter": states, "types_filter": types})
    probe.ask(label, "ListGroups", version, body, keep=own)


def in_each_state(probe: Probe) -> None:
    """Four groups: Empty, Assigning, Reconciling, Stable."""
    empty = Party(probe, "empty")
    a = empty.member("a")
    a.join("joins: empty")
    a.leave("leaves: empty")
    for name in ("assigning", "reconciling", "stable"):
        party = Party(probe, name, partitions=0)
        party.topic = empty.topic
        first = party.member("a")
        first.join(f"joins: {name}")
        if name == "assigning":
            party.configure(assignment=15_000)
        if name != "stable":
            party.member("b").join(f"joins: {name}")


STATES = (
    "Empty", "Assigning", "Reconciling", "Stable", "stable", "STABLE", " Stable ", "Dead", "PreparingRebalance",
    "Unknown", "",
)  # fmt: skip
TYPES = ("consumer", "Consumer", "CONSUMER", " consumer", "classic", "share", "streams", "unknown", "")


@case()
def lists_by_state(probe: Probe) -> None:
    in_each_state(probe)
    for state in STATES:
        listed(probe, f"by {state!r}", [state], [])
    listed(probe, "by two", ["Empty", " assigning"], [])
    listed(probe, "by state and type", ["Empty", "Stable"], ["consumer"])
    listed(probe, "by state and another type", ["Empty", "Stable"], ["classic"])


@case()
def lists_by_type(probe: Probe) -> None:
    groups_of_every_kind(probe)
    for name in TYPES:
        listed(probe, f"by {name!r}", [], [name])
    listed(probe, "by both", [], ["consumer", "classic"])
    listed(probe, "by one that is none", [], ["consumer", "none"])


@case()
def lists_of_every_version(probe: Probe) -> None:
    groups_of_every_kind(probe)
    for version in range(6):
        listed(probe, f"v{version}", [], [], version)
    listed(probe, "v4 by state", ["Empty"], [], 4)


# --- deleted ---


@case()
def deletions_of_every_kind(probe: Probe) -> None:
    groups = groups_of_every_kind(probe)
    for version in (0, 2):
        probe.ask(f"all v{version}", "DeleteGroups", version, {"groups_names": groups})
    listed(probe, "left", [], [])
    probe.ask("the same twice", "DeleteGroups", 2, {"groups_names": [groups[0], groups[1], groups[0], groups[1]]})


@case()
def a_deletion_in_each_state(probe: Probe) -> None:
    in_each_state(probe)
    names = [probe.name(name) for name in ("empty", "assigning", "reconciling", "stable")]
    probe.ask("all", "DeleteGroups", 2, {"groups_names": names})
    listed(probe, "left", [], [])


@case()
def a_deletion_with_offsets_and_a_pattern(probe: Probe) -> None:
    """It begins anew at the first epoch, with nothing committed."""
    party = Party(probe)
    a = party.member("a", instance="i")
    a.join("joins", subscribed_topic_regex="x")
    party.commit("commits", "a", 2, [0, 1])
    probe.ask("has a member", "DeleteGroups", 2, {"groups_names": [party.id]})
    a.leave("leaves for a while", -2)
    probe.ask("has a member that is away", "DeleteGroups", 2, {"groups_names": [party.id]})
    a.leave("leaves")
    probe.ask("is empty", "DeleteGroups", 2, {"groups_names": [party.id]})
    party.fetch("nothing is committed", None, -1)
    party.describe("gone")
    a.join("begins anew")
    party.describe("at the first epoch")


@case()
def an_empty_group_of_another_kind_is_deleted(probe: Probe) -> None:
    """A classic group that was a consumer group, and the other way round."""
    topic = Party(probe).topic
    for kind in ("consumer", "classic"):
        party = Party(probe, kind, partitions=0)
        party.topic = topic
        old, new = Old(party, f"{kind}, old"), party.member(f"{kind}, new")
        for member in (old, new) if kind == "consumer" else (new, old):
            old.alone() if member is old else new.join("joins")
            member.leave("leaves")
        party.listed(f"{kind}: before")
        probe.ask(f"{kind}: deleted", "DeleteGroups", 2, {"groups_names": [party.id]})
        party.listed(f"{kind}: after")


# --- configured ---

BOUNDS: dict[str, tuple[str, str]] = {
    "the shortest session": (SESSION, "1000"),
    "a session that is too short": (SESSION, "999"),
    "the longest session": (SESSION, "60000"),
    "a session that is too long": (SESSION, "60001"),
    "the shortest interval": (HEARTBEAT, "500"),
    "an interval that is too short": (HEARTBEAT, "499"),
    "the longest interval": (HEARTBEAT, "15000"),
    "an interval that is too long": (HEARTBEAT, "15001"),
    "no assignment interval": (INTERVAL, "0"),
    "an assignment interval below none": (INTERVAL, "-1"),
    "the longest assignment interval": (INTERVAL, "15000"),
    "an assignment interval that is too long": (INTERVAL, "15001"),
    "a session of nothing": (SESSION, "0"),
    "a session below nothing": (SESSION, "-1"),
    "blanks around a number": (SESSION, " 50000 "),
    "a fraction": (SESSION, "50000.0"),
    "more than an int": (SESSION, "2147483648"),
    "in hex": (SESSION, "0xC350"),
    "with a plus": (SESSION, "+50000"),
    "with an underscore": (SESSION, "50_000"),
    "an empty text": (SESSION, ""),
    "another case": (SESSION.upper(), "50000"),
    "a setting of the broker": ("group.consumer.session.timeout.ms", "50000"),
    "a setting of topics": ("retention.ms", "50000"),
}


@case()
def bounds_of_configurations(probe: Probe) -> None:
    for label, (name, value) in BOUNDS.items():
        group = probe.name(label.replace(" ", "-"))
        alter_group(probe, label, group, [row(name, value)])
    probe.ask("what was taken", "DescribeConfigs", 4, described(probe, *(label.replace(" ", "-") for label in BOUNDS)))


def described(probe: Probe, *groups: str, keys: list[str] | None = None, **more: Any) -> Answer:
    """A question for the three configurations of consumer groups, unless `keys` are given."""
    wanted = [SESSION, HEARTBEAT, INTERVAL] if keys is None else keys
    resources = [
        {"resource_type": GROUP_RESOURCE, "resource_name": probe.name(name), "configuration_keys": wanted}
        for name in groups
    ]
    return {"resources": resources, "include_synonyms": True, "include_documentation": False} | more


@case()
def configurations_in_the_old_way(probe: Probe) -> None:
    """AlterConfigs: what is not named goes back to the broker's value."""

    def alter(
        label: str, version: int, *configs: tuple[str, str | None], name: str = "group", only: bool = False
    ) -> None:
        rows = [{"name": key, "value": value} for key, value in configs]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": name and probe.name(name), "configs": rows}
        probe.ask(label, "AlterConfigs", version, {"resources": [resource], "validate_only": only})

    for version in (0, 2):
        alter(f"two v{version}", version, (SESSION, "50000"), (INTERVAL, "7"))
        probe.ask(f"both v{version}", "DescribeConfigs", 4, described(probe, "group"))
        alter(f"one v{version}", version, (HEARTBEAT, "6000"))
        probe.ask(f"only one v{version}", "DescribeConfigs", 4, described(probe, "group"))
        alter(f"only a question v{version}", version, (HEARTBEAT, "7000"), only=True)
        alter(f"a bad one v{version}", version, (HEARTBEAT, "7000"), (SESSION, "1"))
        alter(f"null v{version}", version, (HEARTBEAT, None))
        alter(f"unknown v{version}", version, ("nothing", "1"))
        alter(f"no name v{version}", version, (HEARTBEAT, "7000"), name="")
        probe.ask(f"as before v{version}", "DescribeConfigs", 4, described(probe, "group"))
        alter(f"none v{version}", version)
        probe.ask(f"the broker's v{version}", "DescribeConfigs", 4, described(probe, "group"))


@case()
def several_configurations_at_once(probe: Probe) -> None:
    """Each group answers for itself; a question changes nothing."""
    rows: dict[str, list[Answer]] = {
        "good": [row(SESSION, "50000")],
        "bad": [row(SESSION, "1")],
        "both": [row(INTERVAL, "5"), row("nothing", "1")],
        "deleted": [row(SESSION, None, DELETE)],
        "nothing": [],
    }
    resources = [
        {"resource_type": GROUP_RESOURCE, "resource_name": probe.name(name), "configs": configs}
        for name, configs in rows.items()
    ]
    for only in (True, False):
        body = {"resources": resources, "validate_only": only}
        probe.ask(f"only a question: {only}", "IncrementalAlterConfigs", 1, body)
        probe.ask(f"after, only a question: {only}", "DescribeConfigs", 4, described(probe, *rows))


@case()
def questions_for_configurations(probe: Probe) -> None:
    alter_group(probe, "good", probe.name("group"), [row(SESSION, "50000")])
    for label, keys in (
        ("one key", [SESSION]),
        ("a key twice", [SESSION, SESSION]),
        ("an unknown key", [SESSION, "nothing"]),
        ("no key", []),
    ):
        probe.ask(label, "DescribeConfigs", 4, described(probe, "group", keys=keys), keep=of_consumers)
    for version in (1, 4):
        body = fit("DescribeConfigs", version, described(probe, "group", include_synonyms=False))
        probe.ask(f"without synonyms v{version}", "DescribeConfigs", version, body)


def of_consumers(answer: Answer) -> Answer:
    for result in answer["results"]:
        result["configs"] = [config for config in result["configs"] if config["name"].startswith("consumer.")]
    return answer


def configured_by_members(kind: str) -> Callable[[Probe], None]:
    """What a group has set stays whatever the group is, and counts once it is a consumer group."""

    def run(probe: Probe) -> None:
        party = Party(probe)
        party.configure(heartbeat=7000)
        old, new = Old(party, "old"), party.member("new")
        if kind == "classic":
            old.alone()
        new.join("joins")
        new.leave("leaves")
        if kind == "classic":
            old.leave("leaves")
        probe.tell("DeleteGroups", 2, groups_names=[party.id])
        new.join("begins anew")

    return run


for _kind in ("classic", "no"):
    CASES.add(f"a_configuration_before_{_kind}_group", configured_by_members(_kind))


@case()
def an_interval_that_is_set_while_a_target_is_old(probe: Probe) -> None:
    """The interval counts from the last target on, whatever it was then."""
    party, a, b = two(probe)
    party.configure(assignment=15_000)
    party.member("c").join("waits for a target")
    a.beat("has the old one")
    b.beat("has the old one")
    party.describe("assigning")
