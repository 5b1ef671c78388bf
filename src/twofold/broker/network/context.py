"""The context that every handler gets, and what a handler gives back (`HandlerResult`)."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from twofold.broker.metrics.durations import OF_REQUESTS_S, Durations
from twofold.wire.message import Message

if TYPE_CHECKING:
    from twofold.broker.quotas.charge import Charge

Buffer: TypeAlias = bytes | bytearray | memoryview

ANONYMOUS = "User:ANONYMOUS"  # a client that did not log in

FASTEST_S = OF_REQUESTS_S[0]


class Peer:
    """The other end of a connection; what is learned about it later (its software, its user) is written here."""

    __slots__ = (
        "client_host", "client_port", "listener", "mute_ms", "mute_quota", "principal", "software_name",
        "software_version",
    )  # fmt: skip

    def __init__(self, client_host: str, client_port: int, listener: str, principal: str = ANONYMOUS) -> None:
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener
        self.principal = principal
        self.mute_ms = 0  # that the connection is to be muted for, by the request that is handled now
        self.mute_quota = ""  # because of which quota
        self.software_name = ""
        self.software_version = ""

    def __str__(self) -> str:
        return f"{self.client_host}:{self.client_port}"


class RequestContext(NamedTuple):
    """One request, without its body."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    peer: Peer
    charge: "Charge | None" = None  # what it costs the client, where quotas are enforced

    @property
    def principal(self) -> str:
        return self.peer.principal

    @property
    def listener(self) -> str:
        return self.peer.listener

    @property
    def client_host(self) -> str:
        return self.peer.client_host


class Frame(NamedTuple):
    """A response, encoded, length included; written in one go without being joined."""

    parts: list[Buffer]
    errors: Sequence[int] = ()
    """The error codes in it, for metrics; none where all is well."""


class Calls:
    """How long the calls of one API took, and which errors were answered. A call ends when its answer goes out."""

    __slots__ = ("errors", "fastest", "fastest_s", "_times")

    def __init__(self) -> None:
        self.errors: dict[int, int] = {}  # how often, by code
        self.fastest = (
            0  # took no longer than FASTEST_S: almost all of them, so that they are counted in the cheapest way
        )
        self.fastest_s = 0.0  # how long all of these took
        self._times = Durations(OF_REQUESTS_S)

    def times(self) -> Durations:
        found = self._times
        found.counts[0] += self.fastest
        found.total_s += self.fastest_s
        self.fastest, self.fastest_s = 0, 0.0
        return found

    def add(self, took_s: float, answer: "Answer | CloseConnection") -> None:
        self._times.add(took_s)
        if type(answer) is Frame and answer.errors:
            for code in answer.errors:
                self.errors[code] = self.errors.get(code, 0) + 1


class NoResponse:
    """What a Produce with acks=0 is answered with."""

    __slots__ = ()


NO_RESPONSE = NoResponse()


class Later:
    """An answer that comes later, encoded.

    `overlaps`: everything whose order matters is done and only the waiting is left, so that the next request of the
    same kind may be handled meanwhile. Answers leave in request order all the same.
    """

    __slots__ = ("answer", "overlaps", "calls", "charge", "started_s")

    def __init__(self, answer: "asyncio.Future[Frame | NoResponse]", overlaps: bool = False) -> None:
        self.answer = answer
        self.overlaps = overlaps
        self.calls: Calls | None = None  # the dispatcher says where the call is to be counted, and since when it lasts
        self.charge: Charge | None = None
        self.started_s = 0.0

    def end(self, now_s: float, answer: "Answer | CloseConnection") -> "Answer | CloseConnection":
        """The answer goes out, with the wait for what the request has cost."""
        if self.charge is not None and not isinstance(answer, CloseConnection):
            answer = self.charge.settle(answer)
        if self.calls is not None:
            self.calls.add(now_s - self.started_s, answer)
        return answer

    def give_up(self) -> None:
        """The client is gone: end what only waits. A task has begun its work, which goes on to its end."""
        if not isinstance(self.answer, asyncio.Task):
            self.answer.cancel()


class CloseConnection(Exception):
    """The only possible answer is to hang up; the text says why."""


Answer: TypeAlias = Frame | NoResponse
HandlerResult: TypeAlias = Message | Answer | Later | Awaitable[Message | Answer]
"""What a handler gives back: the answer, now or later.

Almost all handlers return a message, or are coroutines that do; the dispatcher encodes it. Only Produce and Fetch,
where each microsecond counts, encode their answer (`Frame`) and wait without a task (`Later`).
"""
