"""Messages as plain dicts, for tests that must not trust the code they test.

Built on the schemas of kio, version by version: no shape is shared with `twofold.wire`, so a mistake there (a field
dropped, a default wrong) shows as a difference instead of hiding on both sides. Durations and timestamps are integers
(milliseconds), error codes are integers, the zero topic id is None, and a frame must be consumed to its last byte.
"""

import datetime
import io
import struct
import uuid
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from oracle.schemas import RESPONSES
from twofold.wire.schema import (
    init_producer_id_v6,
    init_producer_id_v7,
    txn_heartbeat_v0,
    write_txn_markers_v1,
    write_txn_markers_v2,
)

KEYS = {"".join(word.capitalize() for word in name.split("_")): key for key, name in api_key_map.items()}
"""API name as Kafka spells it -> key."""

KEYS["TxnHeartbeat"] = 95  # a draft, which kio does not have; its bytes are pinned by vectors
OURS = {("InitProducerId", 7): init_producer_id_v7, ("TxnHeartbeat", 0): txn_heartbeat_v0}
TAGGED = {
    ("InitProducerId", 6): init_producer_id_v6.InitProducerIdResponse,
    ("WriteTxnMarkers", 1): write_txn_markers_v1.WriteTxnMarkersResponse,
    ("WriteTxnMarkers", 2): write_txn_markers_v2.WriteTxnMarkersResponse,
}
"""Answers to which Twofold may add tags of its own. kio's reader refuses tags that it does not know."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
EMPTY: dict[type, Any] = {int: 0, str: "", bytes: b"", bool: False}


class WireError(Exception):
    """An answer that its schema does not explain."""


def encode_request(
    api: str, version: int, body: dict[str, Any], *, correlation_id: int = 1, client_id: str | None = "differential"
) -> bytes:
    """One request with its length in front; fields that are not given take the default of their schema."""
    key = KEYS[api]
    entity = from_dict(_request_schema(api, version), body)
    return frame(encode_header(entity, key, version, correlation_id, client_id) + encode_entity(entity))


def _request_schema(api: str, version: int) -> Any:
    own = OURS.get((api, version))
    return load_request_schema(KEYS[api], version) if own is None else getattr(own, f"{api}Request")


def _response_schema(api: str, version: int) -> Any:
    own = OURS.get((api, version))
    return load_response_schema(KEYS[api], version) if own is None else getattr(own, f"{api}Response")


def encode_header(entity: Any, key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = struct.pack(">hhi", key, version, correlation_id)
    name = client_id.encode() if client_id is not None else None
    header += struct.pack(">h", -1) if name is None else struct.pack(">h", len(name)) + name
    return header + (b"\0" if entity.__flexible__ else b"")


def encode_entity(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def decode_response(api: str, version: int, payload: bytes) -> tuple[int, dict[str, Any]]:
    """The correlation id and the body of an answer, all bytes accounted for."""
    schema: Any = RESPONSES.get((api, version)) or _response_schema(api, version)
    (correlation_id,) = struct.unpack_from(">i", payload)
    offset = 4
    if schema.__flexible__ and api != "ApiVersions":
        if payload[offset] != 0:
            raise WireError(f"{api} v{version}: a response header with {payload[offset]} tagged fields")
        offset += 1
    try:
        entity, size = entity_reader(schema)(payload, offset)
    except KeyError:
        entity, size = entity_reader(TAGGED[api, version])(payload, offset)
    if offset + size != len(payload):
        raise WireError(f"{api} v{version}: {len(payload) - offset - size} bytes left after the answer")
    return correlation_id, to_dict(entity)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def fit(api: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
    """The body without the fields, at any depth, that this version does not have."""
    return _fit(_request_schema(api, version), body)  # type: ignore[no-any-return]


def _fit(hint: Any, value: Any) -> Any:
    hint = _without_none(hint)
    if get_origin(hint) is tuple and value is not None:
        return [_fit(get_args(hint)[0], item) for item in value]
    if isinstance(hint, type) and is_dataclass(hint) and value is not None:
        return {name: _fit(_hints(hint)[name], value[name]) for name in _hints(hint) if name in value}
    return value


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """An entity of kio from a dict; a name that the version does not have is a mistake of the test."""
    hints = _hints(cls)
    known = {field.name: field for field in fields(cls)}
    unknown = values.keys() - known.keys()
    if unknown:
        raise WireError(f"{cls.__module__}.{cls.__name__} has no {sorted(unknown)}; it has {sorted(known)}")
    built = {}
    for name, field in known.items():
        if name in values:
            built[name] = _build(hints[name], values[name])
        elif field.default is MISSING:
            built[name] = _default(hints[name])
    return cls(**built)


def _build(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    hint = _without_none(hint)
    if get_origin(hint) is tuple:
        return tuple(_build(get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_dict(hint, value)
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    if issubclass(hint, datetime.datetime):
        return EPOCH + value * MILLISECOND
    if issubclass(hint, ErrorCode):
        return ErrorCode(value)
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(value) if isinstance(value, str) else value
    return value


def _default(hint: Any) -> Any:
    if _without_none(hint) is not hint:
        return None
    if get_origin(hint) is tuple:
        return ()
    if isinstance(hint, type) and is_dataclass(hint):
        return from_dict(hint, {})
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(0)
    for base, empty in EMPTY.items():
        if issubclass(hint, base):
            return empty
    raise WireError(f"no default for {hint}")


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return next(arg for arg in get_args(hint) if arg is not type(None))
    return hint


def to_dict(value: Any) -> Any:
    """An entity of kio as dicts, lists and plain values."""
    if is_dataclass(value):
        return {field.name: to_dict(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, datetime.timedelta):
        return round(value / MILLISECOND)
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH) / MILLISECOND)
    return value
