"""What a query's checkpoint says: which query it is, and where each batch ends in its sources.

1. The query's id is the file `metadata`. It stays the same wherever the checkpoint is moved to.
2. Spark writes `offsets/<n>` before batch n runs: what the newest of these files says is what the batch reads.
3. The digest of a batch's input goes by the offsets alone. Times and settings in the file may differ from run to run.

Read on the driver. The directory may be on every file system that Spark can use (`twofold.spark.checkpoints.files`).
"""

import hashlib
import json
import os
import re
import socket
from typing import Any

from twofold.sink import names
from twofold.sink.decided import LONGEST_ENDS, MOST_TOPICS, Input
from twofold.spark.checkpoints.files import Settings, files_at
from twofold.spark.errors import OptionError
from twofold.spark.offsets import Offsets, from_json

VERSION = "v1"
NO_OFFSET = "-"
DIGEST_DIGITS = 16


class Checkpoint:
    """`settings` are those of Spark that the writer was given as options: `spark.hadoop.*`."""

    def __init__(self, location: str, settings: Settings = ()) -> None:
        self.location = location
        self._files = files_at(location, settings)

    def query_id(self) -> str:
        try:
            return str(json.loads(self._read("metadata"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable("metadata", error) from None

    def newest_input(self) -> Input:
        """Of the batch that is about to run, or runs."""
        batches = self._batches()
        if not batches:
            raise self._unreadable("offsets/", "there is no batch in it")
        return self.input_of(max(batches))

    def input_of(self, batch_id: int) -> Input:
        lines = self._lines(batch_id)
        text = "\n".join(map(_canonical, lines))
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
        topics = sorted({topic for line in lines for topic in _topics(line)})
        named = tuple((topic, "") for topic in topics) if len(topics) <= MOST_TOPICS else ()
        return Input(batch_id, digest, text if len(text) <= LONGEST_ENDS else "", named)

    def has(self, batch_id: int) -> bool:
        return batch_id in self._batches()

    def end_offsets(self, batch_id: int) -> Offsets:
        """Where a batch ends, in all of its sources."""
        found: Offsets = {}
        for line in self._lines(batch_id):
            if line != NO_OFFSET:
                found |= self._offsets(line)
        return found

    def check_topics(self) -> None:
        """Refuse sources whose offsets are not a topic's."""
        batches = self._batches()
        if batches:
            self.end_offsets(max(batches))

    def _batches(self) -> list[int]:
        try:
            names = self._files.names("offsets")
        except OSError as error:
            raise self._unreadable("offsets/", error) from None
        return [int(name) for name in names if name.isdecimal()]

    def _lines(self, batch_id: int) -> list[str]:
        """The offsets of a batch, a line for each source."""
        name = f"offsets/{batch_id}"
        try:
            version, _, *lines = self._read(name).splitlines()
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None
        if version != VERSION:
            raise self._unreadable(name, f"its form is {version}, and {VERSION} is known")
        return lines

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
        return self._files.read(name).decode()

    def _unreadable(self, name: str, error: object) -> OptionError:
        return OptionError(
            f"the sink cannot read {name} of the checkpoint {self.location!r} on {self._files.kind}: {error}. It needs "
            "it to know the query and its batches again after a restart. Spark's Python processes know the settings of "
            "the file system that Spark was started with: --conf spark.hadoop.*, spark-defaults.conf, core-site.xml, "
            "the environment. One that the program sets later has to be an option of the writer, too, with the same "
            "name: .option('spark.hadoop.fs.s3a.endpoint', ...). Where that is not possible: transactionalIdPrefix "
            "together with batchCheck=number, which knows a batch by its number alone and skips rows if the checkpoint "
            "was restored from an older copy; consumerGroup is not possible then"
        )


def _topics(line: str) -> set[str]:
    """Of a line of offsets; none where it is another source's."""
    try:
        return {tp.topic for tp in from_json(json.loads(line))}
    except (ValueError, AttributeError, TypeError):
        return set()


def query_at(location: str) -> str | None:
    """The id of the query whose checkpoint is there; None where there is none yet, or it cannot be read."""
    try:
        return Checkpoint(location).query_id()
    except OptionError:
        return None


def place_of(location: str) -> str:
    """The same for every spelling of the place: a directory of this host, or a URI."""
    plain = _plain(location)
    return plain if "://" in plain else f"{socket.gethostname()}:{os.path.abspath(plain)}"


def former_prefixes(location: str) -> tuple[str, ...]:
    """Those that the version before may have chosen, which went by the path as it was spelled."""
    plain = _plain(location)
    spellings = [plain] if "://" in plain else [plain, os.path.abspath(plain), os.path.relpath(plain)]
    return tuple(dict.fromkeys(map(names.prefix_of_checkpoint, spellings)))


def _plain(location: str) -> str:
    return re.sub(r"^file:/+", "/", location).rstrip("/") or "/"


def _canonical(line: str) -> str:
    try:
        return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))
    except ValueError:
        return line
