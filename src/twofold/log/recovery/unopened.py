"""The files of a log that was not opened since the start: their names are known, and what a clean shutdown said.

Opening reads the files. It runs on the event loop when a log is first used, and in a thread when a failed log is
mended: readers of the failed log are served meanwhile.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from twofold.log.bounds import LogBounds
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.environment import LogContext, LogEnvironment
from twofold.log.indexes.cache import IndexCache
from twofold.log.recovery.opening import DirectoryListing, LogOpener, OpenedLog, read_ahead
from twofold.log.recovery.rescue import has_sync_failed, write_anew
from twofold.log.segments.files import FilePool
from twofold.log.segments.segment import LOG_SUFFIX

FILES_TO_OPEN_WITH = 16


class UnopenedLog:
    __slots__ = ("listing", "skip_recovery_on_open", "_bounds", "_context", "_durability", "_health")

    def __init__(
        self,
        context: LogContext,
        bounds: LogBounds,
        health: LogHealth,
        durability: Durability,
        listing: DirectoryListing,
        *,
        closed_cleanly: bool,
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._health = health
        self._durability = durability
        self.listing = listing
        self.skip_recovery_on_open = closed_cleanly

    @property
    def size_bytes(self) -> int:
        disk, directory = self._context.environment.disk, self._context.directory
        return sum(disk.file_size(f"{directory}/{base:020d}{LOG_SUFFIX}") for base in self.listing.bases)

    def read_ahead(self) -> Callable[[], None]:
        """What a thread may do before the log is opened, so that the opening does not have to wait for the disk."""
        return partial(read_ahead, self._context.environment.disk, self._context.directory, self.listing)

    def open(self) -> OpenedLog:
        return self._open(self._context.environment)

    async def open_in_background(self, is_over: Callable[[], bool]) -> OpenedLog:
        """`open` in a thread, for a log that is not in use yet; raises what went wrong."""
        environment = self._context.environment
        files = FilePool(environment.disk, FILES_TO_OPEN_WITH)
        private = replace(environment, files=files, indexes=IndexCache())
        try:
            opened = await environment.blocking(self._open, private, is_over)
        finally:
            files.close()
        for segment in opened.segments:
            segment.move_to(environment.files, environment.indexes)
            segment.close_files()  # a reader of the failed log may have opened a file that was replaced meanwhile
        for segment in opened.segments[:-1]:
            if segment.is_loaded:
                environment.indexes.touch(segment)
        return opened

    def _open(self, environment: LogEnvironment, is_over: Callable[[], bool] = lambda: False) -> OpenedLog:
        context, bounds, recovery_point = self._context, self._bounds, self._durability.recovery_point
        if self._health.sync_failed or has_sync_failed(environment.disk, context.directory):
            self.skip_recovery_on_open = False
            write_anew(environment.disk, context.directory, self.listing.bases, recovery_point, is_over)
            self._health.sync_failed = False
        opener = LogOpener(
            environment,
            context.directory,
            context.config,
            self.listing,
            recovery_point=recovery_point,
            log_start_offset=bounds.log_start_offset,
            high_watermark=bounds.high_watermark,
            cleaned_offset=bounds.cleaned_offset,
        )
        return opener.open(clean=self.skip_recovery_on_open)
