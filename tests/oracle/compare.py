"""Cases: what is asked of each of two servers, and how the answers are made comparable.

A case is a function that gets a `Probe` (one server) and asks. Answers are recorded under labels and normalised: what
depends on the clock, on the port or on random ids becomes a placeholder, what has no order is sorted, messages meant
for people count only as present or absent, and an error may be explained where the oracle gives no reason. A
deliberate difference is written down with its reason and the exact values that Twofold answers instead; one that no
longer exists fails the case.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from oracle.batches import batch, describe
from oracle.driver import CLOSED, SILENT, Connection

HOUR_MS = 3_600_000
ORDERED = {"synonyms", "batches", "aborted_transactions", "replica_nodes", "isr_nodes", "offline_replicas"}
MASKED = {"host": "<host>", "port": "<port>", "cluster_id": "<cluster id>"}
PRESENCE = {"error_message", "documentation", "batch_index_error_message"}
DROPPED = {"throttle_time", "current_txn_start_time_ms", "current_txn_start_time_is_bound"}
"""The last two are tags that only Twofold writes (DescribeProducers)."""


class Server(Protocol):
    name: str
    host: str
    port: int


class Differs(NamedTuple):
    """A decided difference: why, and what Twofold answers; a dict of path -> value, or the whole answer."""

    why: str
    twofold: Any


@dataclass(frozen=True)
class Case:
    name: str
    group: str
    run: "Run"
    differs: Mapping[str, Differs] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.group}:{self.name}"


class Topic(NamedTuple):
    name: str
    id: uuid.UUID


class Cases:
    """The cases of one API, in the order in which they are written."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.all: list[Case] = []

    def case(self, differs: Mapping[str, Differs] | None = None) -> Callable[["Run"], "Run"]:
        """Register a function as a case; `differs` has the labels where Twofold deliberately answers otherwise."""

        def register(run: Run) -> Run:
            self.all.append(Case(run.__name__, self.group, run, differs or {}))
            return run

        return register

    def add(self, name: str, run: "Run", differs: Mapping[str, Differs] | None = None) -> None:
        self.all.append(Case(name, self.group, run, differs or {}))


Run = Callable[["Probe"], None]
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Probe:
    """One case on one server: set-up that must succeed, and questions whose answers are recorded."""

    def __init__(self, server: Server, case: Case) -> None:
        self.server = server
        self._answers: dict[str, Any] = {}
        self._prefix = f"{case.group}-{case.name}".replace("_", "-")
        self._names: dict[Any, str] = {}
        self._places: dict[tuple[str, int], str] = {}
        self._connection: Connection | None = None
        self._others: list[Connection] = []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close_all(self) -> None:
        self.close()
        for connection in self._others:
            connection.close()

    def connect(self) -> Connection:
        """One more connection, for a story of several clients; it is closed with the case."""
        connection = Connection(self.server.host, self.server.port)
        self._others.append(connection)
        return connection

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.server.host, self.server.port)
        return self._connection

    # Questions

    def ask(
        self,
        label: str,
        api: str,
        version: int,
        body: Mapping[str, Any],
        *,
        until: Callable[[Any], bool] = lambda answer: True,
        keep: Callable[[Any], Any] = lambda answer: answer,
        patience_s: float | None = None,
    ) -> Any:
        """Ask and record; `until` repeats while metadata is on its way, `keep` narrows what is compared."""
        deadline = time.monotonic() + 5.0
        while True:
            answer = self.connection.outcome(api, version, dict(body), patience_s=patience_s)
            if answer in (CLOSED, SILENT):
                self.close()
            if until(answer) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.record(label, answer if answer in (CLOSED, SILENT) else keep(answer))
        return answer

    def raw(self, label: str, data: bytes, *, patience_s: float = 10.0, half_close: bool = False) -> Any:
        """Send bytes as they are on a new connection; record whether the server closed, stayed silent or answered."""
        with Connection(self.server.host, self.server.port) as connection:
            try:
                connection.send_raw(data)
                if half_close:
                    connection.half_close()
                payload = connection.receive_or_silence(patience_s)
            except ConnectionError:
                payload = None
        outcome = CLOSED if payload is None else SILENT if payload == SILENT else "answered"
        self.record(label, outcome)
        return payload

    def record(self, label: str, answer: Any) -> None:
        assert label not in self._answers, f"the label {label!r} is used twice"
        self._answers[label] = answer

    def answers(self) -> dict[str, Any]:
        """All that was recorded, in normal form: at the end, because an id may be seen before it is known whose."""
        return {label: self.normalise(answer) for label, answer in self._answers.items()}

    # Set-up

    def tell(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        """Ask without recording."""
        return self.connection.ask(api, version, **body)

    def mask(self, value: str | int, name: str) -> None:
        """From now on this text or producer id, which every server chooses for itself, shows as a name."""
        self._names.setdefault(value, name)

    def mask_partition(self, topic: str, partition: int, name: str) -> None:
        """From now on this partition shows as a name: where a key is kept depends on its hash."""
        self._places.setdefault((topic, partition), name)

    def name(self, suffix: str = "topic") -> str:
        """A name that no other case uses."""
        return f"{self._prefix}.{suffix}"

    def topic(self, suffix: str = "topic", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic (config names with _ for .) and wait until all its partitions can be used."""
        name = self.name(suffix)
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        row = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        answer = self.tell("CreateTopics", 5, topics=[row], timeout=10000)["topics"][0]
        assert answer["error_code"] == 0, answer
        return self.await_topic(name, partitions)

    def await_topic(self, name: str, partitions: int = 1) -> Topic:
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        for _ in attempts():
            offsets = self.tell("ListOffsets", 2, replica_id=-1, topics=[{"name": name, "partitions": rows}])
            if all(row["error_code"] == 0 for row in offsets["topics"][0]["partitions"]):
                break
        found = self.tell("Metadata", 10, topics=[{"name": name}], allow_auto_topic_creation=False)["topics"][0]
        assert found["error_code"] == 0, found
        self._names.setdefault(found["topic_id"], f"<id of {name}>")
        return Topic(name, found["topic_id"])

    def await_gone(self, name: str) -> None:
        for _ in attempts():
            found = self.tell("Metadata", 4, topics=[{"name": name}], allow_auto_topic_creation=False)["topics"][0]
            if found["error_code"] == 3:
                return

    def producer_id(self) -> int:
        answer = self.tell("InitProducerId", 1, transactional_id=None, transaction_timeout=60000)
        assert answer["error_code"] == 0, answer
        producer_id = int(answer["producer_id"])
        self._names[producer_id] = f"<producer id {1 + sum('producer' in name for name in self._names.values())}>"
        return producer_id

    def produce(self, topic: str, data: bytes | None = None, *, partition: int = 0) -> dict[str, Any]:
        """Write one batch that must be accepted."""
        answer = self.tell("Produce", 7, **produce_body(topic, data or batch(), partition=partition))
        row: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == 0, row
        return row

    # Normal form

    def normalise(self, value: Any, key: str = "") -> Any:
        if key in MASKED and value not in (None, "", -1):
            return MASKED[key]
        if key in PRESENCE:
            return value if value in (None, "") else "<text>"
        if isinstance(value, dict):
            return self._normalise_row(value)
        if isinstance(value, list):
            rows = [self.normalise(item) for item in value]
            return rows if key in ORDERED else sorted(rows, key=sort_key)
        if isinstance(value, uuid.UUID):
            return self._names.setdefault(value, f"<topic id {1 + len(self._names)}>")
        if key == "producer_id":
            return self._names.get(value, value)
        if isinstance(value, str):
            return self._names.get(value, value)
        if isinstance(value, int) and abs(value - time.time() * 1000) < HOUR_MS:
            return "<now>"
        return value

    def _normalise_row(self, row: dict[str, Any]) -> dict[str, Any]:
        if row.get("topic_id") is not None and row.get("name"):
            self._names.setdefault(row["topic_id"], f"<id of {row['name']}>")
        topic = row.get("topic") or row.get("name")
        if isinstance(topic, str) and isinstance(row.get("partitions"), list):
            row = {**row, "partitions": [self._place(topic, item) for item in row["partitions"]]}
        rows = {}
        for key, value in row.items():
            if key in DROPPED:
                continue
            if key == "records" and not isinstance(value, str):
                rows["batches"] = self.normalise(describe(value), "batches")
            else:
                rows[key] = self.normalise(value, key)
        return rows

    def _place(self, topic: str, item: Any) -> Any:
        index = item.get("partition_index") if isinstance(item, dict) else item
        name = self._places.get((topic, index), index) if isinstance(index, int) else index
        return {**item, "partition_index": name} if isinstance(item, dict) and "partition_index" in item else name


def attempts(patience_s: float = 5.0, pause_s: float = 0.005) -> Iterator[None]:
    """Loop for a while; the loop body breaks when what it waits for has come."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        yield
        time.sleep(pause_s)


def produce_body(topic: str, data: bytes | None, *, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    """Produce 3-12 of one batch to one partition."""
    return {
        "acks": acks,
        "timeout": 5000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
    }


IDENTITY = (
    *("name", "topic_id", "topic", "partition_index", "partition", "index", "key", "api_key", "node_id", "broker_id"),
    *("group_id", "member_id", "group_instance_id", "transactional_id", "producer_id"),
)


def sort_key(row: Any) -> str:
    """Rows are told apart by what names them; equal names keep their order."""
    if not isinstance(row, dict):
        return str(row)
    return " ".join(str(row[name]).rjust(12) for name in IDENTITY if name in row)


def run_case(case: Case, server: Server) -> dict[str, Any]:
    probe = Probe(server, case)
    try:
        case.run(probe)
    finally:
        probe.close_all()
    return probe.answers()


def compare(case: Case, oracle: Server, twofold: Server) -> list[str]:
    """Ask each of them once, both at the same time. What differs counts, however seldom it shows: a case that sees a
    state in passing waits for the one it means (`until`, `Connection.await_read`)."""
    theirs, ours = at_once(lambda server: run_case(case, server), oracle, twofold)
    return differences(case, theirs, ours)


def at_once(ask: Callable[[Asked], Answer], oracle: Asked, twofold: Asked) -> tuple[Answer, Answer]:
    """What each of the two answers. They have nothing in common, so neither waits for the other."""
    with ThreadPoolExecutor(1) as beside:
        theirs = beside.submit(ask, oracle)
        ours = ask(twofold)
        return theirs.result(), ours


def differences(case: Case, oracle: Mapping[str, Any], twofold: Mapping[str, Any]) -> list[str]:
    """One line a value that differs and should not, or that should differ and does not."""
    lines = []
    for label in sorted(oracle.keys() | twofold.keys()):
        theirs, ours = flat(oracle.get(label, "<not asked>")), flat(twofold.get(label, "<not asked>"))
        decided = case.differs.get(label)
        if decided is not None:
            wanted = wanted_answer(theirs, decided.twofold)
            if wanted == theirs:
                lines.append(f"{label}: no difference any more, drop it: {decided.why}")
            theirs = wanted
        for path in sorted(theirs.keys() | ours.keys()):
            left, right = theirs.get(path, "<absent>"), ours.get(path, "<absent>")
            if left != right and not explains_more(path, left, right, ours):
                lines.append(f"{label} {path}\n    wanted  {left!r}\n    twofold {right!r}")
    lines.extend(f"{label}: a difference is declared but never asked" for label in case.differs.keys() - oracle.keys())
    return lines


def explains_more(path: str, theirs: Any, ours: Any, answer: Mapping[str, Any]) -> bool:
    """An error with a message where the oracle has none: its row must really be an error."""
    row, dot, name = path.rpartition(".")
    told = name == "error_message" and theirs in (None, "") and ours == "<text>"
    return told and answer.get(f"{row}{dot}error_code", 0) != 0


def wanted_answer(theirs: dict[str, Any], twofold: Any) -> dict[str, Any]:
    """The oracle's answer with the decided values put in; a value `...` means that the path is absent."""
    if not isinstance(twofold, Mapping):
        return flat(twofold)
    wanted = {} if "" in theirs else dict(theirs)
    for path, value in twofold.items():
        for known in [known for known in wanted if known == path or known.startswith((f"{path}.", f"{path}["))]:
            del wanted[known]
        if value is not ...:
            wanted |= {f"{path}{rest}": leaf for rest, leaf in flat(value).items()}
    return wanted


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by path: `topics[0].partitions[1].error_code`."""
    if isinstance(value, dict) and value:
        rows: dict[str, Any] = {}
        for key, item in value.items():
            rows |= flat(item, f"{path}.{key}" if path else str(key))
        return rows
    if isinstance(value, list) and value:
        rows = {}
        for index, item in enumerate(value):
            rows |= flat(item, f"{path}[{index}]")
        return rows
    return {path: value}
