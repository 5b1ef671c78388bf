"""SQLite: a file, and no server that could be stopped."""

import shutil
import tempfile
from pathlib import Path
from typing import Self


class SqliteFiles:
    """A folder of databases."""

    name = "sqlite"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="twofold-sqlite-"))

    def start(self) -> None:
        """Nothing runs."""

    def url(self, database: str) -> str:
        """For SQLAlchemy."""
        return f"sqlite:///{self._folder / database}.db"

    def create(self, database: str) -> str:
        """A new database; returns its URL. The file appears with its first table."""
        return self.url(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
