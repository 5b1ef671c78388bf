"""A follower's end of a fetch session: which partitions a request names, so that the leader knows what is wanted.

1. The first request names all; the later ones name what is new, what has changed, and what is not wanted any more.
2. A request costs what has changed, not what is followed. It names `MOST_NAMED` at most: the first one for thousands of
   partitions would keep both brokers busy for long. The others are named by those that follow at once.
3. After an error of the session, or a lost answer, the next request names all again.
"""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from twofold.replication.follower import FetchQuestion
from twofold.wire.errors import NONE, FetchSessionIdNotFound

NO_SESSION = 0
OPENING_EPOCH = 0
LAST_EPOCH = 2**31 - 1
MOST_NAMED = 1000


class Key(NamedTuple):
    """A partition by the id of its topic: a topic of the same name that is made later is another."""

    topic_id: UUID
    partition: int


class FollowerRequest(NamedTuple):
    session_id: int
    epoch: int
    named: Mapping[Key, FetchQuestion]
    forgotten: tuple[Key, ...]
    is_complete: bool = True  # there is nothing more to name, so the leader may keep it until there is news


class FollowerSession:
    def __init__(self, most_named: int = MOST_NAMED) -> None:
        self._most_named = most_named
        self._is_refused = False  # the leader has no room for a session, so each request stands for itself
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

    def request(self) -> FollowerRequest:
        """What to send now. Call `answered` or `lost` before the next."""
        if self._epoch == OPENING_EPOCH:
            self._told = {}
            self._changed = dict.fromkeys(self._wanted)
        most = len(self._changed) if self._is_refused else self._most_named
        named: dict[Key, FetchQuestion] = {}
        forgotten = []
        for key in list(islice(self._changed, most)):
            del self._changed[key]
            question = self._wanted.get(key)
            if question is None:
                if self._told.pop(key, None) is not None:
                    forgotten.append(key)
            elif self._told.get(key) != question:
                named[key] = self._told[key] = question
        return FollowerRequest(self._id, self._epoch, named, tuple(forgotten), not self._changed)

    def answered(self, error_code: int, session_id: int) -> None:
        """The leader's answer: it goes on with the session, has opened one, has none, or has refused the request."""
        if error_code == FetchSessionIdNotFound.code:
            self._id, self._epoch = NO_SESSION, OPENING_EPOCH
        elif error_code != NONE:
            self.lost()
        elif session_id == NO_SESSION or (self._epoch != OPENING_EPOCH and session_id != self._id):
            self._id, self._epoch, self._is_refused = NO_SESSION, OPENING_EPOCH, session_id == NO_SESSION
        else:
            self._id, self._is_refused = session_id, False
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    def lost(self) -> None:
        """No answer. The leader may have gone on with the session: the next request ends it and opens another."""
        self._epoch = OPENING_EPOCH
