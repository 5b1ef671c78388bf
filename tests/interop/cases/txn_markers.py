"""WriteTxnMarkers 1-2: what a partition leader takes from a coordinator or an administrator."""

from interop.cases.groups_kit import coordinated
from interop.cases.txn_kit import (
    EPOCH_MAX,
    NEW,
    OLD,
    Producer,
    Story,
    latest,
    marker,
    partition_of,
    producers,
    read,
    write_markers,
)
from oracle.compare import Cases, Differs, Probe, Topic

CASES = Cases("WriteTxnMarkers")
case = CASES.case

VERSIONS = (1, 2)
NOBODY = 10**12
"""A producer id that no server has given out; the rows of an answer echo it."""
OUTCOMES = ((True, "commit"), (False, "abort"))


def on(topic: Topic, *partitions: int) -> dict[str, list[int]]:
    return {topic.name: list(partitions) or [0]}


def ending_by_hand(version: int, commit: bool) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        producer.begin(topic, OLD, records=2)
        row = marker(producer.producer_id, producer.epoch, commit, on(topic))
        write_markers(probe, "marker", row, version=version)
        latest(probe, "stable", topic)
        producers(probe, "producer", topic)
        write_markers(probe, "again", row, version=version)
        read(probe, "the log", topic)
        producer.describe("the coordinator knows nothing of it")

    return run


for _version in VERSIONS:
    for _commit, _word in OUTCOMES:
        CASES.add(f"{_word}_by_hand_v{_version}", ending_by_hand(_version, _commit))


def epochs_of_markers(transaction_version: int) -> Story:
    """A producer at epoch 5 with an open transaction: what ends it depends on the version that the marker names."""

    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=6)
        producer = Producer(probe)
        for _ in range(5):
            producer.start()
        for partition, epoch in enumerate((4, 5, 6, 7, 0, EPOCH_MAX)):
            producer.begin(topic, partition=partition)
            label = f"epoch {epoch}"
            row = marker(
                producer.producer_id, epoch, False, on(topic, partition), transaction_version=transaction_version
            )
            write_markers(probe, label, row)
            producers(probe, f"{label}, after", topic, partition)
            write_markers(probe, f"{label}, again", row)
            read(probe, f"{label}, the log", topic, partition=partition)

    return run


for _level in (0, 1, 2, 3, 127):
    CASES.add(f"epochs_at_transaction_version_{_level}", epochs_of_markers(_level))


@case()
def epochs_without_an_open_transaction(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    for level in (0, 1, 2):
        producer = Producer(probe, f"level-{level}")
        for _ in range(5):
            producer.start()
        producer.begin(topic, OLD, partition=level)
        producer.finish(True, OLD)
        for turn, epoch in enumerate((4, 5, 5, 6, 5)):
            row = marker(producer.producer_id, epoch, False, on(topic, level), transaction_version=level)
            write_markers(probe, f"level {level}, turn {turn}, epoch {epoch}", row)
        producers(probe, f"level {level}, in the end", topic, level)


@case()
def the_last_epoch_at_transaction_version_2(probe: Probe) -> None:
    """Epoch 32767 may mark the end although it is the current one."""
    topic = probe.topic()
    top = marker(NOBODY, EPOCH_MAX, True, on(topic), transaction_version=2)
    write_markers(probe, "nobody knows it", top)
    write_markers(probe, "again", top)
    write_markers(probe, "lower", marker(NOBODY, EPOCH_MAX - 1, True, on(topic), transaction_version=2))
    producers(probe, "in the end", topic)
    read(probe, "the log", topic)


@case()
def coordinator_epochs(probe: Probe) -> None:
    topic = probe.topic()
    for version in VERSIONS:
        producer_id = NOBODY + version
        for turn, epoch in enumerate((3, 3, 2, 0, -1, -2, 4, 3, 2**31 - 1)):
            row = marker(producer_id, 0, True, on(topic), coordinator_epoch=epoch)
            write_markers(probe, f"v{version}, turn {turn}, epoch {epoch}", row, version=version)
    producers(probe, "in the end", topic)


@case()
def coordinator_epochs_below_zero_at_first(probe: Probe) -> None:
    topic = probe.topic()
    for index, first in enumerate((-1, -2, -(2**31))):
        producer_id = NOBODY + index
        for turn, epoch in enumerate((first, -1, 0, -1)):
            row = marker(producer_id, 0, True, on(topic), coordinator_epoch=epoch)
            write_markers(probe, f"first {first}, turn {turn}, {epoch}", row)
    producers(probe, "in the end", topic)


@case()
def a_newer_coordinator_fences_the_older(probe: Probe) -> None:
    """The marker of the coordinator that serves is refused, so the transaction is not completed by it."""
    topic = probe.topic()
    producer = Producer(probe)
    newer = marker(producer.producer_id, producer.epoch, True, on(topic), coordinator_epoch=7)
    write_markers(probe, "newer", newer)
    producer.begin(topic, NEW)
    producer.end("commit", True)
    producer.await_state("PrepareCommit")
    producer.describe("waits")
    latest(probe, "is not stable", topic)
    newer = marker(producer.producer_id, producer.epoch, True, on(topic), coordinator_epoch=7, transaction_version=2)
    write_markers(probe, "the newer one completes it", newer)
    latest(probe, "is stable", topic)
    producer.describe("the older one does not know")


@case()
def producers_that_the_partition_never_saw(probe: Probe) -> None:
    topic = probe.topic()
    for level in (0, 2):
        for commit, word in OUTCOMES:
            producer_id = NOBODY + 2 * level + commit
            row = marker(producer_id, 3, commit, on(topic), transaction_version=level)
            write_markers(probe, f"{word} at {level}", row)
    producers(probe, "they are known now", topic)
    read(probe, "the log", topic)
    latest(probe, "stable", topic)


@case()
def numbers_that_say_none(probe: Probe) -> None:
    topic = probe.topic()
    for label, row in (
        ("producer id", marker(-1, 0, True, on(topic))),
        ("epoch", marker(NOBODY, -1, True, on(topic))),
        ("transaction version", marker(NOBODY, 0, True, on(topic), transaction_version=-1)),
    ):
        write_markers(probe, label, row)
    producers(probe, "nobody", topic)
    read(probe, "nothing", topic)


NO_SUCH_NUMBER = Differs("no producer has a number below zero", {"markers[0].topics[0].partitions[0].error_code": -1})


@case(dict.fromkeys(("producer id", "epoch", "transaction version"), NO_SUCH_NUMBER))
def numbers_below_that(probe: Probe) -> None:
    topic = probe.topic()
    write_markers(probe, "producer id", marker(-7, 0, True, on(topic)))
    write_markers(probe, "epoch", marker(NOBODY, -7, True, on(topic)))
    write_markers(probe, "transaction version", marker(NOBODY, 0, True, on(topic), transaction_version=-128))


@case()
def partitions_that_are_not(probe: Probe) -> None:
    topic, none = probe.topic(), probe.name("none")
    for version in VERSIONS:
        for label, where in (
            ("unknown partition", {topic.name: [5]}),
            ("negative partition", {topic.name: [-1]}),
            ("unknown topic", {none: [0, 1]}),
            ("known and unknown", {topic.name: [0, 5], none: [0]}),
            ("illegal names", {"": [0], "a b": [0]}),
        ):
            row = marker(NOBODY, 0, True, where)
            write_markers(probe, f"{label} v{version}", row, version=version)


@case()
def nothing_to_mark(probe: Probe) -> None:
    topic = probe.topic()
    for version in VERSIONS:
        write_markers(probe, f"no markers v{version}", version=version)
        write_markers(probe, f"no topics v{version}", marker(NOBODY, 0, True, {}), version=version)
        row = marker(NOBODY, 0, True, {topic.name: []})
        write_markers(probe, f"no partitions v{version}", row, version=version)


@case()
def several_markers_at_once(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    one, two = Producer(probe, "one"), Producer(probe, "two")
    one.begin(topic)
    one.begin(topic, partition=1)
    two.begin(topic, partition=1)
    write_markers(
        probe,
        "three producers",
        marker(one.producer_id, one.epoch, True, on(topic, 0, 1)),
        marker(two.producer_id, two.epoch, False, on(topic, 1, 9)),
        marker(NOBODY, 0, False, on(topic, 2)),
    )
    for partition in range(3):
        read(probe, f"partition {partition}", topic, partition=partition)
    producers(probe, "producers", topic, 0, 1, 2)


@case()
def the_same_producer_twice_in_one_request(probe: Probe) -> None:
    """Its rows are merged."""
    topic = probe.topic(partitions=2)
    write_markers(
        probe,
        "two partitions",
        marker(NOBODY, 0, True, on(topic, 0)),
        marker(NOBODY, 0, False, on(topic, 1)),
    )
    for partition in range(2):
        read(probe, f"partition {partition}", topic, partition=partition)


ONE_ROW = {
    "markers": [
        {
            "producer_id": NOBODY,
            "topics": [
                {
                    "name": "WriteTxnMarkers-the-same-partition-twice-in-one-marker.topic",
                    "partitions": [{"partition_index": 0, "error_code": 0}],
                }
            ],
        }
    ]
}


@case({"twice": Differs("nobody waits for ever", ONE_ROW)})
def the_same_partition_twice_in_one_marker(probe: Probe) -> None:
    topic = probe.topic()
    body = {"markers": [marker(NOBODY, 0, True, {topic.name: [0, 0]})]}
    probe.ask("twice", "WriteTxnMarkers", 2, body, patience_s=0.3)
    read(probe, "the log", topic)


@case()
def a_marker_and_what_the_producer_may_do_then(probe: Probe) -> None:
    """The partition takes the epoch of the marker: older batches are refused, its own begin at 0."""
    topic = probe.topic()
    producer = Producer(probe)
    producer.begin(topic, OLD)
    write_markers(probe, "epoch 3", marker(producer.producer_id, 3, False, on(topic)))
    for version in (10, 12):
        producer.produce(f"goes on v{version}", topic, version, sequence=1)
    producers(probe, "in the end", topic)


@case()
def offsets_topic(probe: Probe) -> None:
    """The group coordinator writes these markers itself."""
    group_id = coordinated(probe, probe.name("group"))
    probe.mask_partition("__consumer_offsets", partition_of(group_id), "<partition of group>")
    place = {"__consumer_offsets": [partition_of(group_id)]}
    for version in VERSIONS:
        producer_id = NOBODY + version
        for label, row in (
            ("of nobody", marker(producer_id, 1, True, place)),
            ("again", marker(producer_id, 1, False, place)),
            ("an older epoch", marker(producer_id, 0, False, place)),
            ("an older coordinator", marker(producer_id, 1, False, place, coordinator_epoch=-1)),
            ("the last partition and more", marker(producer_id, 1, False, {"__consumer_offsets": [50, -1]})),
        ):
            write_markers(probe, f"{label} v{version}", row, version=version)


@case()
def transaction_version_2_on_the_offsets_topic(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    producer = Producer(probe)
    producer.commit_offsets("pending", group_id, topic, {0: 5}, 5)
    place = {"__consumer_offsets": [partition_of(group_id)]}
    for turn, ahead in enumerate((0, -1, 1, 1)):
        row = marker(producer.producer_id, producer.epoch + ahead, True, place, transaction_version=2)
        write_markers(probe, f"turn {turn}, {ahead} ahead", row)
