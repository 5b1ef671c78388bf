"""Transactional ids for tasks: a process leases a slot, and the slot's id is its own until it ends.

1. At most one process has a slot: a lock on its file, which the kernel frees with the process, whatever ends it.
2. A slot that was used for a batch of a run is free for a later batch of the same run only: batches come one after the
   other, so that the transaction before is decided and done. A slot that another run used is never reused: this
   process cannot tell which run is older.
   Where the prefix has one write at a time (`one_by_one`), what another run used is free: that run is over.
3. An id whose InitProducerId has no known outcome is burnt, by its process or by the process that finds that one dead.
   The request may still be on its way, and would take the id away from its next user.

So the number of ids is bounded by the tasks of a batch, however many processes Spark starts and ends for them. Files of
runs that are over are removed; their ids expire at the broker.
"""

import fcntl
import hashlib
import json
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from twofold.sink import names

OLD_S = 86_400


@dataclass(frozen=True, slots=True)
class Use:
    run_id: str
    batch_id: int


class Slot:
    """A leased id. Call `use` before it is initialized, `known` after, and `burn` if the outcome is not known."""

    def __init__(self, prefix: str, path: Path, file: int, use: Use | None) -> None:
        process, _, number = path.name.partition(".")
        self.transactional_id = names.task_id(prefix, process, int(number))
        self.last = use
        self._path = path
        self._file = file

    def use(self, use: Use) -> None:
        self.last = use
        self._write(use, is_known=False)

    def known(self) -> None:
        assert self.last is not None
        self._write(self.last, is_known=True)

    def _write(self, use: Use, *, is_known: bool) -> None:
        os.pwrite(self._file, json.dumps([use.run_id, use.batch_id, is_known]).encode().ljust(256), 0)

    def burn(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)

    def release(self) -> None:
        os.close(self._file)


class Slots:
    """Of one process and one prefix. Slots stay leased until the process ends: to take one again costs nothing."""

    def __init__(
        self, prefix: str, directory: Path | None = None, *, process: str | None = None, one_by_one: bool = False
    ) -> None:
        self._prefix = prefix
        self._one_by_one = one_by_one
        self._directory = directory or shared_directory() / hashlib.sha256(prefix.encode()).hexdigest()[:16]
        self._process = process or uuid.uuid4().hex[:8]
        self._made = 0
        self._held: list[Slot] = []

    def take(self, use: Use) -> Slot:
        """A slot that is free for this batch, longest unused first."""
        free = [slot for slot in self._held if slot.last is not None and self._may_take(slot.last, use)]
        slot = min(free, key=lambda slot: slot.last.batch_id if slot.last else -1) if free else self._lease(use)
        slot.use(use)
        return slot

    def burn(self, slot: Slot) -> None:
        self._held.remove(slot)
        slot.burn()

    def close(self) -> None:
        for slot in self._held:
            slot.release()
        self._held.clear()

    def _lease(self, use: Use) -> Slot:
        for directory in (self._directory.parent, self._directory):
            directory.mkdir(exist_ok=True, mode=0o700)
            if directory.stat().st_uid != os.getuid():
                raise PermissionError(f"{directory} belongs to another user: remove it, or set TMPDIR to another place")
        # One at a time, so that a file that was removed is not mistaken for one that is there.
        with (self._directory / "lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            slot = self._lease_left_behind(use) or self._make()
        self._held.append(slot)
        return slot

    def _lease_left_behind(self, use: Use) -> Slot | None:
        held = {slot.transactional_id for slot in self._held}
        for path in sorted(self._directory.glob("*.*")):
            file = _locked(path)
            if file is None:
                continue
            last, is_known = _parse(os.pread(file, 256, 0))
            if last is not None and is_known and self._may_take(last, use):
                slot = Slot(self._prefix, path, file, last)
                assert slot.transactional_id not in held
                return slot
            if last is None or (last.run_id != use.run_id and not self._one_by_one):
                self._remove_if_old(path, file)
            elif not is_known:
                path.unlink(missing_ok=True)
            os.close(file)
        return None

    def _may_take(self, last: Use, use: Use) -> bool:
        return _is_free(last, use) or (self._one_by_one and last.run_id != use.run_id)

    def _remove_if_old(self, path: Path, file: int) -> None:
        # The wall clock of a file against that of the directory that was just locked: no clock of ours.
        now = (self._directory / "lock").stat().st_mtime
        if now - os.fstat(file).st_mtime > OLD_S:
            path.unlink(missing_ok=True)

    def _make(self) -> Slot:
        path = self._directory / f"{self._process}.{self._made}"
        self._made += 1
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        return Slot(self._prefix, path, file, None)


def _is_free(last: Use, use: Use) -> bool:
    return last.run_id == use.run_id and last.batch_id < use.batch_id


def _locked(path: Path) -> int | None:
    """The open file; None while another process has it, or when it was burnt under our eyes."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    if not os.fstat(file).st_nlink:
        os.close(file)
        return None
    return file


def _parse(text: bytes) -> tuple[Use | None, bool]:
    try:
        run_id, batch_id, is_known = json.loads(text)
        return Use(str(run_id), int(batch_id)), bool(is_known)
    except (ValueError, TypeError):
        return None, False


def shared_directory() -> Path:
    """Of all programs of this user on this host."""
    return Path(tempfile.gettempdir()) / f"twofold-slots-{os.getuid()}"
