"""Clients that stop in the middle of their way in, or that send what no client sends: at real sockets."""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import Iterator

import pytest

from kits.node.running import FETCH, PRODUCE, batch, fetch_request, produce_request
from kits.node.sockets import on_loop, until
from kits.security.certificates import Certificates
from kits.security.guarded_broker import GuardedBroker, guarded_broker, guarded_settings, scram_users
from kits.security.sasl_wire import SaslWire, api_versions, authenticate, handshake, metadata, plain_token
from twofold.security.scram import ScramClient, ScramMechanism
from twofold.wire import codec
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

ROUNDS = 2000 if os.environ.get("TWOFOLD_LONG") else 150
GOOD = plain_token("alice", "opens")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def client_hello(trusted: str) -> bytes:
    """The first bytes of a client with TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=trusted)
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def raw(running: GuardedBroker, listener: str, sent: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", running.ports[listener])
    writer.write(sent)
    return writer


async def is_served(running: GuardedBroker, listener: str = "BOTH") -> bool:
    async with running.connect(listener) as client:
        logged_in = await client.log_in(GOOD)
        return logged_in.error_code == 0 and len((await client.metadata()).brokers) == 1


@on_loop
async def test_a_client_that_is_paused_anywhere_on_its_way_in_is_gone_at_the_deadline(tmp_path, certificates):
    """As a process that was stopped (SIGSTOP) looks from here: the connection is there, and nothing comes."""
    settings = guarded_settings(certificates, authentication_timeout_ms="1000")
    hello = client_hello(str(certificates.trusted))
    async with guarded_broker(tmp_path, certificates, settings, scram_users(alice="opens")) as running:
        server = running.broker.server
        writers = [
            await raw(running, listener, sent)
            for listener in ("TLS", "BOTH")
            for sent in (b"", hello[:1], hello[:5], hello[: len(hello) // 2], hello)
        ]
        length = len(handshake("PLAIN")).to_bytes(4, "big")
        writers += [
            await raw(running, "LOGIN", sent) for sent in (b"", length[:2], length, length + handshake("PLAIN"))
        ]
        async with running.connect("BOTH") as after_tls, running.connect("BOTH") as after_first:
            await after_first.handshake("SCRAM-SHA-256")
            first = ScramClient(ScramMechanism.SHA_256, "alice", "opens", "nonce").first()
            assert (await after_first.authenticate(first)).error_code == 0
            await until(lambda: len(server.entrance) == len(writers) + 2)
            assert await is_served(running)
            await until(lambda: len(server.entrance) == 0 and not server.connections)
            for woken in (after_tls, after_first):
                assert await woken.wire.closed_by_peer()
        for writer in writers:
            writer.close()


def hostile(seed: int, sound: list[bytes]) -> Iterator[bytes]:
    """Sound beginnings with bytes that are changed, left out, doubled or cut, and pure noise."""
    source = random.Random(seed)
    while True:
        kind, made = source.randrange(6), bytearray(source.choice(sound))
        if kind == 0:
            made = bytearray(source.randbytes(source.randrange(1, 400)))
        elif kind == 1:
            del made[source.randrange(len(made)) :]
        else:
            for _ in range(source.randrange(1, 8)):
                at = source.randrange(len(made))
                made[at : at + source.randrange(3)] = source.randbytes(source.randrange(3))
                if not made:
                    made = bytearray(b"\0")
        yield bytes(made)


@pytest.mark.parametrize("listener", ["TLS", "BOTH", "LOGIN"])
@on_loop
async def test_no_bytes_at_the_door_let_a_client_in_or_harm_the_broker(tmp_path, certificates, listener, caplog):
    caplog.set_level(logging.WARNING)
    first = ScramClient(ScramMechanism.SHA_256, "alice", "opens", "nonce").first()
    frames = [
        handshake("PLAIN"), handshake("PLAIN", 0), handshake("SCRAM-SHA-256"), api_versions(), metadata(),
        authenticate(plain_token("alice", "wrong")), authenticate(first), authenticate(b""),
    ]  # fmt: skip
    whole = [len(frame).to_bytes(4, "big") + frame for frame in frames]
    sound = [client_hello(str(certificates.trusted))] if listener == "TLS" else [*whole, whole[0] + whole[5]]
    async with guarded_broker(tmp_path, certificates, guarded_settings(certificates)) as running:
        attacks = hostile(1, sound)
        for _ in range(ROUNDS if listener != "BOTH" else ROUNDS // 3):
            async with running.connect(listener, is_bare=listener != "BOTH") as client:
                client.wire.send_raw(next(attacks))
            assert set(running.principals) <= {"User:ANONYMOUS"}
        assert await is_served(running)
        await until(lambda: not running.broker.server.connections)
        assert len(running.broker.server.entrance) == 0
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not errors, errors[0].getMessage()


class Counting:
    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        self.handled = 0

    def dispatch(self, *asked):
        self.handled += 1
        return self.dispatcher.dispatch(*asked)


@on_loop
async def test_a_reader_that_stands_still_behind_tls_costs_an_answer_and_no_more(tmp_path, certificates, monkeypatch):
    """Sixty answers of a megabyte are asked for and not read. Then they are read, in their order."""
    async with guarded_broker(tmp_path, certificates) as running:
        server = running.broker.server
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
        answer = await running.broker.controller.create_topics(CreateTopicsRequest(topics=[topic]))
        assert answer.topics[0].error_code == 0
        await until(lambda: running.broker.image.partition("t", 0) is not None)
        log = running.broker.replicas.leader("t", 0)
        async with running.connect("OPEN") as writer:
            await write_a_megabyte(writer, batch(b"x" * 1_000_000))
        assert log.log.log_end_offset == 1
        counting = Counting(server.dispatcher)
        monkeypatch.setattr(server, "dispatcher", counting)
        async with running.connect("TLS", limit=1024) as reader:
            for number in range(60):
                request = fetch_request(("t", 0, 0, 2**31 - 1))
                reader.wire.send_raw(bytes(codec.encode_request(request, FETCH, 11, number, "tests")))
            await until(lambda: server.held_bytes > 0)
            most = 0
            for _ in range(200):
                await asyncio.sleep(0)
                most = max(most, server.held_bytes)
            assert most < 3_000_000
            assert counting.handled < 40, "what is not read is not handled: the sockets hold some megabytes"
            for number in range(60):
                assert int.from_bytes((await reader.wire.receive())[:4], "big") == number
        await until(lambda: server.held_bytes == 0)


async def write_a_megabyte(client: SaslWire, records: bytes) -> None:
    request = produce_request(("t", 0, records))
    client.wire.send_raw(bytes(codec.encode_request(request, PRODUCE, 7, 1, "tests")))
    await client.wire.receive()
