"""Who asked what: the context that every handler gets, and what a handler may give back besides a message."""

import asyncio
from typing import Any, NamedTuple, TypeAlias

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
    """An answer that comes later, complete, from a future that is cancelled when the client goes away.

    `overlaps`: everything whose order matters is done and only the waiting is left, so that the next request of the
    same kind may be handled meanwhile. Answers leave in request order all the same.
    """

    answer: "asyncio.Future[Frame | NoResponse]"
    overlaps: bool = False


class CloseConnection(Exception):
    """The only possible answer is to hang up; the text says why."""


Answer: TypeAlias = Frame | NoResponse
# A message dataclass is encoded by the dispatcher, hence Any.
HandlerResult: TypeAlias = Any
