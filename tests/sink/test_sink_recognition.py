"""What is known again: batches by number and input, names for ever; whole, compacted, pruned, of the version before."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.sink.decided import KEPT_DIGESTS, UNKNOWN, DecidedEntry, Input, Purpose
from twofold.sink.errors import OtherInput, WriteIdRefused
from twofold.sink.recognition import MAX_WRITE_IDS, check_new, check_same, lacks_digest
from twofold.sink.register import KEPT_NAMES, JournalDamaged, JournalKind, Reader, Register, encode
from twofold.sink.remembered import PRUNED_PER_RECORD, Remembered, encode_pruned

PREFIX = "p"
Records = list[tuple[bytes, bytes | None]]


def read(batch_id: int, digest: str = "same") -> Input:
    return Input(batch_id, digest)


def scanned(records: Records) -> Remembered:
    found = Remembered(PREFIX)
    for offset, (key, value) in enumerate(records):
        found.take(key, value, offset)
    return found


def compacted(records: Records) -> Records:
    last = {key: index for index, (key, _) in enumerate(records)}
    return [record for index, record in enumerate(records) if last[record[0]] == index and record[1] is not None]


# Batches


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["a", "b", None])), max_size=12), st.integers(0, 40))
def test_a_batch_is_the_same_only_if_its_number_and_its_input_are(
    steps: list[tuple[int, str | None]], asked: int
) -> None:
    entry, known = DecidedEntry("q", -1), {}
    for step, digest in steps:
        batch_id = entry.batch_id + step
        entry = entry.advanced(batch_id, 0, None if digest is None else read(batch_id, digest))
        known[batch_id] = digest or UNKNOWN
    if 0 <= asked <= entry.batch_id:
        assert entry.digest(asked) == known.get(asked, UNKNOWN)
    assert DecidedEntry.of(json.loads(json.dumps(entry.row()))) == entry


def test_other_input_is_refused_and_the_same_is_not() -> None:
    entry = DecidedEntry("q", 6).advanced(7, 1_000, Input(7, "one", '{":initial":{},"t":{"0":50}}'))
    check_same(entry, read(7, "one"), "p.decisions", "host:/c")
    with pytest.raises(OtherInput) as refused:
        check_same(entry, read(7, "other"), "p.decisions", "host:/c")
    text = str(refused.value)
    assert "digest of its end offsets is other, and the journal p.decisions has one" in text
    assert "host:/c" in text and 'startingOffsets={"t": {"0": 50}} ' in text and "up to 7" in text


def test_a_batch_that_was_decided_too_long_ago_is_not_taken_for_the_same() -> None:
    entry = DecidedEntry("q", -1)
    for batch_id in range(2 * KEPT_DIGESTS):
        entry = entry.advanced(batch_id, 0, read(batch_id))
    check_same(entry, read(KEPT_DIGESTS), "t", "c")
    with pytest.raises(OtherInput, match=f"keeps what the last {KEPT_DIGESTS} batches read"):
        check_same(entry, read(KEPT_DIGESTS - 1), "t", "c")


def test_what_the_version_before_decided_is_taken_for_the_same_once() -> None:
    entry = DecidedEntry.of(["q", 3])
    check_same(entry, read(3, "any"), "t", "c")
    assert lacks_digest(entry, read(3))
    noted = entry.noted(read(3, "any"))
    assert not lacks_digest(noted, read(3))
    with pytest.raises(OtherInput):
        check_same(noted, read(3, "other"), "t", "c")
    with pytest.raises(OtherInput):
        check_same(entry, read(2, "any"), "t", "c")


def test_a_decision_that_was_taken_back_leaves_no_digest() -> None:
    entry = DecidedEntry("q", -1).advanced(0, 0, read(0, "a")).advanced(1, 0, read(1, "b"))
    assert entry.without_last().digest(0) == "a"
    again = entry.without_last().advanced(1, 0, read(1, "c"))
    assert again.digest(1) == "c" and again.digest(0) == "a"


# Names


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([Purpose.WRITE, Purpose.QUERY])), max_size=60), st.booleans()
)
def test_no_name_is_forgotten(writes: list[tuple[int, Purpose]], is_compacted: bool) -> None:
    state, expected = Register(), {}
    records: Records = []
    for number, purpose in writes:
        name = f"n{number}#@%"
        entry = state.entry(name) or scanned(records).get(name)
        state = state.recalling(entry).finished(name, entry.batch_id + 1 if entry else 0, 1, purpose)
        expected[name] = state.decided_batch(name)
        records += encode(PREFIX, state)
    found = scanned(compacted(records) if is_compacted else records)
    known = {name: state.entry(name) or found.get(name) for name in expected}
    assert {name: entry and entry.batch_id for name, entry in known.items()} == expected


def test_a_batch_job_without_a_write_id_leaves_nothing_behind() -> None:
    state = Register()
    records: Records = []
    for number in range(2 * KEPT_NAMES):
        state = state.finished(f"run{number}", 0, 1, Purpose.ONCE)
        records += encode(PREFIX, state)
    assert scanned(records).names == {}


def of_version_1(names: list[str], **more: Any) -> tuple[bytes, bytes]:
    body = {"v": 1, "t": "done", "at": 5, "owner": "o", "round": 2, "decided": [[name, 0] for name in names], **more}
    return PREFIX.encode(), json.dumps(body).encode()


def test_the_register_of_the_version_before_is_read() -> None:
    reader = Reader(PREFIX)
    reader.take(*of_version_1(["day1"]), 0)
    assert reader.register == Register("o", 2, (DecidedEntry("day1", 0, (UNKNOWN,)),), None, JournalKind.DONE, 5)
    assert reader.version == 1


def test_names_that_the_version_before_dropped_are_found_in_its_old_records() -> None:
    found = scanned([of_version_1(["day0", "day1"]), of_version_1(["day1", "day2"])])
    assert found.get("day0") == DecidedEntry("day0", 0, (UNKNOWN,))
    assert [entry.name for entry in found.unwritten(["day1", "day2"])] == ["day0"]
    state = Register("o").remembering(found.unwritten(["day1", "day2"]), 7)
    kept = scanned(compacted([of_version_1(["day0", "day1"]), *encode(PREFIX, state)]))
    assert set(kept.names) == {"day0"} and kept.unwritten([]) == ()


def test_a_decision_that_the_version_before_took_back_was_not_made() -> None:
    taken_back = of_version_1([], decided=[["day0", -1]])
    found = scanned([of_version_1(["day0"]), taken_back])
    assert found.unwritten([]) == ()
    entry = found.get("day0")
    assert entry is not None and entry.batch_id == -1


@given(st.sets(st.text(max_size=5), max_size=20), st.booleans())
def test_what_was_pruned_is_known_as_that(names: set[str], is_compacted: bool) -> None:
    records: Records = []
    entries = tuple(DecidedEntry(name, 0, ("",), Purpose.WRITE, 1) for name in sorted(names))
    records += encode(PREFIX, Register().remembering(entries, 1))
    chosen = sorted(names)[::2]
    records += encode_pruned(PREFIX, chosen, 2)
    found = scanned(compacted(records) if is_compacted else records)
    assert set(found.names) == names - set(chosen)
    for name in names:
        assert (found.pruned_at(name) is not None) == (name in chosen)
        if name in chosen:
            with pytest.raises(WriteIdRefused, match="pruned at 1970-01-01"):
                check_new(PREFIX, name, Purpose.WRITE, Register(), found)


def test_any_number_of_names_is_pruned_in_records_that_a_broker_takes() -> None:
    names = [f"n{number}" for number in range(2 * PRUNED_PER_RECORD + 1)]
    records = encode_pruned(PREFIX, names, 9)
    assert max(len(value) for _, value in records if value is not None) < 900_000
    found = scanned(records)
    assert all(found.pruned_at(name) == 9 for name in names)


def test_a_new_write_id_is_refused_when_there_is_no_room_and_a_query_is_not() -> None:
    found = Remembered(PREFIX)
    found.names = {f"n{n}": DecidedEntry(f"n{n}", 0, (), Purpose.WRITE) for n in range(MAX_WRITE_IDS - 1)}
    check_new(PREFIX, "new", Purpose.WRITE, Register(), found)
    state = Register().finished("another", 0, 1, Purpose.WRITE)
    with pytest.raises(WriteIdRefused, match="twofold pipeline prune --prefix p --keep"):
        check_new(PREFIX, "new", Purpose.WRITE, state, found)
    check_new(PREFIX, "new", Purpose.QUERY, state, found)


@pytest.mark.parametrize("key", [b"p@n", b"p%1-0"])
@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"v":3}', b'{"v":2}', b'{"v":2,"name":[1],"pruned":"?"}'])
def test_a_damaged_record_of_names_is_told_with_its_offset(key: bytes, value: bytes) -> None:
    with pytest.raises(JournalDamaged, match="offset 7 "):
        Remembered(PREFIX).take(key, value, 7)
