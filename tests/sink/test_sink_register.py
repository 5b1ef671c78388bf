"""The register: whatever is written to the journal is read back, whole, compacted, split or from the middle."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.client.producer.sequences import ProducerIdentity
from twofold.sink import register as registers
from twofold.sink.register import (
    KEPT_NAMES,
    BatchDecision,
    JournalDamaged,
    Mode,
    Participant,
    Reader,
    Register,
    encode,
)
from twofold.sink.remembered import Remembered

PREFIX = "p"
NAMES = st.text(max_size=8)
IDENTITIES = st.builds(ProducerIdentity, st.integers(0, 2**62), st.integers(0, 32767))
PARTICIPANTS = st.builds(Participant, NAMES, IDENTITIES, IDENTITIES, st.integers(-1, 10**6), st.booleans())
QUERIES = st.sampled_from(["q", "r", "ü"])
DECISIONS = st.builds(
    BatchDecision,
    QUERIES,
    st.sampled_from(["run1", "run2"]),
    st.integers(0, 5),
    st.sampled_from(list(Mode)),
    st.lists(PARTICIPANTS, max_size=7).map(tuple),
)
CHANGES = st.one_of(
    st.tuples(st.just("owned_by"), NAMES),
    st.tuples(st.just("named"), NAMES, NAMES),
    st.tuples(st.just("deciding"), DECISIONS),
    st.tuples(st.just("done")),
    st.tuples(st.just("revoked")),
    st.tuples(st.just("given_up")),
    st.tuples(st.just("finished"), QUERIES, st.integers(0, 9)),
)
NEED_PENDING = {"done": True, "revoked": True, "deciding": False, "given_up": False, "finished": False}


class Written(NamedTuple):
    key: bytes
    value: bytes
    offset: int


@contextmanager
def participants_per_record(number: int) -> Iterator[None]:
    with mock.patch.object(registers, "PARTICIPANTS_PER_RECORD", number):
        yield


def history(changes: list[tuple[Any, ...]]) -> list[Register]:
    """The registers that follow from the changes that are allowed where they come."""
    found = [Register()]
    for at_ms, (name, *arguments) in enumerate(changes):
        now = found[-1]
        if NEED_PENDING.get(name, now.pending is not None) == (now.pending is not None):
            if name == "named":
                owner, query_name = arguments
                found.append(now.owned_by(owner, at_ms, "host:/checkpoint", query_name))
            else:
                found.append(getattr(now, name)(*arguments, at_ms))
    return found[1:]


def journal(states: list[Register]) -> list[Written]:
    records: list[Written] = []
    for state in states:
        for key, value in encode(PREFIX, state):
            records.append(Written(key, value, len(records)))
    return records


def read(records: list[Written], *, complete: bool = True) -> Register | None:
    reader = Reader(PREFIX)
    for record in records:
        reader.take(*record, complete=complete)
    if reader.damage is not None:
        raise reader.damage
    return reader.register


@given(st.lists(CHANGES, max_size=12), st.integers(1, 4))
def test_what_was_written_last_is_read(changes: list[tuple[Any, ...]], size: int) -> None:
    with participants_per_record(size):
        states = history(changes)
        for number in range(1, len(states) + 1):
            assert read(journal(states[:number])) == states[number - 1]


def test_a_register_from_before_names_is_read_and_named_by_the_next_owner() -> None:
    """What the version before wrote: the same fields without `queryName`."""
    ((key, value),) = encode(PREFIX, Register().owned_by("first", 1, "host:/checkpoint"))
    body = json.loads(value)
    del body["queryName"]
    before = read([Written(key, json.dumps(body).encode(), 0)])
    assert before is not None and (before.owner, before.query_name) == ("first", "")
    after = before.owned_by("second", 2, "host:/checkpoint", "shop.totals")
    assert after.query_name == "shop.totals"
    assert after.owned_by("recover-host-1", 3).query_name == "shop.totals"


@given(st.lists(CHANGES, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_compaction_changes_nothing(changes: list[tuple[Any, ...]], size: int, random: Any) -> None:
    """Whichever of those records it removes that have a newer one of the same key."""
    with participants_per_record(size):
        states = history(changes)
        records = journal(states)
        newest = {record.key: record for record in records}
        kept = [record for record in records if record is newest[record.key] or random.random() < 0.5]
        if states:
            assert read(sorted(newest.values(), key=lambda record: record.offset)) == states[-1]
            assert read(kept) == states[-1]


@given(st.lists(CHANGES, max_size=12), st.integers(1, 4), st.data())
def test_reading_from_the_middle_gives_the_same_or_nothing(
    changes: list[tuple[Any, ...]], size: int, data: st.DataObject
) -> None:
    with participants_per_record(size):
        states = history(changes)
        records = journal(states)
        start = data.draw(st.integers(0, len(records)))
        found = read(records[start:], complete=False)
        last = len(encode(PREFIX, states[-1])) if states else 0
        if start <= len(records) - last:
            assert found == (states[-1] if states else None)
        else:
            assert found is None


@given(st.lists(CHANGES, max_size=12))
def test_records_of_other_prefixes_and_tombstones_are_passed_over(changes: list[tuple[Any, ...]]) -> None:
    states = history(changes)
    records = []
    for record in journal(states):
        others = [Written(key, b"{}", 0) for key in (b"p.q", b"px", b"", b"p.q#0")]
        ended = [] if record.key == PREFIX.encode() else [Written(record.key, None, 0)]  # type: ignore[arg-type]
        records += [record, *others, *ended]
    assert read(records) == (states[-1] if states else None)
    if records:
        forgotten = read([*records, Written(PREFIX.encode(), None, 0)])  # type: ignore[arg-type]
        assert forgotten is not None and forgotten.is_forgotten


def test_a_decision_of_many_transactions_is_in_records_that_a_broker_takes() -> None:
    one = Participant("x" * 60 + "|0123abcd|99", ProducerIdentity(2**40, 32766), ProducerIdentity(2**40, 32767), 9999)
    decision = BatchDecision("q", "r", 3, Mode.TWO_PHASE, (one,) * 10_000)
    state = Register("me").deciding(decision, 5)
    records = journal([state])
    assert len(records) == 3
    assert max(len(record.value) for record in records) < 900_000
    assert read(records) == state


def test_names_that_leave_the_register_are_written_beside_it() -> None:
    state, left = Register(), Remembered(PREFIX)
    for number in range(3 * KEPT_NAMES):
        state = state.finished(f"q{number}", number, 0)
        for key, value in encode(PREFIX, state):
            left.take(key, value, 0)
    assert len(state.decided) == KEPT_NAMES
    assert state.decided_batch(f"q{3 * KEPT_NAMES - 1}") == 3 * KEPT_NAMES - 1
    assert state.decided_batch("q0") == -1
    assert {name: entry.batch_id for name, entry in left.names.items()} == {f"q{n}": n for n in range(2 * KEPT_NAMES)}


def test_a_decision_that_is_taken_back_was_not_made() -> None:
    decision = BatchDecision("q", "r", 3, Mode.RESUME, ())
    state = Register().deciding(decision, 1)
    assert state.decided_batch("q") == 3
    assert state.revoked(2).decided_batch("q") == 2
    assert state.revoked(2).pending is None
    assert state.done(2).decided_batch("q") == 3


def test_a_part_that_is_missing_is_damage_and_is_told_with_its_offset() -> None:
    with participants_per_record(1):
        one = Participant("t", ProducerIdentity(1, 0), ProducerIdentity(1, 1), 0)
        records = journal([Register().deciding(BatchDecision("q", "r", 0, Mode.TWO_PHASE, (one, one, one)), 0)])
        for left_out in range(2):
            with pytest.raises(JournalDamaged, match=f"offset 2 .*part {left_out} "):
                read([record for record in records if record.offset != left_out])


def test_parts_of_another_decision_are_not_taken_for_its_own() -> None:
    with participants_per_record(1):
        one, other = (Participant(name, ProducerIdentity(1, 0), ProducerIdentity(1, 1), 0) for name in ("one", "other"))
        first = journal([Register().deciding(BatchDecision("q", "run1", 0, Mode.TWO_PHASE, (one, one)), 0)])
        second = journal([Register().deciding(BatchDecision("q", "run2", 0, Mode.TWO_PHASE, (other, other)), 0)])
        with pytest.raises(JournalDamaged):
            read([first[0], second[1]])


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    "v",
    "t",
    "at",
    "owner",
    "round",
    "decided",
    "where",
    "adopted",
    "movedTo",
    "queryId",
    "runId",
    "batchId",
    "mode",
    "parts",
    "tx",
    "part",
]


@given(st.dictionaries(st.sampled_from(FIELDS), JSONS), st.booleans(), st.integers(0, 10**9))
def test_a_damaged_record_is_told_with_its_offset(changes: dict[str, Any], whole: bool, offset: int) -> None:
    one = Participant("t", ProducerIdentity(1, 0), ProducerIdentity(1, 1), 0)
    ((key, value),) = encode(PREFIX, Register("me").deciding(BatchDecision("q", "r", 0, Mode.TWO_PHASE, (one,)), 0))
    body = (json.loads(value) if whole else {"v": 1}) | changes
    try:
        Reader(PREFIX).take(key, json.dumps(body).encode(), offset)
    except JournalDamaged as error:
        text = str(error)
    else:
        return
    assert f"offset {offset} " in text


@pytest.mark.parametrize("value", [b"", b"x", b"[]", b"null", b"{}", b"\xff", b'{"v":2}', b'{"v":1}', b"[" * 100_000])
def test_what_is_no_record_at_all_is_damage(value: bytes) -> None:
    with pytest.raises(JournalDamaged, match="offset 7 "):
        Reader(PREFIX).take(PREFIX.encode(), value, 7)


def test_a_newer_format_says_which_one_this_build_reads() -> None:
    with pytest.raises(JournalDamaged, match="version is 3, and this build reads 2"):
        Reader(PREFIX).take(PREFIX.encode(), b'{"v":3}', 0)
