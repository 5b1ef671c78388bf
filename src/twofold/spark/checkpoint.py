"""What a query's checkpoint says about its input: which query it is, and where each batch ends.

Read on the driver, for the option consumerGroup. The directory may be local or whatever Arrow has a file system for.
"""

import json
from typing import Any

from pyarrow import fs

from twofold.spark.errors import OptionError
from twofold.spark.offsets import Offsets, from_json

VERSION = "v1"
NO_OFFSET = "-"


class Checkpoint:
    def __init__(self, location: str) -> None:
        self.location = location
        self._path: str
        try:
            self._fs, self._path = fs.FileSystem.from_uri(location) if "://" in location else _local(location)
        except (OSError, ValueError, NotImplementedError) as error:
            raise OptionError(f"consumerGroup needs to read the checkpoint {location!r}: {error}") from None

    def query_id(self) -> str | None:
        """None for a query that has not started."""
        try:
            found = json.loads(self._read("metadata"))["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return str(found)

    def end_offsets(self, batch_id: int) -> Offsets:
        """Where a batch ends, in all of its sources."""
        name = f"offsets/{batch_id}"
        try:
            lines = self._read(name).splitlines()
        except OSError as error:
            raise OptionError(f"consumerGroup needs {name} of the checkpoint {self.location!r}: {error}") from None
        if not lines or lines[0] != VERSION:
            raise OptionError(f"{name} of the checkpoint {self.location!r} is not in the form {VERSION} that is known")
        found: Offsets = {}
        for line in lines[2:]:
            if line != NO_OFFSET:
                found |= self._offsets(line)
        return found

    def check(self) -> None:
        """Refuse a checkpoint that cannot be read, and sources whose offsets are not a topic's."""
        try:
            entries = self._fs.get_file_info(fs.FileSelector(f"{self._path}/offsets"))
        except OSError as error:
            raise OptionError(f"consumerGroup needs to read the checkpoint {self.location!r}: {error}") from None
        batches = [int(entry.base_name) for entry in entries if entry.base_name.isdecimal()]
        if batches:
            self.end_offsets(max(batches))

    def _offsets(self, line: str) -> Offsets:
        try:
            value: Any = json.loads(line)
            return {tp: int(offset) for tp, offset in from_json(value).items()}
        except (ValueError, AttributeError, TypeError):
            raise OptionError(
                f"consumerGroup is for queries that read topics: a source of this one has the offset {line[:80]}. "
                "Leave the option out"
            ) from None

    def _read(self, name: str) -> str:
        with self._fs.open_input_stream(f"{self._path}/{name}") as stream:
            return str(stream.read().decode())


def _local(location: str) -> tuple[Any, str]:
    return fs.LocalFileSystem(), location.removeprefix("file:")
