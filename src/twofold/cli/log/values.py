"""What stands in a log, as rows for people and for programs: bytes, records, a line of text or of JSON.

A row is a mapping of plain values that begins with `what` it is. Bytes are text where they are printable, else hex,
and never more of them than asked for.
"""

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

from twofold.log.recovery.checkpoints import encode_uuid

Row: TypeAlias = dict[str, Any]

_INDENTED = {"record": 2, "control": 2, "damage": 0}
_TIMES = ("timestamp", "_ms")
_NO_TIMES = ("timeout_ms", "interval_ms")  # spans
_SPECIAL = set(' "=,{}[]')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Said only where there is something to say.
_DEFAULTS: dict[str, Any] = {
    "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "last_sequence": -1, "transactional": False,
    "compression": "none", "headers": [], "resumes_at": None, "control": None, "delete_horizon_ms": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes, cut to what is to be seen of them."""

    size: int
    text: str | None
    hex: str | None
    cut: bool

    def as_json(self) -> Row:
        content = {"hex": self.hex} if self.text is None else {"text": self.text}
        return {"size": self.size, **content} | ({"cut": True} if self.cut else {})

    def as_text(self) -> str:
        content = f"0x{self.hex}" if self.text is None else _quoted(self.text)
        return f"{content}...({self.size} bytes)" if self.cut else content


def shown(data: bytes | None, most: int) -> Shown | None:
    """What to show of a key or a value."""
    if data is None:
        return None
    part, cut = data[:most], len(data) > most
    try:
        # A character that the cut goes through is left out.
        text = codecs.getincrementaldecoder("utf-8")().decode(part, final=not cut)
    except UnicodeDecodeError:
        return Shown(len(data), None, part.hex(), cut)
    if all(letter.isprintable() or letter in "\n\r\t" for letter in text):
        return Shown(len(data), text, None, cut)
    return Shown(len(data), None, part.hex(), cut)


def plain(value: Any, most: int) -> Any:
    """A record of any of our decoders as dicts, lists, numbers and text."""
    if isinstance(value, bytes):
        return shown(value, most)
    if isinstance(value, UUID):
        return encode_uuid(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(item, most) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, tuple | list):
        return [plain(item, most) for item in value]
    return value


def json_line(row: Row) -> str:
    # Escaped throughout: names of headers may hold bytes that are no UTF-8, as lone surrogates.
    return json.dumps(row, default=lambda value: value.as_json(), separators=(",", ":"))


def text_line(row: Row) -> str:
    what = str(row["what"])
    if what == "file":
        return f"# {_printable(row['path'])}: {row['kind']}, {row['size']} bytes"
    fields = {
        name: value
        for name, value in row.items()
        if name != "what" and not (name in _DEFAULTS and _DEFAULTS[name] == value)
    }
    return " ".join((" " * _INDENTED.get(what, 0) + (what.upper() if what == "damage" else what), *_pairs(fields)))


def value_text(value: Any) -> str:
    """A plain value in a line; of a mapping its fields."""
    return " ".join(_pairs(value)) if isinstance(value, Mapping) else _text("", value)


def _pairs(fields: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name}={_text(name, value)}" for name, value in fields.items())


def _text(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Shown):
        return value.as_text()
    if isinstance(value, int) and value >= 0 and name.endswith(_TIMES) and not name.endswith(_NO_TIMES):
        return _moment(value)
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{_printable(key)}={_text(key, item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text("", item) for item in value) + "]"
    return _printable(value) if isinstance(value, str) else str(value)


def _moment(timestamp_ms: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)  # beyond the year 9999
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def _printable(text: str) -> str:
    return text if text and text.isprintable() and not _SPECIAL & set(text) else _quoted(text)


def _quoted(text: str) -> str:
    """As JSON writes it: a terminal gets no control characters from a log."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
