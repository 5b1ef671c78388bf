"""What a broker alone, open to every client, must not be started with: settings that would be believed."""

import pytest

from twofold.config.authorization import AuthorizerSettings, authorizer_settings
from twofold.config.definition import ConfigError, ConfigType, text_of
from twofold.config.keys import DEFINITIONS, refusal
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.config.servable import check_servable
from twofold.config.settings import Settings, Source

SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "SASL_SSL:SASL_SSL",
    "log.dirs": "/var/lib/kafka",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""The server.properties that Apache Kafka 4.3 ships."""


def checked(texts: dict[str, str], hostname: str = "box.example.com") -> str:
    """What keeps a broker with these settings from starting; "" if nothing does."""
    settings = Settings.from_sources(Source("server.properties", texts, lenient=True))
    try:
        check_servable(settings, hostname=hostname)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_file_of_a_single_node_of_apache_kafka_is_accepted():
    assert checked(SINGLE_NODE) == ""
    assert checked({}) == ""


@pytest.mark.parametrize(
    ("texts", "lacks"),
    [
        ({"authorizer.class.name": "com.example.Authorizer"}, "authorizer of that class"),
        ({"principal.builder.class": "com.example.Builder"}, "authorizer"),
        ({"sasl.from.the.future": "x"}, "Java classes for SASL"),
        ({"sasl.login.class": "com.example.Login"}, "Java classes for SASL"),
        ({"sasl.kerberos.service.name": "kafka"}, "Kerberos"),
        ({"delegation.token.secret.key": "hidden"}, "delegation tokens"),
        ({"ssl.keystore.password": "hidden"}, "Java classes and stores for TLS"),
        ({"ssl.from.the.future": "x"}, "Java classes and stores for TLS"),
        ({"security.providers": "com.example.Provider"}, "Java classes and stores for TLS"),
        ({"listener.name.outside.ssl.provider": "com.example.Provider"}, "Java classes and stores for TLS"),
        ({"listener.name.outside.principal.builder.class": "com.example.Builder"}, "authorizer"),
        ({"create.topic.policy.class.name": "com.example.Policy"}, "policies"),
        ({"alter.config.policy.class.name": "com.example.Policy"}, "policies"),
        ({"process.roles": "controller"}, "controllers that are no brokers"),
        ({"process.roles": ""}, "controllers that are no brokers"),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093"}, "clusters"),
        ({"controller.quorum.voters": "2@localhost:9093"}, "clusters"),
        ({"controller.quorum.bootstrap.servers": "a:9093,b:9093"}, "clusters"),
        ({"controller.quorum.bootstrap.servers": "elsewhere:9093"}, "clusters"),
        ({**SINGLE_NODE, "controller.quorum.bootstrap.servers": "localhost:9193"}, "clusters"),
        (SINGLE_NODE | {"controller.quorum.bootstrap.servers": "localhost:9093,other:9093"}, "clusters"),
        ({"controller.quorum.auto.join.enable": "true"}, "clusters"),
        ({"zookeeper.connect": "zk:2181"}, "clusters"),
        ({"min.insync.replicas": "2"}, "replication"),
        ({"default.replication.factor": "3"}, "replication"),
        ({"offsets.topic.replication.factor": "3"}, "replication"),
        ({"transaction.state.log.replication.factor": "3"}, "replication"),
        ({"transaction.state.log.min.isr": "2"}, "replication"),
        ({"remote.log.storage.system.enable": "true"}, "tiered storage"),
        ({"metadata.log.dir": "/elsewhere"}, "directory of its own for the metadata"),
        ({"config.providers": "env"}, "config providers"),
    ],
)
def test_a_setting_that_would_be_believed_stops_the_start(texts, lacks):
    said = checked(texts)
    name, _, reason = said.partition(" (from server.properties): ")
    assert name.partition("=")[0] in texts
    assert reason.startswith(f"Twofold has no {lacks}"), said
    assert "hidden" not in said


@pytest.mark.parametrize(
    "texts",
    [
        {"authorizer.class.name": "", "allow.everyone.if.no.acl.found": ""},
        {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin;User:CN=a,O=b"},
        {"super.users": ""},
        {"ssl.client.auth": "none", "ssl.keystore.type": "JKS", "ssl.endpoint.identification.algorithm": ""},
        {"sasl.enabled.mechanisms": "GSSAPI", "sasl.jaas.config": ""},
        {"listener.name.inside.ssl.client.auth": "none"},
        {"security.inter.broker.protocol": "PLAINTEXT"},
        {"listeners": "INSIDE://:9092", "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL"},
        {"process.roles": "controller,broker"},
        {"node.id": "7", "controller.quorum.voters": "7@anywhere:9093"},
        {"controller.quorum.bootstrap.servers": "127.0.0.1:9093"},
        {"controller.quorum.bootstrap.servers": "box:9093"},
        {"controller.quorum.bootstrap.servers": "BOX.example.com:9093"},
        {"controller.quorum.bootstrap.servers": "[::1]:9093"},
        {"advertised.listeners": "PLAINTEXT://10.0.0.7:9092", "controller.quorum.bootstrap.servers": "10.0.0.7:9093"},
        SINGLE_NODE | {"controller.quorum.bootstrap.servers": "localhost:9093,box:9093"},
        {"metadata.log.dir": "/data/", "log.dirs": "/data"},
        {"min.insync.replicas": "1", "default.replication.factor": "1"},
        {"remote.log.storage.system.enable": "false", "connections.max.reauth.ms": "0"},
        {"unclean.leader.election.enable": "true", "log.flush.interval.messages": "1"},
    ],
)
def test_a_value_that_asks_for_nothing_passes(texts):
    assert checked(texts) == ""


@pytest.mark.parametrize("name", ["super.users", "allow.everyone.if.no.acl.found"])
def test_a_setting_of_the_authorizer_without_one_stops_the_start(name):
    said = checked({name: "User:admin"})
    assert said.startswith(f"{name}=User:admin (from server.properties): without authorizer.class.name ")
    assert STANDARD_AUTHORIZER in said


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("super.users", "admin", "'admin' is no principal such as User:alice; several are separated by semicolons"),
        ("super.users", "User:", "'User:' is no principal such as User:alice; several are separated by semicolons"),
        ("allow.everyone.if.no.acl.found", "yes", "must be true or false"),
    ],
)
def test_a_setting_of_the_authorizer_that_cannot_be_read_stops_the_start(name, text, reason):
    said = checked({"authorizer.class.name": STANDARD_AUTHORIZER, name: text})
    assert said == f"{name}={text} (from server.properties): {reason}"


def test_super_users_are_separated_by_semicolons_because_names_have_commas():
    texts = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:CN=a,O=b; User:admin;"}
    found = authorizer_settings(Settings.from_sources(Source("server.properties", texts, lenient=True)))
    assert found == AuthorizerSettings(frozenset({"User:CN=a,O=b", "User:admin"}), allow_everyone=False)


def test_all_that_is_refused_is_named_and_no_secret_is_shown():
    said = checked(
        SINGLE_NODE
        | {
            "listeners": "SASL_SSL://:9092,CONTROLLER://:9093",
            "sasl.kerberos.service.name": "secret",
            "ssl.keystore.password": "secret",
            "super.users": "User:secret",
            "min.insync.replicas": "2",
        }
    )
    assert said == (
        "sasl.kerberos.service.name (from server.properties): Twofold has no Kerberos (GSSAPI) yet, and no client "
        "could log in by it; remove the setting, and use PLAIN, SCRAM or OAUTHBEARER, or leave this node to Apache "
        "Kafka. Refused as well: ssl.keystore.password, min.insync.replicas"
    )


def test_a_later_source_takes_a_refused_setting_back():
    file = Source("server.properties", {"authorizer.class.name": "x", "super.users": "User:x"}, lenient=True)
    flags = Source("the command line", {"authorizer.class.name": "", "super.users": ""})
    check_servable(Settings.from_sources(file, flags), hostname="box")


def test_every_setting_of_tls_and_sasl_without_effect_is_refused_and_passes_with_its_default():
    of_security = [key for key in DEFINITIONS.values() if key.name.startswith(("ssl.", "sasl.")) and not key.effect]
    assert len(of_security) > 40
    others = {ConfigType.BOOLEAN: "true", ConfigType.STRING: "x", ConfigType.CLASS: "x", ConfigType.PASSWORD: "x"}
    for key in of_security:
        default = text_of(key.default)
        if default is not None:
            assert refusal(key.name, default) is None
        assert refusal(key.name, others.get(key.type, "3")) is not None, key.name
