"""A broker with a listener of every security protocol, in this loop, and clients that are raw bytes."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from kits.node.sockets import Wire
from kits.security.certificates import Certificates
from kits.security.sasl_wire import SaslWire, plain_users
from twofold.broker.broker import Broker
from twofold.config.settings import Settings
from twofold.runtime.api import Clock
from twofold.runtime.real import real_runtime
from twofold.security.scram import MIN_ITERATIONS, ScramMechanism, salted_password
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)

LISTENERS = {"OPEN": "PLAINTEXT", "TLS": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
PLAIN_LINE = plain_users(alice="opens", bob="opens")


def scram_users(**passwords: str) -> list[ScramCredentialUpsertion]:
    """`name="password"` with SCRAM-SHA-256; those of `only_512_NAME` with SCRAM-SHA-512 instead."""
    made = []
    for name, password in passwords.items():
        mechanism = ScramMechanism.SHA_512 if name.startswith("only_512_") else ScramMechanism.SHA_256
        made.append(
            ScramCredentialUpsertion(
                name=name.removeprefix("only_512_"),
                mechanism=mechanism,
                iterations=MIN_ITERATIONS,
                salt=name.encode(),
                salted_password=salted_password(mechanism, password, name.encode(), MIN_ITERATIONS),
            )
        )
    return made


def guarded_settings(certificates: Certificates, **more: str) -> dict[str, str]:
    """One listener of each kind. In `more`, `_` stands for a dot and `__` for a hyphen."""
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        **certificates.stores(),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": PLAIN_LINE,
        "listener.name.both.plain.sasl.jaas.config": PLAIN_LINE,
    }
    return settings | {name.replace("__", "-").replace("_", "."): text for name, text in more.items()}


class AheadClock:
    """The real clock, moved ahead by the test; timers are the real ones."""

    def __init__(self, real: Clock) -> None:
        self._real = real
        self._ahead_s = 0.0

    def move(self, seconds: float) -> None:
        self._ahead_s += seconds

    def wall_ms(self) -> int:
        return self._real.wall_ms() + round(self._ahead_s * 1000)

    def monotonic(self) -> float:
        return self._real.monotonic() + self._ahead_s


class GuardedBroker:
    def __init__(self, broker: Broker, certificates: Certificates, clock: AheadClock) -> None:
        self.broker = broker
        self.clock = clock
        self.certificates = certificates
        self.ports = {address.name: address.port for address in broker.listeners}

    @property
    def principals(self) -> list[str]:
        return [connection.peer.principal for connection in self.broker.server.connections]

    def tls(self, client: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificates.trusted))
        if client is not None:
            context.load_cert_chain(client)
        return context

    @asynccontextmanager
    async def connect(
        self, listener: str, *, tls: ssl.SSLContext | None = None, is_bare: bool = False, limit: int = 2**26
    ) -> AsyncIterator[SaslWire]:
        """With TLS where the listener has it, unless `is_bare`; or with `tls`."""
        if tls is None and not is_bare and LISTENERS.get(listener, "").endswith("SSL"):
            tls = self.tls()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.ports[listener], ssl=tls, server_hostname="localhost" if tls else None, limit=limit
        )
        try:
            yield SaslWire(Wire(reader, writer))
        finally:
            writer.transport.abort()


@asynccontextmanager
async def guarded_broker(
    folder: Path,
    certificates: Certificates,
    settings: Mapping[str, str] | None = None,
    users: Sequence[ScramCredentialUpsertion] = (),
) -> AsyncIterator[GuardedBroker]:
    texts = dict(settings or guarded_settings(certificates))
    data = folder / "data"
    runtime = real_runtime()
    clock = AheadClock(runtime.clock)
    runtime = replace(runtime, clock=clock)
    broker = Broker(runtime, Settings.from_mapping(texts), str(data), hostname="localhost")
    await broker.start()
    try:
        if users:
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=users)
            answer = await broker.controller.alter_user_scram_credentials(request)
            assert not any(row.error_code for row in answer.results), answer
        yield GuardedBroker(broker, certificates, clock)
    finally:
        await broker.stop(timeout_s=1.0)


@contextmanager
def silent_sockets(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Peers that connect and say nothing."""
    peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()
