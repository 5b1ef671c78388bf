"""How long a client has to wait, written into an answer that is encoded already.

Handlers leave the field at 0, because the wait is known when the answer is ready. In almost all answers the field comes
first, so that its place is known; the others are read and written again. No client waits for this: it waits anyway.
"""

import struct
from dataclasses import fields
from functools import cache
from typing import Any

from twofold.broker.network.context import Frame
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.message import replace
from twofold.wire.schema import schema_of

API_VERSIONS = 18
FIRST, ELSEWHERE, NOWHERE = range(3)

_INT32 = struct.Struct(">i")
_BEHIND_LENGTH = 4


def with_throttle_time(frame: Frame, api_key: int, version: int, throttle_time_ms: int) -> Frame:
    """The answer with the wait in it; as it is where its version has no field for that."""
    place = _place(api_key, version)
    if place == NOWHERE:
        return frame
    if place == ELSEWHERE:
        whole = b"".join(frame.parts)
        correlation_id, message = codec.decode_response(api_key, version, whole[_BEHIND_LENGTH:])
        told = replace(message, throttle_time_ms=throttle_time_ms)
        return frame._replace(parts=[codec.encode_response(told, api_key, version, correlation_id)])
    at = 8 + (codec.is_flexible(api_key, version) and api_key != API_VERSIONS)  # behind length and header
    first, *others = frame.parts
    # Nothing is changed in place: an answer may be made of what others are made of, too.
    head = bytes(first[:at]) + _INT32.pack(throttle_time_ms)
    return frame._replace(parts=[head, memoryview(first)[at + 4 :], *others])


@cache
def _place(api_key: int, version: int) -> int:
    schema: Any = schema_of(APIS[api_key].module, version, "response")
    names = [field.name for field in fields(schema)]
    if "throttle_time" not in names:
        return NOWHERE
    return FIRST if names[0] == "throttle_time" else ELSEWHERE
