"""EndTxn: both protocols in every state, retries, who may end, what follows."""

from interop.cases.txn_kit import (
    END_VERSIONS,
    NEW,
    OLD,
    STATES,
    Producer,
    Story,
    await_coordinator,
    latest,
    read,
)
from oracle.compare import Cases, Differs, Probe

CASES = Cases("EndTxn")
case = CASES.case

ELSEWHERE = 10**12
OUTCOMES = ((True, "commit"), (False, "abort"))


FENCED = Differs(
    "a commit that finds its transaction aborted is fenced (KAFKA-20785), which clients survive", {"error_code": 90}
)


REFUSED = {"error_code": 90, "producer_id": -1, "producer_epoch": -1}
NOT_OURS = Differs("the epoch before is that of a fenced producer: it is not given the epoch of another", REFUSED)


def decided(state: str, protocol: int, version: int) -> dict[str, Differs]:
    """Where Twofold answers otherwise to the epoch before the current one."""
    if version < 5 or not state.startswith("Complete"):
        return {}
    if protocol == OLD:
        return {"commit, one before": NOT_OURS, "abort, one before": NOT_OURS}
    return {"commit, one before": FENCED} if state == "CompleteAbort" else {}


def a_transaction_ends(version: int, commit: bool) -> Story:
    protocol = NEW if version >= 5 else OLD
    state = "CompleteCommit" if commit else "CompleteAbort"

    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        old = producer.epoch
        producer.begin(topic, protocol)
        latest(probe, "before", topic)
        producer.end("end", commit, version)
        producer.await_state(state)
        producer.describe("ended")
        latest(probe, "after", topic)
        read(probe, "data and marker", topic)
        producer.end("again with the old epoch", commit, version, producer_epoch=old)
        producer.end("the opposite with the old epoch", not commit, version, producer_epoch=old)
        producer.describe("as it was")

    return run


for _version in END_VERSIONS:
    for _commit, _word in OUTCOMES:
        _fenced = {"the opposite with the old epoch": FENCED} if (_version, _commit) == (5, False) else {}
        CASES.add(f"{_word}_v{_version}", a_transaction_ends(_version, _commit), _fenced)


def who_may_end(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        producer.init("bump to 1")
        producer.begin(topic, OLD)
        for commit, word in OUTCOMES:
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
                producer.end(f"{label}, {word}", commit, version, **over)
        producer.describe("still open")

    return run


for _version in END_VERSIONS:
    CASES.add(f"who_may_end_v{_version}", who_may_end(_version))


def in_a_state(state: str, protocol: int, version: int) -> Story:
    """Every epoch near the current one, both outcomes, each on an id of its own: what succeeds changes the state."""

    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=8)
        for commit, word in OUTCOMES:
            for label, ahead in (("current", 0), ("one before", -1), ("two before", -2), ("one ahead", 1)):
                producer = Producer(probe, f"{word}-{label}".replace(" ", "-"))
                producer.start()
                producer.enter(state, protocol, topic, partition=4 * commit + ahead + 2)
                producer.end(f"{word}, {label}", commit, version, producer_epoch=producer.epoch + ahead)
                if not state.startswith("Prepare"):
                    producer.await_state("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
                producer.describe(f"{word}, {label}: after")

    return run


for _protocol, _client in ((OLD, "old"), (NEW, "new")):
    for _state in STATES:
        if (_state, _protocol) != ("Empty", NEW):
            for _version in (4, 5):
                _name = f"v{_version}_in_{_state}_of_the_{_client}_protocol"
                CASES.add(_name, in_a_state(_state, _protocol, _version), decided(_state, _protocol, _version))


@case()
def the_next_transaction_goes_on(probe: Probe) -> None:
    """The sequences of the old protocol go on, those of the new one begin again with each epoch."""
    for protocol, word in ((OLD, "old"), (NEW, "new")):
        topic = probe.topic(word)
        producer = Producer(probe, word)
        for index in range(3):
            producer.begin(topic, protocol, sequence=0 if protocol == NEW else 2 * index, records=2)
            producer.finish(index != 1, protocol)
        producer.describe(f"{word} in the end")
        read(probe, f"{word}: all", topic)


@case()
def a_retry_after_the_next_transaction_began(probe: Probe) -> None:
    """The retry of EndTxn comes late: it must not end the transaction that follows."""
    topic = probe.topic()
    for commit, word in OUTCOMES:
        producer = Producer(probe, word)
        producer.run(topic, commit)
        old = producer.epoch - 1
        producer.begin(topic)
        for again, what in OUTCOMES:
            producer.end(f"{word}, then a late {what}", again, producer_epoch=old)
        producer.describe(f"{word}: the next one is open")


@case()
def aborts_without_a_transaction_bump_the_epoch(probe: Probe) -> None:
    producer = Producer(probe)
    for index in range(3):
        old = producer.epoch
        producer.end(f"abort {index}", False)
        producer.await_state("CompleteAbort")
        producer.end(f"abort {index}, retried", False, producer_epoch=old)
        producer.describe(f"after {index}")
    producer.end("commit of nothing", True)
    producer.end("commit of nothing, the old way", True, 4)
    producer.end("abort of nothing, the old way", False, 4)
    producer.describe("in the end")


@case()
def a_transaction_over_several_partitions(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    for commit, word in OUTCOMES:
        producer = Producer(probe, word)
        for partition in range(3):
            producer.begin(topic, partition=partition)
        producer.describe(f"{word}: open")
        producer.end(word, commit)
        producer.await_state("CompleteCommit", "CompleteAbort")
        for partition in range(3):
            read(probe, f"{word}: partition {partition}", topic, partition=partition)


@case()
def partitions_without_data_get_markers_too(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    for commit, word in OUTCOMES:
        producer = Producer(probe, word)
        producer.add(f"{word}: both", {topic.name: [0, 1]})
        producer.write(topic, 11)
        producer.end(word, commit, 4)
        producer.await_state("CompleteCommit", "CompleteAbort")
        for partition in range(2):
            read(probe, f"{word}: partition {partition}", topic, partition=partition)


@case()
def a_topic_deleted_in_the_middle(probe: Probe) -> None:
    """What is gone needs no marker."""
    for commit, word in OUTCOMES:
        topic, other = probe.topic(f"{word}-gone"), probe.topic(f"{word}-stays")
        producer = Producer(probe, word)
        producer.begin(topic)
        producer.begin(other)
        probe.tell("DeleteTopics", 4, topic_names=[topic.name], timeout=5000)
        probe.await_gone(topic.name)
        producer.end(word, commit)
        producer.await_state("CompleteCommit", "CompleteAbort")
        producer.describe(f"{word}: ended")
        read(probe, f"{word}: the other topic", other)
