"""Stories that begin with a log which the coordinator did not write, or wrote before it was killed.

They are not in the suite: `test_differential_loaded` brings both servers there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from interop.cases.groups_kit import coordinated, fetch_body
from interop.cases.txn_kit import NEW, OLD, STATES, Producer, partition_of, producers, read
from oracle.compare import Case, Differs, Probe, Server, attempts
from oracle.transaction_log import DAY_MS, Entry, key, value

LAST = 32766
"""The last epoch that a client is given; 32767 is for the coordinator."""
Records = list[tuple[bytes, bytes | None]]
Craft = Callable[["Loaded"], None]

CRAFTS: dict[str, Craft] = {}
ALL: list[Case] = []


class Loaded(Probe):
    """A probe whose ids are in the log before the server starts."""

    def __init__(self, server: Server, case: Case) -> None:
        super().__init__(server, case)
        self.place = self.topic(partitions=2)
        self.known: dict[str, Producer] = {}
        self.records: dict[int, Records] = {}

    def __getitem__(self, name: str) -> Producer:
        return self.known[name]

    def craft(self, name: str, epoch: int = 0, state: str = "Empty", *, rotates: bool = False, **fields: Any) -> Entry:
        """Let the log say this of an id; `rotates` names the producer id that follows."""
        producer = self.known[name] = Producer(self, name)
        producer.adopt(producer.producer_id, epoch)
        if state != "Empty":
            fields.setdefault("partitions", {self.place.name: [0]} if not state.startswith("Complete") else {})
        if rotates:
            fields["next_producer_id"] = self.allotted()
            self.mask(fields["next_producer_id"], f"<next producer id of {name}>")
        entry = Entry(producer.producer_id, epoch, state, **fields)
        self.write(producer.id, key(producer.id), value(entry))
        return entry

    def write(self, transactional_id: str, name: bytes, content: bytes | None) -> None:
        self.records.setdefault(partition_of(transactional_id), []).append((name, content))

    def allotted(self) -> int:
        answer = self.tell("InitProducerId", 1, transactional_id=None, transaction_timeout=60000)
        assert answer["error_code"] == 0, answer
        return int(answer["producer_id"])


def loaded(craft: Craft, differs: Mapping[str, Differs] | None = None) -> Callable[[Any], Any]:
    """Register a story that begins with what `craft` writes."""

    def register(run: Callable[[Loaded], None]) -> Callable[[Loaded], None]:
        CRAFTS[run.__name__] = craft
        ALL.append(Case(run.__name__, "loaded", run, differs or {}))  # type: ignore[arg-type]
        return run

    return register


def one(epoch: int = 0, state: str = "Empty", **fields: Any) -> Craft:
    def craft(probe: Loaded) -> None:
        probe.craft("id", epoch, state, **fields)

    return craft


def several(**entries: dict[str, Any]) -> Craft:
    def craft(probe: Loaded) -> None:
        for name, fields in entries.items():
            probe.craft(name, **fields)

    return craft


FENCED = {"error_code": 90, "producer_id": -1, "producer_epoch": -1}
ABORTED_MEANWHILE = Differs(
    "a commit that finds its transaction aborted is fenced (KAFKA-20785), which clients survive", {"error_code": 90}
)
NOT_OURS = Differs("the epoch before is that of a fenced producer: it is not given the epoch of another", FENCED)


# Epochs that are exhausted: InitProducerId


@loaded(one(LAST - 1))
def the_last_epoch_is_given_once(probe: Loaded) -> None:
    producer = probe["id"]
    producer.init("the last one")
    producer.init("a new producer id")
    producer.init("and on")
    producer.describe("in the end")


@loaded(one(LAST))
def a_new_producer_id_without_identity(probe: Loaded) -> None:
    producer = probe["id"]
    old = producer.producer_id
    producer.init("a new producer id")
    producer.reinit("the old identity is no retry", LAST, producer_id=old)
    producer.reinit("the new identity", 0)
    producer.describe("in the end")


STILL_A_RETRY = {"error_code": 0, "producer_id": "<producer id 2 of id>", "producer_epoch": 0}


@loaded(one(LAST), {"another retry": Differs("a retry may be lost like the request before it", STILL_A_RETRY)})
def a_new_producer_id_with_identity(probe: Loaded) -> None:
    producer = probe["id"]
    old = producer.producer_id
    for label in ("a new producer id", "a retry", "another retry"):
        producer.reinit(label, LAST, producer_id=old)
    producer.reinit("an old epoch of the old producer id", 10, producer_id=old)
    producer.reinit("the last epoch of the coordinator", LAST + 1, producer_id=old)
    producer.reinit("the new identity", 0)
    producer.reinit("the old one, too late for a retry", LAST, producer_id=old)
    producer.describe("in the end")


OTHER_EPOCHS = {f"epoch {epoch}": Differs("fenced, and not an error of the server", FENCED) for epoch in (5, LAST - 1)}


@loaded(one(LAST), OTHER_EPOCHS)
def other_epochs_of_an_exhausted_id(probe: Loaded) -> None:
    producer = probe["id"]
    for epoch in (5, LAST - 1):
        producer.reinit(f"epoch {epoch}", epoch)
    producer.describe("untouched")


@loaded(several(old={"epoch": LAST, "state": "CompleteCommit", "client_version": 0}))
def a_completed_id_of_the_old_protocol(probe: Loaded) -> None:
    producer = probe["old"]
    producer.init("a new producer id")
    producer.describe("in the end")


# Epochs that are exhausted: EndTxn


def ending_at_the_last_epoch(probe: Loaded) -> None:
    for word, commit in (("commit", True), ("abort", False)):
        producer = probe[word]
        old = producer.producer_id
        producer.end(word, commit)
        producer.await_state("CompleteCommit", "CompleteAbort")
        producer.describe(f"{word}: ended")
        identity = {"producer_id": old, "producer_epoch": LAST}
        producer.end(f"{word}: a retry", commit, **identity)
        producer.end(f"{word}: the opposite", not commit, **identity)
        producer.end(f"{word}: an epoch before", commit, **{**identity, "producer_epoch": LAST - 1})
        producer.end(f"{word}: the epoch of the marker", commit, **{**identity, "producer_epoch": LAST + 1})
        producer.produce(f"{word}: the new one writes", probe.place, partition=1)
        producer.describe(f"{word}: the next one is open")
        producer.end(f"{word}: a late retry", commit, **identity)
    read(probe, "markers", probe.place)
    producers(probe, "producers", probe.place)


loaded(
    several(commit={"epoch": LAST, "state": "Ongoing"}, abort={"epoch": LAST, "state": "Ongoing"}),
    {
        "abort: the opposite": Differs(
            "a commit that finds its transaction aborted is fenced (KAFKA-20785), which clients survive",
            {"error_code": 90},
        )
    },
)(ending_at_the_last_epoch)


@loaded(one(LAST, "Ongoing"))
def data_of_the_last_epoch(probe: Loaded) -> None:
    producer = probe["id"]
    producer.produce("writes", probe.place)
    producer.end("commits", True)
    producer.await_state("CompleteCommit")
    producer.produce("writes with its new producer id", probe.place)
    producer.end("commits again", True)
    producer.await_state("CompleteCommit")
    read(probe, "the log", probe.place)
    producers(probe, "two producer ids", probe.place)


@loaded(one(LAST, "Ongoing", client_version=0))
def the_old_protocol_keeps_the_last_epoch(probe: Loaded) -> None:
    producer = probe["id"]
    producer.end("commit", True, 4)
    producer.await_state("CompleteCommit")
    producer.describe("ended")
    producer.end("again", True, 4)
    producer.init("a new producer id")
    read(probe, "the marker", probe.place)


@loaded(several(empty={"epoch": LAST}, ended={"epoch": LAST, "state": "CompleteCommit"}))
def aborts_of_nothing_at_the_last_epoch(probe: Loaded) -> None:
    for name in ("empty", "ended"):
        producer = probe[name]
        old = producer.producer_id
        producer.end(f"{name}: abort", False)
        producer.await_state("CompleteAbort")
        producer.describe(f"{name}: after")
        producer.end(f"{name}: a retry", False, producer_id=old, producer_epoch=LAST)


# Epochs that are exhausted: fencing


@loaded(one(LAST, "Ongoing"))
def fencing_at_the_last_epoch(probe: Loaded) -> None:
    producer = probe["id"]
    old = producer.producer_id
    producer.init("while it is open")
    producer.await_state("CompleteAbort")
    producer.describe("aborted")
    producer.init("once it is aborted")
    producer.reinit("the old identity", LAST, producer_id=old)
    producer.describe("in the end")
    read(probe, "the marker", probe.place)


def timed_out(*names: str) -> Craft:
    """Transactions that were open for too long when the server came back."""
    return several(
        **{name: {"epoch": LAST, "state": "Ongoing", "timeout_ms": 1000, "started_ago_ms": 60_000} for name in names}
    )


@loaded(
    timed_out("abort", "commit", "init", "old"),
    {"commit": ABORTED_MEANWHILE},
)
def a_timeout_at_the_last_epoch(probe: Loaded) -> None:
    for name in ("abort", "commit", "init", "old"):
        producer = probe[name]
        producer.await_state("CompleteAbort")
        answer = producer.describe(f"{name}: aborted")
        probe.mask(answer["transaction_states"][0]["producer_id"], f"<next producer id of {name}>")
    probe["abort"].end("abort", False)
    probe["commit"].end("commit", True)
    probe["init"].reinit("init", LAST)
    probe["old"].end("the old way", False, 4)
    for name in ("abort", "commit", "init", "old"):
        probe[name].describe(f"{name}: in the end")


# Epoch 32767: nobody should have it


@loaded(several(init={"epoch": LAST + 1, "state": "Ongoing"}, abort={"epoch": LAST + 1, "state": "Ongoing"}))
def a_transaction_at_the_epoch_of_the_coordinator(probe: Loaded) -> None:
    probe["init"].init("init")
    probe["init"].await_state("CompleteAbort")
    probe["init"].describe("init: aborted")
    probe["init"].init("init: once it is aborted")
    probe["abort"].end("abort", False)
    probe["abort"].await_state("CompleteAbort")
    probe["abort"].describe("abort: aborted")


@loaded(several(empty={"epoch": LAST + 1}, ended={"epoch": LAST + 1, "state": "CompleteAbort"}))
def an_id_at_the_epoch_of_the_coordinator(probe: Loaded) -> None:
    for name in ("empty", "ended"):
        probe[name].init(f"{name}: init")
        probe[name].describe(f"{name}: after")


# What was decided is completed


DECIDED = {
    f"{state}-{version}": {"epoch": 7, "state": state, "client_version": version}
    for state in ("PrepareCommit", "PrepareAbort")
    for version in (0, 2)
}


@loaded(several(**DECIDED))
def decided_transactions_are_completed(probe: Loaded) -> None:
    for name in DECIDED:
        producer = probe[name]
        producer.await_state("CompleteCommit", "CompleteAbort")
        producer.describe(f"{name}: completed")
        producer.init(f"{name}: init")


ROTATING = {state: {"epoch": LAST + 1, "state": state, "rotates": True} for state in ("PrepareCommit", "PrepareAbort")}


@loaded(several(**ROTATING))
def decided_transactions_that_change_the_producer_id(probe: Loaded) -> None:
    for name, commit in (("PrepareCommit", True), ("PrepareAbort", False)):
        producer = probe[name]
        producer.await_state("CompleteCommit", "CompleteAbort")
        producer.describe(f"{name}: completed")
        producer.end(f"{name}: a retry", commit, producer_epoch=LAST)
        producer.produce(f"{name}: the new one writes", probe.place, partition=1)


@loaded(several(gone={"epoch": 3, "state": "PrepareCommit", "partitions": {"no-such-topic": [0]}}))
def partitions_that_are_gone_need_no_marker(probe: Loaded) -> None:
    producer = probe["gone"]
    producer.await_state("CompleteCommit")
    producer.describe("completed")


# Retries that the log still tells


@loaded(
    several(
        new={"epoch": 5, "state": "CompleteCommit"}, old={"epoch": 5, "state": "CompleteCommit", "client_version": 0}
    ),
    {
        f"old: {label}": Differs(
            "the epoch before is that of a fenced producer: it is not given the epoch of another", FENCED
        )
        for label in ("commit again", "abort")
    },
)
def the_end_is_asked_for_again(probe: Loaded) -> None:
    for name in ("new", "old"):
        producer = probe[name]
        producer.end(f"{name}: commit again", True, producer_epoch=4)
        producer.end(f"{name}: abort", False, producer_epoch=4)
        producer.describe(f"{name}: in the end")


# Open transactions go on


@loaded(several(new={"epoch": 5, "state": "Ongoing"}, old={"epoch": 5, "state": "Ongoing", "client_version": 0}))
def open_transactions_go_on(probe: Loaded) -> None:
    for name, version, end in (("new", 12, 5), ("old", 11, 4)):
        producer = probe[name]
        producer.describe(f"{name}: open")
        producer.verify(f"{name}: verified", {probe.place.name: [0, 1]})
        producer.produce(f"{name}: writes", probe.place, version)
        producer.end(f"{name}: ends", True, end)
        producer.await_state("CompleteCommit")
    read(probe, "the log", probe.place)


# Ids that are not used for long


AGES: dict[str, dict[str, Any]] = {
    "empty": {"updated_ago_ms": 8 * DAY_MS},
    "committed": {"state": "CompleteCommit", "updated_ago_ms": 8 * DAY_MS, "started_ago_ms": 8 * DAY_MS},
    "aborted": {"state": "CompleteAbort", "updated_ago_ms": 8 * DAY_MS, "started_ago_ms": 8 * DAY_MS},
}


@loaded(several(**AGES))
def ids_expire(probe: Loaded) -> None:
    for name in AGES:
        producer = probe[name]
        for _ in attempts():
            (row,) = probe.tell("DescribeTransactions", 0, transactional_ids=[producer.id])["transaction_states"]
            if row["error_code"]:
                break
        producer.describe(f"{name}: gone")
        producer.add(f"{name}: add", {probe.place.name: [0]})
        producer.end(f"{name}: end", False)
        producer.produce(f"{name}: write", probe.place)
        producer.reinit(f"{name}: the old identity", producer.epoch)
        producer.describe(f"{name}: new")


KEPT: dict[str, dict[str, Any]] = {
    "young": {"updated_ago_ms": 6 * DAY_MS},
    "open": {"state": "Ongoing", "updated_ago_ms": 8 * DAY_MS},
}


@loaded(several(**KEPT, gone={"updated_ago_ms": 8 * DAY_MS}))
def ids_that_do_not_expire(probe: Loaded) -> None:
    for _ in attempts():
        answer = probe.tell("DescribeTransactions", 0, transactional_ids=[probe["gone"].id])
        if answer["transaction_states"][0]["error_code"]:
            break
    for name in KEPT:
        probe[name].describe(f"{name}: still there")


# Records of all sorts


def odd_records(probe: Loaded) -> None:
    """Other versions are skipped; a tombstone removes; the last record counts; version 0 is understood."""
    probe.craft("kept", 3)
    kept = probe["kept"].id
    probe.write(kept, key(kept, version=1), value(Entry(1)))
    probe.write(kept, key(kept), value(Entry(1, 9), version=2))
    probe.craft("removed", 3)
    removed = probe["removed"].id
    probe.write(removed, key(removed), None)
    entry = probe.craft("last", 3)
    last = probe["last"].id
    probe.write(last, key(last), value(entry._replace(epoch=4, state="CompleteAbort")))
    for state in ("Empty", "Ongoing", "CompleteCommit"):
        entry = probe.craft(f"old-{state}", 3, state, client_version=0)
        name = probe[f"old-{state}"].id
        probe.write(name, key(name), None)
        probe.write(name, key(name), value(entry, version=0))


@loaded(odd_records)
def records_of_all_sorts(probe: Loaded) -> None:
    for name in ("kept", "removed", "last", "old-Empty", "old-Ongoing", "old-CompleteCommit"):
        probe[name].describe(name)
        probe[name].init(f"{name}: init", settled=True)


# What was written by the server itself


LIVES = [(state, protocol) for state in STATES for protocol in (OLD, NEW)]


def live(probe: Loaded) -> None:
    """An id in every state, by clients of both protocols; one with offsets; one that wrote a lot."""
    topic = probe.topic("lived", partitions=len(LIVES))
    for partition, (state, protocol) in enumerate(LIVES):
        name = f"{state}-{protocol}"
        producer = probe.known[name] = Producer(probe, name)
        producer.start()
        producer.enter(state, protocol, topic, partition=partition)
    group_id = coordinated(probe, probe.name("group"))
    producer = probe.known["offsets"] = Producer(probe, "offsets")
    producer.commit_offsets("offsets", group_id, topic, {0: 5}, 5)
    producer = probe.known["busy"] = Producer(probe, "busy")
    for commit in (True, False, True):
        producer.run(probe.place, commit)
    producer.begin(probe.place, records=2)
    producer.write(probe.place, sequence=2, records=2)
    producer = probe.known["retried"] = Producer(probe, "retried")
    producer.reinit("retried: bump", 0)


def group_of(probe: Loaded, label: str) -> None:
    topic = probe.await_topic(probe.name("lived"), len(LIVES))
    body = {**fetch_body(8, coordinated(probe, probe.name("group")), [(topic, (0,))]), "require_stable": True}
    probe.ask(label, "OffsetFetch", 8, body)


KNOWN_RETRY = {"error_code": 0, "producer_id": "<producer id of retried>", "producer_epoch": 1}


@loaded(live, {"retried: again": Differs("the last epoch is kept in the log (KAFKA-20357)", KNOWN_RETRY)})
def lives_go_on_after_a_kill(probe: Loaded) -> None:
    topic = probe.await_topic(probe.name("lived"), len(LIVES))
    for partition, (state, protocol) in enumerate(LIVES):
        producer = probe[f"{state}-{protocol}"]
        if state.startswith("Prepare"):
            continue  # the oracle may forget the markers of such a one when it starts
        producer.describe(f"{producer.name}: after")
        if state == "Ongoing":
            version = 12 if protocol == NEW else 11
            producer.produce(f"{producer.name}: the batch again", topic, version, partition=partition)
            producer.produce(f"{producer.name}: goes on", topic, version, partition=partition, sequence=1)
            producer.end(f"{producer.name}: ends", True, 5 if protocol == NEW else 4)
            producer.await_state("CompleteCommit")
        if state.startswith("Complete") and protocol == NEW:
            producer.end(f"{producer.name}: ends again", state == "CompleteCommit", producer_epoch=producer.epoch - 1)
        producer.init(f"{producer.name}: init")
        read(probe, f"{producer.name}: the log", topic, partition=partition)
    group_of(probe, "offsets are pending")
    probe["offsets"].end("offsets: commit", True)
    probe["offsets"].await_state("CompleteCommit")
    group_of(probe, "offsets are committed")
    busy = probe["busy"]
    busy.produce("busy: the last batch again", probe.place, sequence=2, records=2)
    busy.produce("busy: goes on", probe.place, sequence=4)
    producers(probe, "busy: the producer", probe.place)
    busy.end("busy: abort", False)
    busy.await_state("CompleteAbort")
    read(probe, "busy: the log", probe.place)
    probe["retried"].reinit("retried: again", 0)
