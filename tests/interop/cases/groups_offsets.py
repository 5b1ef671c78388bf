"""OffsetCommit, OffsetFetch and OffsetDelete: what is kept, for whom, and who may change it."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from interop.cases.groups_kit import (
    COMMIT_VERSIONS,
    FETCH_VERSIONS,
    Group,
    alone,
    commit,
    commit_rows,
    committed,
    coordinated,
    fetch,
    fetch_body,
    subscription,
)
from oracle.compare import Cases, Differs, Probe, Topic
from oracle.wire import fit

CASES = Cases("committed")
case = CASES.case

UNKNOWN_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
ILLEGAL = ("", ".", "a b", "x" * 250)


def new_group(probe: Probe, suffix: str = "group") -> str:
    return coordinated(probe, probe.name(suffix))


def commit_and_fetch(version: int) -> Callable[[Probe], None]:
    """One version of OffsetCommit, read back by the nearest version of OffsetFetch."""

    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic(partitions=3)
        commit(probe, "first", version, group_id, commit_rows(topic, {0: 5, 1: 0, 2: 2**62}, "some text", 3))
        fetch(probe, "after the first", version, group_id, [(topic, (0, 1, 2))])
        commit(probe, "second", version, group_id, commit_rows(topic, {0: 4}, "", 0))
        fetch(probe, "after the second", version, group_id, [(topic, (0, 1, 2))])
        fetch(probe, "all", version, group_id)

    return run


for _version in COMMIT_VERSIONS:
    CASES.add(f"commit_and_fetch_v{_version}", commit_and_fetch(_version))


def fetch_of_a_version(version: int) -> Callable[[Probe], None]:
    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic(partitions=2)
        committed(probe, group_id, topic, {0: 7})
        fetch(probe, "one", version, group_id, [(topic, (0,))])
        fetch(probe, "never committed", version, group_id, [(topic, (1,))])
        fetch(probe, "no partitions", version, group_id, [(topic, ())])
        fetch(probe, "no topics", version, group_id, [])
        if version >= 2:
            fetch(probe, "all", version, group_id)
        other = new_group(probe, "unknown")
        fetch(probe, "unknown group", version, other, [(topic, (0, 1))])
        if version >= 2:
            fetch(probe, "unknown group, all", version, other)
        fetch(probe, "empty group id", version, "", [(topic, (0,))])

    return run


for _version in FETCH_VERSIONS:
    CASES.add(f"fetch_v{_version}", fetch_of_a_version(_version))


# OffsetCommit


@case()
def a_generation_without_a_group(probe: Probe) -> None:
    topic = probe.topic()
    for version in COMMIT_VERSIONS:
        group_id = new_group(probe, f"v{version}")
        for generation, member in ((0, ""), (1, "ghost"), (2**31 - 1, "ghost")):
            more = {"generation_id_or_member_epoch": generation, "member_id": member}
            commit(probe, f"{generation} {member!r} v{version}", version, group_id, commit_rows(topic, {0: 5}), **more)
        fetch(probe, f"nothing came of it, v{version}", 5, group_id, [(topic, (0,))])


@case()
def a_member_id_without_a_generation_and_a_group(probe: Probe) -> None:
    topic = probe.topic()
    for version in COMMIT_VERSIONS:
        group_id = new_group(probe, f"v{version}")
        more = {"generation_id_or_member_epoch": -1, "member_id": "ghost", "group_instance_id": "instance"}
        commit(probe, f"v{version}", version, group_id, commit_rows(topic, {0: 5}), **more)
        fetch(probe, f"v{version}, kept", 5, group_id, [(topic, (0,))])


@case()
def generations_below_minus_one(probe: Probe) -> None:
    topic, group_id = probe.topic(), new_group(probe)
    for version in (2, 8, 9):
        rows = commit_rows(topic, {0: version})
        commit(probe, f"v{version}", version, group_id, rows, generation_id_or_member_epoch=-2)
    fetch(probe, "kept", 5, group_id, [(topic, (0,))])


@case()
def an_empty_group_id(probe: Probe) -> None:
    topic = probe.topic()
    coordinated(probe, "")
    for version in COMMIT_VERSIONS:
        commit(probe, f"v{version}", version, "", commit_rows(topic, {0: version}))
    fetch(probe, "kept", 5, "", [(topic, (0,))])
    committed_before = {"group_id": "", "topics": [{"name": topic.name, "partitions": [{"partition_index": 0}]}]}
    probe.ask("delete", "OffsetDelete", 0, committed_before)


@case()
def nobody_commits_to_a_group_with_members(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = alone(group)
    for version in COMMIT_VERSIONS:
        commit(probe, f"anonymous v{version}", version, group.id, commit_rows(topic, {0: 5}))
        for label, generation, name in (
            ("stranger", 1, "ghost"),
            ("wrong generation", 2, member.id),
            ("old generation", 0, member.id),
            ("no generation", -1, member.id),
            ("no member", 1, ""),
            ("both wrong", 7, "ghost"),
        ):
            more = {"generation_id_or_member_epoch": generation, "member_id": name}
            commit(probe, f"{label} v{version}", version, group.id, commit_rows(topic, {0: 5}), **more)
    fetch(probe, "nothing came of it", 5, group.id, [(topic, (0,))])


@case()
def members_commit(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = alone(group)
    for version in COMMIT_VERSIONS:
        member.commit(f"v{version}", topic, version, version=version)
        fetch(probe, f"kept v{version}", 7, group.id, [(topic, (0,))])
    member.leave("leaves")
    member.commit("after it left", topic, 99)
    commit(probe, "anonymous, now that the group is empty", 8, group.id, commit_rows(topic, {0: 100}))
    fetch(probe, "kept in the end", 7, group.id, [(topic, (0,))])
    group.describe("empty")


@case()
def members_commit_before_they_sync(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = group.member("member")
    member.enter("joins")
    for version in COMMIT_VERSIONS:
        member.commit(f"v{version}", topic, version, version=version)
        commit(probe, f"anonymous v{version}", version, group.id, commit_rows(topic, {0: 5}))
    member.commit("stranger", topic, member_id="ghost")


@case()
def an_id_that_was_only_given_commits(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    pending = group.member("pending").ask_for_id()
    for generation in (-1, 0):
        pending.commit(f"generation {generation}", topic, 5, generation_id_or_member_epoch=generation)
    fetch(probe, "kept", 7, group.id, [(topic, (0,))])


@case()
def unknown_topics_and_partitions(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    for version in COMMIT_VERSIONS[:-1]:
        group_id = new_group(probe, f"v{version}")
        rows = commit_rows(topic, {0: 5, 2: 5, -1: 5}) + commit_rows(probe.name("none"), {0: 5})
        commit(probe, f"v{version}", version, group_id, rows)
        rows = commit_rows(probe.name("none"), {0: 5, 1: 6})
        commit(probe, f"nothing else v{version}", version, new_group(probe, f"other v{version}"), rows)
        fetch(probe, f"kept v{version}", 7, group_id)


@case()
def illegal_topic_names(probe: Probe) -> None:
    group_id = new_group(probe)
    for index, name in enumerate(ILLEGAL):
        for version in (2, 8, 9):
            commit(probe, f"{index} v{version}", version, group_id, commit_rows(name, {0: 5}))
        fetch(probe, f"{index} fetched", 7, group_id, [(name, (0,))])
        body = {"group_id": group_id, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]}
        probe.ask(f"{index} deleted", "OffsetDelete", 0, body)


@case()
def topics_by_id(probe: Probe) -> None:
    group_id, topic, other = new_group(probe), probe.topic(partitions=2), probe.topic("other")
    rows = commit_rows(topic, {0: 5, 9: 5}) + commit_rows(other, {0: 6})
    commit(probe, "several", 10, group_id, rows)
    commit(probe, "unknown id", 10, group_id, commit_rows(Topic("unknown", UNKNOWN_ID), {0: 5, 1: 5}))
    commit(probe, "zero id", 10, group_id, commit_rows(Topic("zero", None), {0: 5}))  # type: ignore[arg-type]
    mixed = commit_rows(Topic("unknown", UNKNOWN_ID), {0: 5}) + commit_rows(topic, {1: 7})
    commit(probe, "known and unknown", 10, group_id, mixed)
    fetch(probe, "all", 10, group_id)
    fetch(probe, "all by name", 9, group_id)
    fetch(probe, "by id", 10, group_id, [(topic, (0, 1, 2)), (other, (0,))])
    fetch(probe, "unknown id fetched", 10, group_id, [(Topic("unknown", UNKNOWN_ID), (0, 1)), (topic, (0,))])
    fetch(probe, "zero id fetched", 10, group_id, [(Topic("zero", None), (0,))])  # type: ignore[arg-type]


@case()
def metadata_has_a_limit_in_characters(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=5)
    texts = ("x" * 4096, "x" * 4097, "ü" * 4096, "ü" * 4097, None)
    for version in (2, 5, 8, 10):
        rows: list[Any] = []
        for partition, text in enumerate(texts):
            rows += commit_rows(topic, {partition: version}, text)[0]["partitions"]
        commit(probe, f"v{version}", version, group_id, [{**commit_rows(topic, {})[0], "partitions": rows}])
        fetch(probe, f"kept v{version}", 7, group_id, [(topic, range(5))])


@case()
def metadata_beyond_the_basic_plane_counts_twice(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=2)
    commit(probe, "2048", 8, group_id, commit_rows(topic, {0: 1}, "😀" * 2048))
    commit(probe, "2049", 8, group_id, commit_rows(topic, {1: 1}, "😀" * 2049))
    fetch(probe, "kept", 7, group_id)


@case()
def odd_offsets_and_epochs(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic()
    for offset, epoch in ((-1, -1), (-5, 0), (-(2**63), 7), (2**63 - 1, 2**31 - 1), (0, -2)):
        for version in (5, 8, 10):
            rows = commit_rows(topic, {0: offset}, None, epoch)
            commit(probe, f"{offset}/{epoch} v{version}", version, group_id, rows)
            fetch(probe, f"{offset}/{epoch} v{version} kept", version, group_id, [(topic, (0,))])


@case()
def retention_times_of_old_versions(probe: Probe) -> None:
    topic = probe.topic()
    for version in (2, 3, 4):
        for retention in (-1, 0, 1, -2, 86_400_000, 10**15):
            group_id = new_group(probe, f"v{version} {retention}")
            rows = commit_rows(topic, {0: 5})
            commit(probe, f"{retention} v{version}", version, group_id, rows, retention_time=retention)
            fetch(probe, f"{retention} v{version} kept", 5, group_id, [(topic, (0,))])


ROW_KEPT = "a topic without partitions keeps its row whether it exists or not; the oracle drops those that exist"


def empty_row(name: str) -> Differs:
    return Differs(ROW_KEPT, {"topics": [{"name": name, "partitions": []}]})


EMPTY_COMMITS = {f"no partitions v{version}": empty_row("committed-nothing-to-commit.topic") for version in (2, 8, 9)}
EMPTY_ID = {"topic_id": "<id of committed-nothing-to-commit.topic>", "partitions": []}


@case({**EMPTY_COMMITS, "no partitions v10": Differs(ROW_KEPT, {"topics": [EMPTY_ID]})})
def nothing_to_commit(probe: Probe) -> None:
    topic = probe.topic()
    for version in (2, 8, 9, 10):
        group_id = new_group(probe, f"v{version}")
        commit(probe, f"no topics v{version}", version, group_id, [])
        commit(probe, f"no partitions v{version}", version, group_id, commit_rows(topic, {}))
        none = probe.name("none") if version < 10 else Topic("unknown", UNKNOWN_ID)
        commit(probe, f"no partitions, unknown topic v{version}", version, group_id, commit_rows(none, {}))
        probe.ask(f"no group by that, v{version}", "DescribeGroups", 5, {"groups": [group_id]})


@case()
def the_same_partition_twice(probe: Probe) -> None:
    topic = probe.topic()
    for version in (2, 9, 10):
        group_id = new_group(probe, f"v{version}")
        (row,) = commit_rows(topic, {0: 5})
        (other,) = commit_rows(topic, {0: 6})
        both = {**row, "partitions": row["partitions"] + other["partitions"]}
        commit(probe, f"in one row v{version}", version, group_id, [both])
        fetch(probe, f"kept v{version}", 7, group_id)
        commit(probe, f"in two rows v{version}", version, group_id, [other, row])
        fetch(probe, f"kept of two rows v{version}", 7, group_id)


@case()
def many_partitions_at_once(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=50)
    commit(probe, "commit", 8, group_id, commit_rows(topic, {partition: partition * 10 for partition in range(50)}))
    fetch(probe, "all", 7, group_id)
    fetch(probe, "some", 9, group_id, [(topic, (49, 7, 0, 50))])


@case()
def offsets_do_not_need_records(probe: Probe) -> None:
    """An offset is only a number: beyond the end and before the start are both taken."""
    group_id, topic = new_group(probe), probe.topic()
    probe.produce(topic.name)
    for offset in (0, 1, 10**12):
        commit(probe, f"{offset}", 9, group_id, commit_rows(topic, {0: offset}))
    fetch(probe, "kept", 9, group_id)


@case()
def offsets_of_a_deleted_topic(probe: Probe) -> None:
    group_id, topic, other = new_group(probe), probe.topic(), probe.topic("other")
    committed(probe, group_id, topic, {0: 5})
    committed(probe, group_id, other, {0: 6})
    probe.tell("DeleteTopics", 1, topic_names=[topic.name], timeout=5000)
    probe.await_gone(topic.name)
    body = fetch_body(7, group_id, None)
    probe.ask("gone with it", "OffsetFetch", 7, body, until=lambda answer: len(answer["topics"]) == 1)
    commit(probe, "commit", 9, group_id, commit_rows(topic, {0: 7}))
    again = probe.topic()
    fetch(probe, "a new topic of the same name", 7, group_id, [(topic, (0,))])
    fetch(probe, "by the new id", 10, group_id, [(again, (0,))])


# OffsetFetch


@case()
def many_groups_at_once(probe: Probe) -> None:
    topic, other = probe.topic(partitions=2), probe.topic("other")
    one, two, none = (new_group(probe, name) for name in ("one", "two", "none"))
    committed(probe, one, topic, {0: 5, 1: 6})
    committed(probe, two, other, {0: 7})
    for version in (8, 9, 10):
        rows = [
            fetch_body(version, one, [(topic, (0, 1))])["groups"][0],
            fetch_body(version, two, None)["groups"][0],
            fetch_body(version, none, [(topic, (0,))])["groups"][0],
            fetch_body(version, "", None)["groups"][0],
        ]
        probe.ask(f"several v{version}", "OffsetFetch", version, {"groups": rows})
        probe.ask(f"twice v{version}", "OffsetFetch", version, {"groups": [rows[0], rows[0]]})
        probe.ask(f"none v{version}", "OffsetFetch", version, {"groups": []})


@case()
def unknown_topics_are_fetched_as_never_committed(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic()
    committed(probe, group_id, topic, {0: 5})
    for version in range(1, 10):
        topics: list[tuple[Topic | str, Sequence[int]]] = [(probe.name("none"), (0, 1)), (topic, (0, 7, -1))]
        fetch(probe, f"v{version}", version, group_id, topics)


@case()
def stable_offsets_are_told_at_once(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=2)
    committed(probe, group_id, topic, {0: 5})
    for version in (7, 8, 9, 10):
        body = {**fetch_body(version, group_id, [(topic, (0, 1))]), "require_stable": True}
        probe.ask(f"some v{version}", "OffsetFetch", version, body)
        probe.ask(
            f"all v{version}", "OffsetFetch", version, {**fetch_body(version, group_id, None), "require_stable": True}
        )
        other = new_group(probe, f"unknown v{version}")
        body = {**fetch_body(version, other, [(topic, (0,))]), "require_stable": True}
        probe.ask(f"unknown group v{version}", "OffsetFetch", version, body)


@case()
def members_of_a_classic_group_are_not_checked_on_fetch(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = alone(group)
    member.commit("commits", topic, 5)
    for version in (9, 10):
        for label, name, epoch in (
            ("nobody", None, -1),
            ("stranger", "ghost", 1),
            ("itself", member.id, 1),
            ("other generation", member.id, 9),
            ("other generation, no name", "", 9),
        ):
            topics = [(topic, (0,))]
            fetch(probe, f"{label} v{version}", version, group.id, topics, member_id=name, member_epoch=epoch)
    other = new_group(probe, "unknown")
    fetch(probe, "unknown group", 9, other, [(topic, (0,))], member_id="ghost", member_epoch=3)


@case()
def a_partition_fetched_twice(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic()
    committed(probe, group_id, topic, {0: 5})
    for version in (1, 7, 8, 10):
        fetch(probe, f"in one row v{version}", version, group_id, [(topic, (0, 0))])
        fetch(probe, f"in two rows v{version}", version, group_id, [(topic, (0,)), (topic, (0,))])


# OffsetDelete


def delete(probe: Probe, label: str, group_id: str, *rows: tuple[str, tuple[int, ...]]) -> Any:
    topics = [{"name": name, "partitions": [{"partition_index": part} for part in parts]} for name, parts in rows]
    return probe.ask(label, "OffsetDelete", 0, fit("OffsetDelete", 0, {"group_id": group_id, "topics": topics}))


@case()
def offsets_are_deleted(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=3)
    committed(probe, group_id, topic, {0: 5, 1: 6})
    delete(probe, "one", group_id, (topic.name, (0,)))
    fetch(probe, "one is left", 7, group_id)
    delete(probe, "gone, there, never there, unknown", group_id, (topic.name, (0, 1, 2, 3, -1)))
    fetch(probe, "none is left", 7, group_id)
    probe.ask("the group", "DescribeGroups", 5, {"groups": [group_id]})
    delete(probe, "again", group_id, (topic.name, (0,)))


@case({"no partitions": empty_row("committed-what-cannot-be-deleted.topic")})
def what_cannot_be_deleted(probe: Probe) -> None:
    topic, group_id = probe.topic(), new_group(probe)
    delete(probe, "no group", group_id, (topic.name, (0,)))
    delete(probe, "empty group id", "", (topic.name, (0,)))
    committed(probe, group_id, topic, {0: 5})
    delete(probe, "unknown topic", group_id, (probe.name("none"), (0, 1)))
    delete(probe, "known and unknown", group_id, (probe.name("none"), (0,)), (topic.name, (0,)))
    delete(probe, "no topics", group_id)
    delete(probe, "no partitions", group_id, (topic.name, ()))
    delete(probe, "twice", group_id, (topic.name, (0, 0)), (topic.name, (0,)))


@case()
def subscribed_topics_keep_their_offsets(probe: Probe) -> None:
    topic, other, group = probe.topic(), probe.topic("other"), Group(probe)
    member = alone(group, protocols=(("range", subscription(topic.name)),))
    member.commit("commits", topic, 5)
    member.commit("commits to the other", other, 6)
    delete(probe, "both", group.id, (topic.name, (0,)), (other.name, (0,)))
    fetch(probe, "left", 7, group.id)
    member.leave("leaves")
    delete(probe, "once it left", group.id, (topic.name, (0,)))
    fetch(probe, "none is left", 7, group.id)


@case()
def subscriptions_count_only_while_the_group_is_a_consumer_group(probe: Probe) -> None:
    for name, kind, metadata in (("connect", "connect", b"anything"), ("consumer", "consumer", b"")):
        topic, group = probe.topic(f"topic-{name}"), Group(probe, name)
        member = alone(group, name, protocol_type=kind, protocols=(("p", metadata),))
        member.commit("commits", topic, 5)
        delete(probe, name, group.id, (topic.name, (0,)))
        fetch(probe, f"{name}, left", 7, group.id)


@case()
def subscriptions_while_a_group_rebalances(probe: Probe) -> None:
    topic, other, group = probe.topic(), probe.topic("other"), Group(probe)
    member = group.member("member", protocols=(("range", subscription(topic.name)),))
    member.enter("joins")
    delete(probe, "completing", group.id, (topic.name, (0,)), (other.name, (0,)))
    member.lead("syncs")
    second = group.member("second", protocols=(("range", subscription(other.name)),))
    second.send_enter()
    group.await_state("PreparingRebalance", 2)
    delete(probe, "preparing", group.id, (topic.name, (0,)), (other.name, (0,)))
    member.join("rejoins")
    second.joined("joins")
    delete(probe, "completing again", group.id, (topic.name, (0,)), (other.name, (0,)))
