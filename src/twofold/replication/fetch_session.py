"""A follower's end of a fetch session: which partitions a request names, so that the leader knows what is wanted.

1. The first request names all; the later ones name what is new, what has changed, and what is not wanted any more.
2. A request costs what has changed, not what is followed.
3. After an error of the session, or a lost answer, the next request names all again.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from twofold.replication.follower import FetchQuestion
from twofold.wire.errors import NONE, FetchSessionIdNotFound

NO_SESSION = 0
OPENING_EPOCH = 0
LAST_EPOCH = 2**31 - 1


class Key(NamedTuple):
    """A partition by the id of its topic: a topic of the same name that is made later is another."""

    topic_id: UUID
    partition: int


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    named: Mapping[Key, FetchQuestion]
    forgotten: tuple[Key, ...]


class FetchSession:
    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = OPENING_EPOCH  # of the next request
        self._wanted: dict[Key, FetchQuestion] = {}
        self._told: dict[Key, FetchQuestion] = {}  # what the leader knows
        self._changed: dict[Key, None] = {}

    def __bool__(self) -> bool:
        """Whether anything is wanted."""
        return bool(self._wanted)

    def want(self, key: Key, question: FetchQuestion) -> None:
        if self._wanted.get(key) != question:
            self._wanted[key] = question
            self._changed[key] = None

    def drop(self, key: Key) -> None:
        if self._wanted.pop(key, None) is not None:
            self._changed[key] = None

    def asked(self, key: Key) -> FetchQuestion | None:
        """What the last request asked for a partition, in itself or in the session."""
        return self._told.get(key)

    def request(self) -> SessionRequest:
        """What to send now. Call `answered` or `lost` before the next."""
        if self._epoch == OPENING_EPOCH:
            self._told = dict(self._wanted)
            self._changed.clear()
            return SessionRequest(self._id, OPENING_EPOCH, MappingProxyType(self._told), ())
        named: dict[Key, FetchQuestion] = {}
        forgotten = []
        for key in self._changed:
            question = self._wanted.get(key)
            if question is None:
                if self._told.pop(key, None) is not None:
                    forgotten.append(key)
            elif self._told.get(key) != question:
                named[key] = self._told[key] = question
        self._changed.clear()
        return SessionRequest(self._id, self._epoch, named, tuple(forgotten))

    def answered(self, error_code: int, session_id: int) -> None:
        """The leader's answer: it goes on with the session, has opened one, has none, or has refused the request."""
        if error_code == FetchSessionIdNotFound.code:
            self._id, self._epoch = NO_SESSION, OPENING_EPOCH
        elif error_code != NONE:
            self.lost()
        elif session_id == NO_SESSION or (self._epoch != OPENING_EPOCH and session_id != self._id):
            self._id, self._epoch = NO_SESSION, OPENING_EPOCH
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    def lost(self) -> None:
        """No answer. The leader may have gone on with the session: the next request ends it and opens another."""
        self._epoch = OPENING_EPOCH
