"""Bytes of one protocol version <-> the one shape of a message (`wire/messages`).

Reading uses kio's native reader for the version and copies the result into the one shape: fields that the version
lacks get their schema default. Writing is compiled per message and version from kio's schema into straight-line
Python; it takes fields by name, so a version simply does not see the fields that it does not have.

1. A frame that cannot be decoded raises `Undecodable`; nothing else escapes from the decode functions. What its arrays
   claim is checked before kio sees it (`entries.py`).
2. Nothing is imported or compiled before a version is first used: start-up does not pay for 300 schemas.
"""

import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from .apis import APIS
from .compile import compile_converter, compile_writer
from .entries import MAX_ENTRIES, WITHOUT_END, check_entries, compile_walk, has_arrays
from .schema import schema_of
from .tolerant import without_unknown_tags

API_VERSIONS = 18


class Undecodable(Exception):
    """The bytes are not a message of the version they claim to be."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


@dataclass(frozen=True, slots=True)
class _Codec:
    flexible: bool
    read: Callable[[Any, int], Any]
    write: Callable[[Any, bytearray], None]


_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")


@cache
def _message_class(api_key: int, kind: str) -> type:
    module = importlib.import_module(f"twofold.wire.messages.{APIS[api_key].module}")
    camel = "".join(part.capitalize() for part in APIS[api_key].module.split("_"))
    return getattr(module, camel + kind.capitalize())  # type: ignore[no-any-return]


@cache
def _codec(api_key: int, version: int, kind: str) -> _Codec:
    api = APIS[api_key].module
    schema: Any = schema_of(api, version, kind)
    native = entity_reader(schema)
    convert = compile_converter(schema, _message_class(api_key, kind))
    walk = compile_walk(schema) if has_arrays(schema) else None
    most = MAX_ENTRIES if kind == "request" else WITHOUT_END

    def read(buffer: Any, offset: int) -> Any:
        if walk is not None:
            check_entries(walk, buffer, offset, most)
        try:
            return convert(native(buffer, offset)[0])
        except KeyError:  # a tagged field of a newer peer: to be ignored (KIP-482)
            known = without_unknown_tags(schema, buffer, offset)
            if walk is not None:
                check_entries(walk, known, 0, most)
            return convert(native(known, 0)[0])

    return _Codec(schema.__flexible__, read, compile_writer(schema))


def is_flexible(api_key: int, version: int) -> bool:
    return _codec(api_key, version, "request").flexible


def decode_request_header(frame: bytes) -> RequestHeader:
    """Key, version and correlation id are there even if the rest cannot be read; `body_offset` is for known keys."""
    if len(frame) < 10:
        raise Undecodable(f"a request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
    position = 10
    client_id = None
    if id_length >= 0:
        position += id_length
        if position > len(frame):
            raise Undecodable(f"client id of {id_length} bytes in a request of {len(frame)}")
        try:
            client_id = frame[10:position].decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"client id is not UTF-8: {error}") from None
    elif id_length != -1:
        raise Undecodable(f"client id of negative length {id_length}")
    api = APIS.get(api_key)
    if api is not None and api.min_version <= version <= api.spoken_max and is_flexible(api_key, version):
        position = _skip_tagged_fields(frame, position)
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def decode_request(api_key: int, version: int, frame: bytes, offset: int) -> Any:
    return _guarded_read(_codec(api_key, version, "request"), frame, offset)


def encode_request(message: Any, api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """A whole frame, length included."""
    codec = _codec(api_key, version, "request")
    name = b"" if client_id is None else client_id.encode()
    out = bytearray(4)
    out += _HEADER.pack(api_key, version, correlation_id, -1 if client_id is None else len(name))
    out += name
    if codec.flexible:
        out.append(0)
    codec.write(message, out)
    _INT32.pack_into(out, 0, len(out) - 4)
    return out


def encode_response(message: Any, api_key: int, version: int, correlation_id: int) -> bytearray:
    """A whole frame, length included."""
    codec = _codec(api_key, version, "response")
    out = bytearray(4)
    out += _INT32.pack(correlation_id)
    if codec.flexible and api_key != API_VERSIONS:
        out.append(0)
    codec.write(message, out)
    _INT32.pack_into(out, 0, len(out) - 4)
    return out


def decode_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """`frame` is without its length."""
    if len(frame) < 4:
        raise Undecodable(f"a response of {len(frame)} bytes has no correlation id")
    codec = _codec(api_key, version, "response")
    position = 4
    if codec.flexible and api_key != API_VERSIONS:
        position = _skip_tagged_fields(frame, position)
    return _INT32.unpack_from(frame)[0], _guarded_read(codec, frame, position)


def _guarded_read(codec: _Codec, frame: bytes, offset: int) -> Any:
    # OverflowError and ValueError: kio turns timestamps into datetimes, whose range is narrower than an int64.
    try:
        return codec.read(frame, offset)
    except (SerialError, ValueError, OverflowError, TypeError, MemoryError) as error:
        raise Undecodable(f"{type(error).__name__}: {error}") from None


def _skip_tagged_fields(frame: bytes, position: int) -> int:
    count, position = _read_uvarint(frame, position)
    for _ in range(count):
        _, position = _read_uvarint(frame, position)
        size, position = _read_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise Undecodable("a tagged field of the header reaches beyond the frame")
    return position


def _read_uvarint(frame: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise Undecodable("a varint of the header is cut off or too long")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
