"""Incremental fetch sessions (KIP-227), without sockets, logs or timers.

A client that reads many partitions names them once. From then on it names those that it wants read otherwise, and is
told of those that have news; both sides keep the rest in mind.

1. By the request's session id and epoch:
     any id, epoch -1    everything is read; the session of that id, if there is one, is over
     any id, epoch 0     the same, and the answer opens a session if there is room: its id is in it, its epoch is 1
     an id, epoch n      the session's partitions are read, with the request's additions, changes and forgotten ones;
                         n must be the session's epoch (71), its topics named in the same way (106), the id known (70)
2. The epoch moves on with each request (2^31-1 is followed by 1), so that an answer that got lost is found out. A
   session that has nothing left to read is over.
3. A partition is told if it has records, an error, a diverging epoch, or another high watermark or start of its log
   than the client knows. After an error the client knows no high watermark: what comes after it is told.
4. Partitions are read in the order of the session. One that gave records goes to the end, so that the limits of an
   answer do not always fall on the same ones.
5. There are at most `max_slots` sessions. A full cache makes room by ending the session that was used longest ago, if
   that is more than `eviction_ms`; or else the smallest one, if it is smaller than the new one and has been in use for
   more than `eviction_ms`. A replica's counts for more than any consumer's.
6. All sessions together hold at most `max_partitions`; what would be more gets no session, and one that outgrows it
   is over. Thus a client that names what does not exist cannot fill the memory.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from twofold.broker.codec.fetch import FetchRow
from twofold.wire.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)
from twofold.wire.messages.fetch import FetchPartition

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = MAX_ID = 2**31 - 1
EVICTION_MS = 120_000  # KIP-227 has a setting for it that Kafka never got
MAX_PARTITIONS = 250_000

TopicKey: TypeAlias = "str | UUID | None"  # a topic by its name, or by its id
PartitionKey: TypeAlias = "tuple[TopicKey, int]"


class CachedPartition:
    """What a client wants of a partition, and what it knows of it."""

    __slots__ = ("asked", "high_watermark", "key", "log_start_offset")

    def __init__(self, key: PartitionKey, asked: FetchPartition) -> None:
        self.key = key
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1

    def ask(self, asked: FetchPartition) -> None:
        """The client wants it otherwise from now on."""
        self.asked = asked

    def leave(self) -> None:
        """It is in no session any more."""

    def tell(self, row: FetchRow) -> bool:
        """Whether the client has to hear of it; then it knows."""
        news = (
            row.high_watermark != self.high_watermark
            or row.log_start_offset != self.log_start_offset
            or len(row.records) > 0
            or row.error_code != 0
            or row.diverging_epoch is not None
        )
        self.log_start_offset = row.log_start_offset
        self.high_watermark = -1 if row.error_code else row.high_watermark
        return news


P = TypeVar("P", bound=CachedPartition)


class FetchSession(Generic[P]):
    __slots__ = ("created_ms", "epoch", "id", "last_used_ms", "partitions", "privileged", "size", "uses_topic_ids")

    def __init__(
        self, id_: int, partitions: dict[PartitionKey, P], now_ms: float, *, privileged: bool, uses_topic_ids: bool
    ) -> None:
        self.id = id_
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.partitions = partitions
        self.privileged = privileged  # of a replica
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.last_used_ms = now_ms
        self.size = len(partitions)  # when it was last used

    @property
    def value(self) -> tuple[bool, int, int]:
        """What is evicted first is the least."""
        return self.privileged, self.size, self.id

    def is_evictable(self, eviction_ms: float, *, by_privileged: bool) -> bool:
        if by_privileged and not self.privileged:
            return True
        return self.last_used_ms - self.created_ms > eviction_ms


class FetchContext(NamedTuple, Generic[P]):
    """One request: the partitions to read in their order, and what its answer does to sessions."""

    partitions: dict[PartitionKey, P]
    session: FetchSession[P] | None = None  # that it goes on with
    epoch: int = FINAL_EPOCH  # of the session while this is its latest request
    opens: bool = False
    privileged: bool = False
    uses_topic_ids: bool = False

    @property
    def is_superseded(self) -> bool:
        """Whether the client has gone on asking in this session: the answer would come too late."""
        return self.session is not None and self.session.epoch != self.epoch


class Told(NamedTuple, Generic[P]):
    """What the answer says: the error, the session's id, and the partitions with their rows."""

    error_code: int
    session_id: int
    rows: list[tuple[P, FetchRow]]


class FetchSessionCache(Generic[P]):
    """The sessions of a broker."""

    def __init__(
        self,
        new_partition: Callable[[PartitionKey, FetchPartition], P],
        new_number: Callable[[int, int], int],
        now_s: Callable[[], float],
        *,
        max_slots: int,
        eviction_ms: float = EVICTION_MS,
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        """`new_number`: an unforeseeable number from the first to the last; `now_s`: a time that never goes back."""
        self._new_partition = new_partition
        self._new_number = new_number
        self._now_s = now_s
        self._max_slots = max_slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._sessions: dict[int, FetchSession[P]] = {}  # the one used longest ago comes first
        self.partitions = 0  # of all sessions
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession[P]]:
        return iter(self._sessions.values())

    # --- asking ---

    def begin(
        self,
        session_id: int,
        epoch: int,
        asked: Iterable[tuple[PartitionKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
        *,
        privileged: bool,
        uses_topic_ids: bool,
    ) -> FetchContext[P]:
        """What a request asks for; the same partition twice counts as it was named last."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != NO_SESSION:
                self._remove(self._sessions.get(session_id))
            partitions = self._named(asked)
            return FetchContext(partitions, None, FINAL_EPOCH, epoch == INITIAL_EPOCH, privileged, uses_topic_ids)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {session_id}")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}")
        if uses_topic_ids != session.uses_topic_ids:
            ways = ("names", "ids")
            raise FetchSessionTopicIdError(
                f"fetch session {session_id} was opened with {ways[session.uses_topic_ids]} of topics, the request has "
                f"{ways[uses_topic_ids]}: use the version of the session, or open another"
            )
        asked = list(asked)
        self._update(session, asked, forgotten)
        if not session.partitions:
            self._remove(session)
            return FetchContext(self._named(asked))
        self._touch(session)
        session.epoch = next_epoch(session.epoch)
        return FetchContext(session.partitions, session, session.epoch)

    def _named(self, asked: Iterable[tuple[PartitionKey, FetchPartition]]) -> dict[PartitionKey, P]:
        new = self._new_partition
        return {key: new(key, wish) for key, wish in asked}

    def _update(
        self,
        session: FetchSession[P],
        asked: Iterable[tuple[PartitionKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        partitions = session.partitions
        for key, wish in asked:
            known = partitions.get(key)
            if known is None:
                partitions[key] = self._new_partition(key, wish)
            else:
                known.ask(wish)
        for key in forgotten:
            left = partitions.pop(key, None)
            if left is not None:
                left.leave()
        if self.partitions - session.size + len(partitions) > self._max_partitions:
            self._remove(session)
            raise FetchSessionIdNotFound(
                f"fetch session {session.id} has {len(partitions)} partitions, and all sessions together may have "
                f"{self._max_partitions}: it is over"
            )

    # --- answering ---

    def answer(self, context: FetchContext[P], rows: list[tuple[P, FetchRow]]) -> Told[P]:
        """Which of the rows to tell, in which session. A partition without a row has no news."""
        session = context.session
        if session is None:
            return Told(0, self._open(context, rows) if context.opens else NO_SESSION, rows)
        if context.is_superseded:
            return Told(InvalidFetchSessionEpoch.code, session.id, [])
        told = [(partition, row) for partition, row in rows if partition.tell(row)]
        partitions = session.partitions
        for partition, row in told:
            if len(row.records) > 0:
                partitions[partition.key] = partitions.pop(partition.key)
        return Told(0, session.id, told)

    def _open(self, context: FetchContext[P], rows: list[tuple[P, FetchRow]]) -> int:
        size, now_ms = len(context.partitions), self._now_s() * 1000
        if self.partitions + size > self._max_partitions:
            return NO_SESSION
        if len(self._sessions) >= self._max_slots and not self._evict(context.privileged, size, now_ms):
            return NO_SESSION
        for partition, row in rows:
            partition.tell(row)
        session_id = self._new_number(1, MAX_ID)
        while session_id in self._sessions:
            session_id = self._new_number(1, MAX_ID)
        self._sessions[session_id] = FetchSession(
            session_id, context.partitions, now_ms, privileged=context.privileged, uses_topic_ids=context.uses_topic_ids
        )
        self.partitions += size
        return session_id

    # --- room ---

    def _evict(self, privileged: bool, size: int, now_ms: float) -> bool:
        """Make room for a session of so many partitions, if it is worth more than one that is there."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            found: FetchSession[P] | None = oldest
        else:
            candidates = [
                session
                for session in self._sessions.values()
                if session.is_evictable(self._eviction_ms, by_privileged=privileged)
            ]
            found = min(candidates, key=lambda session: session.value, default=None)
            if found is None or (privileged, size, 0) < found.value:
                return False
        self._remove(found)
        self.evictions += 1
        return True

    def _touch(self, session: FetchSession[P]) -> None:
        self._sessions[session.id] = self._sessions.pop(session.id)
        session.last_used_ms = self._now_s() * 1000
        self.partitions += len(session.partitions) - session.size
        session.size = len(session.partitions)

    def _remove(self, session: FetchSession[P] | None) -> None:
        if session is not None:
            del self._sessions[session.id]
            self.partitions -= session.size
            for partition in session.partitions.values():
                partition.leave()


def next_epoch(epoch: int) -> int:
    return 1 if epoch == MAX_EPOCH else epoch + 1
