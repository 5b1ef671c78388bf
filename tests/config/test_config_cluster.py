"""The settings of a member of a cluster: where its controllers are, and how to talk to them."""

import pytest

from twofold.config.cluster import (
    all_cordoned,
    bootstrap_addresses,
    controller_security,
    inter_broker_security,
    is_member,
)
from twofold.config.definition import ConfigError
from twofold.config.servable import check_servable
from twofold.config.settings import Settings

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="hidden";'
MEMBER = {
    "process.roles": "broker",
    "node.id": "9",
    "controller.quorum.bootstrap.servers": "c1:9093,c2:9093",
    "listeners": "PLAINTEXT://:9092",
}
OVER_TLS = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    "listener.name.controller.scram-sha-512.sasl.jaas.config": LOGIN,
    "listener.name.controller.ssl.truststore.type": "PEM",
    "listener.name.controller.ssl.truststore.location": "/ca.pem",
}


def settings(**changes: str) -> Settings:
    return Settings.from_mapping(MEMBER | {name.replace("_", "."): text for name, text in changes.items()})


def refusal(texts: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        check_servable(Settings.from_mapping(texts), hostname="box")
    return str(refused.value)


def test_a_broker_alone_with_controllers_elsewhere_is_a_member() -> None:
    assert is_member(settings())
    check_servable(settings(), hostname="box")
    assert bootstrap_addresses(settings()) == ("c1:9093", "c2:9093")
    assert not is_member(Settings.from_mapping({}))


def test_the_voters_of_a_static_quorum_are_asked_where_no_addresses_are_set() -> None:
    texts = {name: text for name, text in MEMBER.items() if "bootstrap" not in name}
    found = Settings.from_mapping(texts | {"controller.quorum.voters": "1@a:9093,2@b:9093"})
    check_servable(found, hostname="box")
    assert bootstrap_addresses(found) == ("a:9093", "b:9093")


def test_a_member_may_ask_for_several_replicas() -> None:
    check_servable(
        settings(default_replication_factor="3", transaction_state_log_min_isr="2", min_insync_replicas="2"),
        hostname="box",
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"controller.quorum.bootstrap.servers": ""}, "process.roles=broker: needs controllers: set controller.quorum"),
        ({"controller.quorum.bootstrap.servers": "c1"}, "c1: is not HOST:PORT"),
        ({"transaction.two.phase.commit.enable": "true"}, "is not served by a broker in a cluster yet"),
        ({"transaction.heartbeat.enable": "true"}, "is not served by a broker in a cluster yet"),
        ({"cordoned.log.dirs": "/elsewhere"}, "cordoned.log.dirs=/elsewhere: is none of log.dirs"),
        (
            {"controller.listener.names": "QUORUM", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
            "must have an entry QUORUM:PROTOCOL",
        ),
        (
            {"listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
             "sasl.mechanism.controller.protocol": "PLAIN"},
            "listener.name.controller.plain.sasl.jaas.config: must name the user that this broker logs in as",
        ),
        ({"ssl.truststore.location": "/ca.pem"}, "no listener uses TLS"),
    ],
)  # fmt: skip
def test_what_a_member_cannot_do_stops_the_start(changes: dict[str, str], said: str) -> None:
    assert said in refusal(MEMBER | changes)


def test_a_member_needs_a_node_id_of_its_own() -> None:
    texts = {name: text for name, text in MEMBER.items() if name != "node.id"}
    assert refusal(texts).startswith("node.id: must be set (-o node.id=N)")


def test_a_node_alone_has_no_cordoned_directories() -> None:
    assert "is for members of a cluster" in refusal({"cordoned.log.dirs": "*"})


@pytest.mark.parametrize(
    ("cordoned", "expected"), [("", False), ("*", True), ("/data", True), ("/data/", True), ("/other", False)]
)
def test_which_directories_are_cordoned(cordoned: str, expected: bool) -> None:
    assert all_cordoned(settings(log_dirs="/data", cordoned_log_dirs=cordoned)) == expected


def test_the_login_and_the_trust_of_the_controllers_listener_are_found() -> None:
    found = Settings.from_mapping(MEMBER | OVER_TLS)
    check_servable(found, hostname="box")
    assert controller_security(found).of_client("SCRAM-SHA-512") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": LOGIN,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
    assert "hidden" not in repr(controller_security(found))


def test_settings_for_all_listeners_hold_for_the_controllers_too() -> None:
    texts = {name: text for name, text in OVER_TLS.items() if "truststore" not in name}
    found = Settings.from_mapping(MEMBER | texts | {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/all"})
    check_servable(found, hostname="box")
    assert controller_security(found).texts["ssl.truststore.location"] == "/all"


def test_the_listener_between_brokers_is_the_named_one_or_the_one_of_the_protocol() -> None:
    assert inter_broker_security(settings()).listener == "PLAINTEXT"
    named = settings(
        inter_broker_listener_name="inside", listener_security_protocol_map="INSIDE:SSL,CONTROLLER:PLAINTEXT"
    )
    assert (inter_broker_security(named).listener, str(inter_broker_security(named).protocol)) == ("INSIDE", "SSL")
