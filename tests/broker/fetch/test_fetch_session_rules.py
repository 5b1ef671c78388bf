"""The rules of incremental fetch sessions (KIP-227), and a client that puts together what it is told."""

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.broker.codec.fetch import FetchRow
from twofold.broker.fetch.sessions import (
    EVICTION_MS,
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchSessionCache,
    next_epoch,
)
from twofold.wire.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
)
from twofold.wire.messages.fetch import FetchPartition


def cache(max_slots=1000, **limits):
    return FetchSessionCache(CachedPartition, Random(1).randint, lambda: 0.0, max_slots=max_slots, **limits)


def wish(index, offset=0, topic="t"):
    return (topic, index), FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000)


def begin_fetch(sessions, session_id, epoch, *wishes, forget=(), now_ms=0, privileged=False, by_id=False):
    sessions._now_s = lambda: now_ms / 1000
    return sessions.begin(session_id, epoch, wishes, forget, privileged=privileged, uses_topic_ids=by_id)


def answer(sessions, context, rows=None, now_ms=0):
    """Rows by partition; the others are as they begin: empty logs."""
    given_rows = rows or {}
    all_rows = [
        (entry, given_rows.get(entry.key[1], FetchRow(entry.key[1], 0, 0, 0, 0)))
        for entry in context.partitions.values()
    ]
    sessions._now_s = lambda: now_ms / 1000
    return sessions.answer(context, all_rows)


def opened(sessions, count, now_ms=0, privileged=False):
    context = begin_fetch(
        sessions, 0, INITIAL_EPOCH, *[wish(n) for n in range(count)], now_ms=now_ms, privileged=privileged
    )
    return answer(sessions, context, now_ms=now_ms).session_id


def used(sessions, session_id, epoch, now_ms):
    answer(sessions, begin_fetch(sessions, session_id, epoch, now_ms=now_ms), now_ms=now_ms)


def told(result):
    return [entry.key[1] for entry, _ in result.rows]


def ids(sessions):
    return {session.id for session in sessions}


def test_a_final_epoch_opens_no_session_and_ends_the_one_it_names():
    sessions = cache()
    assert answer(sessions, begin_fetch(sessions, 0, FINAL_EPOCH, wish(0))).session_id == NO_SESSION
    kept = opened(sessions, 2)
    result = answer(sessions, begin_fetch(sessions, kept, FINAL_EPOCH, wish(0)))
    assert (result.error_code, result.session_id, told(result)) == (0, NO_SESSION, [0])
    assert not ids(sessions)


def test_an_initial_epoch_replaces_the_session_it_names():
    sessions = cache()
    first = opened(sessions, 2)
    context = begin_fetch(sessions, first, INITIAL_EPOCH, wish(0))
    assert not ids(sessions), "gone as soon as the client asks"
    second = answer(sessions, context).session_id
    assert ids(sessions) == {second}
    assert second != first


def test_epochs_go_on_from_one_and_wrap_to_one():
    sessions = cache()
    kept = opened(sessions, 1)
    for epoch in (1, 2, 3):
        assert begin_fetch(sessions, kept, epoch).session.id == kept
    (session,) = sessions
    session.epoch = MAX_EPOCH
    begin_fetch(sessions, kept, MAX_EPOCH)
    assert session.epoch == 1
    assert next_epoch(1) == 2


@pytest.mark.parametrize("epoch", [3, 1, -2, MAX_EPOCH])
def test_another_epoch_than_the_next_is_refused_and_changes_nothing(epoch):
    sessions = cache()
    kept = opened(sessions, 1)
    begin_fetch(sessions, kept, 1)
    with pytest.raises(InvalidFetchSessionEpoch, match=f"{kept} is at epoch 2, not {epoch}"):
        begin_fetch(sessions, kept, epoch, wish(5), forget=[("t", 0)])
    assert list(begin_fetch(sessions, kept, 2).partitions) == [("t", 0)]


@pytest.mark.parametrize(("session_id", "epoch"), [(0, 1), (7, 1), (7, MAX_EPOCH), (7, -2), (0, -2)])
def test_a_session_that_is_not_there_is_refused(session_id, epoch):
    sessions = cache()
    with pytest.raises(FetchSessionIdNotFound):
        begin_fetch(sessions, session_id, epoch, wish(0))


@pytest.mark.parametrize("by_id", [False, True])
def test_a_session_stays_with_names_or_with_ids(by_id):
    sessions = cache()
    context = begin_fetch(sessions, 0, INITIAL_EPOCH, wish(0), by_id=by_id)
    kept = answer(sessions, context).session_id
    with pytest.raises(FetchSessionTopicIdError):
        begin_fetch(sessions, kept, 1, by_id=not by_id)
    assert begin_fetch(sessions, kept, 1, by_id=by_id).session.id == kept, "the epoch did not move"


def test_a_session_without_partitions_left_is_over():
    sessions = cache()
    kept = opened(sessions, 2)
    used(sessions, kept, 1, 0)
    context = begin_fetch(sessions, kept, 2, forget=[("t", 0), ("t", 1), ("t", 7)])
    assert answer(sessions, context) == (0, NO_SESSION, [])
    assert (ids(sessions), sessions.partitions) == (set(), 0)


def test_what_is_named_and_forgotten_at_once_is_forgotten():
    sessions = cache()
    kept = opened(sessions, 1)
    assert list(begin_fetch(sessions, kept, 1, wish(3), forget=[("t", 3)]).partitions) == [("t", 0)]


@pytest.mark.parametrize(
    ("row", "is_told"),
    [
        (FetchRow(0, 0, 5, 5, 1), False),
        (FetchRow(0, 0, 5, 2, 1), False),  # the last stable offset alone does not count
        (FetchRow(0, 0, 5, 5, 1, aborted=None), False),
        (FetchRow(0, 0, 6, 5, 1), True),
        (FetchRow(0, 0, 5, 5, 2), True),
        (FetchRow(0, 0, 5, 5, 1, records=b"x"), True),
        (FetchRow(0, 0, 5, 5, 1, diverging_epoch=(1, 1)), True),
        (FetchRow(0, 6, 5, 5, 1), True),
    ],
)
def test_what_counts_as_news(row, is_told):
    sessions = cache()
    context = begin_fetch(sessions, 0, INITIAL_EPOCH, wish(0), wish(1))
    kept = answer(sessions, context, {0: FetchRow(0, 0, 5, 5, 1)}).session_id
    result = answer(sessions, begin_fetch(sessions, kept, 1), {0: row})
    assert told(result) == ([0] if is_told else [])


def test_an_error_is_told_each_time_and_so_is_its_end():
    sessions = cache()
    context = begin_fetch(sessions, 0, INITIAL_EPOCH, wish(0))
    kept = answer(sessions, context, {0: FetchRow(0, 0, 5, 5, 0)}).session_id
    rows = [FetchRow(0, 6), FetchRow(0, 6), FetchRow(0, 0, 5, 5, 0), FetchRow(0, 0, 5, 5, 0)]
    seen = [told(answer(sessions, begin_fetch(sessions, kept, n), {0: row})) for n, row in enumerate(rows, 1)]
    assert seen == [[0], [0], [0], []]


def test_an_error_with_the_same_numbers_is_followed_by_news_of_its_end():
    sessions = cache()
    kept = opened(sessions, 1)
    seen = []
    for epoch, code in enumerate((6, 0, 0), 1):
        seen.append(told(answer(sessions, begin_fetch(sessions, kept, epoch), {0: FetchRow(0, code, 0, 0, 0)})))
    assert seen == [[0], [0], []]


def test_partitions_that_gave_records_go_to_the_end():
    sessions = cache()
    kept = opened(sessions, 4)
    full = {n: FetchRow(n, 0, 9, 9, 0, records=b"x") for n in (0, 2)} | {1: FetchRow(1, 0, 9, 9, 0)}
    answer(sessions, begin_fetch(sessions, kept, 1), full)
    assert [index for _, index in begin_fetch(sessions, kept, 2).partitions] == [1, 3, 0, 2]


def test_an_answer_to_a_request_that_was_followed_by_another_is_refused():
    sessions = cache()
    kept = opened(sessions, 1)
    slow = begin_fetch(sessions, kept, 1)
    begin_fetch(sessions, kept, 2)
    assert slow.is_superseded
    assert answer(sessions, slow, {0: FetchRow(0, 0, 9, 9, 0)}) == (InvalidFetchSessionEpoch.code, kept, [])


def test_no_slots_no_sessions():
    sessions = cache(max_slots=0)
    assert opened(sessions, 5) == NO_SESSION


def test_a_full_cache_ends_what_was_idle_for_too_long():
    sessions = cache(max_slots=2)
    old, young = opened(sessions, 9, 0), opened(sessions, 9, 1)
    used(sessions, old, 1, 10)  # now `young` is the one used longest ago
    assert opened(sessions, 1, 1 + EVICTION_MS) == NO_SESSION
    new = opened(sessions, 1, 2 + EVICTION_MS)
    assert ids(sessions) == {old, new}
    assert sessions.evictions == 1
    assert sessions.partitions == 10
    with pytest.raises(FetchSessionIdNotFound):
        begin_fetch(sessions, young, 1)


def test_a_full_cache_ends_a_smaller_session_that_had_its_time():
    sessions = cache(max_slots=2)
    small, large = opened(sessions, 2), opened(sessions, 5)
    assert opened(sessions, 9, 1) == NO_SESSION, "both are new"
    for kept in (small, large):
        used(sessions, kept, 1, EVICTION_MS + 1)
    assert opened(sessions, 2, EVICTION_MS + 2) == NO_SESSION, "not larger than the smallest"
    new = opened(sessions, 3, EVICTION_MS + 2)
    assert ids(sessions) == {large, new}


def test_a_replica_takes_the_place_of_any_consumer_and_no_consumer_takes_its():
    sessions = cache(max_slots=2)
    replica, consumer = opened(sessions, 1, privileged=True), opened(sessions, 9)
    second = opened(sessions, 1, 1, privileged=True)
    assert ids(sessions) == {replica, second}
    assert consumer not in ids(sessions)
    for kept in (replica, second):
        used(sessions, kept, 1, EVICTION_MS + 1)
    assert opened(sessions, 100, EVICTION_MS + 2) == NO_SESSION
    third = opened(sessions, 2, EVICTION_MS + 2, privileged=True)
    assert len(ids(sessions) & {replica, second}) == 1, "among replicas the larger counts for more"
    assert third in ids(sessions)


def test_all_sessions_together_hold_no_more_partitions_than_the_limit():
    sessions = cache(max_partitions=10)
    first = opened(sessions, 6)
    assert opened(sessions, 5) == NO_SESSION
    second = opened(sessions, 4)
    with pytest.raises(FetchSessionIdNotFound, match="10"):
        begin_fetch(sessions, first, 1, *[wish(n) for n in range(7)])
    assert (ids(sessions), sessions.partitions) == ({second}, 4)
    begin_fetch(sessions, second, 1, *[wish(n) for n in range(10)])
    assert sessions.partitions == 10


# --- a client that puts together what it is told ---


class Log:
    """A partition as a broker sees it."""

    def __init__(self, index):
        self.index, self.end, self.start, self.error = index, 0, 0, 0

    def row(self, offset, room):
        """What a fetch of everything says of it; one byte a record, `room` at most."""
        if self.error:
            return FetchRow(self.index, self.error)
        if not self.start <= offset <= self.end:
            return FetchRow(self.index, 1)
        size = min(self.end - offset, room)
        return FetchRow(self.index, 0, self.end, self.end, self.start, records=bytes(size))


class Reader:
    """A client as KIP-227 describes it: it keeps what it knows of each partition, and where it is."""

    def __init__(self, sessions, logs):
        self.sessions, self.logs = sessions, logs
        self.wanted = {}  # index -> offset
        self.known = {}  # index -> (error, high watermark, log start)
        # Ranges since it is wanted, in the order in which they came.
        self.read: dict[int, list[tuple[int, int]]] = {log.index: [] for log in logs}
        self._session_id, self._epoch, self._told = 0, INITIAL_EPOCH, {}
        self.refusals = 0

    def want(self, index):
        """What is wanted anew is read from the start again, whatever was read before it was dropped."""
        if index not in self.wanted:
            self.wanted[index] = self.logs[index].start
            self.read[index] = []

    def drop(self, index):
        self.wanted.pop(index, None)
        self.known.pop(index, None)

    def fetch(self, room, *, lost=False):
        if self._epoch == INITIAL_EPOCH:
            asked, forgotten = dict(self.wanted), []
        else:
            asked = {n: offset for n, offset in self.wanted.items() if self._told.get(n) != offset}
            forgotten = [("t", n) for n in self._told.keys() - self.wanted.keys()]
        sent = dict(self.wanted)
        wishes = [wish(index, offset) for index, offset in asked.items()]
        try:
            context = begin_fetch(self.sessions, self._session_id, self._epoch, *wishes, forget=forgotten)
        except KafkaError:
            self.refusals += 1
            self._session_id, self._epoch = 0, INITIAL_EPOCH
            self.fetch(room)
            return
        rows = []
        for entry in context.partitions.values():
            row = self.logs[entry.key[1]].row(entry.asked.fetch_offset, room)
            room -= len(row.records)
            rows.append((entry, row))
        result = self.sessions.answer(context, rows)
        if lost:
            return  # the client asks again with the same epoch
        assert result.error_code == 0
        self._session_id = result.session_id
        self._told = sent if result.session_id else {}
        self._epoch = next_epoch(self._epoch) if result.session_id else INITIAL_EPOCH
        for entry, row in result.rows:
            self._take(entry.key[1], row)

    def _take(self, index, row):
        self.known[index] = (row.error_code, row.high_watermark, row.log_start_offset)
        offset = self.wanted[index]
        if row.records:
            self.read[index].append((offset, offset + len(row.records)))
            self.wanted[index] = offset + len(row.records)
        elif row.error_code == 1:
            self.wanted[index] = self.logs[index].start


PARTITIONS = 5
index_ = st.integers(0, PARTITIONS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), index_, st.integers(1, 4)),
        st.tuples(st.just("delete"), index_, st.integers(1, 4)),
        st.tuples(st.just("fail"), index_, st.sampled_from([0, 3, 6])),
        st.tuples(st.just("want"), index_, st.none()),
        st.tuples(st.just("drop"), index_, st.none()),
        st.tuples(st.just("fetch"), st.integers(0, 6), st.booleans()),
        st.tuples(st.just("evict"), st.just(0), st.none()),
    ),
    max_size=60,
)


@given(st.integers(0, 1), steps)
@settings(max_examples=300, deadline=None)
def test_what_a_client_puts_together_is_what_a_full_fetch_says(slots, story):
    sessions = cache(max_slots=slots)
    logs = [Log(index) for index in range(PARTITIONS)]
    reader = Reader(sessions, logs)
    reader.wanted = {0: 0, 1: 0}
    for what, at, value in story:
        if what == "append":
            logs[at].end += value
        elif what == "delete":
            logs[at].start = min(logs[at].end, logs[at].start + value)
        elif what == "fail":
            logs[at].error = value
        elif what == "want":
            reader.want(at)
        elif what == "drop":
            reader.drop(at)
        elif what == "evict":
            for session in list(sessions):
                sessions._remove(session)
        else:
            before = dict(reader.wanted)
            reader.fetch(at, lost=value)
            if not value:
                check_known(reader, before)
    for log in logs:
        log.error = 0
    for _ in range(40):
        reader.fetch(1)
    check_all_read(reader)


def check_known(reader, asked):
    """`asked`: the offsets with which it asked. What it knows is what a fetch of everything with these would say."""
    for index, offset in asked.items():
        row = reader.logs[index].row(offset, 0)
        wanted = (row.error_code, row.high_watermark, row.log_start_offset)
        assert reader.known[index] == wanted, f"partition {index}"


def check_all_read(reader):
    for index, offset in reader.wanted.items():
        if offset < reader.logs[index].end:
            # Deletions that nobody could tell yet, or simply more than the last rounds gave.
            for _ in range(100):
                reader.fetch(1)
        assert reader.wanted[index] == reader.logs[index].end
    for ranges in reader.read.values():
        for (_, upto), (start, _) in itertools.pairwise(ranges):
            assert start >= upto, "nothing is read twice, and in order"


def test_with_room_for_one_every_partition_has_its_turn():
    sessions = cache()
    logs = [Log(index) for index in range(PARTITIONS)]
    reader = Reader(sessions, logs)
    reader.wanted = dict.fromkeys(range(PARTITIONS), 0)
    reader.fetch(0)
    for log in logs:
        log.end = 100
    for _ in range(PARTITIONS):
        reader.fetch(1)
    assert [len(ranges) for ranges in reader.read.values()] == [1] * PARTITIONS
