"""AddPartitionsToTxn: alone, batched, verify-only; what is looked at first, and every state."""

from interop.cases.groups_kit import coordinated
from interop.cases.txn_kit import (
    ADD_VERSIONS,
    BATCHED_VERSIONS,
    NEW,
    OLD,
    STATES,
    Producer,
    Story,
    ask_add,
    await_coordinator,
    producer_in,
)
from oracle.compare import Cases, Differs, Probe

CASES = Cases("AddPartitionsToTxn")
case = CASES.case

ALL_VERSIONS = (*ADD_VERSIONS, *BATCHED_VERSIONS)
ELSEWHERE = 10**12


def partitions_come_together(version: int) -> Story:
    def run(probe: Probe) -> None:
        one, two = probe.topic("one", 3).name, probe.topic("two").name
        producer = Producer(probe)
        producer.add("first", {one: [0]}, version)
        producer.describe("open")
        producer.add("the same again", {one: [0]}, version)
        producer.add("another and the same", {one: [0, 2]}, version)
        producer.add("another topic", {two: [0], one: [1]}, version)
        producer.describe("all of them")

    return run


def who_may_add(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic().name
        producer = Producer(probe)
        producer.init("bump to 1")
        for label, over in (
            ("another producer id", {"producer_id": ELSEWHERE}),
            ("no producer id", {"producer_id": -1}),
            ("an older epoch", {"producer_epoch": 0}),
            ("a newer epoch", {"producer_epoch": 2}),
            ("no epoch", {"producer_epoch": -1}),
            ("another producer id and an older epoch", {"producer_id": ELSEWHERE, "producer_epoch": 0}),
            ("an unknown id", {"transactional_id": await_coordinator(probe, probe.name("unknown"))}),
            ("an empty id", {"transactional_id": ""}),
        ):
            producer.add(label, {topic: [0]}, version, **over)
        producer.describe("untouched")
        producer.add("itself", {topic: [0]}, version)
        producer.add("an older epoch, while open", {topic: [0]}, version, producer_epoch=0)
        producer.add("a newer epoch, while open", {topic: [0]}, version, producer_epoch=2)

    return run


def partitions_that_are_not(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic, none = probe.topic(partitions=2).name, probe.name("none")
        producer = Producer(probe)
        for label, partitions in (
            ("unknown topic", {none: [0, 1]}),
            ("unknown partition", {topic: [2]}),
            ("negative partition", {topic: [-1]}),
            ("known and unknown partitions", {topic: [0, 1, 2]}),
            ("known and unknown topics", {topic: [0], none: [0]}),
            ("illegal names", {"a b": [0], "": [0], ".": [0]}),
        ):
            producer.add(label, partitions, version)
            producer.add(f"{label}, another producer", partitions, version, producer_id=ELSEWHERE)
        producer.add("unknown, and an empty id", {none: [0]}, version, transactional_id="")
        producer.describe("untouched")

    return run


def internal_topics(version: int) -> Story:
    """A client may not add them; a broker that speaks for a client may."""

    def run(probe: Probe) -> None:
        topic = probe.topic().name
        coordinated(probe, probe.name("group"))
        producer = Producer(probe)
        add = producer.add if version < 4 else producer.verify
        for name in ("__transaction_state", "__consumer_offsets"):
            add(f"{name} alone", {name: [0]}, version)
            add(f"{name} and another", {name: [0], topic: [0]}, version)
            add(f"{name} beyond its partitions", {name: [99], topic: [0]}, version)
            add(f"{name} with an unknown one", {name: [0], topic: [0], probe.name("none"): [0]}, version)
        if version >= 4:
            producer.add("the partition of a group", {"__consumer_offsets": [7], topic: [0]}, version)
        producer.describe("in the end")

    return run


def named_twice(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2).name
        producer = Producer(probe)
        rows = [{"name": topic, "partitions": [0, 0]}, {"name": topic, "partitions": [0, 1]}]
        producer.add("twice", {}, version, topics=rows)
        producer.describe("once")

    return run


for _version in ALL_VERSIONS:
    CASES.add(f"partitions_come_together_v{_version}", partitions_come_together(_version))
    CASES.add(f"who_may_add_v{_version}", who_may_add(_version))
for _version in (0, 3, 4, 5):
    CASES.add(f"partitions_that_are_not_v{_version}", partitions_that_are_not(_version))
for _version in (0, 1, 3, 4):
    CASES.add(f"internal_topics_v{_version}", internal_topics(_version))
for _version in (0, 3, 5):
    CASES.add(f"named_twice_v{_version}", named_twice(_version))


def in_a_state(state: str, protocol: int) -> Story:
    """Who is let in, in this state: adding and verifying; what succeeds comes last, because it changes the state."""

    def run(probe: Probe) -> None:
        topic, other = probe.topic(partitions=2), probe.topic("other")
        producer = producer_in(probe, state, protocol, topic=topic)
        epochs = (producer.epoch - 1, producer.epoch + 1) if producer.epoch else (producer.epoch + 1,)
        for version in (1, 3, 5):
            for epoch in epochs:
                label = f"epoch {epoch} v{version}"
                producer.add(label, {topic.name: [0]}, version, producer_epoch=epoch)
            producer.add(f"another producer v{version}", {topic.name: [0]}, version, producer_id=ELSEWHERE)
        for version in BATCHED_VERSIONS:
            for epoch in (producer.epoch, *epochs):
                label = f"verify, epoch {epoch} v{version}"
                producer.verify(label, {topic.name: [0, 1], other.name: [0]}, version, producer_epoch=epoch)
            producer.verify(f"verify, another producer v{version}", {topic.name: [0]}, version, producer_id=ELSEWHERE)
        producer.describe("untouched")
        for version in (0, 3, 5):
            producer.add(f"the one it had v{version}", {topic.name: [0]}, version)
            producer.add(f"another one v{version}", {other.name: [0]}, version)
        producer.verify("both are in it", {topic.name: [0, 1], other.name: [0]})
        producer.describe("in the end")

    return run


for _protocol, _client in ((OLD, "old"), (NEW, "new")):
    for _state in STATES:
        if (_state, _protocol) != ("Empty", NEW):
            CASES.add(f"in_{_state}_of_the_{_client}_protocol", in_a_state(_state, _protocol))


@case()
def verifying_changes_nothing(probe: Probe) -> None:
    topic = probe.topic(partitions=3).name
    producer = Producer(probe)
    for version in BATCHED_VERSIONS:
        producer.verify(f"before v{version}", {topic: [0]}, version)
    producer.describe("still empty")
    producer.add("two of three", {topic: [0, 1]})
    for version in BATCHED_VERSIONS:
        producer.verify(f"some v{version}", {topic: [0, 1, 2]}, version)
        for label, over in (
            ("another producer id", {"producer_id": ELSEWHERE}),
            ("a newer epoch", {"producer_epoch": 1}),
            ("no epoch", {"producer_epoch": -1}),
            ("an unknown id", {"transactional_id": await_coordinator(probe, probe.name("unknown"))}),
            ("an empty id", {"transactional_id": ""}),
        ):
            producer.verify(f"{label} v{version}", {topic: [0, 2]}, version, **over)
        producer.verify(f"unknown partitions v{version}", {topic: [0, 9]}, version)
        producer.verify(f"an unknown topic v{version}", {topic: [0], probe.name("none"): [0]}, version)
    producer.describe("as it was")


def nothing_to_add(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic().name
        nothing: dict[str, dict[str, list[int]]] = {"no topics": {}, "a topic without partitions": {topic: []}}
        for label, partitions in nothing.items():
            producer = Producer(probe, label.replace(" ", "-"))
            producer.add(label, partitions, version)
            producer.describe(f"{label}, after")

    return run


STAYS_EMPTY = Differs(
    "a transaction without partitions is refused",
    {"transaction_states[0].transaction_state": "Empty", "transaction_states[0].transaction_start_time": -1},
)
for _version in ALL_VERSIONS:
    _labels = ("no topics, after", "a topic without partitions, after")
    CASES.add(f"nothing_to_add_v{_version}", nothing_to_add(_version), dict.fromkeys(_labels, STAYS_EMPTY))


EMPTY_ROW = Differs(
    "the answer has the rows of the request",
    {
        "results_by_transaction[0].topic_results": [
            {"name": "AddPartitionsToTxn-verifying-nothing.topic", "results_by_partition": []}
        ]
    },
)


@case({f"a topic without partitions v{version}": EMPTY_ROW for version in BATCHED_VERSIONS})
def verifying_nothing(probe: Probe) -> None:
    topic = probe.topic().name
    producer = Producer(probe)
    for version in BATCHED_VERSIONS:
        producer.verify(f"no topics v{version}", {}, version)
        producer.verify(f"a topic without partitions v{version}", {topic: []}, version)
    producer.describe("untouched")


NO_TRANSACTIONS = Differs("nobody waits for ever", {"error_code": 0, "results_by_transaction": []})


@case({f"v{version}": NO_TRANSACTIONS for version in BATCHED_VERSIONS})
def no_transactions_at_all(probe: Probe) -> None:
    for version in BATCHED_VERSIONS:
        probe.ask(f"v{version}", "AddPartitionsToTxn", version, {"transactions": []}, patience_s=0.5)


def several_at_once(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2).name
        one, two, three = (Producer(probe, name) for name in ("one", "two", "three"))
        ask_add(
            probe,
            "add, add, fenced",
            version,
            one.transaction({topic: [0]}),
            two.transaction({topic: [0, 1]}),
            three.transaction({topic: [0]}, producer_epoch=5),
        )
        ask_add(
            probe,
            "verify, verify, add",
            version,
            one.transaction({topic: [0]}, verify_only=True),
            two.transaction({topic: [0, 1]}, verify_only=True),
            three.transaction({topic: [0]}),
        )
        ask_add(
            probe,
            "each with its own fault",
            version,
            one.transaction({topic: [0, 7]}),
            two.transaction({topic: [1]}, producer_id=ELSEWHERE),
            three.transaction({topic: [1]}, transactional_id=""),
        )
        for producer in (one, two, three):
            producer.describe(f"{producer.name} in the end")

    return run


for _version in BATCHED_VERSIONS:
    CASES.add(f"several_at_once_v{_version}", several_at_once(_version))


@case()
def a_new_transaction_forgets_the_partitions_of_the_last(probe: Probe) -> None:
    topic, other = probe.topic(partitions=2), probe.topic("other")
    for protocol in (OLD, NEW):
        for commit in (True, False):
            producer = Producer(probe, f"{protocol}-{commit}")
            producer.run(topic, commit, protocol)
            producer.add(f"other, {protocol} {commit}", {other.name: [0]})
            producer.describe(f"only the other, {protocol} {commit}")
            producer.verify(f"the first is gone, {protocol} {commit}", {topic.name: [0], other.name: [0]})
