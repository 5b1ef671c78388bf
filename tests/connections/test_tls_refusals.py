"""TLS on real sockets: certificates that a client must not accept, and ends that do not match. Each is named."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from kits.security.authorities import Authority
from twofold.connections.connection import Address, ConnectionLimits, open_connection
from twofold.connections.errors import ConnectionLost, TlsRefused
from twofold.connections.security import ConnectionSecurity
from twofold.runtime.real import real_runtime, run
from twofold.wire.errors import KafkaError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


def server_context(keystore: str, trusted: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore)
    if trusted is not None:
        context.load_verify_locations(trusted)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def error_of(context: ssl.SSLContext | None, settings: dict[str, str], answer: bytes | None = None) -> KafkaError:
    """What a client is told that connects to a server on 127.0.0.1."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if answer is not None:
            writer.write(answer)
        writer.close()

    async def main() -> KafkaError:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        security = ConnectionSecurity.of(settings)
        try:
            with pytest.raises(KafkaError) as caught:
                await open_connection(real_runtime(), Address("127.0.0.1", port), ConnectionLimits(), security=security)
            return caught.value
        finally:
            server.close()

    return run(main())


def trusting(authority: Authority, **more: str) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.truststore.location": authority.truststore, **more}


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    error = error_of(server_context(authority.keystore("old", expired=True)), trusting(authority))
    assert isinstance(error, TlsRefused) and not error.retriable
    assert "certificate has expired" in str(error)


def test_a_certificate_of_a_foreign_authority_is_refused(tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "foreign")
    error = error_of(server_context(foreign.keystore("broker")), trusting(Authority(tmp_path)))
    assert isinstance(error, TlsRefused)
    assert "is its authority in ssl.truststore.location?" in str(error)


def test_a_certificate_for_another_name_is_refused_unless_names_are_not_compared(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = server_context(authority.keystore("other", "broker.example"))
    error = error_of(context, trusting(authority))
    assert isinstance(error, TlsRefused)
    assert "certificate is not valid for '127.0.0.1'" in str(error)
    assert "ssl.endpoint.identification.algorithm" in str(error)
    without = error_of(context, trusting(authority, **{"ssl.endpoint.identification.algorithm": ""}))
    assert isinstance(without, ConnectionLost), "the handshake succeeds; this server only closes afterwards"


def test_a_listener_that_asks_for_a_certificate_of_the_client_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = server_context(authority.keystore("broker"), authority.truststore)
    error = error_of(context, trusting(authority))
    # With TLS 1.3 the handshake of the client is over by then, and some servers close without an alert.
    assert isinstance(error, TlsRefused | ConnectionLost)
    assert "a certificate of the client" in str(error) and "ssl.keystore.location" in str(error)


def test_a_listener_without_tls_that_closes_is_named(tmp_path: Path) -> None:
    error = error_of(None, trusting(Authority(tmp_path)))
    assert isinstance(error, ConnectionLost)
    assert "is it a listener with TLS? This client has security.protocol=SSL" in str(error)


def test_a_listener_without_tls_that_answers_is_named(tmp_path: Path) -> None:
    error = error_of(None, trusting(Authority(tmp_path)), b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert isinstance(error, TlsRefused) and not error.retriable
    assert "does not speak TLS, and this client has security.protocol=SSL: set security.protocol=PLAINTEXT" in str(
        error
    )
