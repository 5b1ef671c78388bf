"""Room that is kept on the disk for what must not fail: the end of a decided transaction, and what leads to it.

1. A file takes the room while there is plenty, so that no other process can. A write of the broker's own that finds the
   disk full gets it, and is tried again: a marker or a coordinator's record does not fail for want of room while any of
   the reserve is left. A client's write never gets it.
2. The disk is short from the first write on that finds it full: from then on clients cannot write (`check`).
   Readers are served, transactions are ended, topics can be deleted.
3. `run` looks every second whether there is room again: for the reserve, and as much beside it. Then clients can write.
"""

import logging
import threading

from twofold.runtime.api import Disk, Timers
from twofold.wire.errors import KafkaStorageError

FILE_NAME = ".reserve"
CHECK_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class Reserve:
    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        """`size_bytes` 0 keeps no room."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._size = size_bytes
        self._lock = threading.Lock()  # a sync in a thread may be the one that finds the disk full
        self._loop_thread = 0
        self._is_taken = False
        self.is_short = False
        self.serves_client = False  # the event loop is writing a client's batch right now

    def take(self) -> None:
        """Take the room, at the start."""
        if not self._size:
            return
        self._disk.when_full(self._give)
        self._loop_thread = threading.get_ident()
        try:
            self._disk.allocate(self._path, self._size)
            self._is_taken = True
        except OSError as error:
            self.is_short = True
            self._remove()
            log.error(
                "%s has no room for log.reserve.bytes=%d: %s; clients cannot write until there is more",
                self._directory, self._size, error,
            )  # fmt: skip

    def _give(self) -> bool:
        """The disk is full: give the room, unless a client's batch is written. True when there is more room now."""
        with self._lock:
            was_short, self.is_short = self.is_short, True
            gives = self._is_taken and not (self.serves_client and threading.get_ident() == self._loop_thread)
            if gives:
                self._is_taken = False
        if not was_short:
            log.error(
                "%s is full: clients cannot write, log.reserve.bytes=%d are left for the end of transactions",
                self._directory, self._size,
            )  # fmt: skip
        return gives and self._remove()

    def give_back(self) -> None:
        """Leave a directory that was not used after all."""
        if self._is_taken:
            self._is_taken = False
            self._remove()

    def _remove(self) -> bool:
        try:
            self._disk.remove(self._path)
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raises KafkaStorageError while clients may not write."""
        if self.is_short:
            raise KafkaStorageError(
                f"the disk of {self._directory} is full: make room, or give log.dirs another disk (log.reserve.bytes)"
            )

    def restore(self) -> None:
        """Take the room back if there is enough of it."""
        missing = 0 if self._is_taken else self._size
        if not self.is_short or self._disk.free_bytes(self._directory) < self._size + missing:
            return
        if missing:
            try:
                self._disk.allocate(self._path, self._size)
            except OSError:
                self._remove()
                return
            self._is_taken = True
        self.is_short = False
        log.warning("%s has room again: clients can write", self._directory)

    async def run(self, timers: Timers) -> None:
        """Look for room while there is none, until cancelled."""
        while self._size:
            await timers.sleep(CHECK_INTERVAL_S)
            self.restore()
