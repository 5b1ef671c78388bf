"""Stories of whole transactions: consume, transform, produce; instances that fence each other; ends that race."""

from typing import Any

from interop.cases.groups_kit import Group, alone, coordinated, fetch, fetch_body
from interop.cases.txn_kit import (
    NEW,
    OLD,
    Producer,
    Story,
    ask_add,
    describe,
    latest,
    marker,
    produce_rows,
    producers,
    read,
    write_markers,
)
from oracle.batches import batch, idempotent
from oracle.compare import Cases, Differs, Probe, Topic

CASES = Cases("txn-stories")
case = CASES.case

CLIENTS = {
    # What a client of its time speaks of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, Produce, TxnOffsetCommit
    # and EndTxn.
    "0.11": (0, 0, 0, 3, 0, 0),
    "2.0": (1, 1, 1, 6, 1, 1),
    "2.5": (3, 1, 1, 8, 3, 1),
    "2.7": (4, 2, 2, 8, 3, 2),
    "3.0": (4, 3, 3, 9, 3, 3),
    "3.8": (5, 3, 4, 11, 4, 4),
}


def stable(probe: Probe, label: str, group_id: str, topic: Topic) -> None:
    body = {**fetch_body(8, group_id, [(topic, (0,))]), "require_stable": True}
    probe.ask(label, "OffsetFetch", 8, body)


def consume_transform_produce(name: str) -> Story:
    """A member commits what it read together with what it wrote: once aborted, once committed, by an old client."""
    init, add, add_offsets, produce, commit, end = CLIENTS[name]

    def run(probe: Probe) -> None:
        source, sink, group = probe.topic("source"), probe.topic("sink", 2), Group(probe)
        probe.produce(source.name, batch(4))
        member = alone(group)
        producer = Producer(probe, start=False)
        producer.init("init", init)
        for index, outcome in enumerate((False, True)):
            turn = f"turn {index}"
            producer.add(f"{turn}: partitions", {sink.name: [0, 1]}, add)
            for partition in (0, 1):
                label = f"{turn}: partition {partition}"
                producer.produce(label, sink, produce, partition=partition, sequence=2 * index, records=2)
            producer.add_offsets(f"{turn}: group", group.id, add_offsets)
            who = {"generation_id": member.generation, "member_id": member.id}
            producer.commit_offsets(f"{turn}: offsets", group.id, source, {0: 4}, commit, **who)
            stable(probe, f"{turn}: pending", group.id, source)
            producer.end(f"{turn}: end", outcome, end)
            producer.await_state("CompleteCommit" if outcome else "CompleteAbort")
            stable(probe, f"{turn}: in the end", group.id, source)
        for partition in (0, 1):
            read(probe, f"sink {partition}", sink, partition=partition)
        producer.describe("in the end")

    return run


for _name in CLIENTS:
    CASES.add(f"consume_transform_produce_{_name.replace('.', '_')}", consume_transform_produce(_name))


@case()
def consume_transform_produce_4_0(probe: Probe) -> None:
    """The new protocol: no request says what belongs to the transaction, and each end gives a new epoch."""
    source, sink, group = probe.topic("source"), probe.topic("sink", 2), Group(probe)
    probe.produce(source.name, batch(4))
    member = alone(group)
    producer = Producer(probe, start=False)
    producer.init("init", 5)
    for index, outcome in enumerate((False, True, True)):
        turn = f"turn {index}"
        for partition in (0, 1):
            label = f"{turn}: partition {partition}"
            producer.produce(label, sink, 13, partition=partition, records=2)
            producer.produce(f"{label}, more", sink, 13, partition=partition, sequence=2)
        who = {"generation_id": member.generation, "member_id": member.id}
        producer.commit_offsets(f"{turn}: offsets", group.id, source, {0: 4 + index}, 5, **who)
        producer.describe(f"{turn}: open")
        stable(probe, f"{turn}: pending", group.id, source)
        producer.end(f"{turn}: end", outcome)
        producer.await_state("CompleteCommit" if outcome else "CompleteAbort")
        stable(probe, f"{turn}: in the end", group.id, source)
    for partition in (0, 1):
        read(probe, f"sink {partition}", sink, partition=partition)


class Instance(Producer):
    """Another process with the same transactional id."""

    def __init__(self, other: Producer) -> None:
        super().__init__(other.probe, other.name, start=False)


def fencing(protocol: int) -> Story:
    """A second instance takes over: whatever the first one sends is refused."""

    def run(probe: Probe) -> None:
        topic, group_id = probe.topic(partitions=2), coordinated(probe, probe.name("group"))
        first = Producer(probe)
        first.begin(topic, protocol)
        second = Instance(first)
        second.init("the second comes", settled=True)
        second.describe("taken over")
        read(probe, "the transaction of the first was aborted", topic)
        for version in (1, 3, 4, 5):
            first.add(f"the first adds v{version}", {topic.name: [1]}, version)
        for version in (1, 3):
            first.add_offsets(f"the first adds its group v{version}", group_id, version)
        for version in (3, 4, 5):
            first.commit_offsets(f"the first commits offsets v{version}", group_id, topic, {0: 5}, version)
        for version in (3, 11, 12):
            first.produce(f"the first writes v{version}", topic, version, sequence=1)
        for version in (1, 4, 5):
            for commit in (True, False):
                first.end(f"the first ends v{version} {commit}", commit, version)
        first.reinit("the first wants its epoch back", first.epoch)
        second.begin(topic, protocol)
        for version in (4, 5):
            first.end(f"the first ends what the second began v{version}", True, version)
        second.end("the second commits", True, 5 if protocol == NEW else 4)
        second.await_state("CompleteCommit")
        read(probe, "in the end", topic)

    return run


CASES.add("a_second_instance_of_the_old_protocol", fencing(OLD))
CASES.add("a_second_instance_of_the_new_protocol", fencing(NEW))


@case()
def instances_take_turns(probe: Probe) -> None:
    topic = probe.topic()
    first = Producer(probe)
    second = Instance(first)
    for turn in range(3):
        for name, instance in (("first", first), ("second", second)):
            instance.init(f"{name} comes, {turn}", settled=True)
            instance.produce(f"{name} writes, {turn}", topic)
    describe(probe, "in the end", first.id)
    read(probe, "the log", topic)


@case()
def from_the_old_protocol_to_the_new(probe: Probe) -> None:
    """A client that learns of the new protocol bumps its epoch and goes on."""
    topic = probe.topic()
    producer = Producer(probe)
    producer.run(topic, True, OLD)
    producer.reinit("bump", producer.epoch, 5)
    producer.run(topic, True, NEW)
    producer.run(topic, False, NEW)
    producer.reinit("and back", producer.epoch, 5)
    producer.run(topic, True, OLD)
    producer.begin(topic, OLD, sequence=1)
    producer.end("begun the old way, ended the new way", True, 5)
    producer.await_state("CompleteCommit")
    producer.begin(topic, NEW)
    producer.end("begun the new way, ended the old way", True, 4)
    producer.await_state("CompleteCommit")
    producer.describe("in the end")
    read(probe, "the log", topic)
    producers(probe, "the producer", topic)


@case()
def both_ways_of_adding_in_one_transaction(probe: Probe) -> None:
    topic = probe.topic(partitions=4)
    producer = Producer(probe)
    producer.add("by the client", {topic.name: [0]})
    producer.produce("by the server", topic, 12, partition=1)
    ask_add(probe, "by another broker", 5, producer.transaction({topic.name: [2]}))
    producer.describe("open")
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    for partition in range(4):
        read(probe, f"partition {partition}", topic, partition=partition)


@case()
def producers_share_a_partition(probe: Probe) -> None:
    """Transactional, idempotent and plain writers; each transaction ends on its own."""
    topic = probe.topic()
    one, two = Producer(probe, "one"), Producer(probe, "two")
    quiet = probe.producer_id()
    one.begin(topic)
    probe.produce(topic.name, idempotent(quiet, 0))
    two.begin(topic)
    probe.produce(topic.name)
    one.write(topic, sequence=1)
    latest(probe, "both are open", topic)
    two.finish(False)
    latest(probe, "one is open", topic)
    probe.produce(topic.name, idempotent(quiet, 1))
    one.finish(True)
    for level in (0, 1):
        for offset in (0, 1, 4, 5, 7):
            read(probe, f"level {level} from {offset}", topic, level=level, offset=offset)
    producers(probe, "producers", topic)


ABORTED_BY_HAND = Differs(
    "all of a transaction or nothing: what was aborted in one partition is not committed in the others",
    {"error_code": 120, "producer_id": -1, "producer_epoch": -1},
)


@case({"end, True": ABORTED_BY_HAND})
def a_marker_of_an_administrator_and_the_end_that_follows(probe: Probe) -> None:
    """The partition is freed by hand; the coordinator still ends the transaction and writes a marker of its own."""
    for commit in (False, True):
        topic = probe.topic(f"topic-{commit}")
        producer = Producer(probe, f"id-{commit}")
        producer.begin(topic)
        row = marker(producer.producer_id, producer.epoch, False, {topic.name: [0]})
        write_markers(probe, f"by hand, {commit}", row)
        producer.end(f"end, {commit}", commit)
        if commit:
            return
        producer.await_state("CompleteAbort")
        read(probe, f"the log, {commit}", topic)
        producers(probe, f"the producer, {commit}", topic)


@case()
def a_lost_answer_to_the_end(probe: Probe) -> None:
    """The client asks again with what it knows, gets the same answer, and goes on."""
    topic = probe.topic()
    producer = Producer(probe)
    for turn, commit in enumerate((True, False)):
        producer.begin(topic)
        known = producer.epoch
        producer.finish(commit)
        learnt = producer.epoch
        producer.end(f"again {turn}", commit, producer_epoch=known)
        probe.record(f"the same epoch {turn}", producer.epoch == learnt)
    producer.produce("goes on", topic)


@case()
def a_lost_answer_to_a_batch(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    data = producer.batch(records=3)
    body: dict[str, Any] = produce_rows(12, producer.id, [(topic, 0, data)])
    for label in ("first", "again", "and again"):
        probe.ask(label, "Produce", 12, body)
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    probe.ask("after the end", "Produce", 12, body)
    read(probe, "once", topic)


@case()
def a_group_moves_on_while_its_old_member_commits(probe: Probe) -> None:
    """KIP-447: the generation fences a member that lost its partitions."""
    source, group = probe.topic("source"), Group(probe)
    member = alone(group)
    producer = Producer(probe)
    old = {"generation_id": member.generation, "member_id": member.id}
    member.join("rejoins")
    member.lead("syncs again")
    for version in (3, 4, 5):
        if version < 5:
            producer.add_offsets(f"group v{version}", group.id)
        producer.commit_offsets(f"the old generation v{version}", group.id, source, {0: 4}, version, **old)
    new = {"generation_id": member.generation, "member_id": member.id}
    producer.commit_offsets("the new generation", group.id, source, {0: 5}, 5, **new)
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    fetch(probe, "in the end", 8, group.id, [(source, (0,))])


@case()
def a_hundred_transactions(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    for index in range(100):
        producer.run(topic, index % 3 != 0)
    producer.describe("in the end")
    producers(probe, "the producer", topic)
    latest(probe, "stable", topic)
    read(probe, "from the middle", topic, offset=150)


@case()
def a_hundred_partitions(probe: Probe) -> None:
    topic = probe.topic(partitions=100)
    producer = Producer(probe)
    producer.add("all", {topic.name: range(100)})
    for partition in (0, 50, 99):
        producer.write(topic, 11, partition=partition)
    producer.end("abort", False, 4)
    producer.await_state("CompleteAbort")
    for partition in (0, 1, 50, 99):
        read(probe, f"partition {partition}", topic, partition=partition)
