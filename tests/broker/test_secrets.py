"""No secret of a run is shown anywhere (scenario 78 of security.md), and what is left open is told at the start."""

import logging
from pathlib import Path

import pytest

from kits.node.sockets import on_loop
from kits.security.certificates import Certificates
from kits.security.guarded_broker import guarded_broker, guarded_settings
from kits.security.sasl_wire import plain_users
from twofold import Admin
from twofold.client.admin.model import ConfigChange, ConfigResource, ResourceType
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.config.settings import Settings
from twofold.embedded import Broker

BROKER = ConfigResource(ResourceType.BROKER, "1")
SECRETS = ("the-password-of-alice", "the-password-of-the-key")


def test_no_secret_of_a_run_is_in_its_log_its_metrics_or_its_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    certificates = Certificates.make(tmp_path)
    users = plain_users(alice=SECRETS[0])
    settings = guarded_settings(
        certificates,
        ssl_key_password=SECRETS[1],
        listener_name_login_plain_sasl_jaas_config=users,
        listener_name_both_plain_sasl_jaas_config=users,
    )
    with Broker(settings=settings, metrics="127.0.0.1:0", data=str(tmp_path / "data")) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            described = admin.describe_configs([BROKER]).get()[BROKER]
            shown = {entry.name: entry.value for entry in described}
            refused = admin.incremental_alter_configs({BROKER: [ConfigChange("ssl.key.password", SECRETS[1])]})
        running = broker._broker
        assert running is not None
        page = str(running.settings) + str(running.guards.of("LOGIN").security)  # type: ignore[union-attr]
    assert shown["ssl.key.password"] is None and shown["ssl.keystore.location"] == str(certificates.broker)
    assert refused.errors[BROKER].name == "INVALID_CONFIG"
    on_disk = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    told = caplog.text + page + str(described) + str(refused.errors) + repr(Settings.from_mapping(settings))
    assert "registered" in caplog.text and len(on_disk) > 100
    for secret in SECRETS:
        assert secret not in told and secret.encode() not in on_disk


@on_loop
async def test_a_start_warns_of_plain_passwords_without_tls_and_of_an_authorizer_that_allows_all(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    certificates = Certificates.make(tmp_path)
    async with guarded_broker(tmp_path / "open", certificates):
        assert "the listener LOGIN has PLAIN without TLS: passwords cross the network in plain text" in caplog.text
        assert "the listener BOTH" not in caplog.text
        assert "authorizer.class.name is not set: every client may do everything" in caplog.text
    caplog.clear()
    guarded = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:ANONYMOUS"}
    async with guarded_broker(tmp_path / "guarded", certificates, guarded_settings(certificates, **guarded)):
        assert "User:ANONYMOUS is a super user: every client that does not log in may do everything" in caplog.text
        assert "is not set" not in caplog.text
