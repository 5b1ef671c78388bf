"""Security settings of a client: what is refused before anything connects, and what no text shows."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kits.security.authorities import Authority
from twofold.client.config import ClientConfig, ConsumerConfig, ProducerConfig, from_dotted
from twofold.connections.security import ConnectionSecurity, literal_secret

SECRET = "xyzzy-17"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
LOGIN = {"sasl.username": "alice", "sasl.password": SECRET}
OAUTH = SASL | {"sasl.mechanism": "OAUTHBEARER"}
TLS = {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol='TLS' is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing.*GSSAPI, is not supported"),
        (SASL | LOGIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: Kerberos is not supported: use one of"),
        (SASL | LOGIN | {"sasl.mechanism": "SCRAM-SHA-1"}, "sasl.mechanism=SCRAM-SHA-1: use one of"),
        (SASL, "sasl.username is missing"),
        (SASL | {"sasl.username": "alice"}, "sasl.password is missing"),
        (LOGIN, "sasl.username has no effect with security.protocol=PLAINTEXT: set security.protocol=SASL_SSL or"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism has no effect with security.protocol=PLAINTEXT"),
        (
            SASL | LOGIN | {"ssl.truststore.location": "/ca.pem"},
            "ssl.truststore.location has no effect with security.protocol=SASL_PLAINTEXT: set security.protocol=SASL_S",
        ),
        (
            TLS | {"ssl.truststore.type": "JKS", "ssl.truststore.location": "/t.jks"},
            "JKS.*PEM is; set ssl.truststore.type",
        ),
        (TLS | {"ssl.truststore.location": "/nowhere.pem"}, "/nowhere.pem: cannot be read: No such file"),
        (TLS | {"ssl.truststore.password": SECRET}, "ssl.truststore.password is not supported: a PEM file has no"),
        (TLS | {"ssl.endpoint.identification.algorithm": "maybe"}, "must be https, or empty"),
        (SASL | LOGIN | {"sasl.kerberos.service.name": "kafka"}, "Kerberos .GSSAPI. is not supported: use"),
        (SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required password="{SECRET}";'}, "needs org.apache.*PlainLogin"),
        (SASL | {"sasl.jaas.config": f'{PLAIN_MODULE} required password="{SECRET}'}, "is a quote missing"),
        (
            SASL | {"sasl.jaas.config": f'{PLAIN_MODULE} required password="{SECRET}";'},
            "has no username, or no password",
        ),
        (
            SASL | LOGIN | {"sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="{SECRET}";'},
            "sasl.username and sasl.jaas.config both name a user",
        ),
        (
            SASL
            | {"sasl.mechanism": "SCRAM-SHA-256"}
            | {"sasl.jaas.config": f'{SCRAM_MODULE} required username="t" password="{SECRET}" tokenauth="true";'},
            "delegation tokens are not supported",
        ),
        (OAUTH, "needs one source of tokens, and there is none"),
        (
            OAUTH | {"sasl.oauthbearer.token": SECRET, "sasl.oauthbearer.token.file": "/t"},
            "there are sasl.oauth.* and ",
        ),
        (OAUTH | {"sasl.oauthbearer.token.endpoint.url": "https://idp/"}, "tokens are not fetched over HTTP"),
        (SASL | LOGIN | {"sasl.oauthbearer.token": SECRET}, "has no effect with sasl.mechanism=PLAIN"),
        (SASL | {"sasl.username": "alice", "sasl.password": "${env:NOT_SET_AT_ALL}"}, "has no variable NOT_SET_AT_ALL"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_connects(settings: Mapping[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_dotted(ClientConfig, settings)
    assert SECRET not in str(caught.value)


def test_settings_of_javas_own_machinery_are_passed_over_and_others_are_refused() -> None:
    assert from_dotted(ClientConfig, {"ssl.provider": "SunJSSE"}).security.is_plain
    with pytest.raises(ValueError, match="no class of Java is loaded here: tokens come from"):
        from_dotted(ClientConfig, OAUTH | {"sasl.login.callback.handler.class": "com.example.Handler"})


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_no_text_of_a_config_has_a_secret_in_it(config: type[ClientConfig], tmp_path: Path) -> None:
    keystore = Path(Authority(tmp_path).keystore("client")).read_text()
    settings = SASL | LOGIN | {"security.protocol": "SASL_SSL", "ssl.keystore.key": keystore}
    found = from_dotted(config, settings | {"ssl.keystore.certificate.chain": keystore})
    jaas = from_dotted(
        config, SASL | {"sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="{SECRET}";'}
    )
    for shown in (repr(found), repr(found.security), repr(jaas), repr(jaas.security), str(found.limits)):
        assert SECRET not in shown
        assert "PRIVATE KEY" not in shown
    assert "sasl_username='alice'" in repr(found)


def test_a_login_is_shown_by_its_user_and_mechanism() -> None:
    security = ConnectionSecurity.of(SASL | LOGIN)
    assert security.login == "user 'alice', sasl.mechanism=PLAIN"


def test_a_password_is_read_anew_for_every_login(tmp_path: Path) -> None:
    path = tmp_path / "password"
    security = ConnectionSecurity.of(SASL | {"sasl.username": "alice", "sasl.password": f"${{file:{path}}}"})
    for password in ("old", "new"):
        path.write_text(password)
        assert security.sasl_client().first() == f"\0alice\0{password}".encode()


def test_a_token_comes_from_a_file_a_reference_or_a_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    monkeypatch.setenv("A_TOKEN", "a.b.c")
    for source in (
        {"sasl.oauthbearer.token.file": str(path)},
        {"sasl.oauthbearer.token.endpoint.url": path.as_uri()},
        {"sasl.oauthbearer.token": "${env:A_TOKEN}"},
        {"sasl.oauth.token.provider": lambda: "a.b.c"},
    ):
        first = ConnectionSecurity.of(OAUTH | source).sasl_client().first()
        assert first == b"n,,\x01auth=Bearer a.b.c\x01\x01"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"sasl.password": SECRET}, "sasl.password"),
        ({"sasl.password": "${env:PW}"}, None),
        ({"sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="{SECRET}";'}, "sasl.jaas.config"),
        ({"sasl.jaas.config": f'{PLAIN_MODULE} required username="a" password="${{env:PW}}";'}, None),
        ({"sasl.jaas.config": "${file:/etc/jaas}"}, None),
        ({"sasl.jaas.config": f"garbage {SECRET}"}, "sasl.jaas.config"),
        ({"ssl.keystore.key": "-----BEGIN"}, "ssl.keystore.key"),
        ({"sasl.username": "alice"}, None),
    ],
)
def test_a_setting_that_holds_a_secret_itself_is_found(settings: Mapping[str, str], name: str | None) -> None:
    assert literal_secret(settings) == name
