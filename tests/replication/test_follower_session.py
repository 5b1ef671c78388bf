"""A follower's end of a fetch session, alone and against the sessions that a broker keeps."""

from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest

from twofold.broker.codec.fetch import FetchRow
from twofold.broker.fetch.sessions import CachedPartition, FetchSessionCache
from twofold.replication.fetch_session import FollowerSession, Key
from twofold.replication.follower import FetchQuestion
from twofold.wire.errors import KafkaError
from twofold.wire.messages.fetch import FetchPartition

A, B, C = (Key(UUID(int=7), at) for at in range(3))


def at(offset: int, epoch: int = 1) -> FetchQuestion:
    return FetchQuestion(epoch, offset, epoch, 0)


def request_of(session: FollowerSession) -> tuple[object, ...]:
    request = session.request()
    assert request.is_complete
    return tuple(request)[:4]


def opened(*keys: Key) -> FollowerSession:
    session = FollowerSession()
    for key in keys:
        session.want(key, at(0))
    session.request()
    session.answered(0, 99)
    return session


def test_the_first_request_names_all_and_opens_a_session():
    session = FollowerSession()
    session.want(A, at(0))
    session.want(B, at(5))
    assert request_of(session) == (0, 0, {A: at(0), B: at(5)}, ())


def test_later_requests_name_what_changed_and_what_is_not_wanted_any_more():
    session = opened(A, B)
    session.want(A, at(3))
    session.want(B, at(0))
    assert request_of(session) == (99, 1, {A: at(3)}, ())
    session.answered(0, 99)
    session.drop(A)
    session.want(C, at(1))
    assert request_of(session) == (99, 2, {C: at(1)}, (A,))
    session.answered(0, 99)
    assert request_of(session) == (99, 3, {}, ())


def test_what_came_and_went_between_two_requests_is_not_named():
    session = opened(A)
    session.want(B, at(0))
    session.drop(B)
    session.drop(A)
    session.want(A, at(0))
    assert request_of(session) == (99, 1, {}, ())


def test_what_was_asked_is_known_while_more_is_wanted_meanwhile():
    session = opened(A)
    session.want(A, at(3))
    session.request()
    session.want(A, at(4))
    assert session.asked(A) == at(3)
    session.answered(0, 99)
    assert session.request().named == {A: at(4)}


def test_without_a_session_every_request_names_all():
    session = FollowerSession()
    session.want(A, at(0))
    for _ in range(2):
        assert request_of(session) == (0, 0, {A: at(0)}, ())
        session.answered(0, 0)


def test_a_request_names_so_many_and_the_next_one_the_others():
    session = FollowerSession(most_named=2)
    for key in (A, B, C):
        session.want(key, at(0))
    assert tuple(session.request()) == (0, 0, {A: at(0), B: at(0)}, (), False)
    assert session.asked(C) is None
    session.answered(0, 99)
    session.want(A, at(3))
    assert tuple(session.request()) == (99, 1, {C: at(0), A: at(3)}, (), True)


def test_without_a_session_nothing_waits_to_be_named():
    session = FollowerSession(most_named=1)
    session.want(A, at(0))
    session.want(B, at(0))
    assert not session.request().is_complete
    session.answered(0, 0)
    assert request_of(session) == (0, 0, {A: at(0), B: at(0)}, ())


def test_a_session_that_the_leader_forgot_is_opened_anew():
    session = opened(A, B)
    session.request()
    session.answered(70, 0)
    assert request_of(session) == (0, 0, {A: at(0), B: at(0)}, ())


@pytest.mark.parametrize("error_code", [71, 106, -1])
def test_after_another_error_the_session_is_ended_and_another_opened(error_code):
    session = opened(A, B)
    session.drop(B)
    session.request()
    session.answered(error_code, 99)
    assert request_of(session) == (99, 0, {A: at(0)}, ())


def test_after_a_lost_answer_the_session_is_ended_and_another_opened():
    session = opened(A)
    session.want(A, at(3))
    session.request()
    session.lost()
    assert request_of(session) == (99, 0, {A: at(3)}, ())
    session.answered(0, 100)
    assert request_of(session)[:2] == (100, 1)


def test_another_session_than_ours_is_not_gone_on_with():
    session = opened(A)
    session.request()
    session.answered(0, 55)
    assert request_of(session)[:2] == (0, 0)


def test_epochs_begin_again_at_one():
    session = opened(A)
    session._epoch = 2**31 - 1
    session.request()
    session.answered(0, 99)
    assert session.request().epoch == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_leader_always_knows_what_is_wanted(seed):
    """Against the broker's own sessions, with answers that are lost and sessions that are evicted."""
    random = Random(seed)
    cache: FetchSessionCache[CachedPartition] = FetchSessionCache(
        CachedPartition, random.randint, lambda: 0.0, max_slots=2
    )
    session = FollowerSession(most_named=random.choice((2, 1000)))
    wanted: dict[Key, FetchQuestion] = {}
    for step in range(200):
        for key in (A, B, C):
            choice = random.random()
            if choice < 0.3:
                wanted[key] = at(step)
                session.want(key, wanted[key])
            elif choice < 0.4:
                wanted.pop(key, None)
                session.drop(key)
        if not session:
            continue
        if random.random() < 0.1:
            cache._sessions.clear()
            cache.partitions = 0
        _exchange(cache, session, wanted, is_lost=random.random() < 0.1)


def _exchange(
    cache: FetchSessionCache[CachedPartition],
    session: FollowerSession,
    wanted: Mapping[Key, FetchQuestion],
    *,
    is_lost: bool,
) -> None:
    request = session.request()
    asked = [
        (key, FetchPartition(partition=key.partition, fetch_offset=question.offset, partition_max_bytes=1))
        for key, question in request.named.items()
    ]
    try:
        context = cache.begin(
            request.session_id, request.epoch, asked, request.forgotten, privileged=True, uses_topic_ids=True
        )
    except KafkaError as error:
        session.answered(error.code, 0)
        return
    known = {key: partition.asked.fetch_offset for key, partition in context.partitions.items()}
    if request.is_complete:
        assert known == {key: question.offset for key, question in wanted.items()}
    rows = [(partition, FetchRow(partition.asked.partition)) for partition in context.partitions.values()]
    told = cache.answer(context, rows)
    if is_lost:
        session.lost()
    else:
        session.answered(told.error_code, told.session_id)
