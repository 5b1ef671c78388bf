"""Transactions that take too long: the coordinator aborts them, and each later request finds out in its own way.

Both servers look for them every 200 ms (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
"""

import time

from interop.cases.groups_kit import coordinated, fetch, fetch_body
from interop.cases.txn_kit import CONCURRENT, NEW, OLD, Producer, Story, latest, producers, read
from oracle.compare import Cases, Differs, Probe, Topic

CASES = Cases("timeouts")
case = CASES.case

SHORT_MS = 200  # time enough to begin on a machine with much other work
CLIENTS = ((OLD, "old"), (NEW, "new"))


def timed_out(probe: Probe, protocol: int, name: str = "id", topic: Topic | None = None) -> Producer:
    """A producer whose transaction was open for too long."""
    producer = Producer(probe, name, timeout_ms=SHORT_MS)
    producer.begin(topic or probe.topic(f"topic-of-{name}"), protocol)
    producer.await_state("CompleteAbort")
    return producer


def what_is_left(protocol: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = timed_out(probe, protocol, topic=topic)
        producer.describe("aborted")
        read(probe, "the log", topic)
        producers(probe, "the producer", topic)
        latest(probe, "stable", topic)

    return run


FENCED = Differs(
    "a commit that finds its transaction aborted is fenced (KAFKA-20785), which clients survive", {"error_code": 90}
)


def ending_it(protocol: int) -> Story:
    """EndTxn of the old and the new protocol, whatever the client was."""

    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=4)
        rows = []
        for partition, (version, commit) in enumerate(((4, True), (4, False), (5, True), (5, False))):
            producer = Producer(probe, f"v{version}-{commit}", timeout_ms=SHORT_MS)
            producer.begin(topic, protocol, partition=partition)
            rows.append((producer, version, commit))
        for producer, version, commit in rows:
            producer.await_state("CompleteAbort")
            producer.end(f"v{version} {commit}", commit, version)
            producer.describe(f"v{version} {commit}, after")
            producer.end(f"v{version} {commit}, with what was learnt", commit, version)
            producer.await_state("CompleteAbort")
            producer.describe(f"v{version} {commit}, in the end")

    return run


def adding_to_it(protocol: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2)
        producer = timed_out(probe, protocol, topic=topic)
        for version in (0, 1, 2, 3, 4, 5):
            producer.add(f"add v{version}", {topic.name: [0, 1]}, version)
        for version in (4, 5):
            producer.verify(f"verify v{version}", {topic.name: [0, 1]}, version)
        group_id = coordinated(probe, probe.name("group"))
        for version in (0, 3):
            producer.add_offsets(f"offsets v{version}", group_id, version)
        for version in (0, 3, 4, 5):
            producer.commit_offsets(f"commit offsets v{version}", group_id, topic, {0: 5}, version)
        producer.describe("as it was")

    return run


def writing_to_it(protocol: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2)
        producer = timed_out(probe, protocol, topic=topic)
        for version in (3, 10, 11, 12, 13):
            producer.produce(f"the same partition v{version}", topic, version, sequence=1)
            producer.produce(f"another partition v{version}", topic, version, partition=1)
        producer.describe("as it was")
        read(probe, "the log", topic, level=0)

    return run


def beginning_again(protocol: int) -> Story:
    """The server's transaction.version is 2: the epoch before the abort is recognised as a retry."""

    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2)
        one = Producer(probe, "with-identity", timeout_ms=SHORT_MS)
        two = Producer(probe, "without", timeout_ms=SHORT_MS)
        one.begin(topic, protocol)
        two.begin(topic, protocol, partition=1)
        one.await_state("CompleteAbort")
        old = one.epoch
        one.reinit("the old epoch", old, 3)
        one.describe("the old epoch, after")
        one.reinit("and again", old)
        one.produce("it writes again", topic)
        two.await_state("CompleteAbort")
        two.init("no identity")
        two.describe("no identity, after")

    return run


for _protocol, _client in CLIENTS:
    CASES.add(f"what_is_left_of_the_{_client}_protocol", what_is_left(_protocol))
    CASES.add(
        f"ending_it_of_the_{_client}_protocol",
        ending_it(_protocol),
        {"v5 True": FENCED, "v5 True, with what was learnt": FENCED},
    )
    CASES.add(f"adding_to_it_of_the_{_client}_protocol", adding_to_it(_protocol))
    CASES.add(f"writing_to_it_of_the_{_client}_protocol", writing_to_it(_protocol))
    CASES.add(f"beginning_again_of_the_{_client}_protocol", beginning_again(_protocol))


@case()
def nothing_extends_a_transaction(probe: Probe) -> None:
    """Neither more partitions nor more data: the first partition counts."""
    topic = probe.topic(partitions=2)
    producer = Producer(probe, timeout_ms=300)
    producer.begin(topic)
    written = 0
    for written in range(1000):
        body = producer.produce_body(topic, partition=1, sequence=written)
        (row,) = probe.tell("Produce", 12, **body)["responses"][0]["partition_responses"]
        if row["error_code"] not in (0, CONCURRENT):
            break
        time.sleep(0.01)
    probe.record("it was written to for a while", written > 5)
    probe.record("in the end", row["error_code"])
    producer.await_state("CompleteAbort")
    producer.describe("aborted")


@case()
def an_id_without_a_transaction_never_times_out(probe: Probe) -> None:
    topic = probe.topic()
    empty = Producer(probe, "empty", timeout_ms=1)
    done = Producer(probe, "done", timeout_ms=60_000)
    done.run(topic, True)
    time.sleep(0.5)
    empty.describe("empty")
    done.describe("done")


@case()
def offsets_time_out_too(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    producer = Producer(probe, timeout_ms=SHORT_MS)
    producer.commit_offsets("pending", group_id, topic, {0: 5}, 5)
    producer.await_state("CompleteAbort")
    fetch(probe, "any", 8, group_id, [(topic, (0,))])
    body = {**fetch_body(8, group_id, [(topic, (0,))]), "require_stable": True}
    probe.ask("stable", "OffsetFetch", 8, body)


@case()
def a_transaction_without_data_times_out(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe, timeout_ms=SHORT_MS)
    producer.add("only added", {topic.name: [0]})
    producer.await_state("CompleteAbort")
    producer.describe("aborted")
    read(probe, "a marker", topic)
