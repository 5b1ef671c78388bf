"""The context that every handler gets, and what a handler gives back (`HandlerResult`)."""

import asyncio
from collections.abc import Awaitable
from typing import NamedTuple, TypeAlias

from twofold.wire.message import Message

Buffer: TypeAlias = bytes | bytearray | memoryview


class Peer:
    """The other end of a connection; what is learned about it later (its software, its user) is written here."""

    __slots__ = ("client_host", "client_port", "listener", "principal", "software_name", "software_version")

    def __init__(self, client_host: str, client_port: int, listener: str, principal: str = "User:ANONYMOUS") -> None:
        self.client_host = client_host
        self.client_port = client_port
        self.listener = listener
        self.principal = principal
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
    """A response that its handler encoded itself, length included; written in one go without being joined."""

    parts: list[Buffer]


class NoResponse:
    """What a Produce with acks=0 is answered with."""

    __slots__ = ()


NO_RESPONSE = NoResponse()


class Later(NamedTuple):
    """An answer that comes later, encoded.

    `overlaps`: everything whose order matters is done and only the waiting is left, so that the next request of the
    same kind may be handled meanwhile. Answers leave in request order all the same.
    """

    answer: "asyncio.Future[Frame | NoResponse]"
    overlaps: bool = False

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
