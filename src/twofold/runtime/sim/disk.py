"""A disk in memory that forgets, on a power cut, what a real one may forget.

Invariants:

1. Content that was synced (`File.sync`) and not overwritten since is there after every crash.
2. A name that was synced (`Disk.sync_dir` of its directory) and not touched since is there after every crash.
3. Of the writes to a file since its last sync a power cut keeps a prefix, the last of them possibly torn at any byte
   (mode ORDERED), or any subset, each possibly with a hole in it (mode REORDERED): a lost range reads as what was there
   before, or as zeros where something behind it was kept. Files are independent of each other.
4. Of the name changes since their directory's last sync a power cut keeps a prefix (ORDERED) or any subset (REORDERED).
   A rename is kept or lost as a whole within one directory.
5. What can be read after a crash is on the platter: it survives the next crash.
6. Handles and locks from before a crash are dead: every use raises OSError.
"""

import errno
import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from twofold.runtime.api import Data, File, Volume

DEFAULT_CAPACITY_BYTES = 1 << 40
SIM_FILE_LIMIT = 1024


class PowerCut(BaseException):
    """Power went away in the middle of a disk operation (`SimDisk.cut_power_after`).

    Not an OSError: nothing that handles errors may run on, because a machine without power does not.
    """


class CutMode(Enum):
    ORDERED = "ordered"
    REORDERED = "reordered"


class _Change(NamedTuple):
    """A write (`data` at `offset`) or a truncate to `offset` (`data` is None), and what undoes it."""

    offset: int
    data: bytes | None
    old_bytes: bytes
    old_size: int


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    unsynced: list[_Change] = field(default_factory=list)
    modified_ms: int = 0
    sync_lies: bool = False
    """A sync failed and the kernel dropped the pages it could not write: later syncs succeed and mean nothing."""

    def write(self, offset: int, data: bytes) -> None:
        size = len(self.content)
        end = offset + len(data)
        self.unsynced.append(_Change(offset, data, bytes(self.content[offset:end]), size))
        self._put(offset, data)

    def truncate(self, size: int) -> None:
        self.unsynced.append(_Change(size, None, bytes(self.content[size:]), len(self.content)))
        self._resize(size)

    def _put(self, offset: int, data: bytes) -> None:
        if offset > len(self.content):
            self._resize(offset)
        self.content[offset : offset + len(data)] = data

    def _resize(self, size: int) -> None:
        if size < len(self.content):
            del self.content[size:]
        else:
            self.content.extend(bytes(size - len(self.content)))

    def sync(self) -> None:
        if not self.sync_lies:
            self.unsynced.clear()

    def cut(self, random: Random, mode: CutMode) -> None:
        """Back to what was synced, then again forward over what the cut spared."""
        changes, self.unsynced, self.sync_lies = self.unsynced, [], False
        for change in reversed(changes):
            self._resize(change.old_size)
            start = change.offset
            self.content[start : start + len(change.old_bytes)] = change.old_bytes
        survivors = _prefix_with_torn_tail if mode is CutMode.ORDERED else _any_subset
        for change, pieces in survivors(changes, random):
            if change.data is None:
                self._resize(change.offset)
            for start, end in pieces:
                self._put(change.offset + start, change.data[start:end] if change.data is not None else b"")


_Pieces = list[tuple[int, int]]


def _prefix_with_torn_tail(changes: list[_Change], random: Random) -> list[tuple[_Change, _Pieces]]:
    if not changes:
        return []
    # All and nothing are common in real cuts and the interesting ends of the range: uniform choice would starve them.
    kept = random.choice((0, len(changes), random.randint(0, len(changes)), random.randint(0, len(changes))))
    survivors = [(change, [(0, len(change.data or b""))]) for change in changes[:kept]]
    if kept < len(changes) and changes[kept].data and random.random() < 0.75:
        torn = changes[kept]
        survivors.append((torn, [(0, random.randint(0, len(torn.data or b"") - 1))]))
    return [(change, [piece for piece in pieces if piece[0] < piece[1]]) for change, pieces in survivors]


def _any_subset(changes: list[_Change], random: Random) -> list[tuple[_Change, _Pieces]]:
    survivors: list[tuple[_Change, _Pieces]] = []
    for change in changes:
        length = len(change.data or b"")
        fate = random.choice(("kept", "kept", "lost", "torn")) if length else random.choice(("kept", "lost"))
        if fate == "kept":
            survivors.append((change, [(0, length)] if length else []))
        elif fate == "torn":
            start, end = sorted((random.randint(0, length), random.randint(0, length)))
            survivors.append((change, [piece for piece in ((0, start), (end, length)) if piece[0] < piece[1]]))
    return survivors


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, "_Node"] = field(default_factory=dict)
    synced: dict[str, "_Node"] = field(default_factory=dict)
    modified_ms: int = 0


_Node = _Inode | _Directory


class _NameChange(NamedTuple):
    directory: _Directory
    name: str
    node: _Node | None


class SimFile:
    __slots__ = ("_disk", "_path", "_inode", "_life", "_closed")

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.crashes
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def read(self, offset: int, size: int) -> bytes:
        self._check()
        self._disk._before_read(self._path)
        if offset < 0 or size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        return bytes(self._inode.content[offset : offset + size])

    def write(self, offset: int, data: Data) -> None:
        self._check()
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        self._disk._write(self._path, self._inode, offset, bytes(data))

    def size(self) -> int:
        self._check()
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._check()
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        self._disk._truncate(self._path, self._inode, size)

    def sync(self) -> None:
        self._check()
        self._disk._sync(self._path, self._inode)

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._life != self._disk.crashes:
            raise OSError(errno.EIO, "the file was opened before the crash", self._path)
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)


class SimDiskLock:
    __slots__ = ("_disk", "_path", "_life")

    def __init__(self, disk: "SimDisk", path: str) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.crashes

    def is_in_place(self) -> bool:
        return self._life == self._disk.crashes and self._path in self._disk._locks and self._disk.exists(self._path)

    def release(self) -> None:
        if self._life == self._disk.crashes:
            self._disk._locks.pop(self._path, None)
            self._life = -1


@dataclass(slots=True)
class _Fault:
    times: int
    match: str
    error: int
    lose: bool = False


class SimDisk:
    """See the module's invariants. `random` decides all that a crash or a fault leaves open.

    `now_ms` gives modification times; `trace` hears of every change; `guard` may refuse any use by raising OSError.
    """

    def __init__(
        self,
        random: Random,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        trace: Callable[[str], None] | None = None,
        guard: Callable[[], None] | None = None,
        cut_mode: CutMode = CutMode.ORDERED,
    ) -> None:
        self.random = random
        self.cut_mode = cut_mode
        self.read_only = False
        self.capacity_bytes = DEFAULT_CAPACITY_BYTES
        self.used_bytes = 0
        self.crashes = 0
        self.operations = 0  # changes asked for so far: writes, truncates, syncs, name changes
        self._now_ms = now_ms
        self._trace = trace
        self._guard = guard
        self._root = _Directory()
        self._unsynced_names: list[list[_NameChange]] = []
        self._locks: dict[str, None] = {}
        self._faults: dict[str, _Fault] = {}
        self._cut_at: int | None = None
        self._on_cut: Callable[[], None] | None = None
        self._make_room: Callable[[], bool] | None = None
        self._allocated: dict[str, int] = {}  # sizes of files that hold nothing but room

    # Faults

    def fail_writes(self, times: int = 1, *, match: str = "", error: int = errno.EIO) -> None:
        """The next `times` writes to paths that contain `match` fail, after a part that may have been written."""
        self._faults["write"] = _Fault(times, match, error)

    def fail_reads(self, times: int = 1, *, match: str = "", error: int = errno.EIO) -> None:
        self._faults["read"] = _Fault(times, match, error)

    def fail_syncs(self, times: int = 1, *, match: str = "", error: int = errno.EIO, lose: bool = False) -> None:
        """The next `times` syncs of files or directories fail.

        With `lose` the kernel also marks the unwritten pages clean, as Linux does: they stay readable, later syncs of
        that file succeed, and a power cut still loses them.
        """
        self._faults["sync"] = _Fault(times, match, error, lose)

    def set_free_bytes(self, free: int) -> None:
        """From now on only `free` more bytes fit."""
        self.capacity_bytes = self.used_bytes + free

    def clear_faults(self) -> None:
        self._faults.clear()
        self.read_only = False
        self.capacity_bytes = max(self.capacity_bytes, DEFAULT_CAPACITY_BYTES)
        self._cut_at = self._on_cut = None

    def cut_power_after(self, operations: int, on_cut: Callable[[], None] | None = None) -> None:
        """Raise PowerCut from the change that follows `operations` more, and from all later ones until `crash`.

        `on_cut` is called first, to crash at that very moment; a write that is interrupted so leaves a part behind.
        """
        self._cut_at = self.operations + operations
        self._on_cut = on_cut

    def sync_all(self) -> None:
        """All that was written reaches the platter now, as it does by itself when nothing happens for a while."""
        self._unsynced_names = []
        _sync_below(self._root)

    def crash(self, *, power_cut: bool = True) -> None:
        """Kill the machine (or, without `power_cut`, only its process: then nothing that was written is lost)."""
        self.crashes += 1
        self._cut_at = self._on_cut = self._make_room = None
        self._locks.clear()
        if power_cut:
            self._cut_names()
            self.used_bytes = self._settle(self._root) + sum(self._allocated.values())
        self._note(f"crash power_cut={power_cut}")

    def _cut_names(self) -> None:
        changes, self._unsynced_names = self._unsynced_names, []
        if self.cut_mode is CutMode.ORDERED:
            survivors = changes[: self.random.randint(0, len(changes))]
        else:
            survivors = [change for change in changes if self.random.random() < 0.5]
        for group in survivors:
            for change in group:
                _apply(change)

    def _settle(self, directory: _Directory) -> int:
        directory.names = dict(directory.synced)
        used = 0
        for node in directory.names.values():
            if isinstance(node, _Directory):
                used += self._settle(node)
            else:
                node.cut(self.random, self.cut_mode)
                used += len(node.content)
        return used

    # Disk

    def open(self, path: str, *, create: bool = False) -> File:
        node = self._find(path)
        if node is None:
            if not create:
                raise _error(FileNotFoundError, errno.ENOENT, path)
            node = self._create(path)
        if isinstance(node, _Directory):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def file_size(self, path: str) -> int:
        node = self._node(path)
        return len(node.content) if isinstance(node, _Inode) else 0

    def modified_ms(self, path: str) -> int:
        return self._node(path).modified_ms

    def list(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def make_dirs(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            node = directory.names.get(name)
            if node is None:
                self._before_change("mkdir", path)
                node = _Directory(modified_ms=self._now_ms())
                self._change_names(_NameChange(directory, name, node))
            if isinstance(node, _Inode):
                raise _error(FileExistsError, errno.EEXIST, path)
            directory = node

    def rename(self, source: str, target: str) -> None:
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        node = source_directory.names.get(source_name)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, source)
        replaced = target_directory.names.get(target_name)
        if isinstance(replaced, _Directory) and isinstance(node, _Inode):
            raise _error(IsADirectoryError, errno.EISDIR, target)
        if isinstance(replaced, _Directory) and replaced.names and replaced is not node:
            raise _error(OSError, errno.ENOTEMPTY, target)
        if isinstance(replaced, _Inode) and isinstance(node, _Directory):
            raise _error(NotADirectoryError, errno.ENOTDIR, target)
        self._before_change("rename", source, target)
        if replaced is node:
            return
        self._forget(replaced)
        self._change_names(
            _NameChange(source_directory, source_name, None), _NameChange(target_directory, target_name, node)
        )

    def remove(self, path: str) -> None:
        if path in self._allocated:
            self._before_change("remove", path)
            self.used_bytes -= self._allocated.pop(path)
            return
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        if isinstance(node, _Directory):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        self._before_change("remove", path)
        self._forget(node)
        self._change_names(_NameChange(directory, name, None))

    def remove_tree(self, path: str) -> None:
        directory = self._directory(path)
        for name in self.list(path):
            inner = posixpath.join(path, name)
            if isinstance(directory.names[name], _Directory):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self._before_change("rmdir", path)
        parent, name = self._parent(path)
        self._change_names(_NameChange(parent, name, None))

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._before_change("sync_dir", path)
        self._maybe_fail("sync", path)
        remaining: list[list[_NameChange]] = []
        for group in self._unsynced_names:
            kept = [change for change in group if change.directory is not directory]
            if kept:
                remaining.append(kept)
        self._unsynced_names = remaining
        directory.synced = dict(directory.names)

    def free_bytes(self, path: str) -> int:
        self._node(path)
        return max(0, self.capacity_bytes - self.used_bytes)

    def volume(self, path: str) -> Volume:
        return Volume(path, self.capacity_bytes, self.free_bytes(path))

    def allocate(self, path: str, size: int) -> None:
        """The room is taken; there is nothing to read, so nothing is kept."""
        self._before_change("allocate", path, size)
        self.used_bytes -= self._allocated.pop(path, 0)
        if size > self.capacity_bytes - self.used_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._allocated[path] = size
        self.used_bytes += size

    def when_full(self, make_room: Callable[[], bool]) -> None:
        self._make_room = make_room

    def open_file_limit(self) -> int:
        return SIM_FILE_LIMIT

    def lock(self, path: str) -> SimDiskLock:
        self.open(path, create=True).close()
        key = posixpath.normpath(path)
        if key in self._locks:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", path)
        self._locks[key] = None
        return SimDiskLock(self, key)

    # What files ask of their disk

    def _write(self, path: str, inode: _Inode, offset: int, data: bytes) -> None:
        if self._is_cut_due() and self._on_cut is not None:
            self._check_guard()
            self._grow_and_write(inode, offset, data[: self.random.randint(0, len(data))])
        self._before_change("write", path, offset, len(data))
        fault = self._fault("write", path)
        if fault is not None:
            self._grow_and_write(inode, offset, data[: self.random.randint(0, len(data))])
            raise OSError(fault.error, os.strerror(fault.error), path)
        if self._lacks_room(inode, offset, data) and self._make_room is not None and self._make_room():
            self._note(f"room is made for {path}")
        missing = self._lacks_room(inode, offset, data)
        if missing:
            # The operating system writes what fits before it says that no more does.
            self._grow_and_write(inode, offset, data[: max(0, len(data) - missing)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._grow_and_write(inode, offset, data)

    def _lacks_room(self, inode: _Inode, offset: int, data: bytes) -> int:
        """How many bytes of a write do not fit."""
        growth = offset + len(data) - len(inode.content)
        return max(0, growth - (self.capacity_bytes - self.used_bytes))

    def _grow_and_write(self, inode: _Inode, offset: int, data: bytes) -> None:
        if data:
            self.used_bytes += max(0, offset + len(data) - len(inode.content))
            inode.write(offset, data)
            inode.modified_ms = self._now_ms()

    def _truncate(self, path: str, inode: _Inode, size: int) -> None:
        self._before_change("truncate", path, size)
        self.used_bytes += size - len(inode.content)
        inode.truncate(size)
        inode.modified_ms = self._now_ms()

    def _sync(self, path: str, inode: _Inode) -> None:
        self._before_change("sync", path)
        self._maybe_fail("sync", path, inode)
        inode.sync()

    def _before_read(self, path: str) -> None:
        self._check_guard()
        self._maybe_fail("read", path)

    # Inside

    def _check_guard(self) -> None:
        if self._guard is not None:
            self._guard()

    def _before_change(self, operation: str, path: str, *details: object) -> None:
        self._check_guard()
        if self._is_cut_due():
            on_cut, self._on_cut = self._on_cut, None
            if on_cut is not None:
                on_cut()
            raise PowerCut(f"{operation} {path}")
        self.operations += 1
        if self._trace is not None:
            self._note(" ".join([operation, path, *map(str, details)]))
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def _is_cut_due(self) -> bool:
        return self._cut_at is not None and self.operations >= self._cut_at

    def _note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(text)

    def _fault(self, kind: str, path: str) -> _Fault | None:
        fault = self._faults.get(kind)
        if fault is None or fault.times <= 0 or fault.match not in path:
            return None
        fault.times -= 1
        self._note(f"fault {kind} {path}")
        return fault

    def _maybe_fail(self, kind: str, path: str, inode: _Inode | None = None) -> None:
        fault = self._fault(kind, path)
        if fault is not None:
            if inode is not None and fault.lose:
                inode.sync_lies = True
            raise OSError(fault.error, os.strerror(fault.error), path)

    def _find(self, path: str) -> _Node | None:
        self._check_guard()
        node: _Node = self._root
        for name in _parts(path):
            if isinstance(node, _Inode):
                return None
            found = node.names.get(name)
            if found is None:
                return None
            node = found
        return node

    def _node(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, _Inode):
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parts = _parts(path)
        if not parts:
            raise _error(OSError, errno.EBUSY, path)
        return self._directory("/".join(parts[:-1])), parts[-1]

    def _create(self, path: str) -> _Inode:
        directory, name = self._parent(path)
        self._before_change("create", path)
        inode = _Inode(modified_ms=self._now_ms())
        self._change_names(_NameChange(directory, name, inode))
        return inode

    def _change_names(self, *changes: _NameChange) -> None:
        for directory, name, node in changes:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node
            directory.modified_ms = self._now_ms()
        self._unsynced_names.append(list(changes))

    def _forget(self, node: _Node | None) -> None:
        if isinstance(node, _Inode):
            self.used_bytes -= len(node.content)


def _sync_below(directory: _Directory) -> None:
    directory.synced = dict(directory.names)
    for node in directory.names.values():
        if isinstance(node, _Directory):
            _sync_below(node)
        else:
            node.sync()


def _apply(change: _NameChange) -> None:
    if change.node is None:
        change.directory.synced.pop(change.name, None)
    else:
        change.directory.synced[change.name] = change.node


def _parts(path: str) -> list[str]:
    return [part for part in posixpath.normpath(path).split("/") if part not in ("", ".")]


def _error(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)
