"""Looking at transactions: DescribeTransactions, ListTransactions 0-2, DescribeProducers, FindCoordinator."""

import re
import time
from collections.abc import Callable
from typing import Any

from interop.cases.txn_kit import (
    NEW,
    OLD,
    STATES,
    Producer,
    Story,
    await_coordinator,
    describe,
    producer_in,
    producers,
)
from oracle.compare import Cases, Probe, attempts
from oracle.wire import fit

CASES = Cases("transactions")
case = CASES.case

LIST_VERSIONS = range(3)
NAMES = (*STATES, "Dead", "PrepareEpochFence")


# DescribeTransactions


def described_in(state: str, protocol: int) -> Story:
    def run(probe: Probe) -> None:
        producer = producer_in(probe, state, protocol)
        producer.describe("described")

    return run


for _state in STATES:
    for _protocol, _client in ((OLD, "old"), (NEW, "new")):
        CASES.add(f"described_in_{_state}_of_the_{_client}_protocol", described_in(_state, _protocol))


@case()
def describing_several_and_none(probe: Probe) -> None:
    one, two = Producer(probe, "one"), Producer(probe, "two")
    unknown = await_coordinator(probe, probe.name("unknown"))
    describe(probe, "both", one.id, two.id)
    describe(probe, "known and unknown", one.id, unknown)
    describe(probe, "the same twice", one.id, one.id)
    describe(probe, "an empty id", "")
    describe(probe, "empty, unknown, known", "", unknown, one.id)
    describe(probe, "none")


@case()
def markers_that_came_are_not_described_any_more(probe: Probe) -> None:
    """While a transaction is being ended only the partitions without a marker are listed."""
    topic = probe.topic(partitions=3)
    for commit in (True, False):
        producer = Producer(probe, f"commit-{commit}")
        for partition in (1, 2):
            producer.begin(topic, partition=partition)
        producer.strand(topic, commit)
        for _ in attempts():
            answer = probe.tell("DescribeTransactions", 0, transactional_ids=[producer.id])
            if answer["transaction_states"][0]["topics"][0]["partitions"] == [0]:
                break
        producer.describe(f"commit {commit}")


@case()
def the_start_is_that_of_the_first_partition(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    producer = Producer(probe)
    producer.begin(topic, OLD)
    first = started(probe, producer)
    time.sleep(0.02)
    producer.begin(topic, OLD, partition=1)
    probe.record("more partitions do not move it", started(probe, producer) == first)
    producer.finish(True, OLD)
    probe.record("it outlives the transaction", started(probe, producer) == first)
    time.sleep(0.02)
    producer.begin(topic, OLD, sequence=1)
    probe.record("the next one has its own", started(probe, producer) > first)
    producer.finish(False, OLD)
    producer.start()
    probe.record("none after InitProducerId", started(probe, producer))


def started(probe: Probe, producer: Producer) -> int:
    (row,) = probe.tell("DescribeTransactions", 0, transactional_ids=[producer.id])["transaction_states"]
    return int(row["transaction_start_time"])


# ListTransactions


def list_transactions(probe: Probe, label: str, version: int, **filters: Any) -> Any:
    """Of all that is listed only the ids of this case count."""
    prefix = probe.name("")

    def own(answer: dict[str, Any]) -> dict[str, Any]:
        rows = [row for row in answer["transaction_states"] if row["transactional_id"].startswith(prefix)]
        return {**answer, "transaction_states": rows}

    body = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
    return probe.ask(label, "ListTransactions", version, fit("ListTransactions", version, body), keep=own)


def in_every_state(probe: Probe) -> list[Producer]:
    topic = probe.topic(partitions=2)
    found = []
    for state in STATES:
        producer = Producer(probe, state)
        producer.enter(state, NEW, topic, partition=int(state == "PrepareAbort"))
        found.append(producer)
    return found


def listed_by_state(version: int) -> Story:
    def run(probe: Probe) -> None:
        in_every_state(probe)
        list_transactions(probe, "all", version)
        for name in NAMES:
            list_transactions(probe, name, version, state_filters=[name])
        list_transactions(probe, "two states", version, state_filters=["Ongoing", "Empty"])
        list_transactions(probe, "a state twice", version, state_filters=["Ongoing", "Ongoing"])
        list_transactions(probe, "known and unknown", version, state_filters=["Ongoing", "Nonsense", ""])
        list_transactions(probe, "only unknown", version, state_filters=["Nonsense", "ongoing", "EMPTY"])
        list_transactions(probe, "unknown twice", version, state_filters=["Nonsense", "Nonsense"])

    return run


for _version in LIST_VERSIONS:
    CASES.add(f"listed_by_state_v{_version}", listed_by_state(_version))


@case()
def listed_by_producer_id(probe: Probe) -> None:
    empty, ongoing, *_ = in_every_state(probe)
    for version in LIST_VERSIONS:
        for label, ids in (
            ("one", [empty.producer_id]),
            ("two", [empty.producer_id, ongoing.producer_id]),
            ("one and an unknown one", [ongoing.producer_id, 10**12]),
            ("an unknown one", [10**12]),
            ("-1", [-1]),
            ("the same twice", [empty.producer_id, empty.producer_id]),
        ):
            list_transactions(probe, f"{label} v{version}", version, producer_id_filters=ids)
        both = [empty.producer_id, ongoing.producer_id]
        filters = {"producer_id_filters": both, "state_filters": ["Ongoing"]}
        list_transactions(probe, f"and by state v{version}", version, **filters)
        filters = {"producer_id_filters": both, "state_filters": ["Nonsense"]}
        list_transactions(probe, f"and by an unknown state v{version}", version, **filters)


@case()
def listed_by_duration(probe: Probe) -> None:
    """What never began passes every duration."""
    in_every_state(probe)
    time.sleep(0.03)
    for version in (1, 2):
        for duration in (-1, -(2**62), 0, 10, 3_600_000, 2**62):
            list_transactions(probe, f"{duration} v{version}", version, duration_filter=duration)
        filters = {"duration_filter": 0, "state_filters": ["Ongoing"]}
        list_transactions(probe, f"and by state v{version}", version, **filters)


def pattern_of(probe: Probe, rest: str) -> str:
    return re.escape(probe.name("")) + rest


PATTERNS: dict[str, Callable[[Probe], str | None]] = {
    "none": lambda _: None,
    "empty": lambda _: "",
    "everything": lambda _: ".*",
    "the whole id": lambda probe: pattern_of(probe, "Ongoing"),
    "a part of the id": lambda _: "Ongoing",
    "the beginning": lambda probe: pattern_of(probe, "Prep"),
    "any end": lambda probe: pattern_of(probe, "Prep.*"),
    "alternatives": lambda probe: pattern_of(probe, "(Empty|Ongoing)"),
    "anchors": lambda probe: "^" + pattern_of(probe, "Empty") + "$",
    "other case": lambda probe: pattern_of(probe, "empty"),
    "other case, told so": lambda probe: "(?i)" + pattern_of(probe, "empty"),
    "a class": lambda probe: pattern_of(probe, r"[A-Z]\w+"),
    "counted": lambda probe: pattern_of(probe, r"\w{5}"),
    "lazy": lambda probe: pattern_of(probe, r".*?Commit"),
    "a letter of Unicode": lambda probe: pattern_of(probe, r"\pL+"),
    "open bracket": lambda _: "[",
    "open group": lambda _: "(",
    "nothing to repeat": lambda _: "*",
    "look ahead": lambda _: "(?=a).*",
    "look behind": lambda _: "(?<=a).*",
    "back reference": lambda _: r"(.)\1.*",
    "possessive": lambda _: "a++",
    "atomic": lambda _: "(?>a).*",
    "too many": lambda _: "a{1001}",
    "a thousand": lambda _: "a{1000}",
    "half a range": lambda _: "a{2",
    "trailing backslash": lambda _: "a\\",
    "unknown escape": lambda _: r"\y",
    "named group of Python": lambda _: "(?P<name>.*)",
    "named group": lambda _: "(?<name>.*)",
    "quoted": lambda probe: r"\Q" + probe.name("Empty") + r"\E",
}


def listed_by_pattern(names: list[str]) -> Story:
    def run(probe: Probe) -> None:
        in_every_state(probe)
        for label in names:
            list_transactions(probe, label, 2, transactional_id_pattern=PATTERNS[label](probe))
        filters = {"transactional_id_pattern": pattern_of(probe, "Complete.*"), "state_filters": ["CompleteAbort"]}
        list_transactions(probe, "and by state", 2, **filters)
        filters = {"transactional_id_pattern": "[", "state_filters": ["Nonsense"]}
        list_transactions(probe, "a bad one and an unknown state", 2, **filters)

    return run


CASES.add("listed_by_pattern", listed_by_pattern(list(PATTERNS)))


# DescribeProducers


@case()
def producers_in_the_course_of_transactions(probe: Probe) -> None:
    for protocol, word in ((OLD, "old"), (NEW, "new")):
        topic = probe.topic(word)
        producer = Producer(probe, word)
        producers(probe, f"{word}: before", topic)
        producer.begin(topic, protocol, records=3)
        producers(probe, f"{word}: open", topic)
        producer.write(topic, 11 if protocol == OLD else 12, sequence=3)
        producers(probe, f"{word}: more", topic)
        producer.finish(True, protocol)
        producers(probe, f"{word}: ended", topic)
        producer.begin(topic, protocol, sequence=4 if protocol == OLD else 0)
        producers(probe, f"{word}: the next one", topic)
        producer.finish(False, protocol)
        producers(probe, f"{word}: aborted", topic)
        producer.start()
        producers(probe, f"{word}: after InitProducerId", topic)


@case()
def several_producers_of_a_partition(probe: Probe) -> None:
    topic = probe.topic()
    one, two, three = (Producer(probe, name) for name in ("one", "two", "three"))
    one.begin(topic)
    two.begin(topic, records=2)
    three.run(topic, True)
    producers(probe, "two are open", topic)
    one.finish(True)
    producers(probe, "one is open", topic)


# FindCoordinator


@case()
def coordinators_of_transactional_ids(probe: Probe) -> None:
    producer = Producer(probe)
    for version in range(1, 7):
        body = {"key": producer.id, "key_type": 1, "coordinator_keys": [producer.id, "", "a b", producer.id]}
        probe.ask(f"v{version}", "FindCoordinator", version, fit("FindCoordinator", version, body))
        body = {"key": "", "key_type": 1, "coordinator_keys": [""]}
        probe.ask(f"empty v{version}", "FindCoordinator", version, fit("FindCoordinator", version, body))
