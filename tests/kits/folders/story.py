"""What a data folder holds, put in and looked at through the wire alone: the same for Twofold and Apache Kafka.

`fill` leaves topics of every kind, groups, settings and transactions in every state; `look` says what a server finds in
the folder. A folder is well read when a `look` before the move equals the one after it.
"""

import hashlib
import time
from typing import Any, NamedTuple, Self
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from oracle.batches import Record, batch
from oracle.compare import produce_body
from oracle.driver import Connection

TRANSACTIONAL = 0x10
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "codecs": (1, {"compression.type": "producer"}),
    "compacted": (1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
    "rolled": (1, {"segment.bytes": "1048576", "retention.ms": "-1"}),
    "mixed": (2, {"max.message.bytes": "900000"}),
}
GROUPS = ("readers", "given", "pending", "counted")
IDS = ("committed", "aborted", "open", "prepared", "kept")
BROKER, TOPIC, GROUP_KEY, TRANSACTION_KEY = 4, 2, 0, 1
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT = 1, 2, 3
LATEST, EARLIEST = -1, -2


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Story:
    """One server, spoken to as a client would, one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.wire = Connection(host, port, timeout_s=30)
        self.address = f"{host}:{port}"

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- filling ---

    def fill(self, *, kept: bool = False) -> dict[str, Identity]:
        """Everything; returns the identities of the producers whose transactions are open.

        `kept` also leaves a prepared one that its next producer has found and kept (Apache Kafka 4.3 cannot).
        """
        self._topics()
        self._records()
        self._groups()
        self._configs()
        for name, commit in (("committed", True), ("aborted", False)):
            identity = self.begin(name, name.encode())
            self.end(name, identity, commit=commit)
        identities = {"open": self.begin("open", b"open", group="pending")}
        identities["prepared"] = self.begin("prepared", b"prepared", two_phase=True)
        if kept:
            found = self.begin("kept", b"kept", two_phase=True)
            again = self.init("kept", two_phase=True, keep=True)
            ongoing = Identity(again["ongoing_txn_producer_id"], again["ongoing_txn_producer_epoch"])
            assert ongoing == found, again
            identities["kept"] = Identity(again["producer_id"], again["producer_epoch"])
        self.produce("mixed", [b"behind the open ones"], partition=0)
        return identities

    def _topics(self) -> None:
        rows = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in configs.items()],
            }
            for name, (partitions, configs) in TOPICS.items()
        ]
        answer = self.wire.ask("CreateTopics", 7, topics=rows, timeout=10000)
        assert all(row["error_code"] == 0 for row in answer["topics"]), answer
        self._until(lambda: all(row["partitions"] for row in self._metadata()))

    def _metadata(self) -> list[dict[str, Any]]:
        rows = [{"name": name} for name in TOPICS]
        found: list[dict[str, Any]] = self.wire.ask("Metadata", 12, topics=rows)["topics"]
        return found

    def _records(self) -> None:
        for partition in range(3):
            self.produce("plain", [b"one", b"two", b"three"], partition=partition)
        for codec in CODECS:
            producer = Producer({"bootstrap.servers": self.address, "compression.type": codec, "linger.ms": 5})
            for number in range(3):
                producer.produce("codecs", f"{codec} {number} ".encode() * 20, codec.encode(), 0)
            assert producer.flush(30) == 0
        for number in range(4):
            self.produce("compacted", [b"%d" % number], key=b"key-%d" % (number % 2))
        for number in range(6):
            self.produce("rolled", [b"%d" % number * 400_000])

    def produce(self, topic: str, values: list[bytes], *, partition: int = 0, key: bytes = b"k", **fields: Any) -> None:
        transactional_id = fields.pop("transactional_id", None)
        data = batch([Record(key, value) for value in values], base_timestamp=int(time.time() * 1000), **fields)
        body = produce_body(topic, data, partition=partition) | {"transactional_id": transactional_id}

        def produced() -> bool:
            row = self.wire.ask("Produce", 9, **body)["responses"][0]["partition_responses"][0]
            assert row["error_code"] in (0, 3, 5, 6, 14, 15, 51), row
            return bool(row["error_code"] == 0)

        self._until(produced)

    def _groups(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "readers", "auto.offset.reset": "earliest",
             "enable.auto.commit": False, "group.protocol": "classic"}
        )  # fmt: skip
        consumer.subscribe(["plain"])
        messages: list[Message] = []
        deadline = time.monotonic() + 30
        while len(messages) < 9 and time.monotonic() < deadline:
            messages += consumer.consume(9 - len(messages), 0.5)
        assert len(messages) == 9
        consumer.commit(asynchronous=False)
        consumer.close()
        self.commit("given", {("plain", 0): 1, ("plain", 1): 2}, "with a word")
        self.commit("counted", {("compacted", 0): 3})

    def commit(self, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
        rows = [
            {"name": topic, "partitions": [{"partition_index": index, "committed_offset": offset,
             "committed_leader_epoch": 0, "committed_metadata": metadata}]}
            for (topic, index), offset in offsets.items()
        ]  # fmt: skip

        def committed() -> bool:
            answer = self.wire.ask("OffsetCommit", 8, group_id=group, member_id="", topics=rows, **_ANONYMOUS)
            codes = {part["error_code"] for row in answer["topics"] for part in row["partitions"]}
            assert codes <= {0, 14, 15, 16}, answer
            return codes == {0}

        self.find(group, GROUP_KEY)
        self._until(committed)

    def _configs(self) -> None:
        for name, key, value in (("", "message.max.bytes", "1500000"), ("1", "log.cleaner.threads", "1")):
            entry = {"name": key, "config_operation": 0, "value": value}
            row = {"resource_type": BROKER, "resource_name": name, "configs": [entry]}
            (answer,) = self.wire.ask("IncrementalAlterConfigs", 1, resources=[row])["responses"]
            assert answer["error_code"] == 0, answer

    # --- transactions ---

    def find(self, key: str, kind: int) -> None:
        def found() -> bool:
            (row,) = self.wire.ask("FindCoordinator", 4, key_type=kind, coordinator_keys=[key])["coordinators"]
            return bool(row["error_code"] == 0)

        self._until(found)

    def init(self, name: str, *, two_phase: bool = False, keep: bool = False) -> dict[str, Any]:
        self.find(name, TRANSACTION_KEY)
        answer: dict[str, Any] = {}

        def given() -> bool:
            extra: dict[str, Any] = {"enable2_pc": True, "keep_prepared_txn": keep} if two_phase else {}
            answer.update(
                self.wire.ask(
                    "InitProducerId", 6 if two_phase else 4, transactional_id=name, transaction_timeout=600_000,
                    producer_id=-1, producer_epoch=-1, **extra,
                )
            )  # fmt: skip
            assert answer["error_code"] in (0, 14, 15, 16, 51), answer
            return bool(answer["error_code"] == 0)

        self._until(given)
        return answer

    def begin(self, name: str, value: bytes, *, group: str | None = None, two_phase: bool = False) -> Identity:
        """A transaction with a record in both partitions of `mixed`, and perhaps an offset."""
        answer = self.init(name, two_phase=two_phase)
        identity = Identity(answer["producer_id"], answer["producer_epoch"])
        who: dict[str, Any] = {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}
        topics = [{"name": "mixed", "partitions": [0, 1]}]
        body: dict[str, Any] = {"v3_and_below_transactional_id": name, "v3_and_below_topics": topics}
        body |= {f"v3_and_below_{key}": value for key, value in who.items()}
        added = self.wire.ask("AddPartitionsToTxn", 3, **body)
        codes = {row["partition_error_code"] for one in added["results_by_topic_v3_and_below"]
                 for row in one["results_by_partition"]}  # fmt: skip
        assert codes == {0}, added
        for partition in (0, 1):
            self.produce("mixed", [value], partition=partition, attributes=TRANSACTIONAL, base_sequence=0,
                         transactional_id=name, **who)  # fmt: skip
        if group is not None:
            self._commit_in(name, identity, group)
        return identity

    def retry(self, name: str, value: bytes, identity: Identity) -> None:
        """The producer of an open transaction sends its batches once more: they are recognised, not appended."""
        before = self.offsets("mixed", LATEST)
        who: dict[str, Any] = {
            "producer_id": identity.producer_id, "producer_epoch": identity.epoch, "transactional_id": name
        }  # fmt: skip
        for partition in (0, 1):
            self.produce("mixed", [value], partition=partition, attributes=TRANSACTIONAL, base_sequence=0, **who)
        assert self.offsets("mixed", LATEST) == before

    def _commit_in(self, name: str, identity: Identity, group: str) -> None:
        who = {"producer_id": identity.producer_id, "producer_epoch": identity.epoch, "group_id": group}
        self.find(group, GROUP_KEY)
        assert self.wire.ask("AddOffsetsToTxn", 3, transactional_id=name, **who)["error_code"] == 0
        part = {"partition_index": 2, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
        rows = [{"name": "plain", "partitions": [part]}]
        answer = self.wire.ask("TxnOffsetCommit", 3, transactional_id=name, topics=rows, **who, **_NO_MEMBER)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer

    def end(self, name: str, identity: Identity, *, commit: bool) -> None:
        """EndTxn, and wait until its markers are written. What was kept is ended in the newest version only."""
        version = 5 if name == "kept" else 3
        answer = self.wire.ask(
            "EndTxn", version, transactional_id=name, producer_id=identity.producer_id, producer_epoch=identity.epoch,
            committed=commit,
        )  # fmt: skip
        assert answer["error_code"] == 0, answer
        wanted = "CompleteCommit" if commit else "CompleteAbort"
        self._until(lambda: self.transaction(name)["transaction_state"] == wanted)

    def transaction(self, name: str) -> dict[str, Any]:
        self.find(name, TRANSACTION_KEY)
        row: dict[str, Any] = {}

        def described() -> bool:
            row.update(self.wire.ask("DescribeTransactions", 0, transactional_ids=[name])["transaction_states"][0])
            return bool(row["error_code"] == 0)

        self._until(described)
        return row

    # --- looking ---

    def look(self) -> dict[str, Any]:
        """All that a client can see of the folder and that must not change with the software."""
        return {
            "topics": {row["name"]: (row["topic_id"], len(row["partitions"])) for row in self._metadata()},
            "configs": {name: self.configs(TOPIC, name) for name in TOPICS},
            "broker configs": {name: self.configs(BROKER, name or "1") for name in ("", "1")},
            "records": {isolation: self.records(isolation, *TOPICS) for isolation in ISOLATION},
            "offsets": {(name, at): self.offsets(name, at) for name in TOPICS for at in (EARLIEST, LATEST)},
            "stable": {name: self.offsets(name, LATEST, isolation_level=1) for name in TOPICS},
            "groups": {name: self.committed(name) for name in GROUPS},
            "unstable": self.committed("pending", require_stable=True),
            "transactions": {name: self._summary(name) for name in self.listed()},
            "levels": self.levels(),
        }

    def _summary(self, name: str) -> tuple[Any, ...]:
        row = self.transaction(name)
        topics = sorted((topic["topic"], tuple(sorted(topic["partitions"]))) for topic in row["topics"])
        return (row["transaction_state"], row["producer_id"], row["producer_epoch"], row["transaction_timeout"], topics)

    def listed(self) -> list[str]:
        for name in IDS:
            self.find(name, TRANSACTION_KEY)
        answer: dict[str, Any] = {}

        def loaded() -> bool:
            answer.update(self.wire.ask("ListTransactions", 0, state_filters=[], producer_id_filters=[]))
            return bool(answer["error_code"] == 0)

        self._until(loaded)
        return sorted(row["transactional_id"] for row in answer["transaction_states"])

    def configs(self, kind: int, name: str) -> dict[str, tuple[str, int]]:
        """What was set for the resource itself, and where."""
        row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        (found,) = self.wire.ask("DescribeConfigs", 4, resources=[row])["results"]
        assert found["error_code"] == 0, found
        sources = (DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT)
        return {
            entry["name"]: (entry["value"], entry["config_source"])
            for entry in found["configs"]
            if entry["config_source"] in sources and not entry["name"].startswith("min.insync")
        }

    def records(self, isolation: str, *topics: str) -> dict[str, list[tuple[Any, ...]]]:
        """All records of the topics, read by a stock consumer."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "look", "enable.auto.commit": False,
             "isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error"}
        )  # fmt: skip
        partitions = [(name, index) for name in topics for index in range(TOPICS[name][0])]
        consumer.assign([TopicPartition(name, index, OFFSET_BEGINNING) for name, index in partitions])
        seen: dict[str, list[tuple[Any, ...]]] = {name: [] for name in topics}
        ends: set[tuple[str | None, int | None]] = set()
        deadline = time.monotonic() + 30
        while len(ends) < len(partitions):
            assert time.monotonic() < deadline, f"no end of {set(partitions) - ends}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            topic, error = message.topic(), message.error()
            assert topic is not None
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                ends.add((topic, message.partition()))
            else:
                row = (message.partition(), message.offset(), message.timestamp(), message.key(), message.value())
                seen[topic].append(row)
        consumer.close()
        return {name: sorted(rows) for name, rows in seen.items()}

    def offsets(self, topic: str, timestamp: int, *, isolation_level: int = 0) -> list[int]:
        parts = [{"partition_index": index, "timestamp": timestamp, "current_leader_epoch": -1}
                 for index in range(TOPICS[topic][0])]  # fmt: skip
        body = {"replica_id": -1, "isolation_level": isolation_level, "topics": [{"name": topic, "partitions": parts}]}
        rows = self.wire.ask("ListOffsets", 6, **body)["topics"][0]["partitions"]
        assert {row["error_code"] for row in rows} == {0}, rows
        return [row["offset"] for row in sorted(rows, key=lambda row: row["partition_index"])]

    def committed(self, group: str, *, require_stable: bool = False) -> Any:
        """The offsets of a group; an error code where it has unstable ones."""
        self.find(group, GROUP_KEY)
        found: Any = None

        def fetched() -> bool:
            nonlocal found
            topics = [{"name": "plain", "partition_indexes": [0, 1, 2]}] if require_stable else None
            answer = self.wire.ask("OffsetFetch", 7, group_id=group, topics=topics, require_stable=require_stable)
            if answer["error_code"] in (14, 15, 16):
                return False
            found = sorted(
                (row["name"], part["partition_index"], part["committed_offset"], part["metadata"], part["error_code"])
                for row in answer["topics"]
                for part in row["partitions"]
            )
            return True

        self._until(fetched)
        return found

    def levels(self) -> dict[str, int]:
        answer = self.wire.ask("ApiVersions", 4, client_software_name="folders", client_software_version="1")
        rows = {row["name"]: row["max_version_level"] for row in answer["finalized_features"]}
        rows.pop("kraft.version", None)  # not a feature level of the log; only Apache Kafka lists it
        return rows

    def _until(self, done: Any, patience_s: float = 30.0) -> None:
        deadline = time.monotonic() + patience_s
        while not done():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)


ISOLATION = ("read_uncommitted", "read_committed")
_NO_MEMBER = {"generation_id": -1, "member_id": "", "group_instance_id": None}
_ANONYMOUS = {"generation_id_or_member_epoch": -1, "group_instance_id": None}


def plain(found: Any) -> Any:
    """The same as JSON can hold it; of long values their digest."""
    if isinstance(found, dict):
        return {str(key): plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(item) for item in found]
    if isinstance(found, bytes):
        return found.decode() if len(found) < 100 else hashlib.sha256(found).hexdigest()
    return str(found) if isinstance(found, UUID) else found


def end_what_is_open(story: Story, identities: dict[str, Identity]) -> None:
    """The producers end what they began, after the move: one commits, the others abort."""
    for name, identity in identities.items():
        story.end(name, Identity(*identity), commit=name == "open")
    values = [row[4] for row in story.records("read_committed", "mixed")["mixed"] if row[0] == 1]
    assert values == [b"committed", b"open"]
    assert story.offsets("mixed", LATEST) == story.offsets("mixed", LATEST, isolation_level=1)
    assert ("plain", 2, 3, "", 0) in story.committed("pending", require_stable=True)
