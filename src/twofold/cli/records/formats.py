"""Records as text: templates in kcat's notation, JSON lines, and lines of input."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

from twofold.cli.common import USAGE, CliError
from twofold.client import ConsumerRecord

Formatter = Callable[[ConsumerRecord], bytes]
Part = bytes | Callable[[ConsumerRecord], bytes]

TEMPLATE_HELP = (
    "a template: %t topic, %p partition, %o offset, %T timestamp (ms), %k key, %s value, %h headers, "
    r"%K and %S sizes of key and value (-1 for null), %% a percent sign, \n \t \r \0 \xHH \\"
)

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)


class NewRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def unescape(text: str) -> bytes:
    """Text with backslash escapes, as it is given for separators."""
    parts = _parse(text.replace("%", "%%"))
    return b"".join(part for part in parts if isinstance(part, bytes))


def template(text: str) -> Formatter:
    parts = _parse(text)
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _parse(text: str) -> list[Part]:
    parts: list[Part] = []
    for match in _TOKEN.finditer(text):
        field, code, escape, plain = match.groups()
        if plain is not None:
            parts.append(plain.encode())
        elif code is not None:
            parts.append(bytes.fromhex(code))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise CliError(rf"\{escape} in {text!r} is not known: \n \t \r \0 \xHH \\ are", USAGE)
            parts.append(_ESCAPES[escape])
        elif field == "%":
            parts.append(b"%")
        elif field in _FIELDS:
            parts.append(_FIELDS[field])
        else:
            raise CliError(f"%{field} in {text!r} is not known: {', '.join('%' + name for name in _FIELDS)} are", USAGE)
    return parts


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode("utf-8", "surrogateescape") + b"=" + (value or b"") for name, value in record.headers)


def _size(value: bytes | None) -> bytes:
    return str(-1 if value is None else len(value)).encode()


_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: str(record.partition).encode(),
    "o": lambda record: str(record.offset).encode(),
    "T": lambda record: str(record.timestamp).encode(),
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": _headers,
    "K": lambda record: _size(record.key),
    "S": lambda record: _size(record.value),
}


def plain(key_separator: str | None) -> Formatter:
    """The value and a newline; the key in front of it when there is a separator."""
    if key_separator is None:
        return lambda record: (record.value or b"") + b"\n"
    separator = unescape(key_separator)
    return lambda record: (record.key or b"") + separator + (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """One object a line. Bytes that are not UTF-8 are under `key_base64` or `value_base64` instead."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    fields["headers"] = [_put({"name": name}, "value", value) for name, value in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _put(fields: dict[str, Any], name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        fields[name] = None
        return fields
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = b64encode(value).decode()
    return fields


def parse_json_line(line: bytes, number: int) -> NewRecord:
    """What `json_line` writes: key, value and headers, and the partition and timestamp where they are given."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        timestamp = fields.get("timestamp")
        return NewRecord(
            _get(fields, "key"),
            _get(fields, "value"),
            tuple((str(header["name"]), _get(header, "value")) for header in fields.get("headers") or ()),
            None,
            None if timestamp is None or int(timestamp) < 0 else int(timestamp),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise CliError(f"line {number} of the input is not a record in JSON: {what}", USAGE) from None


def _get(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        return b64decode(encoded, validate=True)
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
