"""What is made of a journal's records and of the coordinators' answers by those who only look."""

import json

import pytest

from twofold.cli.pipeline.report import age, plan, recovered_json, state_json
from twofold.client.admin.transaction_model import NO_TIMEOUT_MS, TransactionDescription, TransactionState
from twofold.client.producer.sequences import ProducerIdentity
from twofold.records.batch import Record
from twofold.sink.decided import DecidedEntry
from twofold.sink.inspection import Scan, SinkState, SinkTransaction, Standing, Tally
from twofold.sink.recovery import Recovered
from twofold.sink.register import PARTICIPANTS_PER_RECORD, BatchDecision, Mode, Participant, Register, encode

QUERY = "query"


def participants(count: int) -> tuple[Participant, ...]:
    return tuple(
        Participant(f"p|0000000a|{n}", ProducerIdentity(n, 0), ProducerIdentity(n, 1), n) for n in range(count)
    )


def decision(mode: Mode, count: int = 4) -> BatchDecision:
    return BatchDecision(QUERY, "run", 5, mode, participants(count))


def task(producer_id: int, epoch: int, state: str) -> TransactionDescription:
    return TransactionDescription(
        f"p|0000000a|{producer_id}", 1, TransactionState(state), producer_id, epoch, NO_TIMEOUT_MS, -1, ()
    )


def described(states: list[str | None]) -> dict[str, TransactionDescription | None]:
    return {f"p|0000000a|{n}": None if state is None else task(n, 0, state) for n, state in enumerate(states)}


def numbers(some: tuple[Participant, ...]) -> list[int]:
    return [participant.partition for participant in some]


# Tally


def test_with_two_phase_commit_only_what_was_aborted_is_lost() -> None:
    tally = Tally.of(decision(Mode.TWO_PHASE), described(["Ongoing", "CompleteCommit", None, "CompleteAbort"]))
    assert (numbers(tally.left), numbers(tally.committed), numbers(tally.lost)) == ([0], [1, 2], [3])
    assert not tally.forgotten and tally.is_lost_in_part and not tally.is_taken_back


def test_without_it_what_is_neither_open_nor_committed_is_lost() -> None:
    tally = Tally.of(decision(Mode.RESUME), described(["Ongoing", "CompleteCommit", "Empty", "CompleteAbort"]))
    assert (numbers(tally.left), numbers(tally.committed), numbers(tally.lost)) == ([0], [1], [2, 3])
    assert tally.is_lost_in_part and not tally.is_taken_back


def test_a_decision_of_which_nothing_is_committed_is_taken_back() -> None:
    tally = Tally.of(decision(Mode.RESUME), described(["Ongoing", "CompleteAbort", "CompleteAbort", "Ongoing"]))
    assert tally.is_taken_back and not tally.is_lost_in_part


def test_one_that_no_coordinator_knows_may_have_been_committed() -> None:
    tally = Tally.of(decision(Mode.RESUME), described(["Ongoing", "CompleteAbort", None, "Ongoing"]))
    assert numbers(tally.forgotten) == [2] and not tally.is_taken_back and tally.is_lost_in_part


def test_a_later_transaction_of_the_same_id_is_not_the_decided_one() -> None:
    found = described(["Ongoing"])
    found["p|0000000a|0"] = task(0, 7, "Ongoing")
    assert not Tally.of(decision(Mode.TWO_PHASE, 1), found).left


# Scan


def records(*journals: tuple[str, Register]) -> list[Record]:
    found: list[Record] = []
    for prefix, register in journals:
        found += [Record(len(found) + n, 0, *pair) for n, pair in enumerate(encode(prefix, register))]
    return found


def scanned(rows: list[Record], prefix: str | None = None, *, complete: bool = True) -> Scan:
    scan = Scan(prefix, complete=complete)
    for row in rows:
        scan.take(row)
    return scan


def test_the_newest_register_of_every_sink_is_found() -> None:
    old, new = Register("one"), Register("two", decided=(DecidedEntry(QUERY, 3),))
    scan = scanned(records(("a", old), ("b", old), ("a", new)))
    assert {name: register for name, (register, _) in scan.results().items()} == {"a": new, "b": old}
    assert list(scanned(records(("a", old), ("b", old)), "b").results()) == ["b"]


def test_a_decision_whose_first_parts_were_not_read_is_looked_for_further_back() -> None:
    large = Register("one").deciding(decision(Mode.TWO_PHASE, PARTICIPANTS_PER_RECORD + 1), 1)
    rows = records(("a", large))
    assert len(rows) == 2 and scanned(rows).results()["a"] == (large, None)
    tail = scanned(rows[1:], complete=False)
    assert tail.results() == {} and not tail.is_foreign


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"customer", b"approved"), (b"customer", b'{"a": 1}'), (b"a b", b'{"v": 1}'), (None, b"1"), (b"c", None)],
)
def test_records_of_others_make_no_journal(key: bytes | None, value: bytes | None) -> None:
    scan = scanned([Record(0, 0, key, value)])
    assert scan.results() == {} and scan.is_foreign


def test_an_empty_topic_is_not_known_to_be_a_querys() -> None:
    assert not scanned([]).is_foreign


def test_what_cannot_be_read_is_a_problem_until_a_newer_record_can() -> None:
    damaged = Record(9, 0, b"a", json.dumps({"v": 1, "t": "commit"}).encode())
    _, problem = scanned([*records(("a", Register("one"))), damaged]).results()["a"]
    assert problem is not None and "offset 9" in str(problem)
    assert scanned([damaged, *records(("a", Register("one")))]).results()["a"] == (Register("one"), None)


# Reports


def state(register: Register, tally: Tally | None = None, *rows: SinkTransaction) -> SinkState:
    return SinkState("p", "p.decisions", register, tally, rows)


def transaction(standing: Standing) -> SinkTransaction:
    return SinkTransaction("p|0000000b|0", standing, ProducerIdentity(9, 0), -1, 1000, {})


@pytest.mark.parametrize("standing", Standing)
def test_what_coordinators_end_by_themselves_is_no_work_of_the_command(standing: Standing) -> None:
    busy = state(Register("one"), None, transaction(standing))
    # What is decided is there only with a decision that is not done.
    by_itself = (Standing.COMMITTING, Standing.ABORTING, Standing.DECIDED)
    assert busy.is_clean == (standing in by_itself) and bool(plan(busy)) != busy.is_clean


def test_a_decision_that_was_made_while_it_took_over_is_reported() -> None:
    before = state(Register("one", decided=(DecidedEntry(QUERY, 4),)), None, transaction(Standing.PREPARED))
    after = state(Register("recover-x", decided=(DecidedEntry(QUERY, 5),)))
    done = Recovered(before, after, Mode.TWO_PHASE, "recover-x", ("p|0000000b|0",), ())
    told = recovered_json(before, done)
    assert told["decision"] == {"query_id": QUERY, "batch_id": 5, "outcome": "done", "lost": []}
    nothing = Recovered(before, before, Mode.TWO_PHASE, "recover-x", (), ("p|0000000b|0",))
    assert recovered_json(before, nothing)["decision"] is None


def test_a_batch_that_was_taken_back_is_not_shown_as_decided() -> None:
    register = Register("one").deciding(BatchDecision(QUERY, "run", 0, Mode.RESUME, participants(1)), 1).revoked(2)
    told = state_json(state(register), 2)
    assert told["last_decided_batch"] is None and told["query_id"] == QUERY


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (-5, "0 s"), (59_999, "59 s"), (60_000, "1 min 0 s"), (7_500_000, "2 h 5 min"), (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_ages_are_told_in_two_units(age_ms: int, text: str) -> None:
    assert age(age_ms) == text
