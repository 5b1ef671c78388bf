"""What one request costs its client, from its first byte to its answer.

1. A request has a charge only while quotas are enforced: `RequestContext.charge` is None otherwise.
2. Produce takes the bytes of its frame once the records are appended, whatever acks says. Fetch takes the bytes of its
   answer before it is sent. Every request takes the time that it keeps the loop busy; followers and markers take none,
   nor does a Produce with acks=0.
3. The longest wait is told in the answer, which goes out at once. Then the connection is muted for as long
   (`Peer.mute_ms`).
4. A fetch that has to wait gets an empty answer, and its bytes are given back. One exception keeps a reader from being
   stopped for ever: if nothing was taken lately, an answer that is larger than the whole burst is given.
"""

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from twofold.broker.network.context import Answer, Frame, Later, NoResponse, Peer, RequestContext
from twofold.broker.quotas.ledger import QuotaLedger
from twofold.broker.quotas.limits import NEW_TRANSACTIONAL_ID, Limit, QuotaKind, user_of
from twofold.broker.quotas.telling import with_throttle_time
from twofold.controller.topics import UNLIMITED, Permits
from twofold.wire.errors import ThrottlingQuotaExceeded

PRODUCE = 0
WRITE_TXN_MARKERS = 27

T = TypeVar("T")


class Charge:
    """One request's."""

    __slots__ = (
        "_api_key", "_client_id", "_is_exempt", "_is_timed", "_ledger", "_peer", "_quota", "_since_s", "_size",
        "_spent_s", "_user", "_version", "_wait_ms",
    )  # fmt: skip

    def __init__(
        self, ledger: QuotaLedger, peer: Peer, client_id: str | None, api_key: int, version: int, size: int
    ) -> None:
        self._ledger = ledger
        self._peer = peer
        self._user = user_of(peer.principal)
        self._client_id = client_id or ""
        self._api_key = api_key
        self._version = version
        self._size = size  # of a Produce that was not charged yet
        self._spent_s = 0.0
        self._since_s: float | None = ledger.now_s()  # when the loop began with it, until the handler has returned
        self._wait_ms = 0  # what is told
        self._quota = ""  # because of which it is
        self._is_exempt = api_key == WRITE_TXN_MARKERS
        self._is_timed = False

    # -- what handlers know

    def exempt(self) -> None:
        """The request is a follower's."""
        self._is_exempt = True

    def most_fetch_bytes(self) -> int | None:
        """A larger answer would have to wait even if nothing had been taken before."""
        burst = self._ledger.burst(QuotaKind.FETCH, self._user, self._client_id)
        return None if burst is None else int(burst)

    def fetched(self, size: int) -> bool:
        """An answer to a fetch is ready; whether it may be given, or an empty one must be."""
        if self._is_exempt:
            return True
        ledger, user, client_id = self._ledger, self._user, self._client_id
        self._look_at_clock()
        slow_ms = self._take_time()
        first = not ledger.has_taken(QuotaKind.FETCH, user, client_id)
        wait_ms = ledger.take(QuotaKind.FETCH, user, client_id, size)
        if not wait_ms and not slow_ms:
            return True
        self._throttle((QuotaKind.FETCH if wait_ms > slow_ms else QuotaKind.REQUEST).label, max(wait_ms, slow_ms))
        if first and not slow_ms:
            return True
        ledger.give_back(QuotaKind.FETCH, user, client_id, size)
        return False

    def permits(self, *, strict: bool) -> Permits:
        """What the controller asks before it changes topics for this client."""
        limit = self._ledger.mutation_limit(self._user, self._client_id)
        return UNLIMITED if limit is None else _Mutations(self._ledger, limit, self._throttle, strict=strict)

    def new_transactional_id(self) -> None:
        """The request has made a transactional id known that was not."""
        wait_ms = self._ledger.take_new_id(self._peer.principal)
        if wait_ms:
            self._throttle(NEW_TRANSACTIONAL_ID, wait_ms)

    # -- what the dispatcher knows

    def spend(self, seconds: float) -> None:
        """The request has kept the loop busy."""
        self._spent_s += seconds

    def handled(self, result: "Answer | Later") -> "Answer | Later":
        """The handler has returned: settle now, or when the answer is there."""
        self._look_at_clock()
        self._since_s = None
        if isinstance(result, Later):
            result.charge = self
            if result.overlaps:
                self._take_bytes()  # the append is done: what comes next on the connection waits already
                self._mute()
            return result
        return self.settle(result)

    def settle(self, answer: Answer) -> Answer:
        """The answer is ready: take what it cost, tell the wait, and have the connection muted."""
        self._take_bytes()
        if type(answer) is not NoResponse:
            slow_ms = self._take_time()
            if slow_ms > self._wait_ms:
                self._throttle(QuotaKind.REQUEST.label, slow_ms)
        if not self._wait_ms:
            return answer
        self._mute()
        if type(answer) is Frame:
            return with_throttle_time(answer, self._api_key, self._version, self._wait_ms)
        return answer

    def _look_at_clock(self) -> None:
        if self._since_s is not None:
            now_s = self._ledger.now_s()
            self.spend(now_s - self._since_s)
            self._since_s = now_s

    def _take_bytes(self) -> None:
        if self._api_key == PRODUCE and self._size:
            wait_ms = self._ledger.take(QuotaKind.PRODUCE, self._user, self._client_id, self._size)
            self._size = 0
            if wait_ms:
                self._throttle(QuotaKind.PRODUCE.label, wait_ms)

    def _take_time(self) -> int:
        if self._is_exempt or self._is_timed:
            return 0
        self._is_timed = True
        return self._ledger.take_time(self._user, self._client_id, self._spent_s)

    def _throttle(self, quota: str, wait_ms: int) -> None:
        if wait_ms > self._wait_ms:
            self._wait_ms, self._quota = wait_ms, quota
        self._ledger.throttled(quota, wait_ms)

    def _mute(self) -> None:
        peer = self._peer
        if self._wait_ms > peer.mute_ms:
            peer.mute_ms, peer.mute_quota = self._wait_ms, self._quota


class _Mutations(Permits):
    """Tokens of a budget. Strict: THROTTLING_QUOTA_EXCEEDED while it is overdrawn; else the client waits for it."""

    def __init__(
        self, ledger: QuotaLedger, limit: Limit, throttle: Callable[[str, int], None], *, strict: bool
    ) -> None:
        self._ledger = ledger
        self._limit = limit
        self._throttle = throttle
        self._is_strict = strict
        self._taken = 0

    def begin(self) -> None:
        if self._taken:
            self._ledger.take_mutations(self._limit, -self._taken)
            self._taken = 0

    def take(self, partitions: int) -> None:
        wait_ms = self._ledger.mutation_wait_ms(self._limit)
        if wait_ms and self._is_strict:
            self._throttle(QuotaKind.CONTROLLER_MUTATION.label, wait_ms)
            raise ThrottlingQuotaExceeded(
                f"controller_mutation_rate={self._limit.bound:g} is used up: try again in {wait_ms} ms"
            )
        self._ledger.take_mutations(self._limit, partitions)
        self._taken += partitions
        wait_ms = 0 if self._is_strict else self._ledger.mutation_wait_ms(self._limit)
        if wait_ms:
            self._throttle(QuotaKind.CONTROLLER_MUTATION.label, wait_ms)


def permits_of(context: RequestContext, *, strict_since: int) -> Permits:
    """What the controller asks before it changes topics for a client."""
    if context.charge is None:
        return UNLIMITED
    return context.charge.permits(strict=context.version >= strict_since)


async def timed(work: Coroutine[Any, Any, T], charge: Charge, now_s: Callable[[], float]) -> T:
    """Run a coroutine, and charge the time of its steps but not of its waits."""
    found: T = await _stepped(work, charge, now_s)
    return found


@coroutine
def _stepped(work: Coroutine[Any, Any, Any], charge: Charge, now_s: Callable[[], float]) -> Generator[Any, Any, Any]:
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        started_s = now_s()
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
        finally:
            charge.spend(now_s() - started_s)
        try:
            value = yield waits_for
            step = work.send
        except BaseException as error:
            value, step = error, work.throw
