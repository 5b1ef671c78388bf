"""Requests of clients on their way to the controller: the bytes as they came, and whose they are (Envelope).

1. The controller decides and authorizes by the principal and the address of the client, not by those of this broker.
2. The answer has the client's own correlation id, so its bytes are handed on as they are.
3. A principal is `int16 version 0, compact type, compact name, bool token, tags`.
"""

import ipaddress

from twofold.records.varint import encode_uvarint
from twofold.wire.errors import NONE, PrincipalDeserializationFailure, UnknownServerError, error_for
from twofold.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

_VERSION = b"\0\0"
_NO_TOKEN, _NO_TAGS = b"\0", b"\0"


def encode_principal(principal: str) -> bytes:
    """Of `User:alice`."""
    kind, _, name = principal.partition(":")
    return _VERSION + _compact(kind) + _compact(name) + _NO_TOKEN + _NO_TAGS


def _compact(text: str) -> bytes:
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def encode_address(host: str) -> bytes:
    """4 bytes, or 16; where it is no address, the one that stands for none."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes(4)


def wrap(request: bytes, principal: str, client_host: str) -> EnvelopeRequest:
    """`request` is header and body, without the length."""
    return EnvelopeRequest(
        request_data=request,
        request_principal=encode_principal(principal),
        client_host_address=encode_address(client_host),
    )


def unwrap(response: EnvelopeResponse, what: str) -> bytes:
    """Header and body of the answer; the error of the envelope where there is none."""
    if response.error_code == PrincipalDeserializationFailure.code:
        raise PrincipalDeserializationFailure(
            "the controllers read principals in another form (principal.builder.class)"
        )
    if response.error_code != NONE:
        raise error_for(response.error_code)(f"the controller did not take {what} from this broker")
    if response.response_data is None:
        raise UnknownServerError(f"the controller sent an empty answer to {what}")
    return bytes(response.response_data)
