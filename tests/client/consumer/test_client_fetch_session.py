"""The client's half of fetch sessions, alone and against the broker's half."""

import uuid
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.broker.codec.fetch import FetchRow
from twofold.broker.fetch.sessions import CachedPartition, FetchSessionCache
from twofold.client.consumer.fetch_session import MIN_PARTITIONS, ClientFetchSession, SessionRequest, Wish
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError
from twofold.wire.messages.fetch import FetchResponse

IDS = {name: uuid.UUID(int=number) for number, name in enumerate("abc", 1)}
MANY = MIN_PARTITIONS


def wishes(count: int, offset: int = 0, topic: str = "a") -> dict[TopicPartition, Wish]:
    return {TopicPartition(topic, n): Wish(IDS[topic], offset, 1000, 0) for n in range(count)}


def named(request: SessionRequest) -> list[tuple[str, int, int]]:
    return [(topic.topic, row.partition, row.fetch_offset) for topic in request.topics for row in topic.partitions]


def forgotten(request: SessionRequest) -> list[tuple[uuid.UUID | None, int]]:
    return [(topic.topic_id, index) for topic in request.forgotten for index in topic.partitions]


def answer(session_id: int) -> FetchResponse:
    return FetchResponse(session_id=session_id, responses=())


def in_session(count: int = MANY) -> ClientFetchSession:
    session = ClientFetchSession()
    session.request(wishes(count), by_id=True)
    session.answered(answer(77))
    return session


def test_few_partitions_are_asked_for_without_a_session() -> None:
    session = ClientFetchSession()
    for _ in range(3):
        request = session.request(wishes(MANY - 1), by_id=True)
        assert (request.session_id, request.session_epoch, len(named(request))) == (0, -1, MANY - 1)
        assert not session.is_incremental
        session.answered(answer(0))


def test_many_open_a_session_and_then_only_changes_are_named() -> None:
    session = ClientFetchSession()
    request = session.request(wishes(MANY), by_id=True)
    assert (request.session_id, request.session_epoch, len(named(request))) == (0, 0, MANY)
    assert not session.is_incremental
    session.answered(answer(77))
    changed = wishes(MANY) | {TopicPartition("a", 3): Wish(IDS["a"], 9, 1000, 0)}
    del changed[TopicPartition("a", 5)]
    request = session.request(changed, by_id=True)
    assert (request.session_id, request.session_epoch, named(request)) == (77, 1, [("a", 3, 9)])
    assert forgotten(request) == [(IDS["a"], 5)]
    assert session.is_incremental
    session.answered(answer(77))
    assert session.request(changed, by_id=True)[1:] == (2, [], [])


def test_a_broker_without_room_is_asked_in_full_each_time() -> None:
    session = ClientFetchSession()
    for _ in range(3):
        request = session.request(wishes(MANY), by_id=True)
        assert (request.session_id, request.session_epoch, len(named(request))) == (0, 0, MANY)
        session.answered(answer(0))


def test_after_a_failure_everything_is_named_and_the_old_session_closed() -> None:
    session = in_session()
    session.request(wishes(MANY, 1), by_id=True)
    session.failed()
    request = session.request(wishes(MANY, 1), by_id=True)
    assert (request.session_id, request.session_epoch, len(named(request))) == (77, 0, MANY)
    session.answered(answer(78))
    assert session.request(wishes(MANY, 1), by_id=True)[:3] == (78, 1, [])


def test_a_topic_that_was_made_anew_replaces_the_old_one() -> None:
    session = in_session()
    other = uuid.UUID(int=99)
    anew = {tp: wish._replace(topic_id=other) for tp, wish in wishes(MANY).items()}
    request = session.request(anew, by_id=True)
    assert [topic.topic_id for topic in request.topics] == [other]
    assert forgotten(request) == [(IDS["a"], n) for n in range(MANY)]
    assert session.name_of(other) == "a"
    assert session.name_of(IDS["a"]) is None


def test_names_instead_of_ids_begin_anew() -> None:
    session = in_session()
    request = session.request(wishes(MANY), by_id=False)
    assert (request.session_id, request.session_epoch, len(named(request))) == (77, 0, MANY)


def test_epochs_wrap_to_one() -> None:
    session = in_session()
    session._epoch = 2**31 - 1
    assert session.request(wishes(MANY), by_id=True).session_epoch == 2**31 - 1
    session.answered(answer(77))
    assert session.request(wishes(MANY), by_id=True).session_epoch == 1


# Against the broker's half

steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("want"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("drop"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("anew"), st.sampled_from("abc"), st.just(0)),
        st.tuples(
            st.sampled_from(["ask", "lose the answer", "lose the request", "evict", "names"]), st.just(""), st.just(0)
        ),
    ),
    max_size=80,
)


@given(st.integers(0, 1), steps)
@settings(max_examples=200, deadline=None)
def test_the_broker_reads_what_the_client_wants(slots: int, story: list[tuple[str, str, int]]) -> None:
    cache = FetchSessionCache(CachedPartition, Random(1).randint, lambda: 0.0, max_slots=slots)
    session = ClientFetchSession()
    ids = dict(IDS)
    offsets = {TopicPartition("a", n): 0 for n in range(10)} | {TopicPartition("b", n): 0 for n in range(10)}
    by_id = True
    for what, topic, index in story:
        tp = TopicPartition(topic, index)
        if what == "move" and tp in offsets:
            offsets[tp] += 1
        elif what == "want":
            offsets.setdefault(tp, 0)
        elif what == "drop":
            offsets.pop(tp, None)
        elif what == "anew":
            ids[topic] = uuid.UUID(int=ids[topic].int + 10)
        elif what == "evict":
            for kept in list(cache):
                cache._remove(kept)
        elif what == "names":
            by_id = not by_id
        elif offsets:
            wanted = {tp: Wish(ids[tp.topic], offset, 1000, 0) for tp, offset in offsets.items()}
            request = session.request(wanted, by_id=by_id)
            if what == "lose the request":
                session.failed()
                continue
            serve(cache, session, request, wanted, by_id, lost=what == "lose the answer")
    assert len(cache) <= slots


def serve(
    cache: FetchSessionCache[CachedPartition],
    session: ClientFetchSession,
    request: SessionRequest,
    wanted: dict[TopicPartition, Wish],
    by_id: bool,
    *,
    lost: bool,
) -> None:
    rows = [(((t.topic_id if by_id else t.topic), row.partition), row) for t in request.topics for row in t.partitions]
    gone = [((t.topic_id if by_id else t.topic), index) for t in request.forgotten for index in t.partitions]
    try:
        context = cache.begin(
            request.session_id, request.session_epoch, rows, gone, privileged=False, uses_topic_ids=by_id
        )
    except KafkaError:
        session.failed()
        return
    read = {key: entry.asked.fetch_offset for key, entry in context.partitions.items()}
    assert read == {((w.topic_id if by_id else tp.topic), tp.partition): w.fetch_offset for tp, w in wanted.items()}
    told = cache.answer(context, [(entry, FetchRow(0, 0, 5, 5, 0)) for entry in context.partitions.values()])
    if lost:
        session.failed()
    else:
        session.answered(answer(told.session_id))
