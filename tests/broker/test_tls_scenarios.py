"""TLS on a real socket: scenarios 36 to 43 of security.md, and that a crowd at the door holds up no client inside."""

import asyncio
import ssl
import struct
from pathlib import Path

import pytest

from kits.node.sockets import on_loop, until
from kits.security.certificates import Certificates
from kits.security.guarded_broker import GuardedBroker, guarded_broker, guarded_settings, silent_sockets
from kits.security.sasl_wire import api_versions, metadata, plain_token
from twofold.broker.network.tls_pieces import TLS_PIECE_BYTES, joined


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


async def principal_of(running: GuardedBroker, client: Path | None) -> str | None:
    """Of a client with this certificate; None where it is not served."""
    try:
        async with running.connect("TLS", tls=running.tls(client)) as wire:
            await wire.metadata()
            (principal,) = running.principals
    except (OSError, asyncio.IncompleteReadError):
        return None
    await until(lambda: not running.broker.server.connections)
    return principal


@pytest.mark.parametrize(
    ("auth", "rules", "shown", "principal"),
    [
        ("none", "DEFAULT", True, "User:ANONYMOUS"),
        ("requested", "DEFAULT", False, "User:ANONYMOUS"),
        ("requested", "DEFAULT", True, "User:CN=bob,OU=Unit,O=Ex"),
        ("required", "DEFAULT", False, None),
        ("required", "RULE:^CN=(.*?),.*$/$1/", True, "User:bob"),
        ("required", "RULE:^CN=alice,.*$/alice/", True, None),
    ],
)
@on_loop
async def test_a_clients_certificate_makes_its_user(tmp_path, certificates, auth, rules, shown, principal):
    settings = guarded_settings(
        certificates, listener_name_tls_ssl_client_auth=auth, listener_name_tls_ssl_principal_mapping_rules=rules
    )
    async with guarded_broker(tmp_path, certificates, settings) as running:
        assert await principal_of(running, certificates.client if shown else None) == principal


@on_loop
async def test_a_certificate_that_is_expired_or_foreign_is_refused_and_named(tmp_path, certificates, caplog):
    settings = guarded_settings(certificates, listener_name_tls_ssl_client_auth="required")
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    foreign = Certificates.make(stranger).client
    expired = certificates.issue("expired", "carol", expired=True)
    async with guarded_broker(tmp_path, certificates, settings) as running:
        for client, word in ((foreign, "its certificate is not accepted"), (expired, "certificate has expired")):
            caplog.clear()
            assert await principal_of(running, client) is None
            await until(lambda word=word: word in caplog.text)
        caplog.clear()
        assert await principal_of(running, None) is None
        await until(lambda: "it showed no certificate, and ssl.client.auth=required" in caplog.text)
        assert await principal_of(running, certificates.client) == "User:CN=bob,OU=Unit,O=Ex"


@on_loop
async def test_plain_text_on_tls_and_the_reverse_are_closed_and_named_as_such(tmp_path, certificates, caplog):
    async with guarded_broker(tmp_path, certificates) as running:
        for listener in ("TLS", "BOTH"):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.ports[listener])
            writer.write(struct.pack(">i", len(api_versions())) + api_versions())
            await until(lambda: "it does not speak TLS, and this listener does" in caplog.text)
            with_alert = await reader.read()
            assert len(with_alert) < 10, "an alert of TLS at most"
            writer.close()
            caplog.clear()
        for listener in ("OPEN", "LOGIN"):
            with pytest.raises((OSError, ssl.SSLError)):
                async with running.connect(listener, tls=running.tls()):
                    pass
            said = f"it speaks TLS, and this listener ({listener}) speaks Kafka in plain text"
            await until(lambda said=said: said in caplog.text)


@on_loop
async def test_a_new_certificate_counts_for_new_connections_only(tmp_path, certificates, caplog):
    folder = tmp_path / "certificates"
    folder.mkdir()
    own = Certificates.make(folder)
    async with guarded_broker(tmp_path, own, guarded_settings(own)) as running:
        async with running.connect("TLS") as old:
            first = old.wire.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            own.issue("broker", "localhost", organization="renewed")
            running.clock.move(1)
            async with running.connect("TLS") as new:
                second = new.wire.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                assert (await new.metadata()).brokers
            assert first != second and (await old.metadata()).brokers
        own.broker.write_text("half a file")
        running.clock.move(1)
        async with running.connect("TLS") as kept:
            assert kept.wire.writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == second
        assert "keeps its certificates" in caplog.text


@on_loop
async def test_silent_peers_are_counted_and_gone_at_the_deadline(tmp_path, certificates):
    settings = guarded_settings(certificates, authentication_timeout_ms="1000")
    async with guarded_broker(tmp_path, certificates, settings) as running:
        server = running.broker.server
        with silent_sockets(running.ports["TLS"], 40), silent_sockets(running.ports["LOGIN"], 40):
            await until(lambda: len(server.entrance) == 80)
            assert len(server.connections) == 80
            async with running.connect("BOTH") as client:
                assert (await client.log_in(plain_token("alice", "opens"))).error_code == 0
                await until(lambda: len(server.connections) == 1)
                assert len(server.entrance) == 0
                assert (await client.metadata()).brokers


@on_loop
async def test_a_crowd_at_the_door_costs_its_own_address_and_no_client_inside(tmp_path, certificates):
    settings = guarded_settings(certificates, max_unauthenticated_connections="20")
    async with guarded_broker(tmp_path, certificates, settings) as running:
        server = running.broker.server
        async with running.connect("BOTH") as client:
            await client.log_in(plain_token("alice", "opens"))
            with silent_sockets(running.ports["BOTH"], 60):
                await until(lambda: len(server.entrance) == 20)
                assert len(server.connections) == 21
                assert (await client.metadata()).brokers
                async with running.connect("BOTH") as later:
                    assert (await later.log_in(plain_token("bob", "opens"))).error_code == 0
        await until(lambda: not server.connections)
        assert len(server.entrance) == 0


@on_loop
async def test_a_client_that_leaves_during_its_handshake_is_forgotten(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates) as running:
        server = running.broker.server
        with silent_sockets(running.ports["TLS"], 5) as peers:
            await until(lambda: len(server.connections) == 5)
            for peer in peers:
                peer.sendall(b"\x16\x03\x01\x02\x00")
        await until(lambda: not server.connections)
        assert len(server.entrance) == 0


@on_loop
async def test_a_broker_stops_while_clients_stand_at_the_door(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates) as running:
        with silent_sockets(running.ports["TLS"], 3), silent_sockets(running.ports["LOGIN"], 3):
            await until(lambda: len(running.broker.server.connections) == 6)
            await running.broker.stop(timeout_s=5)
            assert not running.broker.server.connections


@on_loop
async def test_requests_that_come_with_the_last_bytes_of_the_handshake_are_answered(tmp_path, certificates):
    """Many at once over one connection, in their order."""
    async with guarded_broker(tmp_path, certificates) as running, running.connect("TLS") as client:
        for _ in range(200):
            client.wire.send(metadata())
        for _ in range(200):
            assert await client.wire.receive()


def test_small_parts_are_joined_and_large_ones_are_not_copied_together():
    large = memoryview(bytes(TLS_PIECE_BYTES))
    parts = [b"a", b"b", large, b"c", b"d"]
    pieces = list(joined(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert [len(piece) for piece in pieces] == [2, TLS_PIECE_BYTES, 2]
    assert pieces[1] is large
    assert list(joined([])) == []
