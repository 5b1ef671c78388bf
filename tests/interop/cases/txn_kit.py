"""What the transaction cases share: a transactional id of a case, what its producer sends, and ways into each state."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from interop.cases.groups_kit import commit_rows
from oracle.batches import batch
from oracle.compare import Probe, Topic, attempts
from oracle.wire import fit

NOT_READY = {14, 15, 16}
"""The coordinator is being created or loaded."""
CONCURRENT = 51

TRANSACTIONAL = 0x10
SEQUENCE_MAX = 2**31 - 1
EPOCH_MAX = 2**15 - 1

INIT_VERSIONS, ADD_VERSIONS, BATCHED_VERSIONS = range(6), range(4), (4, 5)
ADD_OFFSETS_VERSIONS, END_VERSIONS, COMMIT_VERSIONS = range(5), range(6), range(6)
PRODUCE_VERSIONS = range(3, 14)
OLD, NEW = 1, 2
"""The protocols of transaction.version 0-1 (a client that adds partitions itself) and 2 (the server adds them)."""

Answer = dict[str, Any]
Partitions = Mapping[str, Sequence[int]]


class Producer:
    """A transactional id that only this case uses, with the producer id and epoch that the server gave it.

    Answers of its requests are recorded under the label; a request takes the current identity unless told otherwise.
    The methods that set up (`start`, `begin`, `finish`, `strand`) record nothing and must succeed.
    """

    def __init__(self, probe: Probe, name: str = "id", *, timeout_ms: int = 60_000, start: bool = True) -> None:
        self.probe, self.name, self.timeout_ms = probe, name, timeout_ms
        self.id = probe.name(name)
        self.producer_id, self.epoch = -1, -1
        self._identities = 0
        await_coordinator(probe, self.id)
        if start:
            self.start()

    def start(self) -> None:
        for _ in attempts():
            answer = self.probe.tell("InitProducerId", 4, **self._init_body({}))
            if answer["error_code"] != CONCURRENT:
                break
        assert answer["error_code"] == 0, answer
        self._learn(answer)

    def _learn(self, answer: Any) -> None:
        """Adopt an identity, as a producer does."""
        if not isinstance(answer, dict) or answer["error_code"] != 0 or answer.get("producer_id", -1) < 0:
            return
        self.adopt(answer["producer_id"], answer["producer_epoch"])

    def adopt(self, producer_id: int, epoch: int) -> None:
        if producer_id != self.producer_id:
            self._identities += 1
            again = f" {self._identities}" if self._identities > 1 else ""
            self.probe.mask(producer_id, f"<producer id{again} of {self.name}>")
        self.producer_id, self.epoch = producer_id, epoch

    # Requests

    def init(self, label: str, version: int = 4, *, settled: bool = False, **over: Any) -> Answer:
        """InitProducerId; `settled` asks again while an older transaction is being ended."""
        body = fit("InitProducerId", version, self._init_body(over))
        done = not_concurrent if settled else always
        answer: Answer = self.probe.ask(label, "InitProducerId", version, body, until=done)
        self._learn(answer)
        return answer

    def reinit(self, label: str, epoch: int, version: int = 4, *, producer_id: int | None = None) -> Answer:
        """InitProducerId with the identity that the client believes to have."""
        given = self.producer_id if producer_id is None else producer_id
        return self.init(label, version, producer_id=given, producer_epoch=epoch)

    def _init_body(self, over: Mapping[str, Any]) -> Answer:
        return {"transactional_id": self.id, "transaction_timeout": self.timeout_ms} | dict(over)

    def add(self, label: str, partitions: Partitions, version: int = 3, **over: Any) -> Answer:
        """AddPartitionsToTxn 0-3, or 4-5 with this transaction alone."""
        return ask_add(self.probe, label, version, self.transaction(partitions, **over))

    def verify(self, label: str, partitions: Partitions, version: int = 5, **over: Any) -> Answer:
        return self.add(label, partitions, version, verify_only=True, **over)

    def transaction(self, partitions: Partitions, **over: Any) -> Answer:
        """One row of AddPartitionsToTxn 4-5."""
        topics = [{"name": name, "partitions": list(indexes)} for name, indexes in partitions.items()]
        return {**self.identity, "verify_only": False, "topics": topics} | over

    def add_offsets(self, label: str, group_id: str, version: int = 3, **over: Any) -> Answer:
        mask_group(self.probe, group_id)
        body = {**self.identity, "group_id": group_id} | over
        answer: Answer = self.probe.ask(label, "AddOffsetsToTxn", version, fit("AddOffsetsToTxn", version, body))
        return answer

    def commit_offsets(
        self, label: str, group_id: str, topic: Topic | str, offsets: Mapping[int, int], version: int = 3, **over: Any
    ) -> Answer:
        mask_group(self.probe, group_id)
        rows = commit_rows(topic, offsets, over.pop("metadata", ""), over.pop("leader_epoch", -1))
        body = {**self.identity, "group_id": group_id, "topics": rows} | over
        answer: Answer = self.probe.ask(label, "TxnOffsetCommit", version, fit("TxnOffsetCommit", version, body))
        return answer

    def end(self, label: str, commit: bool, version: int = 5, **over: Any) -> Answer:
        body = {**self.identity, "committed": commit} | over
        answer: Answer = self.probe.ask(label, "EndTxn", version, fit("EndTxn", version, body))
        self._learn(answer)
        return answer

    def produce(self, label: str, topic: Topic, version: int = 12, **fields: Any) -> Answer:
        """One transactional batch; `sequence`, `records`, `partition`, or any field of the batch."""
        answer: Answer = self.probe.ask(label, "Produce", version, self.produce_body(topic, version, **fields))
        return answer

    def produce_body(
        self, topic: Topic, version: int = 12, *, partition: int = 0, acks: int = -1, **fields: Any
    ) -> Answer:
        return produce_rows(version, self.id, [(topic, partition, self.batch(**fields))], acks=acks)

    def batch(self, sequence: int = 0, records: int = 1, *, epoch: int | None = None, **fields: Any) -> bytes:
        values = {
            "attributes": TRANSACTIONAL,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch if epoch is None else epoch,
            "base_sequence": sequence,
            # Markers bear the time of day: beside an old batch each would begin a segment of its own.
            "base_timestamp": int(time.time() * 1000),
        }
        return batch(records, **(values | fields))

    @property
    def identity(self) -> Answer:
        return {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def describe(self, label: str) -> Answer:
        return describe(self.probe, label, self.id)

    # Set-up: into a state

    def await_state(self, *states: str) -> None:
        """Until the coordinator is there: an answer to EndTxn comes before the markers are written."""
        for _ in attempts():
            (row,) = self.probe.tell("DescribeTransactions", 0, transactional_ids=[self.id])["transaction_states"]
            if row["transaction_state"] in states:
                return
        raise AssertionError(f"{self.id} is {row}, not {states}")

    def begin(
        self, topic: Topic, protocol: int = NEW, *, partition: int = 0, sequence: int = 0, records: int = 1
    ) -> None:
        """A transaction with a batch in it, as a client of the old or the new protocol begins one."""
        version = 12
        if protocol == OLD:
            version = 11
            body = {"v3_and_below_" + key: value for key, value in self.identity.items()}
            body["v3_and_below_topics"] = [{"name": topic.name, "partitions": [partition]}]
            (row,) = self.probe.tell("AddPartitionsToTxn", 3, **body)["results_by_topic_v3_and_below"]
            assert row["results_by_partition"][0]["partition_error_code"] == 0, row
        self.write(topic, version, partition=partition, sequence=sequence, records=records)

    def write(self, topic: Topic, version: int = 12, **fields: Any) -> int:
        """A batch that must be taken; returns its offset."""
        answer = self.probe.tell("Produce", version, **self.produce_body(topic, version, **fields))
        row = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == 0, row
        return int(row["base_offset"])

    def finish(self, commit: bool, protocol: int = NEW) -> None:
        version = 5 if protocol == NEW else 4
        answer = self.probe.tell("EndTxn", version, **self.identity, committed=commit)
        assert answer["error_code"] == 0, answer
        self._learn(answer)
        self.await_state("CompleteCommit" if commit else "CompleteAbort")

    def run(self, topic: Topic, commit: bool, protocol: int = NEW, **fields: Any) -> None:
        """A whole transaction of one batch."""
        self.begin(topic, protocol, **fields)
        self.finish(commit, protocol)

    def strand(self, topic: Topic, commit: bool, protocol: int = NEW, *, partition: int = 0) -> None:
        """Into PREPARE_* for good: the partition has seen a newer coordinator and refuses the marker (52)."""
        newer = marker(self.producer_id, self.epoch, False, {topic.name: [partition]}, coordinator_epoch=1000)
        (row,) = self.probe.tell("WriteTxnMarkers", 2, markers=[newer])["markers"]
        assert row["topics"][0]["partitions"][0]["error_code"] == 0, row
        self.begin(topic, protocol, partition=partition)
        version = 5 if protocol == NEW else 4
        answer = self.probe.tell("EndTxn", version, **self.identity, committed=commit)
        assert answer["error_code"] == 0, answer
        self._learn(answer)
        self.await_state("PrepareCommit" if commit else "PrepareAbort")

    def enter(self, state: str, protocol: int, topic: Topic, *, partition: int = 0) -> None:
        """From Empty into any state in which an id can stay."""
        commit = state.endswith("Commit")
        if state == "Ongoing":
            self.begin(topic, protocol, partition=partition)
        elif state.startswith("Complete"):
            self.run(topic, commit, protocol, partition=partition)
        elif state.startswith("Prepare"):
            self.strand(topic, commit, protocol, partition=partition)


STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""The states in which an id can stay."""


def producer_in(probe: Probe, state: str, protocol: int, name: str = "id", topic: Topic | None = None) -> Producer:
    """A producer whose id is in a state, brought there by a client of one of the protocols."""
    producer = Producer(probe, name)
    if state != "Empty":
        producer.enter(state, protocol, topic or probe.topic(f"topic-of-{name}"))
    return producer


def always(_: Any) -> bool:
    return True


def not_concurrent(answer: Any) -> bool:
    return not isinstance(answer, dict) or answer["error_code"] != CONCURRENT


def await_coordinator(probe: Probe, transactional_id: str) -> str:
    """The same id, once its coordinator answers. On a fresh server `__transaction_state` is created by this."""
    for _ in attempts(patience_s=30, pause_s=0.02):
        if probe.tell("FindCoordinator", 1, key=transactional_id, key_type=1)["error_code"] in NOT_READY:
            continue
        ids = [transactional_id]
        (row,) = probe.tell("DescribeTransactions", 0, transactional_ids=ids)["transaction_states"]
        if row["error_code"] not in NOT_READY:
            return transactional_id
    raise AssertionError(f"no coordinator for {transactional_id} within 30 s")


def partition_of(key: str, partitions: int = 50) -> int:
    """Where a group's offsets are kept, and a transactional id (of ASCII)."""
    hashed = 0
    for letter in key:
        hashed = (31 * hashed + ord(letter)) & 0xFFFFFFFF
    return abs(hashed - 2**32 if hashed >= 2**31 else hashed) % partitions


def mask_group(probe: Probe, group_id: str) -> None:
    """The partition of this group shows as such: a wrong one would show as a number."""
    suffix = group_id.removeprefix(probe.name(""))
    probe.mask_partition("__consumer_offsets", partition_of(group_id), f"<partition of {suffix}>")


def ask_add(probe: Probe, label: str, version: int, *transactions: Answer) -> Answer:
    """AddPartitionsToTxn: one transaction up to version 3, any number from 4."""
    body: Answer = {"transactions": list(transactions)}
    if version < 4:
        (row,) = transactions
        body = {f"v3_and_below_{key}": value for key, value in row.items() if key != "verify_only"}
    return probe.ask(label, "AddPartitionsToTxn", version, body)


def describe(probe: Probe, label: str, *transactional_ids: str) -> Answer:
    body = {"transactional_ids": list(transactional_ids)}
    return probe.ask(label, "DescribeTransactions", 0, body)


def produce_rows(
    version: int, transactional_id: str | None, rows: Iterable[tuple[Topic, int, bytes]], *, acks: int = -1
) -> Answer:
    """Produce of several batches; each partition in a row of its own."""
    topics = [
        {"name": topic.name, "topic_id": topic.id, "partition_data": [{"index": partition, "records": data}]}
        for topic, partition, data in rows
    ]
    body = {"transactional_id": transactional_id, "acks": acks, "timeout": 5000, "topic_data": topics}
    return fit("Produce", version, body)


# Reading


def read(
    probe: Probe, label: str, topic: Topic, version: int = 12, *, level: int = 1, offset: int = 0, **more: Any
) -> Answer:
    """Fetch of one partition, at read_committed unless told otherwise."""
    part = {"partition": more.pop("partition", 0), "fetch_offset": offset, "partition_max_bytes": 10_000_000}
    rows = [{"topic": topic.name, "topic_id": topic.id, "partitions": [part]}]
    body = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 10_000_000, "isolation_level": level}
    options = {name: more.pop(name) for name in ("keep",) if name in more}
    body = fit("Fetch", version, body | {"topics": rows} | more)
    answer: Answer = probe.ask(label, "Fetch", version, body, **options)
    return answer


def latest(probe: Probe, label: str, topic: Topic, version: int = 5, *, level: int = 1, timestamp: int = -1) -> Answer:
    """ListOffsets of partition 0, at read_committed unless told otherwise."""
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    body = {"replica_id": -1, "isolation_level": level, "topics": rows, "timeout": 5000}
    answer: Answer = probe.ask(label, "ListOffsets", version, fit("ListOffsets", version, body))
    return answer


def producers(probe: Probe, label: str, topic: Topic, *partitions: int) -> Answer:
    body = {"topics": [{"name": topic.name, "partition_indexes": list(partitions) or [0]}]}
    return probe.ask(label, "DescribeProducers", 0, body)


def marker(
    producer_id: int,
    epoch: int,
    commit: bool,
    partitions: Partitions,
    *,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> Answer:
    """One row of WriteTxnMarkers."""
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "topics": [{"name": name, "partition_indexes": list(indexes)} for name, indexes in partitions.items()],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }


def write_markers(probe: Probe, label: str, *markers: Answer, version: int = 2) -> Answer:
    body = fit("WriteTxnMarkers", version, {"markers": list(markers)})
    return probe.ask(label, "WriteTxnMarkers", version, body)


Story = Callable[[Probe], None]
