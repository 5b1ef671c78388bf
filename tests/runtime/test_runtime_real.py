"""The real runtime keeps the promises of `twofold.runtime.api` on this machine."""

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from twofold.runtime import real
from twofold.runtime.api import Runtime
from twofold.runtime.files import read_file, write_atomically
from twofold.runtime.real import RealDisk, RealFile, real_runtime

T = TypeVar("T")


def with_runtime(body: Callable[[Runtime], Awaitable[T]], *, pool_size: int = 2) -> T:
    async def main() -> T:
        return await asyncio.wait_for(body(real_runtime(pool_size=pool_size)), 20)

    return real.run(main())


def test_file_returns_what_was_written_at_its_offset(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.write(0, b"hello")
    file.write(10, memoryview(b"world"))
    file.write(2, bytearray(b"LL"))
    file.sync()
    assert file.size() == 15
    assert file.read(0, 100) == b"heLLo\0\0\0\0\0world"
    assert file.read(12, 2) == b"rl"
    assert file.read(15, 4) == b""
    file.truncate(4)
    assert file.read(0, 100) == b"heLL"
    file.close()


def test_short_reads_and_writes_of_the_system_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:2], offset))
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.write(0, b"0123456789")
    assert file.read(0, 10) == b"0123456789"
    assert file.read(1, 5) == b"12345"
    assert file.read(8, 100) == b"89"
    file.close()


def test_missing_file_is_created_only_when_asked(tmp_path: Path) -> None:
    disk = RealDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "f"))
    disk.open(str(tmp_path / "f"), create=True).close()
    assert disk.exists(str(tmp_path / "f"))


def test_closed_file_refuses_and_closing_twice_is_harmless(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.close()
    file.close()
    for use in (lambda: file.read(0, 1), lambda: file.write(0, b"x"), file.sync, file.size, lambda: file.truncate(0)):
        with pytest.raises(OSError) as raised:
            use()
        assert raised.value.errno == errno.EBADF


def test_descriptor_stays_open_until_a_sync_in_another_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, synced = threading.Event(), threading.Event(), list[int]()

    def slow_sync(fd: int) -> None:
        entered.set()
        assert go_on.wait(10)
        os.fstat(fd)  # EBADF if close() did not wait for us
        synced.append(fd)

    monkeypatch.setattr(real, "_sync_data", slow_sync)
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    assert isinstance(file, RealFile)
    thread = threading.Thread(target=file.sync)
    thread.start()
    assert entered.wait(10)
    file.close()
    go_on.set()
    thread.join(10)
    assert len(synced) == 1
    with pytest.raises(OSError):
        os.fstat(synced[0])


def test_directory_operations(tmp_path: Path) -> None:
    disk = RealDisk()
    base = str(tmp_path)
    disk.make_dirs(f"{base}/a/b")
    disk.make_dirs(f"{base}/a/b")
    for name in ("z", "y"):
        write_atomically(disk, f"{base}/a/b/{name}", name.encode())
    disk.sync_dir(f"{base}/a")
    assert disk.list(f"{base}/a/b") == ["y", "z"]
    assert disk.is_dir(f"{base}/a") and not disk.is_dir(f"{base}/a/b/z")
    assert disk.file_size(f"{base}/a/b/z") == 1
    assert abs(disk.modified_ms(f"{base}/a/b/z") - real.RealClock().wall_ms()) < 60_000
    assert disk.free_bytes(base) > 0
    disk.rename(f"{base}/a/b/y", f"{base}/a/b/z")
    assert read_file(disk, f"{base}/a/b/z") == b"y"
    disk.rename(f"{base}/a", f"{base}/gone-delete")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "gone-delete" / "link").symlink_to(tmp_path / "outside")
    disk.remove_tree(f"{base}/gone-delete")
    assert disk.list(base) == ["outside"]
    assert disk.list(f"{base}/outside") == ["kept"]
    disk.remove(f"{base}/outside/kept")
    assert disk.list(f"{base}/outside") == []


def test_write_atomically_leaves_no_temporary_file_and_keeps_the_old_content_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    write_atomically(disk, path, b"one")
    write_atomically(disk, path, b"2")
    assert read_file(disk, path) == b"2"

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(real, "_sync_data", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(disk, path, b"three")
    assert disk.list(str(tmp_path)) == ["checkpoint"]
    assert read_file(disk, path) == b"2"


def test_lock_excludes_this_process_and_others_until_released(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / ".lock")
    attempt = "import sys; from twofold.runtime.real import RealDisk; RealDisk().lock(sys.argv[1])"
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError, match="another process"):
        disk.lock(path)
    other = subprocess.run([sys.executable, "-c", attempt, path], capture_output=True, text=True, check=False)
    assert other.returncode == 1 and "BlockingIOError" in other.stderr
    lock.release()
    lock.release()
    subprocess.run([sys.executable, "-c", attempt, path], check=True)
    disk.lock(path).release()


def test_lock_excludes_a_posix_lock_such_as_the_jvm_takes(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = RealDisk().lock(path)
    attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = subprocess.run([sys.executable, "-c", attempt, path], capture_output=True, text=True, check=False)
    assert other.returncode == 1 and "BlockingIOError" in other.stderr
    lock.release()


class Echo(asyncio.Protocol):
    nodelay: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sock:
            Echo.nodelay = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Collect(asyncio.Protocol):
    def __init__(self, expected: int) -> None:
        self.data = b""
        self.expected = expected
        self.complete: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data
        if len(self.data) >= self.expected and not self.complete.done():
            self.complete.set_result(self.data)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_network_round_trip_without_nagle(host: str) -> None:
    async def body(runtime: Runtime) -> None:
        listener = await runtime.network.listen(Echo, host, 0)
        assert listener.port > 0
        for target in ("127.0.0.1", "localhost") if host != "127.0.0.1" else ("127.0.0.1",):
            transport, protocol = await runtime.network.connect(lambda: Collect(5), target, listener.port)
            assert isinstance(protocol, Collect)
            transport.write(b"hello")
            assert await protocol.complete == b"HELLO"
            transport.close()
        assert Echo.nodelay
        listener.close()
        with pytest.raises(OSError):
            await runtime.network.connect(lambda: Collect(1), "127.0.0.1", listener.port)

    with_runtime(body)


def test_taken_port_is_named_in_the_error() -> None:
    async def body(runtime: Runtime) -> None:
        listener = await runtime.network.listen(Echo, "127.0.0.1", 0)
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{listener.port}: Address already in use"):
            await runtime.network.listen(Echo, "127.0.0.1", listener.port)
        listener.close()

    with_runtime(body)


def test_port_can_be_reused_right_after_a_close() -> None:
    async def body(runtime: Runtime) -> None:
        first = await runtime.network.listen(Echo, "127.0.0.1", 0)
        transport, protocol = await runtime.network.connect(lambda: Collect(1), "127.0.0.1", first.port)
        assert isinstance(protocol, Collect)
        transport.write(b"x")
        await protocol.complete
        first.close()
        transport.close()
        (await runtime.network.listen(Echo, "127.0.0.1", first.port)).close()

    with_runtime(body)


def test_blocking_runs_outside_the_loop_in_at_most_pool_size_threads() -> None:
    async def body(runtime: Runtime) -> None:
        barrier = threading.Barrier(2, timeout=10)

        def work() -> int:
            barrier.wait()  # needs two threads at once
            return threading.get_ident()

        threads = await asyncio.gather(*(runtime.blocking(work) for _ in range(8)))
        assert threading.get_ident() not in threads
        assert len(set(threads)) == 2
        with pytest.raises(ZeroDivisionError):
            await runtime.blocking(divmod, 1, 0)

    with_runtime(body, pool_size=2)


def test_timers_fire_and_can_be_cancelled() -> None:
    async def body(runtime: Runtime) -> None:
        fired: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        runtime.timers.call_later(0, lambda: pytest.fail("cancelled timer fired")).cancel()
        runtime.timers.call_later(0.001, lambda: fired.set_result("fired"))
        before = runtime.clock.monotonic()
        await runtime.timers.sleep(0.002)
        assert await fired == "fired"
        assert runtime.clock.monotonic() > before

    with_runtime(body)


async def fail() -> None:
    raise ValueError("lost in the background")


def test_spawned_task_that_dies_unobserved_is_logged_even_while_referenced(caplog: pytest.LogCaptureFixture) -> None:
    async def body(runtime: Runtime) -> asyncio.Task[Any]:
        task = runtime.spawn(fail(), name="retention")
        await runtime.timers.sleep(0.001)
        return task

    with caplog.at_level(logging.ERROR):
        with_runtime(body)
    assert [r.getMessage() for r in caplog.records] == ["task retention died: ValueError('lost in the background')"]
    assert caplog.records[0].exc_info is not None


def test_spawned_task_that_is_awaited_or_cancelled_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body(runtime: Runtime) -> None:
        with pytest.raises(ValueError, match="lost"):
            await runtime.spawn(fail(), name="awaited")
        assert isinstance(
            (await asyncio.gather(runtime.spawn(fail(), name="x"), return_exceptions=True))[0], ValueError
        )
        runtime.spawn(asyncio.sleep(60), name="cancelled").cancel()
        await runtime.timers.sleep(0.001)

    with caplog.at_level(logging.DEBUG, logger="twofold"):
        with_runtime(body)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_run_uses_uvloop_and_falls_back_to_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def loop_module() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert real.run(loop_module()).startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert real.run(loop_module()).startswith("asyncio")


def test_import_of_the_runtime_does_not_load_uvloop_or_heavy_modules() -> None:
    script = "import sys, twofold.runtime.real; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["uvloop", "multiprocessing", "concurrent.futures.process", "shutil", "tempfile", "hypothesis"]
    output = subprocess.run(
        [sys.executable, "-S", "-c", script, *heavy],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(real.__file__).parents[2])},
    ).stdout
    assert output.strip() == "[]"
