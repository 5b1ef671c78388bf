"""Which topics a query has read, by their ids: what the journal keeps of them, and what a batch is told."""

from dataclasses import replace

import pytest

from twofold.sink.decided import DecidedEntry, Input, KnownTopic, Purpose, TopicStanding
from twofold.sink.register import Reader, Register, encode
from twofold.sink.remembered import Remembered

QUERY = "q"


def read(batch_id: int, ends: str, **topics: str) -> Input:
    return Input(batch_id, f"digest{batch_id}", ends, tuple(topics.items()))


def after(*reads: Input) -> DecidedEntry:
    entry = DecidedEntry(QUERY, -1)
    for one in reads:
        entry = entry.advanced(one.batch_id, 1, one)
    return entry


def test_a_topic_is_known_by_the_id_that_it_had_when_it_was_read() -> None:
    entry = after(read(0, '{"t":{"0":5}}', t="A"))
    assert entry.standing(1, "t", "A") is TopicStanding.SAME
    assert entry.standing(1, "t", "B") is TopicStanding.ANEW
    assert entry.standing(0, "t", "B") is TopicStanding.ANEW
    assert entry.standing(1, "another", "B") is TopicStanding.SAME


def test_a_batch_that_began_a_topic_anew_begins_so_again_and_later_ones_do_not() -> None:
    entry = after(read(0, '{"t":{"0":5}}', t="A"), read(1, '{"t":{"0":9}}', t="B"))
    assert entry.standing(1, "t", "B") is TopicStanding.BEGUN
    assert entry.standing(2, "t", "B") is TopicStanding.SAME
    assert entry.standing(2, "t", "A") is TopicStanding.ANEW
    taken_back = entry.without_last()
    assert taken_back.standing(1, "t", "B") is TopicStanding.BEGUN


def test_a_topic_of_which_a_batch_read_nothing_keeps_its_id() -> None:
    """No task has compared it: it may have been made anew after the batch was planned."""
    entry = after(
        read(0, '{"t":{"0":5},"u":{"0":1}}', t="A", u="U"), read(1, '{"t":{"0":5},"u":{"0":2}}', t="B", u="U")
    )
    assert entry.standing(2, "t", "B") is TopicStanding.ANEW
    assert entry.standing(2, "u", "U") is TopicStanding.SAME


def test_a_topic_that_two_sources_read_is_known_by_the_one_that_reads_on() -> None:
    ends = '{"t":{"0":5}}\n{"t":{"0":%d}}'
    entry = after(read(0, ends % 1, t="A"), read(1, ends % 2, t="B"))
    assert entry.standing(2, "t", "B") is TopicStanding.SAME


def test_an_id_that_is_not_known_changes_nothing() -> None:
    entry = after(read(0, '{"t":{"0":5}}', t="A"), read(1, '{"t":{"0":9}}', t=""))
    assert entry.topics == (KnownTopic("t", "A"),)


def test_a_topic_that_is_read_no_more_is_forgotten() -> None:
    entry = after(read(0, '{"t":{"0":5},"u":{"0":1}}', t="A", u="U"), read(1, '{"u":{"0":2}}', u="U"))
    assert [topic.name for topic in entry.topics] == ["u"]


def test_a_journal_of_long_ago_says_nothing_about_a_batch() -> None:
    assert after(read(0, '{"t":{"0":5}}', t="A")).standing(7, "t", "B") is TopicStanding.SAME


@pytest.mark.parametrize("leaves", [False, True])
def test_ids_are_read_back_as_they_were_written(leaves: bool) -> None:
    entry = replace(after(read(0, "e", t="A"), read(1, "f", t="B")), purpose=Purpose.QUERY)
    register = Register(leaving=(entry,)) if leaves else Register(decided=(entry,))
    reader, remembered = Reader("p"), Remembered("p")
    for offset, (key, value) in enumerate(encode("p", register)):
        reader.take(key, value, offset)
        remembered.take(key, value, offset)
    assert reader.register is not None
    found = remembered.get(QUERY) if leaves else reader.register.entry(QUERY)
    assert found == entry and found.topics == (KnownTopic("t", "B", 1),)
