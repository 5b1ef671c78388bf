"""The seams between Twofold and the outside world.

Everything above this package gets time, files, sockets, threads and randomness from a `Runtime`, so that a whole
cluster can run in one process on a seeded clock, network and disk. asyncio's tasks, futures and protocols are the
concurrency model in both forms; only what they touch differs.

Rules that both forms keep:

1. `File.write` and `File.truncate` are visible to `File.read` at once, and survive a crash only after `File.sync`.
2. A name that was created, renamed or removed survives a crash only after `Disk.sync_dir` of its directory.
3. `Runtime.blocking` runs its function outside the event loop; it must touch nothing that the loop owns. It starts
   at once, whether awaited or not; when it is cancelled the function may or may not run.
4. A task of `Runtime.spawn` lives until it ends. When it fails and no code awaits it, the failure is reported.
5. Transports are known by their methods: uvloop's are no instances of asyncio.Transport.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from ssl import SSLContext
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Data: TypeAlias = bytes | bytearray | memoryview
ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle: ...

    async def sleep(self, delay_s: float) -> None: ...


class File(Protocol):
    @property
    def path(self) -> str: ...

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def write(self, offset: int, data: Data) -> None:
        """Write all of `data` at `offset`, or raise OSError."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when everything written so far survives a power cut."""
        ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    def is_in_place(self) -> bool:
        """Whether the file that is locked is still the one of that name."""
        ...

    def release(self) -> None: ...


class Volume(NamedTuple):
    path: str  # absolute
    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Without `create` a missing file is FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file that exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def volume(self, path: str) -> Volume:
        """Where a directory really is, and how much there is room for."""
        ...

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes `size` bytes of the disk; OSError where there is no room for it."""
        ...

    def when_full(self, make_room: Callable[[], bool]) -> None:
        """Call `make_room` when a write or a new file finds no room; after True the write is tried once more. It is
        called in any thread."""
        ...

    def open_file_limit(self) -> int:
        """How many files and sockets this process may have open."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Exclusive between processes; BlockingIOError when another holds it."""
        ...


class Listener(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


class HeldSocket(Protocol):
    """A connection that was accepted, and of which nothing has been read."""

    @property
    def peer(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        """Port 0 chooses one."""
        ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """OSError when no node listens there, or when the TLS handshake fails."""
        ...

    async def listen_held(self, accept: Callable[[HeldSocket], None], host: str, port: int) -> Listener:
        """As `listen`, but nothing is read of a connection, and nothing is kept for it, until `begin_tls`."""
        ...

    async def begin_tls(
        self, held: HeldSocket, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, timeout_s: float
    ) -> None:
        """The server's end of a handshake; then the protocol has its connection. OSError when there is none.

        To cancel it is to end the connection.
        """
        ...


class Spawn(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]: ...


class Blocking(Protocol):
    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one node may use of the world."""

    clock: Clock
    timers: Timers
    disk: Disk
    network: Network
    random: Random
    spawn: Spawn
    blocking: Blocking
