"""Offsets inside transactions: AddOffsetsToTxn and TxnOffsetCommit, and what readers of a group see."""

from typing import Any

from interop.cases.groups_kit import Group, alone, commit, commit_rows, committed, coordinated, fetch, fetch_body
from interop.cases.txn_kit import (
    ADD_OFFSETS_VERSIONS,
    COMMIT_VERSIONS,
    NEW,
    OLD,
    STATES,
    Producer,
    Story,
    await_coordinator,
    marker,
    mask_group,
    partition_of,
    producer_in,
    write_markers,
)
from oracle.batches import describe
from oracle.compare import Cases, Probe, Topic, attempts
from oracle.wire import fit

CASES = Cases("txn-offsets")
case = CASES.case

ELSEWHERE = 10**12
OUTCOMES = ((True, "commit"), (False, "abort"))


def seen(probe: Probe, label: str, group_id: str, topic: Topic, *partitions: int) -> None:
    """What a reader sees that takes any offset, and one that insists on stable ones."""
    rows = [(topic, partitions or (0,))]
    fetch(probe, f"{label}, any", 8, group_id, rows)
    body = {**fetch_body(8, group_id, rows), "require_stable": True}
    probe.ask(f"{label}, stable", "OffsetFetch", 8, body)


def new_group(probe: Probe, suffix: str = "group") -> str:
    return coordinated(probe, probe.name(suffix))


# AddOffsetsToTxn


def a_group_joins(version: int) -> Story:
    def run(probe: Probe) -> None:
        group_id = new_group(probe)
        producer = Producer(probe)
        producer.add_offsets("first", group_id, version)
        producer.describe("open")
        producer.add_offsets("again", group_id, version)
        producer.add_offsets("another group", new_group(probe, "other"), version)
        producer.describe("both")

    return run


def who_may_join(version: int) -> Story:
    def run(probe: Probe) -> None:
        group_id = new_group(probe)
        producer = Producer(probe)
        producer.init("bump to 1")
        for label, over in (
            ("another producer id", {"producer_id": ELSEWHERE}),
            ("no producer id", {"producer_id": -1}),
            ("an older epoch", {"producer_epoch": 0}),
            ("a newer epoch", {"producer_epoch": 2}),
            ("no epoch", {"producer_epoch": -1}),
            ("an unknown id", {"transactional_id": await_coordinator(probe, probe.name("unknown"))}),
            ("an empty id", {"transactional_id": ""}),
        ):
            producer.add_offsets(label, group_id, version, **over)
        producer.describe("untouched")
        producer.add_offsets("an empty group id", "", version)
        producer.describe("open")

    return run


for _version in ADD_OFFSETS_VERSIONS:
    CASES.add(f"a_group_joins_v{_version}", a_group_joins(_version))
    CASES.add(f"who_may_join_v{_version}", who_may_join(_version))


def joining_in_a_state(state: str, protocol: int) -> Story:
    def run(probe: Probe) -> None:
        group_id = new_group(probe)
        producer = producer_in(probe, state, protocol)
        for version in (1, 3):
            for ahead in (-1, 1):
                epoch = producer.epoch + ahead
                producer.add_offsets(f"epoch {epoch} v{version}", group_id, version, producer_epoch=epoch)
            producer.add_offsets(f"another producer v{version}", group_id, version, producer_id=ELSEWHERE)
        producer.add_offsets("itself", group_id)
        producer.describe("in the end")

    return run


for _state in STATES:
    CASES.add(f"joining_in_{_state}", joining_in_a_state(_state, NEW if _state.endswith("Abort") else OLD))


# TxnOffsetCommit: the life of a commit


def offsets_end_with_the_transaction(version: int, how: bool) -> Story:
    """Old clients add the group first, a client of version 5 leaves that to the server."""
    protocol = NEW if version >= 5 else OLD

    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic(partitions=3)
        committed(probe, group_id, topic, {0: 5})
        producer = Producer(probe)
        if protocol == OLD:
            producer.add_offsets("the group joins", group_id)
        producer.commit_offsets("offsets", group_id, topic, {0: 7, 1: 8}, version, metadata="text", leader_epoch=3)
        producer.describe("open")
        seen(probe, "pending", group_id, topic, 0, 1, 2)
        fetch(probe, "all while pending", 8, group_id)
        producer.commit_offsets("again", group_id, topic, {1: 9}, version)
        producer.end("end", how, 5 if protocol == NEW else 3)
        producer.await_state("CompleteCommit", "CompleteAbort")
        seen(probe, "ended", group_id, topic, 0, 1, 2)
        fetch(probe, "all", 8, group_id)

    return run


for _version in COMMIT_VERSIONS:
    for _how, _word in OUTCOMES:
        CASES.add(f"offsets_{_word}_v{_version}", offsets_end_with_the_transaction(_version, _how))


def without_adding_the_group(version: int) -> Story:
    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic()
        producer = Producer(probe)
        producer.commit_offsets("in Empty", group_id, topic, {0: 5}, version)
        producer.describe("after")
        seen(probe, "after", group_id, topic)
        other = producer_in(probe, "Ongoing", OLD, "other")
        other.commit_offsets("in Ongoing", group_id, topic, {0: 6}, version)
        other.describe("the other, after")
        done = producer_in(probe, "CompleteCommit", OLD, "done")
        done.commit_offsets("in CompleteCommit", group_id, topic, {0: 7}, version)
        done.describe("the one that was done, after")
        seen(probe, "in the end", group_id, topic)

    return run


def who_may_commit(version: int) -> Story:
    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic()
        producer = Producer(probe)
        producer.init("bump to 1")
        producer.add_offsets("the group joins", group_id)
        for label, over in (
            ("another producer id", {"producer_id": ELSEWHERE}),
            ("no producer id", {"producer_id": -1}),
            ("an older epoch", {"producer_epoch": 0}),
            ("a newer epoch", {"producer_epoch": 2}),
            ("no epoch", {"producer_epoch": -1}),
            ("an unknown id", {"transactional_id": await_coordinator(probe, probe.name("unknown"))}),
            ("an empty id", {"transactional_id": ""}),
        ):
            producer.commit_offsets(label, group_id, topic, {0: 5}, version, **over)
        producer.commit_offsets("an empty group id", "", topic, {0: 5}, version)
        producer.describe("as before")
        seen(probe, "nothing came of it", group_id, topic)

    return run


def committing_in_a_stranded_state(state: str, protocol: int) -> Story:
    def run(probe: Probe) -> None:
        group_id, topic = new_group(probe), probe.topic()
        producer = producer_in(probe, state, protocol)
        for version in COMMIT_VERSIONS:
            producer.commit_offsets(f"v{version}", group_id, topic, {0: 5}, version)
            label = f"an older epoch v{version}"
            producer.commit_offsets(label, group_id, topic, {0: 5}, version, producer_epoch=producer.epoch - 1)
        seen(probe, "nothing came of it", group_id, topic)

    return run


for _version in COMMIT_VERSIONS:
    CASES.add(f"without_adding_the_group_v{_version}", without_adding_the_group(_version))
    CASES.add(f"who_may_commit_v{_version}", who_may_commit(_version))
for _state in ("PrepareCommit", "PrepareAbort"):
    for _protocol, _client in ((OLD, "old"), (NEW, "new")):
        _name = f"committing_in_{_state}_of_the_{_client}_protocol"
        CASES.add(_name, committing_in_a_stranded_state(_state, _protocol))


# TxnOffsetCommit: members


def in_transaction(probe: Probe, group_id: str, name: str = "id") -> Producer:
    """A producer whose transaction has the group in it."""
    producer = Producer(probe, name)
    mask_group(probe, group_id)
    body = {**producer.identity, "group_id": group_id}
    assert probe.tell("AddOffsetsToTxn", 3, **body)["error_code"] == 0
    return producer


def generations(version: int) -> Story:
    """Who is no member commits as nobody, or not at all."""

    def run(probe: Probe) -> None:
        topic = probe.topic()
        for label, generation, member, instance in (
            ("nobody", -1, "", None),
            ("a generation", 0, "", None),
            ("a later generation", 5, "", None),
            ("a member", -1, "ghost", None),
            ("an instance", -1, "", "instance"),
            ("all three", 1, "ghost", "instance"),
            ("generation -2", -2, "", None),
        ):
            group_id = new_group(probe, label.replace(" ", "-"))
            producer = in_transaction(probe, group_id, label)
            who: dict[str, Any] = {"generation_id": generation, "member_id": member, "group_instance_id": instance}
            producer.commit_offsets(label, group_id, topic, {0: 5}, version, **who)
            probe.ask(f"{label}: the group", "DescribeGroups", 5, {"groups": [group_id]})

    return run


def members(version: int) -> Story:
    """A group with a member in generation 1."""

    def run(probe: Probe) -> None:
        topic, group = probe.topic(), Group(probe)
        member = alone(group)
        producer = in_transaction(probe, group.id)
        for label, generation, name, instance in (
            ("the member", 1, member.id, None),
            ("an old generation", 0, member.id, None),
            ("a later generation", 2, member.id, None),
            ("no generation", -1, member.id, None),
            ("a stranger", 1, "ghost", None),
            ("no member", 1, "", None),
            ("an unknown instance", 1, member.id, "instance"),
            ("nobody", -1, "", None),
        ):
            who = {"generation_id": generation, "member_id": name, "group_instance_id": instance}
            producer.commit_offsets(label, group.id, topic, {0: 5}, version, **who)
        group.describe("the group")

    return run


for _version in (0, 3, 4, 5):
    CASES.add(f"generations_v{_version}", generations(_version))
    CASES.add(f"members_v{_version}", members(_version))


@case()
def static_members(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = alone(group, instance="instance")
    producer = in_transaction(probe, group.id)
    for label, generation, name, instance in (
        ("itself", 1, member.id, "instance"),
        ("another member", 1, "ghost", "instance"),
        ("no member", 1, "", "instance"),
        ("an unknown instance", 1, member.id, "other"),
        ("an old generation", 0, member.id, "instance"),
        ("without the instance", 1, member.id, None),
    ):
        who = {"generation_id": generation, "member_id": name, "group_instance_id": instance}
        producer.commit_offsets(label, group.id, topic, {0: 5}, 3, **who)


@case()
def a_rebalance_does_not_stop_commits(probe: Probe) -> None:
    topic, group = probe.topic(), Group(probe)
    member = group.member("member")
    member.enter("joins")
    producer = in_transaction(probe, group.id)
    who: dict[str, Any] = {"generation_id": 1, "member_id": member.id}
    producer.commit_offsets("before the sync", group.id, topic, {0: 5}, **who)
    producer.commit_offsets("nobody, before the sync", group.id, topic, {0: 5})
    member.lead("syncs")
    second = group.member("second")
    second.send_enter()
    group.await_state("PreparingRebalance", 2)
    producer.commit_offsets("while others join", group.id, topic, {0: 6}, **who)
    producer.commit_offsets("nobody, while others join", group.id, topic, {0: 6})


# TxnOffsetCommit: rows


@case()
def rows_of_all_sorts(probe: Probe) -> None:
    group_id, topic, none = new_group(probe), probe.topic(partitions=2), probe.name("none")
    producer = in_transaction(probe, group_id)
    for version in COMMIT_VERSIONS:
        rows = [
            *commit_rows(topic, {0: 5, 1: -5, 7: 5, -1: 5}, "some text"),
            *commit_rows(none, {0: 5}),
            *commit_rows("a b", {0: 5}),
        ]
        producer.commit_offsets(f"v{version}", group_id, topic, {}, version, topics=rows)
    producer.end("commit", True, 3)
    producer.await_state("CompleteCommit")
    seen(probe, "kept", group_id, topic, 0, 1, 7)


@case()
def metadata_of_all_sizes(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=3)
    producer = in_transaction(probe, group_id)
    for version in (0, 3, 5):
        for size in (4096, 4097):
            producer.commit_offsets(f"{size} v{version}", group_id, topic, {0: 5}, version, metadata="x" * size)
            producer.commit_offsets(f"{size} wide v{version}", group_id, topic, {1: 5}, version, metadata="é" * size)
        producer.commit_offsets(f"none v{version}", group_id, topic, {2: 5}, version, metadata=None)
        rows = commit_rows(topic, {0: 6}, "x" * 5000)[0]["partitions"] + commit_rows(topic, {1: 6})[0]["partitions"]
        topics = [{"name": topic.name, "partitions": rows}]
        producer.commit_offsets(f"one of two v{version}", group_id, topic, {}, version, topics=topics)
    producer.end("commit", True, 3)
    producer.await_state("CompleteCommit")
    seen(probe, "kept", group_id, topic, 0, 1, 2)


@case()
def unknown_topics_join_no_transaction(probe: Probe) -> None:
    group_id = new_group(probe)
    producer = Producer(probe)
    producer.commit_offsets("an unknown topic", group_id, probe.name("none"), {0: 5}, 5)
    producer.describe("untouched")


# Several writers


@case()
def the_later_commit_wins_not_the_later_end(probe: Probe) -> None:
    group_id, topic = new_group(probe), probe.topic(partitions=2)
    producer = in_transaction(probe, group_id)
    producer.commit_offsets("in the transaction", group_id, topic, {0: 7, 1: 7})
    commit(probe, "a plain commit after it", 8, group_id, commit_rows(topic, {0: 9}))
    seen(probe, "while it is open", group_id, topic, 0, 1)
    producer.end("commit", True, 3)
    producer.await_state("CompleteCommit")
    seen(probe, "in the end", group_id, topic, 0, 1)


@case()
def two_transactions_of_one_group(probe: Probe) -> None:
    topic = probe.topic()
    for first, second in ((True, True), (True, False), (False, True)):
        name = f"{first}-{second}"
        group_id = new_group(probe, name)
        one, two = in_transaction(probe, group_id, f"one-{name}"), in_transaction(probe, group_id, f"two-{name}")
        one.commit_offsets(f"{name}: one", group_id, topic, {0: 1})
        two.commit_offsets(f"{name}: two", group_id, topic, {0: 2})
        two.end(f"{name}: two ends", second, 3)
        two.await_state("CompleteCommit", "CompleteAbort")
        seen(probe, f"{name}: one is open", group_id, topic)
        one.end(f"{name}: one ends", first, 3)
        one.await_state("CompleteCommit", "CompleteAbort")
        seen(probe, f"{name}: in the end", group_id, topic)


@case()
def two_groups_in_one_transaction(probe: Probe) -> None:
    topic = probe.topic()
    groups = [new_group(probe, f"group-{index}") for index in range(3)]
    producer = Producer(probe)
    for index, group_id in enumerate(groups):
        producer.commit_offsets(f"group {index}", group_id, topic, {0: index}, 5)
    producer.describe("open")
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    for index, group_id in enumerate(groups):
        seen(probe, f"group {index}, in the end", group_id, topic)


# Administration while offsets are pending


def delete_offsets(probe: Probe, label: str, group_id: str, topic: Topic) -> None:
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0}]}]
    probe.ask(label, "OffsetDelete", 0, {"group_id": group_id, "topics": rows})


@case()
def deleting_offsets_deletes_the_pending_ones(probe: Probe) -> None:
    topic = probe.topic()
    for label, before in (("pending only", {}), ("committed and pending", {0: 3})):
        group_id = new_group(probe, label.replace(" ", "-"))
        if before:
            committed(probe, group_id, topic, before)
        producer = in_transaction(probe, group_id, label)
        producer.commit_offsets(f"{label}: offsets", group_id, topic, {0: 7})
        delete_offsets(probe, f"{label}: delete", group_id, topic)
        seen(probe, f"{label}: deleted", group_id, topic)
        producer.end(f"{label}: commit", True, 3)
        producer.await_state("CompleteCommit")
        seen(probe, f"{label}: in the end", group_id, topic)


@case()
def deleting_a_group_deletes_the_pending_ones(probe: Probe) -> None:
    topic = probe.topic()
    for label, before in (("pending only", {}), ("committed and pending", {0: 3})):
        group_id = new_group(probe, label.replace(" ", "-"))
        if before:
            committed(probe, group_id, topic, before)
        producer = in_transaction(probe, group_id, label)
        producer.commit_offsets(f"{label}: offsets", group_id, topic, {0: 7})
        probe.ask(f"{label}: delete", "DeleteGroups", 2, {"groups_names": [group_id]})
        probe.ask(f"{label}: the group", "DescribeGroups", 5, {"groups": [group_id]})
        producer.end(f"{label}: commit", True, 3)
        producer.await_state("CompleteCommit")
        seen(probe, f"{label}: in the end", group_id, topic)


@case()
def markers_by_hand_end_pending_offsets(probe: Probe) -> None:
    """WriteTxnMarkers to `__consumer_offsets`, as a coordinator elsewhere or an administrator sends it."""
    topic = probe.topic()
    for how, word in OUTCOMES:
        group_id = new_group(probe, word)
        producer = in_transaction(probe, group_id, word)
        producer.commit_offsets(f"{word}: offsets", group_id, topic, {0: 7})
        answer = probe.tell("DescribeTransactions", 0, transactional_ids=[producer.id])
        (row,) = answer["transaction_states"][0]["topics"]
        where = {row["topic"]: row["partitions"]}
        row = marker(producer.producer_id, producer.epoch, how, where)
        write_markers(probe, f"{word}: by hand", row)
        seen(probe, f"{word}: after", group_id, topic)
        older = marker(producer.producer_id, producer.epoch, how, where, coordinator_epoch=-1)
        write_markers(probe, f"{word}: of an older coordinator", older)
        producer.describe(f"{word}: the coordinator knows nothing of it")


@case()
def the_batches_of_offsets(probe: Probe) -> None:
    """Pending offsets and their end as they are in `__consumer_offsets`."""
    group_id, topic = new_group(probe), probe.topic()
    producer = in_transaction(probe, group_id)
    producer.commit_offsets("offsets", group_id, topic, {0: 7})
    producer.end("commit", True, 3)
    producer.await_state("CompleteCommit")
    found = []
    for _ in attempts():
        part = {"partition": partition_of(group_id), "fetch_offset": 0, "partition_max_bytes": 10_000_000}
        rows = [{"topic": "__consumer_offsets", "partitions": [part]}]
        body = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 10_000_000, "topics": rows}
        answer = probe.tell("Fetch", 11, **fit("Fetch", 11, body))
        data = answer["responses"][0]["partitions"][0]["records"]
        found = headers_of(data, producer.producer_id)
        if found:
            break
    probe.record("batches of the producer", found)


def headers_of(data: bytes, producer_id: int) -> list[dict[str, Any]]:
    kept = ("attributes", "producer_epoch", "base_sequence", "count", "crc")
    rows = [row for row in describe(data) or [] if row.get("producer_id") == producer_id]
    return [{key: row[key] for key in kept} for row in rows]
