"""InitProducerId with a transactional id: new ids, bumps, retries, fencing, in every state."""

from interop.cases.txn_kit import INIT_VERSIONS, NEW, OLD, Producer, Story, await_coordinator, producer_in, read
from oracle.compare import Cases, Probe

CASES = Cases("InitProducerId")
case = CASES.case

MAX_TIMEOUT_MS = 900_000
ELSEWHERE = 10**12
"""A producer id that no server has given out."""
FENCING_VERSIONS = (3, 4, 5)
"""From 3 on a producer may say who it was; 3 knows no PRODUCER_FENCED."""


def first_and_second(version: int) -> Story:
    def run(probe: Probe) -> None:
        producer = Producer(probe, start=False)
        producer.describe("before")
        producer.init("first", version)
        producer.describe("after")
        producer.init("second", version)
        producer.init("third", version)
        producer.describe("in the end")

    return run


def an_identity_of_a_version(version: int) -> Story:
    def run(probe: Probe) -> None:
        producer = Producer(probe)
        producer.reinit("current", 0, version)
        producer.reinit("the same again, as a retry", 0, version)
        producer.reinit("and again", 0, version)
        producer.reinit("current, one later", 1, version)
        producer.reinit("too old to be a retry", 0, version)
        producer.reinit("not yet", 9, version)
        producer.reinit("the last epoch", 32767, version)
        producer.reinit("the exhausted epoch", 32766, version)
        producer.reinit("of another producer", 2, version, producer_id=ELSEWHERE)
        producer.reinit("of another producer, exhausted", 32766, version, producer_id=ELSEWHERE)
        producer.init("no identity", version)
        producer.reinit("a plain init is no retry", 2, version)
        producer.describe("in the end")

    return run


def fencing_a_transaction(protocol: int, version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        producer.begin(topic, protocol)
        producer.init("while it is open", version)
        producer.await_state("CompleteAbort")
        producer.describe("aborted")
        producer.init("once it is aborted", version)
        producer.describe("in the end")
        read(probe, "data and marker", topic)

    return run


for _version in INIT_VERSIONS:
    CASES.add(f"first_and_second_v{_version}", first_and_second(_version))
for _version in FENCING_VERSIONS:
    CASES.add(f"an_identity_v{_version}", an_identity_of_a_version(_version))
for _version in (0, 2, 4, 5):
    CASES.add(f"an_open_transaction_of_an_old_client_v{_version}", fencing_a_transaction(OLD, _version))
for _version in (4, 5):
    CASES.add(f"an_open_transaction_of_a_new_client_v{_version}", fencing_a_transaction(NEW, _version))


@case()
def timeouts(probe: Probe) -> None:
    for version in (0, 4):
        producer = Producer(probe, f"v{version}", start=False)
        for timeout in (0, -1, -(2**31), MAX_TIMEOUT_MS + 1, 2**31 - 1):
            producer.init(f"{timeout} v{version}", version, transaction_timeout=timeout)
        producer.describe(f"nothing came of it v{version}")
        for timeout in (1, MAX_TIMEOUT_MS):
            producer.init(f"{timeout} v{version}", version, transaction_timeout=timeout)
            producer.describe(f"{timeout} is stored v{version}")


@case()
def an_identity_that_is_not_whole(probe: Probe) -> None:
    producer = Producer(probe)
    for version in FENCING_VERSIONS:
        for producer_id, epoch in ((producer.producer_id, -1), (-1, 0), (5, -1), (-1, 32767)):
            name = "own" if producer_id == producer.producer_id else producer_id
            producer.init(f"{name}/{epoch} v{version}", version, producer_id=producer_id, producer_epoch=epoch)
    producer.describe("untouched")


@case()
def identities_below_zero(probe: Probe) -> None:
    producer = Producer(probe)
    for producer_id, epoch in ((-2, -2), (-5, 0), (producer.producer_id, -2), (-2, -1)):
        name = "own" if producer_id == producer.producer_id else producer_id
        producer.init(f"{name}/{epoch}", 4, producer_id=producer_id, producer_epoch=epoch)
    producer.describe("in the end")


@case()
def what_is_looked_at_first(probe: Probe) -> None:
    producer = Producer(probe)
    half = {"producer_id": 5, "producer_epoch": -1}
    for version in (3, 5):
        for label, over in (
            ("half an identity, empty id, timeout 0", {**half, "transactional_id": "", "transaction_timeout": 0}),
            ("half an identity, no id, timeout 0", {**half, "transactional_id": None, "transaction_timeout": 0}),
            ("half an identity, timeout 0", {**half, "transaction_timeout": 0}),
            ("empty id, timeout 0", {"transactional_id": "", "transaction_timeout": 0}),
            ("wrong identity, timeout 0", {"producer_id": 5, "producer_epoch": 0, "transaction_timeout": 0}),
        ):
            producer.init(f"{label} v{version}", version, **over)


@case()
def an_identity_of_an_id_that_is_not_there(probe: Probe) -> None:
    for version in FENCING_VERSIONS:
        producer = Producer(probe, f"v{version}", start=False)
        producer.init(f"taken for new v{version}", version, producer_id=42, producer_epoch=5)
        producer.describe(f"new v{version}")
        producer.init(f"and again v{version}", version, producer_id=42, producer_epoch=5)
        producer.reinit(f"with the new one v{version}", 0, version)
        producer.reinit(f"a retry of it v{version}", 0, version)


@case()
def a_retry_is_known_only_until_the_next_bump(probe: Probe) -> None:
    producer = Producer(probe)
    producer.reinit("0 to 1", 0)
    producer.reinit("0 to 1 again", 0)
    producer.init("a plain one to 2")
    producer.reinit("0 is forgotten", 0)
    producer.reinit("1 was never handed in", 1)
    producer.reinit("2 to 3", 2)
    producer.reinit("2 to 3 again", 2)


@case()
def a_retry_takes_the_new_timeout(probe: Probe) -> None:
    producer = Producer(probe)
    producer.init("bump", producer_id=producer.producer_id, producer_epoch=0, transaction_timeout=5000)
    producer.describe("5 s")
    producer.init("retry", producer_id=producer.producer_id, producer_epoch=0, transaction_timeout=7000)
    producer.describe("7 s")


@case()
def the_timeout_changes_once_the_open_transaction_is_gone(probe: Probe) -> None:
    producer = Producer(probe)
    producer.begin(probe.topic())
    producer.init("while it is open", transaction_timeout=5000)
    producer.await_state("CompleteAbort")
    producer.describe("the old timeout")
    producer.init("once it is aborted", transaction_timeout=5000)
    producer.describe("the new timeout")


@case()
def the_right_producer_id_aborts_whatever_its_epoch(probe: Probe) -> None:
    """A zombie is not told apart from the owner while a transaction is open."""
    for epoch in (0, 1, 32766):
        producer = Producer(probe, f"epoch-{epoch}")
        producer.begin(probe.topic(f"topic-{epoch}"))
        producer.reinit(f"epoch {epoch}", epoch)
        producer.await_state("CompleteAbort")
        producer.describe(f"aborted by epoch {epoch}")


@case()
def another_producer_id_aborts_nothing(probe: Probe) -> None:
    producer = Producer(probe)
    producer.begin(probe.topic())
    for version in FENCING_VERSIONS:
        producer.reinit(f"epoch 0 v{version}", 0, version, producer_id=ELSEWHERE)
        producer.reinit(f"epoch 32766 v{version}", 32766, version, producer_id=ELSEWHERE)
    producer.describe("still open")


def in_a_settled_state(state: str, protocol: int) -> Story:
    """Identities as the state finds them; each on an id of its own, because a success changes it."""

    def run(probe: Probe) -> None:
        topic = probe.topic()
        for label, back in (("current epoch", 0), ("one before", 1), ("two before", 2), ("one ahead", -1)):
            producer = producer_in(probe, state, protocol, label.replace(" ", "-"), topic)
            if producer.epoch - back >= 0:
                producer.reinit(label, producer.epoch - back)
                producer.describe(f"{label}, after")
        producer = producer_in(probe, state, protocol, "no-identity", topic)
        producer.init("no identity")
        producer.describe("no identity, after")
        producer.reinit("a retry of what it was", producer.epoch - 1)

    return run


def in_a_stranded_state(state: str, protocol: int) -> Story:
    """Between the decision and the last marker nobody gets an identity."""

    def run(probe: Probe) -> None:
        producer = producer_in(probe, state, protocol)
        before = producer.epoch
        for version in INIT_VERSIONS:
            producer.init(f"no identity v{version}", version)
        for version in FENCING_VERSIONS:
            for epoch in (before, before - 1, before + 1, 32766):
                if epoch >= 0:
                    producer.reinit(f"epoch {epoch} v{version}", epoch, version)
            producer.reinit(f"another producer v{version}", 0, version, producer_id=ELSEWHERE)
        producer.describe("still there")

    return run


for _protocol, _client in ((OLD, "old"), (NEW, "new")):
    for _state in ("CompleteCommit", "CompleteAbort"):
        CASES.add(f"in_{_state}_of_the_{_client}_protocol", in_a_settled_state(_state, _protocol))
    for _state in ("PrepareCommit", "PrepareAbort"):
        CASES.add(f"in_{_state}_of_the_{_client}_protocol", in_a_stranded_state(_state, _protocol))


@case()
def ids_of_all_sorts(probe: Probe) -> None:
    for index, text in enumerate(("with space", "é", "😀", "a/b", "x" * 1000, "tab\t", "..")):
        producer = Producer(probe, f"{index} {text}", start=False)
        producer.init(f"{index} first")
        producer.init(f"{index} second")
        producer.describe(f"{index} described")


@case()
def every_id_has_its_own_producer_id(probe: Probe) -> None:
    ids = set()
    for index in range(20):
        name = await_coordinator(probe, probe.name(f"id-{index}"))
        answer = probe.tell("InitProducerId", 4, transactional_id=name, transaction_timeout=60000)
        ids.add(answer["producer_id"])
    probe.record("twenty ids", len(ids))


@case()
def an_id_and_no_id_do_not_meet(probe: Probe) -> None:
    producer = Producer(probe)
    producer.init("bump")
    body = {"transactional_id": None, "transaction_timeout": 60000}
    body |= {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    probe.ask("the identity without the id", "InitProducerId", 4, body, keep=lambda answer: answer["error_code"])
    producer.describe("as before")
