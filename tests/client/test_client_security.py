"""Our clients against our broker, over every security protocol: who gets in, and what the others are told."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kits.security.certificates import Certificates
from kits.security.guarded_broker import GuardedBroker, guarded_broker, guarded_settings, scram_users
from twofold import NewTopic, aio
from twofold.connections import authentication
from twofold.connections.connection import Connection
from twofold.connections.errors import ConnectionLost, ListenerMismatch, LoginRefused, TlsRefused
from twofold.runtime.real import run
from twofold.wire.errors import KafkaError

Story = Callable[[GuardedBroker], Awaitable[None]]
PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "opens"}
SCRAM = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "carol", "sasl_password": "carols"}
SCRAM_512 = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "dave", "sasl_password": "daves"}


def play(folder: Path, story: Story, **settings: str) -> None:
    certificates = Certificates.make(folder)

    async def main() -> None:
        users = scram_users(carol="carols", only_512_dave="daves")
        texts = guarded_settings(certificates, group_initial_rebalance_delay_ms="0", **settings)
        async with guarded_broker(folder, certificates, texts, users) as guarded:
            await story(guarded)

    run(main())


def options(guarded: GuardedBroker, listener: str, protocol: str, **more: Any) -> dict[str, Any]:
    tls = {"ssl_truststore_location": str(guarded.certificates.trusted)} if protocol.endswith("SSL") else {}
    servers = f"127.0.0.1:{guarded.ports[listener]}"
    times = {"request_timeout_ms": 5_000, "default_api_timeout_ms": 5_000}
    return {"bootstrap_servers": servers, "security_protocol": protocol, **times, **tls, **more}


async def round_trip(topic: str, settings: dict[str, Any]) -> None:
    async with aio.Admin(**settings) as admin:
        (await admin.create_topics([NewTopic(topic, 1)])).get()
    async with aio.Producer(**settings) as producer:
        await (await producer.send(topic, b"one"))
    async with aio.Consumer(**settings, auto_offset_reset="earliest", group_id=topic) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        while not found:
            found = [record.value for record in await consumer.poll(500)]
        assert found == [b"one"]


async def for_ever(ask: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await ask()
        await asyncio.sleep(0.02)


async def refusal(settings: dict[str, Any]) -> KafkaError:
    async with aio.Admin(**settings) as admin:
        with pytest.raises(KafkaError) as caught:
            await admin.list_topics()
    return caught.value


@pytest.mark.parametrize(
    ("listener", "protocol", "login"),
    [
        ("OPEN", "PLAINTEXT", {}),
        ("TLS", "SSL", {}),
        ("LOGIN", "SASL_PLAINTEXT", PLAIN),
        ("LOGIN", "SASL_PLAINTEXT", SCRAM),
        ("BOTH", "SASL_SSL", PLAIN),
        ("BOTH", "SASL_SSL", SCRAM),
        ("BOTH", "SASL_SSL", SCRAM_512),
    ],
)
def test_every_protocol_and_mechanism_makes_the_round_trip(
    tmp_path: Path, listener: str, protocol: str, login: dict[str, str]
) -> None:
    async def story(guarded: GuardedBroker) -> None:
        await asyncio.wait_for(round_trip("orders", options(guarded, listener, protocol, **login)), 30)

    play(tmp_path, story)


def test_a_wrong_password_is_a_named_error_that_is_not_tried_again(tmp_path: Path) -> None:
    async def story(guarded: GuardedBroker) -> None:
        for login in (PLAIN, SCRAM, SCRAM_512):
            wrong = options(guarded, "BOTH", "SASL_SSL", **{**login, "sasl_password": "xyzzy-19"})
            error = await refusal(wrong)
            assert isinstance(error, LoginRefused) and not error.retriable
            assert "xyzzy-19" not in str(error)
            async with aio.Producer(**wrong) as producer:
                with pytest.raises(LoginRefused):
                    await (await producer.send("orders", b"one"))
            async with aio.Consumer(**wrong, group_id="readers") as consumer:
                consumer.subscribe(["orders"])
                with pytest.raises(LoginRefused):
                    await for_ever(partial(consumer.poll, 500))

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("listener", "protocol", "login", "kind", "words"),
    [
        ("TLS", "PLAINTEXT", {}, KafkaError, "TLS"),
        ("OPEN", "SASL_PLAINTEXT", PLAIN, ListenerMismatch, "has no SASL on this listener"),
        ("LOGIN", "SASL_PLAINTEXT", {**PLAIN, "sasl_mechanism": "OAUTHBEARER"}, None, ""),
        ("OPEN", "SSL", {}, KafkaError, "is it a listener with TLS?"),
        ("LOGIN", "PLAINTEXT", {}, KafkaError, "does this listener speak security.protocol=PLAINTEXT?"),
    ],
)
def test_a_listener_of_another_protocol_is_named(
    tmp_path: Path, listener: str, protocol: str, login: dict[str, str], kind: Any, words: str
) -> None:
    async def story(guarded: GuardedBroker) -> None:
        chosen = dict(login)
        if kind is None:
            del chosen["sasl_username"], chosen["sasl_password"]
            error = await refusal(options(guarded, listener, protocol, **chosen, sasl_oauthbearer_token="a.b.c"))
            assert isinstance(error, ListenerMismatch)
            assert "it serves PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in str(error)
            return
        error = await refusal({**options(guarded, listener, protocol, **chosen), "default_api_timeout_ms": 2_000})
        assert isinstance(error, kind)
        assert words in str(error)

    play(tmp_path, story)


def test_a_certificate_of_the_client_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    async def story(guarded: GuardedBroker) -> None:
        key = {"ssl_keystore_location": str(guarded.certificates.client)}
        await round_trip("orders", options(guarded, "TLS", "SSL", **key))
        error = await refusal({**options(guarded, "TLS", "SSL"), "default_api_timeout_ms": 2_000})
        assert isinstance(error, TlsRefused | ConnectionLost | KafkaError)
        assert "a certificate of the client" in str(error)

    play(tmp_path, story, listener_name_tls_ssl_client_auth="required")


def test_a_session_is_renewed_on_its_connection_while_produces_are_on_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins: list[Connection] = []
    log_in = authentication.log_in

    async def counted(*args: Any) -> int:
        lifetime_ms = await log_in(*args)
        logins.append(args[1])
        return lifetime_ms

    monkeypatch.setattr(authentication, "log_in", counted)

    async def story(guarded: GuardedBroker) -> None:
        settings = options(guarded, "BOTH", "SASL_SSL", **SCRAM)
        async with aio.Admin(**settings) as admin:
            (await admin.create_topics([NewTopic("orders", 1)])).get()
        deliveries = []
        async with aio.Producer(**settings, linger_ms=0) as producer:
            while max((logins.count(one) for one in logins), default=0) < 3:
                deliveries += [await producer.send("orders", b"x") for _ in range(20)]
                await asyncio.sleep(0.001)
            offsets = [(await delivery).offset for delivery in deliveries]
        assert offsets == list(range(len(offsets)))

    play(tmp_path, story, connections_max_reauth_ms="1500")


def test_a_password_that_was_changed_ends_the_connection_at_the_next_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(guarded: GuardedBroker) -> None:
        secret = tmp_path / "password"
        secret.write_text("carols")
        login = {**SCRAM, "sasl_password": f"${{file:{secret}}}"}
        async with aio.Admin(**options(guarded, "LOGIN", "SASL_PLAINTEXT", **login)) as admin:
            await admin.list_topics()
            secret.write_text("forgotten")
            with pytest.raises(LoginRefused):
                await for_ever(admin.list_topics)

    play(tmp_path, story, connections_max_reauth_ms="1500")
