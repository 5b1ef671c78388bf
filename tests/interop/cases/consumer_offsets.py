"""Offsets of groups of the consumer protocol: committed by member and epoch, in transactions too, fetched, deleted."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from interop.cases.consumer_classic import Old, mixed_and_settled
from interop.cases.consumer_kit import Party, even
from interop.cases.groups_kit import Answer, commit_rows, fetch_body
from interop.cases.txn_kit import Producer
from oracle.compare import Cases, Probe, Topic
from oracle.wire import fit

CASES = Cases("consumer-offsets")
case = CASES.case

NO_TOPIC = Topic("no-topic", UUID(int=9))
TOO_LONG = "x" * 5000


def commit_some(
    party: Party, label: str, member: str, epoch: int, rows: Iterable[Answer], version: int = 9, **more: Any
) -> None:
    body = {"group_id": party.id, "generation_id_or_member_epoch": epoch, "member_id": member, "topics": list(rows)}
    party.probe.ask(label, "OffsetCommit", version, fit("OffsetCommit", version, body | more))


# --- in transactions (scenario 37) ---


class Transaction:
    """Commits of a party's offsets by one producer, in a transaction that is open."""

    def __init__(self, party: Party, version: int = 3) -> None:
        self.party, self.version = party, version
        self.producer = Producer(party.probe)
        if version < 5:  # later clients let the coordinator add the group
            self.producer.add_offsets("the group is added", party.id, 3)

    def commit(
        self, label: str, member: str, epoch: int, partitions: Sequence[int], topic: Topic | None = None, **more: Any
    ) -> None:
        said = {"member_id": member, "generation_id": epoch, "group_instance_id": None} | more
        offsets = dict.fromkeys(partitions, 6)
        topic = topic or self.party.only_topic
        self.producer.commit_offsets(label, self.party.id, topic, offsets, self.version, **said)


COMMITS: dict[str, tuple[str, int, Sequence[int]]] = {
    "own epoch": ("a", 3, [0]),
    "own epoch, not its own": ("a", 3, [2]),
    "epoch before, what it kept": ("a", 2, [0, 1]),
    "epoch before, what it gave up": ("a", 2, [2]),
    "epoch before, both": ("a", 2, [0, 2]),
    "before it had them": ("b", 2, [2]),
    "a greater epoch": ("a", 4, [0]),
    "epoch -1": ("a", -1, [0]),
    "of nobody": ("nobody", 3, [0]),
    "of nobody, epoch -1": ("nobody", -1, [0]),
    "without a member": ("", 3, [0]),
    "anonymous": ("", -1, [0]),
}


def commits_in_a_transaction(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        party, _, _ = even(probe)
        transaction = Transaction(party, version)
        for label, (member, epoch, partitions) in COMMITS.items():
            transaction.commit(label, member, epoch, partitions)
        transaction.commit("with an instance alone", "", -1, [0], group_instance_id="i")
        transaction.commit("with a wrong instance", "a", 3, [0], group_instance_id="i")
        party.fetch("nothing is committed", None, -1)

    return run


for _version in (3, 4, 5):
    CASES.add(f"commits_in_a_transaction_v{_version}", commits_in_a_transaction(_version))


@case()
def commits_in_a_transaction_of_old_clients(probe: Probe) -> None:
    """Before version 3 a client says nothing of itself, and is heard whatever the group is."""
    party, a, b = even(probe)
    transaction = Transaction(party, 0)
    for version in (0, 2):
        transaction.version = version
        transaction.commit(f"with members, v{version}", "", -1, [version])
    a.leave("leaves")
    b.leave("leaves")
    transaction.commit("of an empty group", "", -1, [1])
    transaction.producer.end("commits", True, 3)
    transaction.producer.await_state("CompleteCommit")
    party.fetch("committed", None, -1)


@case()
def commits_in_a_transaction_of_an_empty_group(probe: Probe) -> None:
    party, a, b = even(probe)
    a.leave("leaves")
    b.leave("leaves")
    transaction = Transaction(party)
    for member, epoch in (("a", 3), ("", 3), ("a", -1), ("who", -1), ("", -1)):
        transaction.commit(f"as {member or 'nobody'}, {epoch}", member, epoch, [0])
    transaction.commit("with an instance", "a", -1, [0], group_instance_id="i")


@case()
def commits_in_a_transaction_of_no_group(probe: Probe) -> None:
    party = Party(probe)
    transaction = Transaction(party)
    for member, epoch in (("a", 0), ("a", 3), ("", 3)):
        transaction.commit(f"as {member or 'nobody'}, {epoch}", member, epoch, [0])
    party.listed("no group")
    transaction.commit("epoch -1", "a", -1, [0])
    party.listed("a simple group, or none")


@case()
def commits_in_a_transaction_of_other_topics(probe: Probe) -> None:
    party, a, _ = even(probe)
    other = party.new_topic_of_others("other", 2)
    transaction = Transaction(party)
    for epoch in (3, 2):
        transaction.commit(f"not subscribed, epoch {epoch}", "a", epoch, [0], other)
        transaction.commit(f"no such topic, epoch {epoch}", "a", epoch, [0], NO_TOPIC)
        transaction.commit(f"no such partition, epoch {epoch}", "a", epoch, [9])
        transaction.commit(f"too long, epoch {epoch}", "a", epoch, [0], metadata=TOO_LONG)
    a.beat("is there")


@case()
def commits_in_a_transaction_of_members_of_both_kinds(probe: Probe) -> None:
    party, old, new = mixed_and_settled(probe)
    transaction = Transaction(party)
    for label, generation in (("own", old.generation), ("older", old.generation - 1), ("newer", old.generation + 1)):
        transaction.commit(f"classic, {label} generation", old.id, generation, [0])
    transaction.commit("classic, older generation, what it gave up", old.id, old.generation - 1, [3])
    transaction.commit("consumer, own epoch", "new", new.epoch, [2])
    transaction.commit("consumer, older epoch", "new", new.epoch - 1, [2])


@case()
def what_is_pending_in_a_transaction(probe: Probe) -> None:
    party, a, b = even(probe)
    party.commit("commits", "a", 3, [0])
    transaction = Transaction(party)
    transaction.commit("commits 6", "a", 3, [0])
    for label, stable in (("any", False), ("stable", True)):
        fetch_of(party, f"pending, {label}", "a", 3, require_stable=stable)
    fetch_of(party, "stable, of an older epoch", "a", 2, require_stable=True)
    transaction.producer.end("ends", True, 3)
    transaction.producer.await_state("CompleteCommit")
    fetch_of(party, "committed", "b", 3, require_stable=True)
    for member in (a, b):
        member.leave("leaves")
    party.probe.ask("deleted with its offsets", "DeleteGroups", 2, {"groups_names": [party.id]})
    fetch_of(party, "gone", None, -1)


# --- commits ---


@case()
def commits_of_what_does_not_exist(probe: Probe) -> None:
    """Rows of topics that do not exist are answered before the group is looked at."""
    party, a, _ = even(probe)
    good, bad = commit_rows(party.only_topic, {0: 7, 9: 7}), commit_rows(NO_TOPIC, {0: 7})
    for version in (9, 10):
        for member, epoch in (("a", 3), ("a", 2), ("nobody", 3)):
            label = f"of {member} {epoch} v{version}"
            commit_some(party, f"all {label}", member, epoch, good + bad, version)
            commit_some(party, f"bad {label}", member, epoch, bad, version)
            commit_some(party, f"none {label}", member, epoch, [], version)
    a.beat("is there")
    party.fetch("committed", "a", 3)


@case()
def commits_of_topics_that_it_does_not_read(probe: Probe) -> None:
    party, a, _ = even(probe)
    other = party.new_topic_of_others("other", 2)
    for epoch in (3, 2, 1, 0, -1):
        party.commit(f"epoch {epoch}", "a", epoch, [0], topic=other)
    rows = commit_rows(party.only_topic, {0: 7}) + commit_rows(other, {0: 7})
    commit_some(party, "both, older epoch", "a", 2, rows)
    commit_some(party, "both, own epoch", "a", 3, rows)
    a.beat("is there")


@case()
def commits_with_metadata_that_is_too_long(probe: Probe) -> None:
    """A row that cannot be stored is not held against the others, nor its partition against the epoch."""
    party, a, _ = even(probe)
    for label, epoch, long in (("own epoch", 3, 2), ("older epoch", 2, 2), ("older epoch, its own", 2, 0)):
        rows = commit_rows(party.only_topic, {1: 7}) + commit_rows(party.only_topic, {long: 7}, TOO_LONG)
        commit_some(party, label, "a", epoch, rows)
    rows = commit_rows(party.only_topic, {3: 7}) + commit_rows(party.only_topic, {2: 7}, TOO_LONG)
    commit_some(party, "older epoch, one of them another's", "a", 2, rows)
    commit_some(party, "alone, of nobody", "nobody", 3, commit_rows(party.only_topic, {0: 7}, TOO_LONG))
    a.beat("is there")


@case()
def commits_of_members_that_are_gone(probe: Probe) -> None:
    party, a, b = even(probe)
    a.leave("leaves")
    for epoch in (3, 2, -1):
        party.commit(f"gone, epoch {epoch}", "a", epoch, [0])
    b.beat("gets all", owned=[2, 3])
    party.commit("before it had them", "b", 3, [0])
    party.commit("since it has them", "b", 4, [0])
    party.commit("what it has had", "b", 3, [2])
    a.join("joins again")
    party.commit("before, under the same id", "a", 3, [0])
    party.commit("now", "a", a.epoch, [0])
    party.fetch("committed", "b", 4)


@case()
def commits_while_it_gives_up_twice(probe: Probe) -> None:
    """Epochs of what it keeps, of what it has to give up, and of what it got later."""
    party = Party(probe, partitions=6)
    a, b, c = (party.member(name) for name in "abc")
    a.join("joins")
    b.join("joins")
    a.beat("is told")
    a.beat("has given up", owned=[0, 1, 2])
    b.beat("gets its half")
    c.join("joins")
    a.beat("is told again")
    for epoch in (1, 2, 3, 4):
        party.commit(f"epoch {epoch}, kept", "a", epoch, [0])
        party.commit(f"epoch {epoch}, to be given up", "a", epoch, [2])
        party.commit(f"epoch {epoch}, all it had", "a", epoch, [0, 1, 2])
    b.leave("leaves")
    c.leave("leaves")
    a.beat("gets all back", owned=[0, 1])
    a.beat("next", owned=[0, 1, 2])
    for epoch in (2, 3, a.epoch):
        party.commit(f"after, epoch {epoch}", "a", epoch, [2])
        party.commit(f"after, epoch {epoch}, kept", "a", epoch, [0])


@case()
def commits_of_a_member_that_joined_again(probe: Probe) -> None:
    party, a, _ = even(probe)
    a.join("joins again")
    for epoch in (0, 2, 3):
        party.commit(f"epoch {epoch}", "a", epoch, [0])
    party.commit("epoch 2, what it gave up", "a", 2, [3])


@case()
def commits_after_an_upgrade(probe: Probe) -> None:
    """What classic members have counts from the generation in which they got it."""
    party = Party(probe)
    old = Old(party, "old").alone()
    party.commit("before", old.id, 1, [0])
    party.member("new").join("joins")
    for generation in (0, 1, 2):
        party.commit(f"generation {generation}", old.id, generation, [0], version=8)
    party.commit("anonymous", "", -1, [0], version=8)
    party.commit("with a wrong instance", old.id, 1, [0], group_instance_id="i")
    party.commit("the new one, nothing of it", "new", 2, [0])


# --- fetching ---


def fetch_of(
    party: Party, label: str, member: str | None, epoch: int, version: int = 9, *, all_topics: bool = False, **more: Any
) -> None:
    topics = None if all_topics else [(party.only_topic, [0, 1])]
    body = fetch_body(version, party.id, topics, member_id=member, member_epoch=epoch) | more
    party.probe.ask(label, "OffsetFetch", version, body)


@case()
def fetches_of_members(probe: Probe) -> None:
    party, a, b = even(probe)
    party.commit("commits", "a", 3, [0])
    for version in (9, 10):
        for member, epoch in (("a", 3), ("a", 2), ("a", 0), ("a", -1), ("nobody", 3), (None, -1), (None, -5)):
            fetch_of(party, f"{member} {epoch} v{version}", member, epoch, version)
        fetch_of(party, f"all topics v{version}", "a", 3, version, all_topics=True)
        fetch_of(party, f"all topics, stale v{version}", "a", 2, version, all_topics=True)
    for version in (1, 5, 8):
        fetch_of(party, f"no member v{version}", None, -1, version)
    b.leave("leaves")
    fetch_of(party, "of one that left", "b", 3)
    a.leave("leaves")
    for member, epoch in (("a", 3), ("a", -1), (None, -1)):
        fetch_of(party, f"empty: {member} {epoch}", member, epoch)


@case()
def fetches_of_static_members(probe: Probe) -> None:
    party = Party(probe)
    a, b = party.member("a", instance="i"), party.member("b", instance="i")
    a.join("joins")
    party.commit("commits", "a", 2, [0])
    a.leave("leaves for a while", -2)
    for epoch in (2, -2, -1):
        fetch_of(party, f"away, epoch {epoch}", "a", epoch)
    b.join("comes back")
    for member, epoch in (("a", 2), ("b", 2), ("b", 0), ("b", -2)):
        fetch_of(party, f"back: {member} {epoch}", member, epoch)


@case()
def fetches_of_several_groups(probe: Probe) -> None:
    """Each group answers for itself: one of each kind, and one that does not exist."""
    party, _, _ = even(probe)
    classic, none = Party(probe, "classic", partitions=0), Party(probe, "none", partitions=0)
    classic.topic = party.topic
    old = Old(classic, "old").alone()
    rows: list[tuple[Party, str | None, int]] = [
        (party, "a", 3), (classic, old.id, 1), (none, "a", 3), (party, "a", 2), (party, "nobody", 3), (classic, "x", 9),
    ]  # fmt: skip
    for version in (9, 10):
        groups = [
            fetch_body(version, each.id, [(party.only_topic, [0])], member_id=member, member_epoch=epoch)["groups"][0]
            for each, member, epoch in rows
        ]
        for stable in (False, True):
            body = {"groups": groups, "require_stable": stable}
            probe.ask(f"all v{version}, stable {stable}", "OffsetFetch", version, body)


# --- deleting ---


def delete(party: Party, label: str, *topics: tuple[str, Sequence[int]]) -> None:
    rows = [{"name": name, "partitions": [{"partition_index": index} for index in indexes]} for name, indexes in topics]
    party.probe.ask(label, "OffsetDelete", 0, {"group_id": party.id, "topics": rows})


@case()
def offsets_that_are_deleted_as_members_change(probe: Probe) -> None:
    party, a, b = even(probe)
    name = party.only_topic.name
    party.commit("commits", "a", 3, [0, 1])
    delete(party, "two read it", (name, [0, 5]), ("no-topic", [0]))
    a.beat("reads nothing", subscribed_topic_names=[])
    delete(party, "one reads it", (name, [0]))
    b.leave("leaves")
    delete(party, "nobody reads it", (name, [0, 7]), (name, [0]))
    delete(party, "no topics")
    party.fetch("after", None, -1)
    a.leave("leaves")
    delete(party, "empty group", (name, [1]))
    party.fetch("after that", None, -1)


@case()
def offsets_that_are_deleted_beside_a_pattern(probe: Probe) -> None:
    party = Party(probe)
    other = party.new_topic_of_others("unread", 1)
    a = party.member("a")
    a.join("joins", [], subscribed_topic_regex=probe.name("topi."))
    a.beat("has it", until=lambda answer: answer["assignment"] is not None)
    party.commit("commits", "a", a.epoch, [0])
    party.commit("commits another", "a", a.epoch, [0], topic=other)
    delete(party, "one that matches, one that does not", (party.only_topic.name, [0]), (other.name, [0]))
    a.beat("wants nothing", subscribed_topic_regex="", owned=[])
    delete(party, "none matches", (party.only_topic.name, [0]))
    party.fetch("after", None, -1)


@case()
def offsets_that_are_deleted_beside_a_classic_member(probe: Probe) -> None:
    party, _, new = mixed_and_settled(probe)
    name = party.only_topic.name
    delete(party, "both read it", (name, [0]))
    new.beat("reads nothing", subscribed_topic_names=[])
    delete(party, "the classic one reads it", (name, [0]))
    new.leave("leaves")
    delete(party, "a classic group", (name, [0]))
