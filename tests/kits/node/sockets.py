"""Raw sockets on the loop, for tests that talk to a server byte by byte."""

import asyncio
import functools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from twofold.runtime.real import run

TIMEOUT_S = 20


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on the loop that the server uses."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await asyncio.wait_for(test(*args, **kwargs), TIMEOUT_S * 2)

        run(main())

    return wrapper


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Wire:
    """One client connection that speaks in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, body: bytes) -> None:
        self.writer.write(framed(body))

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def pause_reading(self) -> None:
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        self._transport().resume_reading()

    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.writer.transport)  # uvloop's is no heir of asyncio's

    async def receive(self) -> bytes:
        size = struct.unpack(">i", await self._exactly(4))[0]
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), TIMEOUT_S)

    async def closed_by_peer(self) -> bool:
        """True when the other side hangs up without having said anything more."""
        try:
            return await asyncio.wait_for(self.reader.read(1), TIMEOUT_S) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(host, port, limit=2**26)
    wire = Wire(reader, writer)
    try:
        yield wire
    finally:
        writer.close()


async def settle(turns: int = 10) -> None:
    """Let what is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to happen on the loop or at the other end of a local socket."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)
