"""Stock clients over TLS and SASL: each logs in, writes and reads; a wrong password is the right error, and no hang.

The short form has one client per protocol and mechanism, the long one (TWOFOLD_LONG=1) every client with every one.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, Producer
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

import twofold
from kits.clients.remote import Remote, RemoteClient, go_command, java_command
from kits.clients.transactional import Refused
from kits.security.certificates import Certificates
from kits.security.guarded_broker import guarded_settings
from twofold.client.admin.security import ScramPassword
from twofold.embedded import Broker
from twofold.security.scram import ScramMechanism

pytestmark = pytest.mark.interop

LONG = os.environ.get("TWOFOLD_LONG") == "1"
LISTENER = {"SSL": "TLS", "SASL_PLAINTEXT": "LOGIN", "SASL_SSL": "BOTH"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MODULES = "org.apache.kafka.common.security"
SCRAM_JAAS = f'{MODULES}.scram.ScramLoginModule required username="alice" password="%s";'
JAAS = {
    "PLAIN": f'{MODULES}.plain.PlainLoginModule required username="alice" password="%s";',
    "SCRAM-SHA-256": SCRAM_JAAS,
    "SCRAM-SHA-512": SCRAM_JAAS,
    "OAUTHBEARER": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
}
HANDLER = f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
WAYS = [("SSL", ""), *((protocol, one) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for one in MECHANISMS)]
SHORT = [
    ("confluent", "SSL", ""),
    ("confluent", "SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("confluent", "SASL_SSL", "OAUTHBEARER"),
    ("kafka-python", "SASL_SSL", "SCRAM-SHA-512"),
    ("aiokafka", "SASL_SSL", "PLAIN"),
    ("kcat", "SASL_SSL", "SCRAM-SHA-256"),
]
ALL = [(client, *way) for client in ("confluent", "kafka-python", "aiokafka", "java", "franz-go") for way in WAYS]
# It takes a token from nowhere but a service, over HTTP.
ALL += [("kcat", *way) for way in WAYS if way[1] != "OAUTHBEARER"]


class Setup:
    def __init__(self, broker: Broker, certificates: Certificates, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificates = certificates
        self.key = key
        running = broker._broker
        assert running is not None
        self.ports = {address.name: address.port for address in running.listeners}

    def address(self, protocol: str) -> str:
        return f"localhost:{self.ports[LISTENER[protocol]]}"

    def token(self, lifetime_s: float = 3600) -> str:
        now = time.time()
        claims = {"sub": "alice", "iat": now, "exp": now + lifetime_s}
        return jwt.encode(claims, self.key, "ES256", headers={"kid": "k"})


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder: Path = tmp_path_factory.mktemp("security")
    certificates = Certificates.make(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": "k"}
    (folder / "keys.json").write_text(json.dumps({"keys": [public]}))
    settings = guarded_settings(
        certificates,
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        sasl_oauthbearer_jwks_endpoint_url=f"file://{folder}/keys.json",
        listener_name_tls_ssl_client_auth="required",
    )
    with Broker(settings=settings) as broker:
        setup = Setup(broker, certificates, key)
        with twofold.Admin(bootstrap_servers=f"localhost:{setup.ports['OPEN']}") as admin:
            for mechanism in ScramMechanism:  # a request names each user once
                admin.alter_users([ScramPassword("alice", "opens", mechanism)])
        broker.create_topic("orders")
        yield setup


def confluent_settings(setup: Setup, protocol: str, mechanism: str, password: str) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap.servers": setup.address(protocol), "security.protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl.ca.location"] = str(setup.certificates.trusted)
    if protocol == "SSL":
        found |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), str(setup.certificates.client))
    if mechanism == "OAUTHBEARER":
        lifetime_s = 3600 if password == "opens" else -1
        found |= {"sasl.mechanism": mechanism, "oauth_cb": lambda _: (setup.token(lifetime_s), time.time() + 3600)}
    elif mechanism:
        found |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
    return found


def by_confluent(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    errors: list[KafkaError] = []
    settings = confluent_settings(setup, protocol, mechanism, password) | {"error_cb": errors.append}
    producer = Producer(settings)
    producer.produce("orders", b"by confluent")
    deadline = time.monotonic() + 30
    while len(producer) and time.monotonic() < deadline:
        producer.poll(0.1)
        if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            producer.purge()
            raise PermissionError(str(errors))
    assert not len(producer), errors
    consumer = Consumer(settings | {"group.id": f"{protocol}-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found = consumer.poll(30)
    assert found is not None and found.error() is None
    consumer.close()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    async def token(self) -> str:
        return self.setup.token()


class TokensOfKafkaPython(KafkaPythonTokens):  # type: ignore[misc]
    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def token(self) -> str:
        return self.setup.token()

    def extensions(self) -> dict[str, str]:
        return {}


def python_settings(setup: Setup, protocol: str, mechanism: str, password: str) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap_servers": setup.address(protocol), "security_protocol": protocol}
    if mechanism:
        found["sasl_mechanism"] = mechanism
        if mechanism != "OAUTHBEARER":
            found |= {"sasl_plain_username": "alice", "sasl_plain_password": password}
    return found


def by_kafka_python(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    settings = python_settings(setup, protocol, mechanism, password)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = TokensOfKafkaPython(setup)
    if protocol.endswith("SSL"):
        settings["ssl_cafile"] = str(setup.certificates.trusted)
    if protocol == "SSL":
        settings |= dict.fromkeys(("ssl_certfile", "ssl_keyfile"), str(setup.certificates.client))
    producer = KafkaProducer(**settings, max_block_ms=10_000)
    try:
        producer.send("orders", b"by kafka-python").get(30)
    finally:
        producer.close(1)
    consumer = KafkaConsumer("orders", **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    assert next(consumer).value
    consumer.close()


async def by_aiokafka(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    from aiokafka.helpers import create_ssl_context

    settings = python_settings(setup, protocol, mechanism, password)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens(setup)
    if protocol.endswith("SSL"):
        client = str(setup.certificates.client) if protocol == "SSL" else None
        settings["ssl_context"] = create_ssl_context(
            cafile=str(setup.certificates.trusted), certfile=client, keyfile=client
        )
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("orders", b"by aiokafka")
    async with AIOKafkaConsumer("orders", **settings, auto_offset_reset="earliest") as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 30)).value


def by_kcat(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    settings = confluent_settings(setup, protocol, mechanism, password) | {"message.timeout.ms": "20000"}
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    run = partial(subprocess.run, capture_output=True, text=True, timeout=60, check=False)
    for flags, given in ((["-P"], "by kcat\n"), (["-C", "-c", "1", "-e", "-q"], "")):
        done = run(["kcat", *options, "-t", "orders", *flags], input=given)
        if "uthentication" in done.stderr:
            raise PermissionError(done.stderr)
        assert done.returncode == 0, done.stderr
    assert done.stdout


def by_java(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    """Its settings are a file; a token is in one, too."""
    folder = setup.certificates.folder
    settings = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(setup.certificates.trusted)}
    if protocol == "SSL":
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pkcs8(setup.certificates.client))}
    flags = []
    if mechanism:
        settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": JAAS[mechanism].replace("%s", password)}
    if mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(setup.token(3600 if password == "opens" else -1))
        settings |= {
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.login.callback.handler.class": HANDLER,
        }
        flags = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"]
    properties = folder / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java, *rest = java_command()
    by_remote(setup, protocol, [java, *flags, *rest], {"CLIENT_PROPERTIES": str(properties)})


def pkcs8(store: Path) -> Path:
    """Java reads keys in no other form."""
    text = store.read_bytes()
    key = load_pem_private_key(text, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made = store.with_suffix(".pkcs8.pem")
    made.write_bytes(key + text[text.index(b"-----BEGIN CERTIFICATE") :])
    return made


def by_franz_go(setup: Setup, protocol: str, mechanism: str, password: str) -> None:
    secret = setup.token(3600 if password == "opens" else -1) if mechanism == "OAUTHBEARER" else password
    security = {"mechanism": mechanism, "user": "alice", "password": secret}
    if protocol.endswith("SSL"):
        security["authority"] = str(setup.certificates.trusted)
    if protocol == "SSL":
        security["certificate"] = str(setup.certificates.client)
    by_remote(setup, protocol, go_command(), {"CLIENT_SECURITY": json.dumps(security)})


def by_remote(setup: Setup, protocol: str, command: list[str], env: dict[str, str]) -> None:
    """A transaction, and what a reader of committed records has."""
    with Remote(command, setup.address(protocol), env) as remote:
        client = RemoteClient(remote)
        try:
            client.open(f"{command[0]}-{protocol}", 30_000)
            client.begin()
            client.send("orders", [(0, "by another language")])
            client.commit()
        except Refused as error:
            raise PermissionError(str(error)) from error
        assert "by another language" in [row.value for row in client.read("orders", 1, committed=True)]
        client.close()


def write_and_read(client: str, setup: Setup, protocol: str, mechanism: str, password: str = "opens") -> None:
    if client == "aiokafka":
        asyncio.run(by_aiokafka(setup, protocol, mechanism, password))
    else:
        by = {
            "confluent": by_confluent,
            "kafka-python": by_kafka_python,
            "kcat": by_kcat,
            "java": by_java,
            "franz-go": by_franz_go,
        }
        by[client](setup, protocol, mechanism, password)


@pytest.mark.parametrize(("client", "protocol", "mechanism"), ALL if LONG else SHORT)
def test_a_stock_client_logs_in_writes_and_reads(setup: Setup, client: str, protocol: str, mechanism: str) -> None:
    write_and_read(client, setup, protocol, mechanism)


WRONG = [("confluent", "SCRAM-SHA-256"), ("confluent", "OAUTHBEARER"), ("aiokafka", "PLAIN")]
if LONG:  # it goes on trying for half a minute
    WRONG += [("kafka-python", "PLAIN"), ("kcat", "PLAIN")]
    WRONG += [(client, mechanism) for client in ("java", "franz-go") for mechanism in ("PLAIN", "OAUTHBEARER")]


@pytest.mark.parametrize(("client", "mechanism"), WRONG)
def test_a_wrong_password_or_an_expired_token_is_an_error_of_authentication(
    setup: Setup, caplog: pytest.LogCaptureFixture, client: str, mechanism: str
) -> None:
    """The Python clients tell it in their log and raise that they have no broker."""
    expected = (PermissionError, AuthenticationFailedError, KafkaConnectionError, KafkaPythonError)
    with pytest.raises(expected) as caught:
        write_and_read(client, setup, "SASL_PLAINTEXT", mechanism, "wrong")
    theirs = " ".join(record.getMessage() for record in caplog.records if not record.name.startswith("twofold"))
    words = ("uthentication", "oauth response")  # franz-go passes over what a broker says about a token
    assert any(word in repr(caught.value) for word in words) or "SaslAuthenticationFailed" in theirs
