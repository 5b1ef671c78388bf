"""The client's half of incremental fetch sessions (KIP-227), one for each broker, without I/O.

1. A session is opened where it pays: from `MIN_PARTITIONS` partitions on. Below, every request names all it wants.
2. In a session a request names what is new or wanted otherwise, and what is to be forgotten; the broker leaves out of
   its answer what has no news.
3. Whatever goes wrong (the broker has no such session any more, an answer got lost), the next request names everything
   and asks for a new session, closing the one that may still be there.
4. The session stays with topic ids or with names; a topic that was made anew is another topic.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from twofold.types import TopicPartition
from twofold.wire.messages.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic

MIN_PARTITIONS = 16
NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1


class Wish(NamedTuple):
    """What is asked of one partition."""

    topic_id: UUID | None
    fetch_offset: int
    max_bytes: int
    leader_epoch: int

    def row(self, partition: int) -> FetchPartition:
        return FetchPartition(
            partition=partition,
            fetch_offset=self.fetch_offset,
            partition_max_bytes=self.max_bytes,
            current_leader_epoch=self.leader_epoch,
        )


class SessionRequest(NamedTuple):
    """The part of a Fetch that depends on the session."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class ClientFetchSession:
    __slots__ = ("_by_id", "_epoch", "_id", "_known", "_names", "_next")

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, Wish] = {}  # what the broker keeps in mind
        self._next: dict[TopicPartition, Wish] = {}  # what it will, once it has answered
        self._names: dict[UUID, str] = {}
        self._by_id = False

    @property
    def is_incremental(self) -> bool:
        """Whether the request that is out goes on with a session: what is left out of its answer has no news."""
        return self._epoch > INITIAL_EPOCH

    def request(self, wishes: Mapping[TopicPartition, Wish], *, by_id: bool) -> SessionRequest:
        """Ask for these partitions; exactly one of `answered` and `failed` has to follow."""
        if by_id != self._by_id:
            self.failed()
        self._by_id = by_id
        self._next = dict(wishes)
        self._names = {wish.topic_id: tp.topic for tp, wish in wishes.items() if wish.topic_id is not None}
        if not self.is_incremental:
            epoch = INITIAL_EPOCH if len(wishes) >= MIN_PARTITIONS else FINAL_EPOCH
            return SessionRequest(self._id, epoch, topics_of(wishes.items()), [])
        known = self._known
        new = [(tp, wish) for tp, wish in wishes.items() if known.get(tp) != wish]
        return SessionRequest(self._id, self._epoch, topics_of(new), self._forgotten(wishes))

    def _forgotten(self, wishes: Mapping[TopicPartition, Wish]) -> list[ForgottenTopic]:
        gone: dict[tuple[str, UUID | None], list[int]] = {}
        for tp, known in self._known.items():
            wish = wishes.get(tp)
            if wish is None or (self._by_id and wish.topic_id != known.topic_id):
                gone.setdefault((tp.topic, known.topic_id), []).append(tp.partition)
        return [
            ForgottenTopic(topic=name, topic_id=topic_id, partitions=indexes)
            for (name, topic_id), indexes in gone.items()
        ]

    def answered(self, response: FetchResponse) -> None:
        """The broker has taken the request in; an error at the top of the answer is a failure instead."""
        if response.session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
            self._known = {}
            return
        if response.session_id != self._id:
            self._id, self._epoch = response.session_id, INITIAL_EPOCH
        self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
        self._known = self._next

    def failed(self) -> None:
        """What the broker knows is not known here: begin anew, and close what may be there."""
        self._epoch = INITIAL_EPOCH
        self._known = {}

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The topic for which the latest request used this id."""
        return None if topic_id is None else self._names.get(topic_id)


def topics_of(wishes: Iterable[tuple[TopicPartition, Wish]]) -> list[FetchTopic]:
    topics: dict[tuple[str, UUID | None], list[FetchPartition]] = {}
    for tp, wish in wishes:
        topics.setdefault((tp.topic, wish.topic_id), []).append(wish.row(tp.partition))
    return [FetchTopic(topic=name, topic_id=topic_id, partitions=rows) for (name, topic_id), rows in topics.items()]
