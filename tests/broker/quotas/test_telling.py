"""The wait in answers that are encoded already: every API, every version."""

import io
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, get_type_hints

import pytest
from kio.serial import entity_writer

from twofold.broker.network.context import Frame
from twofold.broker.quotas.telling import with_throttle_time
from twofold.wire import codec
from twofold.wire.apis import APIS, Api
from twofold.wire.schema import schema_of
from wire.test_wire_tolerant import example

WAIT_MS = 123_456


def with_wait(entity: Any, ms: int) -> bytes:
    """A body as kio writes it, with this wait where the version has a field for it."""
    if any(field.name == "throttle_time" for field in fields(entity)):
        entity = replace(entity, throttle_time=timedelta(milliseconds=ms))
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("pieces", ["whole", "in two"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_answer_has_the_wait_where_its_version_has_a_field_for_it(api: Api, pieces: str) -> None:
    for version in range(api.min_version, api.spoken_max + 1):
        schema: Any = schema_of(api.module, version, "response")
        hints = get_type_hints(schema)
        entity = schema(**{field.name: example(hints[field.name]) for field in fields(schema)})
        header = b"\0\0\0\7" + bytes(codec.is_flexible(api.key, version) and api.module != "api_versions")
        before, wanted = header + with_wait(entity, 0), header + with_wait(entity, WAIT_MS)
        length = len(before).to_bytes(4, "big")
        first = bytearray(length + before)
        parts: list[Any] = [first]
        if pieces == "in two" and len(first) > 20:
            parts = [first[:16], bytes(first[16:])]
        told = with_throttle_time(Frame(parts, (7,)), api.key, version, WAIT_MS)
        assert b"".join(told.parts) == length + wanted
        assert list(told.errors) == [7]
        assert b"".join(parts) == length + before, "what others may use as well is as it was"
