"""Tagged fields that we do not know are ignored wherever they stand (KIP-482), and nothing else is lost."""

import datetime
import io
import struct
import uuid
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.codec import Undecodable
from twofold.wire.schema import schema_of
from twofold.wire.tolerant import without_unknown_tags

UNKNOWN = b"\x01\x63\x03abc"
"""One tagged field: number 99, three bytes."""


def has_tags(schema: Any) -> bool:
    return any("tag" in field.metadata for field in fields(schema))


FLEXIBLE = [
    pytest.param(schema_of(api.module, version, kind), id=f"{api.name}-{version}-{kind}")
    for api in APIS.values()
    for version in (api.spoken_max,)
    for kind in ("request", "response")
    if schema_of(api.module, version, kind).__flexible__  # type: ignore[attr-defined]
]


def example(hint: Any) -> Any:
    """A value that is not a default: one element in an array, something where null may be."""
    if get_origin(hint) in (Union, UnionType):
        return example(next(arg for arg in get_args(hint) if arg is not type(None)))
    if get_origin(hint) is tuple:
        return (example(get_args(hint)[0]),)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{field.name: example(hints[field.name]) for field in fields(hint)})
    for kind, value in (
        (ErrorCode, ErrorCode.corrupt_message),
        (bool, True),
        (int, 7),
        (float, 1.5),
        (str, "text"),
        (bytes, b"bytes"),
        (uuid.UUID, uuid.UUID(int=7)),
        (datetime.datetime, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        (i32Timedelta, datetime.timedelta(milliseconds=7)),
        (datetime.timedelta, datetime.timedelta(milliseconds=7)),
    ):
        if issubclass(hint, kind):
            return value
    raise AssertionError(f"no example of {hint}")


def encode(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("schema", FLEXIBLE)
def test_a_message_without_unknown_tags_is_copied_as_it_is(schema: type) -> None:
    whole = encode(example(schema))
    assert without_unknown_tags(schema, b"before" + whole, 6) == whole


@pytest.mark.parametrize("schema", [param for param in FLEXIBLE if not has_tags(param.values[0])])
def test_an_unknown_tag_at_the_end_is_dropped(schema: type) -> None:
    whole = encode(example(schema))
    assert whole.endswith(b"\0")
    assert without_unknown_tags(schema, whole[:-1] + UNKNOWN, 0) == whole


def test_unknown_tags_between_other_fields_are_dropped() -> None:
    body = b"\x03" + b"\x02a" + UNKNOWN + b"\x02b" + b"\0" + b"\x01" + b"\0\0" + UNKNOWN
    message = codec.decode_request(3, 9, body, 0)
    assert [topic.name for topic in message.topics] == ["a", "b"]
    assert message.allow_auto_topic_creation


def test_known_and_unknown_tags_may_be_mixed() -> None:
    epoch = struct.pack(">q", 42)
    body = struct.pack(">h", 0) + b"\x01" + struct.pack(">i", 0)
    body += b"\x03" + b"\x01\x08" + epoch + b"\x63\x03abc" + b"\x70\x00"
    _, message = codec.decode_response(18, 3, struct.pack(">i", 1) + body)
    assert message.finalized_features_epoch == 42


@pytest.mark.parametrize("cut", range(1, 6))
def test_an_unknown_tag_that_is_cut_off_is_undecodable(cut: int) -> None:
    body = b"\x01\0\0\0" + UNKNOWN
    with pytest.raises(Undecodable):
        codec.decode_request(3, 9, body[:-cut], 0)
