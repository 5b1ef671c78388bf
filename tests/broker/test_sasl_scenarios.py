"""SASL on a real socket: scenarios 1 to 35 of security.md, byte by byte, as Apache Kafka 4.3.1 answers them."""

import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kits.node.sockets import on_loop, until
from kits.security.certificates import Certificates
from kits.security.guarded_broker import guarded_broker, guarded_settings, scram_users
from kits.security.sasl_wire import (
    API_VERSIONS,
    METADATA,
    SaslWire,
    api_versions,
    handshake,
    metadata,
    oauth_first,
    plain_token,
    read,
)
from twofold.client.admin.security import ScramPassword, upsertion
from twofold.security.scram import CredentialForm, ScramClient, ScramMechanism
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)

GOOD = plain_token("alice", "opens")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@on_loop
async def test_a_user_is_authenticated_and_served_on_both_kinds_of_listener(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates) as running:
        for listener in ("LOGIN", "BOTH"):
            async with running.connect(listener) as client:
                assert (await client.api_versions()).error_code == 0
                answer = await client.log_in(GOOD)
                assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
                (broker,) = (await client.metadata()).brokers
                assert broker.port == running.ports[listener], "each listener tells its own address"
                assert running.principals == ["User:alice"]
                assert (await client.handshake("PLAIN")).error_code == 34
                assert (await client.authenticate(GOOD)).error_code == 34
                assert (await client.api_versions()).error_code == 0, "later ApiVersions are free"
            await until(lambda: not running.broker.server.connections)
        async with running.connect("OPEN") as client:
            assert (await client.handshake("PLAIN")).error_code == 34
            assert (await client.authenticate(GOOD)).error_code == 34
            assert len((await client.metadata()).brokers) == 1
            assert running.principals == ["User:ANONYMOUS"]


@on_loop
async def test_a_failure_is_answered_late_and_in_the_same_words_for_every_user(tmp_path, certificates):
    settings = guarded_settings(certificates, connection_failed_authentication_delay_ms="300")
    async with guarded_broker(tmp_path, certificates, settings) as running:
        texts = set()
        for token in (plain_token("alice", "wrong"), plain_token("nobody", "opens")):
            async with running.connect("LOGIN") as client:
                began = time.monotonic()
                answer = await client.log_in(token)
                assert time.monotonic() - began >= 0.3
                assert answer.error_code == 58
                texts.add(answer.error_message)
                assert await client.wire.closed_by_peer()
        assert texts == {"Authentication failed: Invalid username or password"}
        async with running.connect("LOGIN") as client:
            answer = await client.handshake("GSSAPI")
            assert answer.error_code == 33
            assert set(answer.mechanisms) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
            assert await client.wire.closed_by_peer()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([metadata()], id="Metadata"),
        pytest.param([b"\0\x24\0\x02" + bytes(10)], id="SaslAuthenticate"),
        pytest.param([b"garbage that is long enough"], id="garbage"),
        pytest.param([b"\0\0\0\0" + bytes(599_996)], id="a frame of 600,000 bytes"),
        pytest.param([handshake("PLAIN")[:2] + b"\0\x09" + handshake("PLAIN")[4:]], id="an unknown version"),
    ],
)
@on_loop
async def test_a_client_without_a_user_is_heard_for_nothing_else(tmp_path, certificates, sent):
    async with guarded_broker(tmp_path, certificates) as running, running.connect("LOGIN") as client:
        for one in sent:
            client.wire.send(one)
        assert await client.wire.closed_by_peer()


@on_loop
async def test_another_request_for_a_token_is_answered_with_34_and_the_end(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates) as running:
        async with running.connect("LOGIN") as client:
            await client.handshake("PLAIN")
            assert (await client.api_versions()).error_code == 34
            assert await client.wire.closed_by_peer()
        async with running.connect("LOGIN") as client:
            await client.handshake("PLAIN")
            assert (await client.handshake("PLAIN")).error_code == 34
            assert await client.wire.closed_by_peer()
        async with running.connect("LOGIN") as client:
            await client.handshake("PLAIN")
            assert (await client.metadata()).brokers == (), "Metadata has no place for the error"
            assert await client.wire.closed_by_peer()
        async with running.connect("LOGIN") as client:
            unknown = api_versions()[:2] + b"\0\x63" + api_versions()[4:]
            assert (await client.ask(unknown, API_VERSIONS, 0)).error_code == 35
            assert (await client.api_versions(software="no name!")).error_code == 42
            assert (await client.api_versions()).error_code == 0
            client.wire.send(b"\0\x12\0\0\0\0\0\1\xff\xff")
            assert await client.wire.closed_by_peer(), "ApiVersions again, after a success"


@on_loop
async def test_raw_tokens_have_no_header_and_a_failure_has_no_bytes(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates) as running:
        async with running.connect("LOGIN") as client:
            await client.handshake("PLAIN", 0)
            client.wire.send(GOOD)
            assert await client.wire.receive() == b""
            assert len((await client.metadata()).brokers) == 1
        async with running.connect("LOGIN") as client:
            await client.handshake("PLAIN", 0)
            client.wire.send(plain_token("alice", "wrong"))
            assert await client.wire.closed_by_peer()


async def scram(client: SaslWire, mechanism: ScramMechanism, name: str, password: str) -> tuple[int, int]:
    """The error codes of both messages; -1 where there is no second one."""
    exchange = ScramClient(mechanism, name, password, "nonce")
    await client.handshake(mechanism.mechanism_name)
    first = await client.authenticate(exchange.first())
    if first.error_code:
        return first.error_code, -1
    final = await client.authenticate(exchange.answer(first.auth_bytes))
    if not final.error_code:
        exchange.check(final.auth_bytes)
    return 0, final.error_code


@on_loop
async def test_scram_users_log_in_by_their_mechanism_and_no_other_fails_earlier(tmp_path, certificates):
    users = scram_users(alice="opens", only_512_carol="opens")
    async with guarded_broker(tmp_path, certificates, users=users) as running:
        rows = [
            (ScramMechanism.SHA_256, "alice", "opens", (0, 0)),
            (ScramMechanism.SHA_512, "carol", "opens", (0, 0)),
            (ScramMechanism.SHA_512, "alice", "opens", (0, 58)),
            (ScramMechanism.SHA_256, "alice", "wrong", (0, 58)),
            (ScramMechanism.SHA_256, "nobody", "opens", (0, 58)),
        ]
        for mechanism, name, password, expected in rows:
            async with running.connect("LOGIN") as client:
                assert await scram(client, mechanism, name, password) == expected
                assert expected[1] == 0 or await client.wire.closed_by_peer()
        for first in (b"y,,n=alice,r=x", b"p=tls-unique,,n=alice,r=x", b"n,,n=alice,r=x,tokenauth=true"):
            async with running.connect("LOGIN") as client:
                await client.handshake("SCRAM-SHA-256")
                assert (await client.authenticate(first)).error_code == 58


@on_loop
async def test_a_user_that_is_removed_stays_connected_and_logs_in_no_more(tmp_path, certificates):
    async with guarded_broker(tmp_path, certificates, users=scram_users(carol="opens")) as running:
        async with running.connect("LOGIN") as client:
            assert await scram(client, ScramMechanism.SHA_256, "carol", "opens") == (0, 0)
            gone = ScramCredentialDeletion(name="carol", mechanism=ScramMechanism.SHA_256)
            request = AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[])
            answer = await running.broker.controller.alter_user_scram_credentials(request)
            assert [row.error_code for row in answer.results] == [0]
            assert len((await client.metadata()).brokers) == 1
        async with running.connect("LOGIN") as client:
            assert await scram(client, ScramMechanism.SHA_256, "carol", "opens") == (0, 58)


@on_loop
async def test_the_first_answer_to_an_unknown_user_has_the_form_of_those_to_known_ones(tmp_path, certificates):
    """Whatever salts and iterations the users have: those of our tools, of Apache Kafka's, and others."""
    for password in (ScramPassword("alice", "opens"), ScramPassword("alice", "opens", iterations=8192)):
        made = upsertion(password)
        assert CredentialForm.of(made.salt, made.iterations) == CredentialForm(password.iterations)
        folder = tmp_path / str(password.iterations)
        async with guarded_broker(folder, certificates, users=[made]) as running:
            answers = set()
            for name in ("alice", "nobody", "somebody"):
                async with running.connect("LOGIN") as client:
                    await client.handshake(password.mechanism.mechanism_name)
                    exchange = ScramClient(password.mechanism, name, "wrong", "nonce")
                    _, salt, iterations = (await client.authenticate(exchange.first())).auth_bytes.split(b",")
                    answers.add((len(salt), iterations))
            assert len(answers) == 1, answers


class Identity:
    """Signs tokens; its public keys are in a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}

    def renew(self, kid: str) -> None:
        self.keys[kid] = key = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": kid}
        self.file.write_text(json.dumps({"keys": [public]}))

    def token(self, kid: str, lifetime_s: float = 60) -> bytes:
        now = time.time()
        claims = {"sub": "alice", "iat": now, "exp": now + lifetime_s}
        return oauth_first(jwt.encode(claims, self.keys[kid], "ES256", headers={"kid": kid}))


@on_loop
async def test_tokens_are_checked_with_the_keys_of_the_file_as_it_is_now(tmp_path, certificates):
    identity = Identity(tmp_path / "keys.json")
    identity.renew("first")
    settings = guarded_settings(
        certificates,
        listener_name_login_sasl_enabled_mechanisms="PLAIN,OAUTHBEARER",
        listener_name_login_oauthbearer_sasl_oauthbearer_jwks_endpoint_url=f"file://{identity.file}",
    )
    async with guarded_broker(tmp_path, certificates, settings) as running:
        async with running.connect("LOGIN") as client:
            answer = await client.log_in(identity.token("first"), "OAUTHBEARER")
            assert answer.error_code == 0 and 50_000 < answer.session_lifetime_ms <= 60_000
            assert running.principals == ["User:alice"]
        async with running.connect("LOGIN") as client:
            answer = await client.log_in(identity.token("first", lifetime_s=-1), "OAUTHBEARER")
            assert (answer.error_code, json.loads(answer.auth_bytes)) == (0, {"status": "invalid_token"})
            answer = await client.authenticate(b"\x01")
            assert (answer.error_code, json.loads(answer.error_message)) == (58, {"status": "invalid_token"})
            assert await client.wire.closed_by_peer()
        old = identity.token("first")
        identity.renew("second")
        running.clock.move(1)
        for token, said in ((identity.token("second"), b""), (old, b'{"status":"invalid_token"}')):
            async with running.connect("LOGIN") as client:
                assert (await client.log_in(token, "OAUTHBEARER")).auth_bytes == said


@on_loop
async def test_a_session_ends_unless_the_client_authenticates_again(tmp_path, certificates):
    settings = guarded_settings(certificates, listener_name_login_plain_connections_max_reauth_ms="1500")
    async with guarded_broker(tmp_path, certificates, settings) as running, running.connect("LOGIN") as client:
        assert (await client.log_in(GOOD)).session_lifetime_ms == 1500
        assert (await client.handshake("PLAIN")).error_code == 34, "within a second"
        running.clock.move(1.2)
        for _ in range(20):
            client.wire.send(metadata())
        client.wire.send(handshake("PLAIN"))
        for _ in range(20):
            assert read(await client.wire.receive(), METADATA, 9).brokers, "the order is kept"
        assert read(await client.wire.receive(), 17, 1).error_code == 0
        assert (await client.authenticate(GOOD)).session_lifetime_ms == 1500
        running.clock.move(1.2)
        assert len((await client.metadata()).brokers) == 1, "2.4 s after the first login"
        running.clock.move(0.4)
        client.wire.send(metadata())
        assert await client.wire.closed_by_peer()


@on_loop
async def test_a_client_that_is_not_authenticated_in_time_is_closed_however_busy_it_seems(tmp_path, certificates):
    settings = guarded_settings(certificates, authentication_timeout_ms="700")
    async with guarded_broker(tmp_path, certificates, settings) as running:
        async with running.connect("LOGIN") as silent, running.connect("LOGIN") as busy:
            await busy.handshake("SCRAM-SHA-256")
            busy.wire.send_raw(b"\0\0\0\x50")

            def was_closed() -> bool:
                busy.wire.send_raw(b"x")
                return busy.wire.reader.at_eof() or busy.wire.writer.is_closing()

            await until(was_closed)
            assert await silent.wire.closed_by_peer()
        assert len(running.broker.server.entrance) == 0
