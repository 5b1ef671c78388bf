"""The runtime of a real process: the operating system's clock, files, sockets and threads.

uvloop is imported only by `run`, so that commands which never start a loop do not pay for it.
"""

import asyncio
import errno
import fcntl
import logging
import os
import resource
import socket
import ssl
import stat
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from ssl import SSLContext
from typing import Any, ClassVar, TypeVar

from twofold.runtime.api import Data, File, HeldSocket, ProtocolFactory, Runtime, Volume
from twofold.runtime.tasks import report_if_unobserved

T = TypeVar("T")
Address = tuple[socket.AddressFamily, Any]

LISTEN_BACKLOG = 1024
PORT_ATTEMPTS = 16
ACCEPTS_PER_TURN = 16
NO_FILES_S = 1.0
TLS_SHUTDOWN_S = 1.0  # what a peer that says nothing may hold a closed connection up

log = logging.getLogger(__name__)

# fdatasync leaves out the times of the file, which nothing here relies on after a crash. macOS has only fsync.
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


UNLIMITED_FILES = 1 << 20


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class RealClock:
    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # as it is: every request reads it twice


class RealTimers:
    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class RealFile:
    """A file descriptor that may be used from several threads.

    The descriptor is closed by its last user: a number closed under a thread that is in fdatasync could be given to
    another file, and the wrong file would be synced.
    """

    __slots__ = ("_path", "_fd", "_disk", "_users", "_closed", "_lock")

    def __init__(self, path: str, fd: int, disk: "RealDisk") -> None:
        self._path = path
        self._disk = disk
        self._fd = fd
        self._users = 0
        self._closed = False
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        return self._path

    def read(self, offset: int, size: int) -> bytes:
        fd = self._acquire()
        try:
            data = os.pread(fd, size, offset)
            if len(data) == size:
                return data
            parts = [data]
            received = len(data)
            while parts[-1] and received < size:
                parts.append(os.pread(fd, size - received, offset + received))
                received += len(parts[-1])
            return b"".join(parts)
        except OSError as error:
            error.filename = self._path  # the descriptor does not tell
            raise
        finally:
            self._release()

    def write(self, offset: int, data: Data) -> None:
        with self._lock:  # as in _acquire: every append comes here
            if self._closed:
                raise OSError(errno.EBADF, "the file is closed", self._path)
            self._users += 1
        fd = self._fd
        try:
            written = os.pwrite(fd, data, offset)
            if written != len(data):
                _write_rest(fd, offset, data, written)
        except OSError as error:
            error.filename = self._path
            if not self._disk.makes_room(error):
                raise
            _write_rest(fd, offset, data, 0)
        finally:
            self._release()

    def size(self) -> int:
        fd = self._acquire()
        try:
            return os.fstat(fd).st_size
        finally:
            self._release()

    def truncate(self, size: int) -> None:
        fd = self._acquire()
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            error.filename = self._path
            raise
        finally:
            self._release()

    def sync(self) -> None:
        fd = self._acquire()
        try:
            _sync_data(fd)
        except OSError as error:
            error.filename = self._path
            raise
        finally:
            self._release()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._users:
                return
        os.close(self._fd)

    def _acquire(self) -> int:
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the file is closed", self._path)
            self._users += 1
            return self._fd

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or not self._closed:
                return
        os.close(self._fd)


def _write_rest(fd: int, offset: int, data: Data, written: int) -> None:
    view = memoryview(data).cast("B")
    while written < len(view):
        written += os.pwrite(fd, view[written:], offset + written)


def raise_open_file_limit() -> None:
    """Allow as many open files as the system lets this process have. The program calls it before the broker starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class RealDiskLock:
    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    __slots__ = ("_make_room",)

    file_type: ClassVar[type[RealFile]] = RealFile

    def __init__(self) -> None:
        self._make_room: Callable[[], bool] | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o644)
        except OSError as error:
            if not self.makes_room(error):
                raise
            fd = os.open(path, flags, 0o644)
        return self.file_type(path, fd, self)

    def when_full(self, make_room: Callable[[], bool]) -> None:
        self._make_room = make_room

    def makes_room(self, error: OSError) -> bool:
        """Whether what failed may be tried again."""
        return error.errno in _NO_ROOM and self._make_room is not None and self._make_room()

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, 0)
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            if not self.makes_room(error):
                raise
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        # Not shutil.rmtree: importing shutil costs a process that starts in 0.3 s more than these lines.
        for directory, subdirectories, files in os.walk(path, topdown=False):
            for name in files:
                os.remove(os.path.join(directory, name))
            for name in subdirectories:
                inner = os.path.join(directory, name)
                if stat.S_ISLNK(os.lstat(inner).st_mode):
                    os.remove(inner)
                else:
                    os.rmdir(inner)
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def volume(self, path: str) -> Volume:
        status = os.statvfs(path)
        unit = status.f_frsize
        return Volume(os.path.abspath(path), status.f_blocks * unit, status.f_bavail * unit)

    def open_file_limit(self) -> int:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return UNLIMITED_FILES if limit == resource.RLIM_INFINITY else limit

    def lock(self, path: str) -> RealDiskLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_exclusively(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(error.errno, "another process holds the lock", path) from error
            raise
        return RealDiskLock(fd, path)


def _lock_exclusively(fd: int) -> None:
    """A lock of the open file: it also excludes another broker in this process, and Apache Kafka on the same directory.

    Plain POSIX locks do not conflict within a process, and flock does not conflict with the JVM's POSIX locks.
    """
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is not None:
        try:
            # struct flock: type, whence, start, length (0 = whole file), pid (must be 0 for this kind of lock).
            fcntl.fcntl(fd, command, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RealListener:
    __slots__ = ("_host", "_port", "_servers")

    def __init__(self, host: str, port: int, servers: list[asyncio.AbstractServer]) -> None:
        self._host = host
        self._port = port
        self._servers = servers

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        for server in self._servers:
            server.close()


class RealHeldSocket:
    """The kernel keeps what the client has sent; it is taken by `begin_tls`."""

    __slots__ = ("_socket", "peer")

    def __init__(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        self._socket: socket.socket | None = accepted
        self.peer = peer

    def take(self) -> socket.socket:
        taken, self._socket = self._socket, None
        if taken is None:
            raise ConnectionAbortedError("the connection is closed")
        return taken

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class RealHeldListener:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        accept: Callable[[RealHeldSocket], None],
    ) -> None:
        self._loop = loop
        self._sockets = list(sockets)
        self._accept_one = accept
        self.host, self.port = sockets[0].getsockname()[:2]
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(LISTEN_BACKLOG)
            loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file handle is left: the next ones wait until others are closed
                log.warning("no connection can be accepted at port %d: %s", self.port, error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(NO_FILES_S, self._again, listening)
                return
            accepted.setblocking(False)
            self._accept_one(RealHeldSocket(accepted, (str(address[0]), int(address[1]))))

    def _again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()


class RealNetwork:
    """TCP. Both asyncio and uvloop set TCP_NODELAY on every connection."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> RealListener:
        """Listens on every address of `host`, all with the same port. An empty host means all interfaces."""
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = _bind_all(found, host, port)
        bound_host, bound_port = sockets[0].getsockname()[:2]
        servers = [await self._loop.create_server(factory, sock=sock, backlog=LISTEN_BACKLOG) for sock in sockets]
        return RealListener(bound_host, bound_port, list(servers))

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if tls is None:
            return await self._loop.create_connection(factory, host, port)
        return await self._loop.create_connection(
            factory, host, port, ssl=tls, server_hostname=host, ssl_shutdown_timeout=TLS_SHUTDOWN_S
        )

    async def listen_held(self, accept: Callable[[RealHeldSocket], None], host: str, port: int) -> RealHeldListener:
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return RealHeldListener(self._loop, _bind_all(found, host, port), accept)

    async def begin_tls(
        self, held: HeldSocket, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, timeout_s: float
    ) -> None:
        assert isinstance(held, RealHeldSocket)
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            held.take(),
            ssl=context,
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S,
        )


def check_can_listen(host: str, port: int) -> None:
    """Raise what `listen` would raise now: the port is in use, or the host is not one of this machine."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    for sock in _bind_all(found, host, port):
        sock.close()


def _bind_all(found: Sequence[tuple[Any, ...]], host: str, port: int) -> list[socket.socket]:
    """`found` by getaddrinfo."""
    addresses: list[Address] = list(dict.fromkeys((entry[0], entry[4]) for entry in found))
    addresses.sort(key=lambda address: address[0] != socket.AF_INET)  # port 0: IPv4 chooses, IPv6 follows
    try:
        return _bind(addresses, port)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from error


def _bind(addresses: list[Address], port: int) -> list[socket.socket]:
    """Bind every address to one port, choosing the port anew when the one chosen for the first is taken elsewhere."""
    attempts = PORT_ATTEMPTS if port == 0 else 1
    for attempt in range(1, attempts + 1):
        sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                _bind_one(sockets, family, address)
            if sockets:
                return sockets
            raise OSError(errno.EADDRNOTAVAIL, "no usable address")
        except OSError as error:
            for sock in sockets:
                sock.close()
            if error.errno != errno.EADDRINUSE or attempt == attempts:
                raise
    raise OSError(errno.EADDRINUSE, "no free port")


def _bind_one(sockets: list[socket.socket], family: socket.AddressFamily, address: Any) -> None:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return
        raise
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        port = sockets[0].getsockname()[1] if sockets else address[1]
        sock.bind((address[0], port, *address[2:]))
    except OSError as error:
        sock.close()
        # "localhost" resolves to ::1 also where IPv6 is switched off.
        if error.errno != errno.EADDRNOTAVAIL or not sockets:
            raise
    else:
        sockets.append(sock)


class _Tasks:
    """asyncio itself holds tasks only weakly."""

    __slots__ = ("_loop", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = self._loop.create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        report_if_unobserved(task, _log_death)
        return task


def _log_death(task: asyncio.Task[Any], error: BaseException) -> None:
    log.error("task %s died: %r", task.get_name(), error, exc_info=error)


def real_runtime(*, pool_size: int = 4) -> Runtime:
    """The runtime of the running loop; at most `pool_size` threads serve `blocking`."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(pool_size, thread_name_prefix="twofold-io")

    def blocking(function: Callable[..., T], *args: Any) -> Awaitable[T]:
        return loop.run_in_executor(pool, function, *args)

    return Runtime(
        clock=RealClock(),
        timers=RealTimers(loop),
        disk=RealDisk(),
        network=RealNetwork(loop),
        random=Random(),
        spawn=_Tasks(loop).spawn,
        blocking=blocking,
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on uvloop, or on asyncio's own loop where uvloop is not installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
