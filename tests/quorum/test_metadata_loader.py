"""The loader of the metadata log: what is published of it, and when."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.metadata.controller import broker_records, fold
from twofold.controller.image import TOPIC_RESOURCE, MetadataImage
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Topic,
)
from twofold.controller.replay import InconsistentRecord
from twofold.controller.snapshot_records import snapshot_records
from twofold.quorum.loader import CommittedBatch, MetadataLoader, Publication, segments

BEGIN, END, ABORT = BeginTransaction("growth"), EndTransaction(), AbortTransaction("no")


def topic(number: int) -> Topic:
    return Topic(f"t{number}", UUID(int=number))


def partition(number: int, index: int = 0) -> Partition:
    return Partition(index, UUID(int=number), (1,), (1,), 1)


class Log:
    """Batches with consecutive offsets, each of 100 bytes."""

    def __init__(self, loader: MetadataLoader | None = None) -> None:
        self.loader = MetadataLoader() if loader is None else loader
        self.end = self.loader.image.offset + 1

    def batch(self, *records: MetadataRecord) -> CommittedBatch:
        entries = list(enumerate(records, self.end))
        self.end += len(records)
        return CommittedBatch(entries, self.end - 1, 100)

    def control(self) -> CommittedBatch:
        self.end += 1
        return CommittedBatch([], self.end - 1, 100)

    def commit(self, *batches: CommittedBatch) -> list[Publication]:
        return self.loader.load(batches)

    def says(self, *records: MetadataRecord) -> list[Publication]:
        return self.commit(self.batch(*records))


def names(image: MetadataImage) -> list[str]:
    return sorted(image.topics)


def is_empty(publication: Publication) -> bool:
    delta = publication.delta
    return not (delta.changed_topics or delta.deleted_topics or delta.changed_configs or delta.changed_brokers) and (
        delta.features,
        delta.next_producer_id,
        delta.kept,
    ) == (None, None, None)


# -- the numbered scenarios


@pytest.mark.parametrize("callbacks", [1, 3, 5])
def test_100_a_transaction_is_one_delta_after_its_end(callbacks: int) -> None:
    log = Log()
    log.says(topic(1))
    batches = [
        log.batch(BEGIN),
        log.batch(topic(2)),
        log.batch(partition(2)),
        log.batch(partition(2, 1)),
        log.batch(END),
    ]
    cuts = {1: [5], 3: [1, 4, 5], 5: [1, 2, 3, 4, 5]}[callbacks]
    published = [log.commit(*batches[start:end]) for start, end in pairwise([0, *cuts])]
    assert [len(found) for found in published] == [0] * (callbacks - 1) + [1]
    (last,) = published[-1]
    assert last.image is log.loader.image and last.image.offset == 5 and last.is_batch_aligned
    assert names(last.image) == ["t1", "t2"] and sorted(last.image.topics["t2"].partitions) == [0, 1]
    assert [change.topic.name for change in last.delta.changed_topics] == ["t2"]
    assert (last.batches, last.size) == (5, 500)


def test_101_an_aborted_transaction_only_moves_the_offset() -> None:
    log = Log()
    log.says(topic(1))
    assert log.says(BEGIN) == log.says(topic(2)) == log.says(partition(2)) == []
    (last,) = log.says(ABORT)
    assert is_empty(last) and last.delta.offset == last.image.offset == 4
    assert names(last.image) == ["t1"] and last.batches == 4


def test_102_two_transactions_in_one_batch_are_two_deltas_and_the_second_has_the_bytes() -> None:
    first, second = Log().says(BEGIN, topic(1), END, BEGIN, topic(2), END)
    assert (first.image.offset, first.is_batch_aligned, first.batches, first.size) == (2, False, 0, 0)
    assert names(first.image) == ["t1"]
    assert (second.image.offset, second.is_batch_aligned, second.batches, second.size) == (5, True, 1, 100)
    assert names(second.image) == ["t1", "t2"]


def test_103_what_comes_before_begin_in_its_batch_is_published_first() -> None:
    log = Log()
    (first,) = log.says(topic(1), BEGIN, topic(2))
    assert (first.image.offset, first.is_batch_aligned, names(first.image)) == (0, False, ["t1"])
    (second,) = log.says(END)
    assert (second.image.offset, second.is_batch_aligned, second.batches) == (3, True, 2)
    assert names(second.image) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("before", "record", "message"),
    [
        ([BEGIN], BEGIN, "offset 1: Begin inside the transaction begun at 0"),
        ([BEGIN, topic(1)], BEGIN, "offset 2: Begin inside"),
        ([], END, "offset 0: EndTransaction without Begin"),
        ([], ABORT, "offset 0: AbortTransaction without Begin"),
        ([BEGIN, END], END, "offset 2: EndTransaction without Begin"),
        ([BEGIN, ABORT, topic(1)], ABORT, "offset 3: AbortTransaction without Begin"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_104_nested_and_stray_transaction_records_are_faults(
    before: list[MetadataRecord], record: MetadataRecord, message: str, together: bool
) -> None:
    log = Log()
    if together:
        batches = [log.batch(*before, record)]
    else:
        log.commit(*(log.batch(one) for one in before))
        batches = [log.batch(record)]
    with pytest.raises(InconsistentRecord, match=message):
        log.commit(*batches)
    assert log.loader.image.topics.get("t1") is None or ABORT in before


def test_105_after_an_abort_only_what_follows_it_appears() -> None:
    log = Log()
    (last,) = log.commit(log.batch(BEGIN, topic(1), partition(1)), log.batch(ABORT, topic(2)))
    assert names(last.image) == ["t2"]
    assert [change.topic.name for change in last.delta.changed_topics] == ["t2"]


def test_105_nor_is_anything_of_it_published_when_another_transaction_begins_in_the_same_callback() -> None:
    log = Log()
    first, second = log.commit(log.batch(BEGIN, topic(1), ABORT, BEGIN, topic(2)), log.batch(END))
    assert is_empty(first) and first.image.offset == 2 and not first.is_batch_aligned
    assert names(second.image) == ["t2"]


# -- beyond them


def test_segments_end_where_an_image_may_be_published() -> None:
    records: list[MetadataRecord] = [topic(1), BEGIN, topic(2), END, NoOp(), BEGIN, ABORT, BEGIN, END, BEGIN, topic(3)]
    pieces = list(segments(enumerate(records)))
    assert [[offset for offset, _ in piece] for piece in pieces] == [[0], [1, 2, 3], [4], [5, 6], [7, 8], [9, 10]]
    assert list(segments([])) == []
    assert list(segments([(7, topic(1)), (8, END)])) == [[(7, topic(1)), (8, END)]]


def test_the_callbacks_of_a_long_transaction_publish_nothing_and_count_its_records() -> None:
    log = Log()
    log.says(topic(1))
    log.says(BEGIN)
    before = log.loader.image
    for index in range(200):
        assert log.says(partition(1, index)) == []
        assert log.loader.image is before
        assert log.loader.transaction is not None
        assert (log.loader.transaction.start_offset, log.loader.transaction.name) == (1, "growth")
        assert log.loader.transaction_records == index + 1
    (last,) = log.says(END)
    assert log.loader.transaction is None and log.loader.transaction_records == 0
    assert last.delta.changed_topics[0].partitions == tuple(range(200))
    assert (last.batches, last.size) == (202, 20200)


@pytest.mark.parametrize("end", [END, ABORT])
def test_an_empty_transaction_moves_the_offset(end: MetadataRecord) -> None:
    log = Log()
    log.says(topic(1))
    (last,) = log.says(BEGIN, end)
    assert is_empty(last) and last.image.offset == 2 and names(last.image) == ["t1"]


def test_plain_batches_of_one_callback_are_one_delta() -> None:
    log = Log()
    (last,) = log.commit(log.batch(topic(1)), log.batch(topic(2), partition(2)), log.control())
    assert names(last.image) == ["t1", "t2"] and last.image.offset == 3
    assert (last.batches, last.size, last.is_batch_aligned) == (3, 300, True)
    assert log.commit() == []


def test_a_begin_that_is_first_in_its_batch_publishes_whole_batches() -> None:
    log = Log()
    (first,) = log.commit(log.batch(topic(1)), log.batch(BEGIN, topic(2)))
    assert (first.image.offset, first.is_batch_aligned, first.batches) == (0, True, 1)
    (first,) = log.commit(log.control(), log.batch(END))
    assert (first.image.offset, first.batches) == (4, 3)


def test_a_skipped_record_before_begin_leaves_the_image_inside_a_batch() -> None:
    loader = MetadataLoader()
    (first,) = loader.load([CommittedBatch([(1, BEGIN), (2, topic(1))], 2, 100)])
    assert (first.image.offset, first.is_batch_aligned) == (0, False)


def test_a_change_of_the_leader_inside_a_transaction_shows_nothing() -> None:
    log = Log()
    log.says(BEGIN, topic(1))
    assert log.commit(log.control()) == []
    assert log.loader.image.offset == -1
    (last,) = log.says(ABORT)
    assert is_empty(last) and last.image.offset == 3


def test_a_snapshot_forgets_an_open_transaction() -> None:
    log = Log()
    log.says(topic(1), topic(2), partition(2))
    log.says(BEGIN, topic(3), partition(1))
    publication = log.loader.load_snapshot([topic(2), partition(2), topic(4)], 20)
    assert log.loader.transaction is None and log.loader.transaction_records == 0
    assert names(publication.image) == ["t2", "t4"] and publication.image.offset == 20
    assert publication.is_batch_aligned and log.loader.image is publication.image
    assert [one.name for one in publication.delta.deleted_topics] == ["t1"]
    assert [change.topic.name for change in publication.delta.changed_topics] == ["t4"]
    with pytest.raises(InconsistentRecord, match="offset 21: EndTransaction without Begin"):
        log.loader.load([CommittedBatch([(21, END)], 21)])


def test_the_log_goes_on_behind_a_snapshot() -> None:
    loader = MetadataLoader()
    loader.load_snapshot([topic(1)], 9)
    log = Log(loader)
    assert log.says(BEGIN, partition(1)) == []
    (last,) = log.says(END)
    assert (last.image.offset, last.batches) == (12, 2) and len(last.image.topics["t1"].partitions) == 1


def test_the_delta_of_a_snapshot_leads_from_the_image_before_it() -> None:
    log = Log()
    config = Config(TOPIC_RESOURCE, "t1", "retention.ms", "1")
    log.says(*broker_records(1), *broker_records(2), topic(1), partition(1), config, FeatureLevel("x", 1), topic(5))
    old = log.loader.image
    again = Topic("t5", UUID(int=55))
    found = log.loader.load_snapshot([*broker_records(2), topic(1), partition(1), partition(1, 1), again], 30)
    assert found.delta.apply(old) == found.image
    assert sorted(found.delta.changed_brokers) == [1, 2] and found.delta.changed_brokers[1] is None
    assert list(found.delta.changed_configs) == [(TOPIC_RESOURCE, "t1")]


@pytest.mark.parametrize("record", [BEGIN, END, ABORT])
def test_a_snapshot_that_holds_a_transaction_record_is_refused_and_changes_nothing(record: MetadataRecord) -> None:
    log = Log()
    log.says(topic(1))
    log.says(BEGIN, topic(2))
    with pytest.raises(InconsistentRecord, match=f"offset 9 holds {type(record).__name__}"):
        log.loader.load_snapshot([topic(3), record], 9)
    assert names(log.loader.image) == ["t1"] and log.loader.transaction is not None


# -- any way of cutting


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataRecord]:
    """A legal sequence: plain records and transactions, the last one possibly open."""
    records: list[MetadataRecord] = []
    number = 0
    steps = st.lists(st.sampled_from("tpcrnfi" + "BEA" * 2), max_size=30)
    is_open = False
    alive: list[tuple[int, int]] = []  # topic, partitions
    kept = list(alive)
    for step in draw(steps):
        if step == "B" and not is_open:
            records.append(BeginTransaction(draw(st.sampled_from([None, "a"]))))
            is_open, kept = True, list(alive)
        elif step in "EA" and is_open:
            records.append(END if step == "E" else ABORT)
            is_open = False
            if step == "A":
                alive = kept
        elif step == "t":
            number += 1
            records.append(topic(number))
            alive.append((number, 0))
        elif step == "p" and alive:
            which = draw(st.integers(0, len(alive) - 1))
            records.append(partition(*alive[which]))
            alive[which] = (alive[which][0], alive[which][1] + 1)
        elif step == "c" and alive and alive[-1][1]:
            records.append(PartitionChange(alive[-1][1] - 1, UUID(int=alive[-1][0]), leader=draw(st.integers(-1, 3))))
        elif step == "r" and alive:
            records.append(RemoveTopic(UUID(int=alive.pop(0)[0])))
        elif step == "n":
            records.append(NoOp())
        elif step == "f":
            records.append(FeatureLevel("transaction.version", draw(st.integers(0, 2))))
        elif step == "i":
            records.append(ProducerIds(1, 0, 1000 * (len(records) + 1)))
    return records


def inside(records: list[MetadataRecord]) -> set[int]:
    """The offsets at which no image may be: those of a Begin and of all that follows it before the end."""
    found: set[int] = set()
    is_open = False
    for offset, record in enumerate(records):
        is_open = isinstance(record, BeginTransaction) or (is_open and not isinstance(record, type(END) | type(ABORT)))
        if is_open:
            found.add(offset)
    return found


@given(histories(), st.data())
def test_the_images_do_not_depend_on_how_the_log_is_cut_and_never_lie_inside_a_transaction(
    records: list[MetadataRecord], data: st.DataObject
) -> None:
    whole = fold(records)
    expected = whole.image if whole.transaction is None else whole.transaction.before
    forbidden = inside(records)
    loader = MetadataLoader()
    seen, batches, at = [loader.image], 0, 0
    while at < len(records):
        callback = []
        for size in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)):
            if entries := list(enumerate(records[at : at + size], at)):
                callback.append(CommittedBatch(entries, entries[-1][0], len(entries)))
                at += len(entries)
        for publication in loader.load(callback):
            assert publication.image.offset not in forbidden
            assert publication.delta.apply(seen[-1]) == publication.image
            assert publication.image.offset > seen[-1].offset
            prefix = fold(records[: publication.image.offset + 1])
            assert prefix.transaction is None and prefix.image == publication.image
            seen.append(publication.image)
            batches += publication.size
        assert loader.image is seen[-1]
    assert loader.image == expected
    assert (loader.transaction is None) == (whole.transaction is None)
    if whole.transaction is None:
        assert batches == len(records)
    else:
        assert loader.transaction is not None and loader.transaction.start_offset == whole.transaction.start_offset
        assert loader.transaction_records == len(records) - whole.transaction.start_offset - 1


@given(histories(), histories())
def test_a_snapshot_leads_from_any_image_to_any_other(
    records: list[MetadataRecord], others: list[MetadataRecord]
) -> None:
    loader = MetadataLoader()
    loader.load([CommittedBatch(list(enumerate(records)), len(records) - 1)] if records else [])
    old, state = loader.image, fold(others)
    image = state.image if state.transaction is None else state.transaction.before
    found = loader.load_snapshot(snapshot_records(image), 100)
    assert found.delta.apply(old) == found.image == loader.image
    assert (found.image.topics, found.image.features) == (image.topics, image.features)
