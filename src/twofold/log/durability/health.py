"""Whether a log may be written to.

After a failed write or sync nothing more is written until the log was opened again (KAFKA-10778). Readers are served.
"""

import logging
from typing import NoReturn

from twofold.log.bounds import LogBounds
from twofold.log.environment import LogContext
from twofold.log.recovery.rescue import mark_sync_failed
from twofold.wire.errors import KafkaStorageError

log = logging.getLogger("twofold.log")

CLOSED = "it is closed"


class LogHealth:
    __slots__ = ("failure", "sync_failed", "_bounds", "_context")

    def __init__(self, context: LogContext, bounds: LogBounds, *, sync_failed: bool) -> None:
        self._context = context
        self._bounds = bounds
        self.failure: str | None = None  # why the log takes no more appends; None while it does
        self.sync_failed = sync_failed  # what lies beyond the recovery point must be written anew

    def check(self) -> None:
        if self.failure is not None:
            raise KafkaStorageError(
                f"{self._context.topic_partition} failed and was not opened again since: {self.failure}"
            )

    def close(self) -> None:
        """Nothing is appended any more, and no new failure is reported."""
        if self.failure is None:
            self.failure = CLOSED

    def mark_sync_failed(self) -> None:
        """Later syncs may succeed and mean nothing; the next process learns that too."""
        self.sync_failed = True
        mark_sync_failed(self._context.environment.disk, self._context.directory)

    def fail(self, what: str, error: Exception, *, only_written: bool = False) -> NoReturn:
        """Stop: what the files hold may differ from what is known about them.

        Unless they were `only_written` it may have been a sync that failed.
        """
        context = self._context
        if isinstance(error, OSError) and not only_written:
            self.mark_sync_failed()
        if self.failure is None:
            self.failure = f"{what}: {error}"
            log.error(
                "%s: %s at log end %d: %s; no more appends until it is opened again",
                context.directory,
                what,
                self._bounds.log_end_offset,
                error,
            )
            context.log_failed()
        raise KafkaStorageError(f"{context.topic_partition}: {what}: {error}") from error
