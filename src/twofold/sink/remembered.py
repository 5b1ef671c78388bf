"""Names that have left the register: a record for each, and what is left of those that were pruned. Pure.

1. A name is never forgotten. Beside the register's newest ones each has a record under a key of its own; one that was
   pruned is a number of eight bytes in a record with others.
2. A pruned name that comes again is known by that number, and refused: it is not written twice.
3. The version before dropped names from its register. Where compaction has not removed its old records, they are found
   there, and get records of their own.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from typing import Any

from twofold.sink.decided import DecidedEntry
from twofold.sink.register import VERSION, JournalDamaged, check_version, name_key

PRUNED_PER_RECORD = 20_000
"""Some 11 bytes each: far below the megabyte that a broker takes by default."""
NUMBER_BYTES = 8


def number_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:NUMBER_BYTES]


def pruned_key(prefix: str) -> str:
    """What the keys of pruned names begin with. No prefix has a '%' in it."""
    return f"{prefix}%"


def encode_pruned(prefix: str, names: Iterable[str], now_ms: int) -> list[tuple[bytes, bytes | None]]:
    """Keys and values: the numbers, then the end of each name's own record."""
    wanted = sorted(names)
    records: list[tuple[bytes, bytes | None]] = []
    for index, start in enumerate(range(0, len(wanted), PRUNED_PER_RECORD)):
        numbers = b"".join(map(number_of, wanted[start : start + PRUNED_PER_RECORD]))
        body = {"v": VERSION, "pruned": b64encode(numbers).decode(), "at": now_ms}
        key = f"{pruned_key(prefix)}{now_ms}-{index}"
        records.append((key.encode(), json.dumps(body, separators=(",", ":")).encode()))
    return [*records, *((name_key(prefix, name).encode(), None) for name in wanted)]


class Remembered:
    """Takes all records of a journal in their order, and knows every name of which there is a trace."""

    def __init__(self, prefix: str) -> None:
        self.names: dict[str, DecidedEntry] = {}
        """By their own records."""
        self._prefix = prefix
        self._traces: dict[str, DecidedEntry] = {}
        self._pruned: dict[bytes, int] = {}

    def take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        name = (key or b"").decode("utf-8", "replace")
        try:
            if name.startswith(name_key(self._prefix, "")):
                self._take_name(name.removeprefix(name_key(self._prefix, "")), value)
            elif name.startswith(pruned_key(self._prefix)) and value is not None:
                self._take_pruned(json.loads(value))
            elif name == self._prefix and value is not None:
                self._take_register(json.loads(value))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, NotBase64) as error:
            raise JournalDamaged(f"the record at offset {offset} cannot be read: {error}") from error

    def _take_name(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.names.pop(name, None)
            self._traces.pop(name, None)
            return
        body = json.loads(value)
        check_version(body)
        self.names[name] = DecidedEntry.of(body["name"]).with_topics(body.get("topics", ()))

    def _take_pruned(self, body: dict[str, Any]) -> None:
        check_version(body)
        numbers = b64decode(body["pruned"], validate=True)
        for start in range(0, len(numbers), NUMBER_BYTES):
            self._pruned[numbers[start : start + NUMBER_BYTES]] = int(body["at"])

    def _take_register(self, body: dict[str, Any]) -> None:
        if check_version(body) == 1:
            self._traces |= {entry.name: entry for entry in map(DecidedEntry.of, body["decided"])}

    def get(self, name: str) -> DecidedEntry | None:
        return self.names.get(name) or self._traces.get(name)

    def pruned_at(self, name: str) -> int | None:
        """In milliseconds since 1970; None for one that was not pruned."""
        return self._pruned.get(number_of(name))

    def unwritten(self, known: Iterable[str]) -> tuple[DecidedEntry, ...]:
        """Names that the version before dropped, which have no record of their own and are not `known` either."""
        known = {*known, *self.names}
        traces = self._traces.values()
        return tuple(
            one for one in traces if one.batch_id >= 0 and one.name not in known and not self.pruned_at(one.name)
        )
