"""How far a query is behind, from offsets as Spark and the journal have them."""

from twofold.sink.behind import Behind, behind, offsets_of, offsets_of_lines
from twofold.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_source_is_behind_by_what_its_partitions_have_and_it_has_not_read() -> None:
    found = behind({A0: 10, A1: 7}, {A0: 30, A1: 7})
    assert found == Behind(partitions=2, total=20, most=20, least=0)
    assert found.words() == {
        "avgOffsetsBehindLatest": "10.0",
        "maxOffsetsBehindLatest": "20",
        "minOffsetsBehindLatest": "0",
    }


def test_a_partition_that_was_added_is_behind_from_its_first_record_on() -> None:
    assert behind({A0: 5}, {A0: 5, A1: 4}) == Behind(2, 4, 4, 0)


def test_a_topic_that_was_made_anew_is_not_behind_by_less_than_nothing() -> None:
    assert behind({A0: 100}, {A0: 3}) == Behind(1, 0, 0, 0)


def test_without_a_partition_nothing_is_known() -> None:
    assert behind({A0: 1}, {}) is None


def test_offsets_are_read_as_text_and_as_what_it_says_without_what_our_first_batch_remembers() -> None:
    assert offsets_of('{"a": {"0": 5, "1": 6}, ":initial": {"a": {"0": 1}}}') == {A0: 5, A1: 6}
    assert offsets_of({"a": {"0": 5}}) == {A0: 5}


def test_a_source_that_reads_no_topics_has_no_offsets() -> None:
    for value in (None, "7", '{"fileEntries": 3}', "not JSON", {"a": 3}, '"a"'):
        assert offsets_of(value) is None


def test_the_lines_of_the_journal_are_the_sources_of_one_batch() -> None:
    assert offsets_of_lines('{"a":{"0":5}}\n-\n{"b":{"0":9}}') == {A0: 5, B0: 9}
