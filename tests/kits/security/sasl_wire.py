"""Requests of a client that logs in, frame by frame."""

from typing import Any

from kits.node.sockets import Wire
from twofold.wire import codec
from twofold.wire.messages.api_versions import ApiVersionsRequest
from twofold.wire.messages.metadata import MetadataRequest
from twofold.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from twofold.wire.messages.sasl_handshake import SaslHandshakeRequest

HANDSHAKE, API_VERSIONS, AUTHENTICATE, METADATA = 17, 18, 36, 3
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def plain_users(**passwords: str) -> str:
    """The value of sasl.jaas.config."""
    return f"{PLAIN_MODULE} required " + " ".join(f'user_{name}="{word}"' for name, word in passwords.items()) + ";"


def plain_token(name: str, password: str) -> bytes:
    return f"\0{name}\0{password}".encode()


def oauth_first(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def frame(message: Any, key: int, version: int) -> bytes:
    """Without its length."""
    return bytes(codec.encode_request(message, key, version, 7, "tests"))[4:]


def handshake(mechanism: str, version: int = 1) -> bytes:
    return frame(SaslHandshakeRequest(mechanism=mechanism), HANDSHAKE, version)


def authenticate(token: bytes, version: int = 2) -> bytes:
    return frame(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE, version)


def api_versions(version: int = 3, software: str = "tests") -> bytes:
    request = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    return frame(request, API_VERSIONS, version)


def metadata(version: int = 9) -> bytes:
    return frame(MetadataRequest(topics=[]), METADATA, version)


def read(answer: bytes, key: int, version: int) -> Any:
    return codec.decode_response(key, version, answer)[1]


class SaslWire:
    """One connection; each call sends a request and reads its answer."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def ask(self, request: bytes, key: int, version: int) -> Any:
        self.wire.send(request)
        return read(await self.wire.receive(), key, version)

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(handshake(mechanism, version), HANDSHAKE, version)

    async def authenticate(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(authenticate(token, version), AUTHENTICATE, version)

    async def api_versions(self, version: int = 3, software: str = "tests") -> Any:
        return await self.ask(api_versions(version, software), API_VERSIONS, version)

    async def metadata(self) -> Any:
        return await self.ask(metadata(), METADATA, 9)

    async def log_in(self, token: bytes, mechanism: str = "PLAIN") -> Any:
        assert (await self.handshake(mechanism)).error_code == 0
        return await self.authenticate(token)
