"""Twofold as a process beside the oracle, with the same settings."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kits.processes.server import TwofoldServer
from oracle.kafka import COMMON_SETTINGS


class Twofold(TwofoldServer):
    """`twofold serve` in a directory of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = {}) -> None:
        super().__init__(directory, COMMON_SETTINGS | dict(settings))


@contextmanager
def running_twofold(settings: Mapping[str, str] = {}) -> Iterator[Twofold]:
    with tempfile.TemporaryDirectory(prefix="twofold-differential-", ignore_cleanup_errors=True) as directory:
        server = Twofold(Path(directory), settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()
