"""Our clients against Apache Kafka over SSL, SASL_PLAINTEXT and SASL_SSL, with each mechanism, right and wrong.

All of it with TWOFOLD_LONG=1. `make test` has them at our broker (test_client_security.py), and SCRAM at each end
against another implementation (test_scram.py).
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.security.authorities import Authority
from kits.security.oracle import ALICE, ALICES_PASSWORD, BOB, BOBS_PASSWORD, SecureOracle, running_secure_oracle
from twofold import Admin, Consumer, NewTopic, Producer, aio
from twofold.connections import authentication
from twofold.connections.errors import ListenerMismatch, LoginRefused, TlsRefused
from twofold.wire.errors import KafkaError

pytestmark = pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 tries it at Apache Kafka")
SOON_S = 15
TIMES: dict[str, Any] = {"request_timeout_ms": 8_000, "default_api_timeout_ms": 10_000}
PLAIN_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def oracle() -> Iterator[SecureOracle]:
    with running_secure_oracle() as running:
        yield running


def options(oracle: SecureOracle, listener: str, protocol: str, **more: Any) -> dict[str, Any]:
    tls = {"ssl_truststore_location": oracle.authority.truststore} if protocol.endswith("SSL") else {}
    return {"bootstrap_servers": oracle.address(listener), "security_protocol": protocol, **TIMES, **tls, **more}


def login(mechanism: str, user: str = BOB, password: str = BOBS_PASSWORD) -> dict[str, str]:
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password}


def round_trip(topic: str, settings: dict[str, Any]) -> None:
    with Admin(**settings) as admin:
        admin.create_topics([NewTopic(topic, 1)]).get()
    with Producer(**settings) as producer:
        producer.send(topic, b"one").result()
    with Consumer(**settings, auto_offset_reset="earliest", group_id=f"group-{topic}") as consumer:
        consumer.subscribe([topic])
        end = time.monotonic() + 60
        found: list[bytes | None] = []
        while not found and time.monotonic() < end:
            found = [record.value for record in consumer.poll(500)]
        assert found == [b"one"]


def poll_until(consumer: Consumer, end: float) -> None:
    consumer.subscribe(["orders"])
    while time.monotonic() < end:
        consumer.poll(500)


def refusal(settings: dict[str, Any]) -> list[KafkaError]:
    """What each of the clients says, soon."""
    found = []
    begin = time.monotonic()
    with pytest.raises(KafkaError) as caught, Admin(**settings) as admin:
        admin.list_topics()
    found.append(caught.value)
    with pytest.raises(KafkaError) as caught, Producer(**settings) as producer:
        producer.send("orders", b"one").result()
    found.append(caught.value)
    with pytest.raises(KafkaError) as caught, Consumer(**settings, group_id="readers") as consumer:
        poll_until(consumer, begin + SOON_S)
    found.append(caught.value)
    assert time.monotonic() < begin + SOON_S
    return found


def test_scram_over_tls_makes_the_round_trip_and_a_wrong_password_is_refused_at_once(oracle: SecureOracle) -> None:
    round_trip("short", options(oracle, "SASL_SSL", "SASL_SSL", **login("SCRAM-SHA-512")))
    wrong = options(oracle, "SASL_SSL", "SASL_SSL", **login("SCRAM-SHA-512", BOB, "not his, 17"))
    for error in refusal(wrong):
        assert isinstance(error, LoginRefused) and not error.retriable
        assert "user 'bob', sasl.mechanism=SCRAM-SHA-512" in str(error)
        assert "not his, 17" not in str(error)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_every_mechanism_makes_the_round_trip(oracle: SecureOracle, protocol: str, mechanism: str) -> None:
    if mechanism == "PLAIN":
        jaas = f'{PLAIN_JAAS} username="{ALICE}" password="{ALICES_PASSWORD}";'
        credentials: dict[str, Any] = {"sasl_mechanism": mechanism, "sasl_jaas_config": jaas}
    elif mechanism == "OAUTHBEARER":
        token = oracle.issuer.token("carol")
        credentials = {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": lambda: token}
    else:
        credentials = login(mechanism)
    round_trip(f"{protocol}-{mechanism}", options(oracle, protocol, protocol, **credentials))


def test_tls_alone_and_with_a_certificate_of_the_client_make_the_round_trip(oracle: SecureOracle) -> None:
    round_trip("tls", options(oracle, "SSL", "SSL"))
    keystore = oracle.authority.keystore("client")
    round_trip("mutual", options(oracle, "MTLS", "SSL", ssl_keystore_location=keystore))


def test_wrong_credentials_are_refused_at_once(oracle: SecureOracle) -> None:
    cases = [
        login("PLAIN", ALICE, "wrong"),
        login("SCRAM-SHA-256", "nobody-known"),
        login("SCRAM-SHA-512", BOB, "wrong"),
    ]
    late = oracle.issuer.token("carol", lifetime_s=-3600)
    cases += [{"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token": token} for token in ("a.b.c", late)]
    for case in cases:
        for error in refusal(options(oracle, "SASL_SSL", "SASL_SSL", **case)):
            assert isinstance(error, LoginRefused), case["sasl_mechanism"]


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ("OLDCERT", "certificate has expired"),
        ("OTHERNAME", "not valid for '127.0.0.1'"),
        ("MTLS", "asks for a certificate"),
    ],
)
def test_certificates_that_do_not_fit_are_refused_at_once(oracle: SecureOracle, listener: str, words: str) -> None:
    for error in refusal(options(oracle, listener, "SSL")):
        assert isinstance(error, TlsRefused)
        assert words in str(error)


def test_a_foreign_authority_is_refused_at_once(oracle: SecureOracle, tmp_path: Path) -> None:
    foreign = {"ssl_truststore_location": Authority(tmp_path, "foreign").truststore}
    for error in refusal({**options(oracle, "SSL", "SSL"), **foreign}):
        assert isinstance(error, TlsRefused)


@pytest.mark.parametrize(
    ("listener", "protocol", "words"),
    [
        ("SSL", "PLAINTEXT", "it speaks TLS. This client has security.protocol=PLAINTEXT: set SSL or SASL_SSL"),
        ("PLAINTEXT", "SASL_PLAINTEXT", "has no SASL on this listener.*set security.protocol=PLAINTEXT"),
        ("SSL", "SASL_SSL", "has no SASL on this listener.*set security.protocol=SSL"),
    ],
)
def test_a_listener_of_another_protocol_is_named_at_once(
    oracle: SecureOracle, listener: str, protocol: str, words: str
) -> None:
    credentials = login("SCRAM-SHA-256") if protocol.startswith("SASL") else {}
    for error in refusal(options(oracle, listener, protocol, **credentials)):
        assert isinstance(error, ListenerMismatch)
        assert re.search(words, str(error))


@pytest.mark.parametrize(
    ("listener", "protocol", "words"),
    [
        ("PLAINTEXT", "SSL", "closed the connection during the TLS handshake: is it a listener with TLS?"),
        ("SASL_PLAINTEXT", "PLAINTEXT", "does this listener speak security.protocol=PLAINTEXT?"),
        ("SASL_SSL", "SSL", "does this listener speak security.protocol=SSL?"),
    ],
)
def test_a_listener_that_only_closes_is_named_when_the_time_is_over(
    oracle: SecureOracle, listener: str, protocol: str, words: str
) -> None:
    settings = {**options(oracle, listener, protocol), "default_api_timeout_ms": 2_000}
    with pytest.raises(KafkaError) as caught, Admin(**settings) as admin:
        admin.list_topics()
    assert words in str(caught.value)


def test_a_session_is_renewed_on_the_same_connection_and_produces_in_flight_keep_their_order(
    oracle: SecureOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka closes a connection that sends after its 2.5 s."""
    logins: list[int] = []
    log_in = authentication.log_in

    async def counted(*args: Any) -> int:
        lifetime_ms = await log_in(*args)
        logins.append(id(args[1]))
        return lifetime_ms

    monkeypatch.setattr(authentication, "log_in", counted)
    settings = options(oracle, "REAUTH", "SASL_SSL", **login("SCRAM-SHA-256"))

    async def main() -> list[int]:
        deliveries = []
        async with aio.Producer(**settings, linger_ms=0) as producer:
            while max((logins.count(connection) for connection in logins), default=0) < 4:
                for _ in range(50):
                    deliveries.append(await producer.send("renewed", b"x"))
                await asyncio.sleep(0.001)
            return [(await delivery).offset for delivery in deliveries]

    offsets = asyncio.run(asyncio.wait_for(main(), 60))
    assert offsets == list(range(len(offsets)))
    assert len(set(logins)) <= 2, "one connection to ask first, and one to the leader"
