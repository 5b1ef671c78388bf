"""A broker is not started with a setting that would be believed and has no effect: from every source, and for good."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from interop.test_cli_serve import serving
from interop.test_settings_shown import address_of
from kits.processes import commands
from twofold import Admin
from twofold.client.admin.model import ConfigChange, ConfigResource, ResourceType
from twofold.config.definition import ConfigError
from twofold.embedded import Broker

pytestmark = pytest.mark.interop

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OPEN = "remove the setting if the broker may be open to all, or leave this node to Apache Kafka"
LOGIN = "remove the setting, and use PLAIN, SCRAM or OAUTHBEARER, or leave this node to Apache Kafka"
PEM = "remove the setting, and give keys and certificates in PEM, or leave this node to Apache Kafka"
ALONE = "remove the setting if one node is meant, or leave this node to Apache Kafka"

REFUSED = [
    ("authorizer.class.name", "com.example.Authorizer", f"use {AUTHORIZER}"),
    ("principal.builder.class", "com.example.Builder", OPEN),
    ("sasl.kerberos.service.name", "kafka", LOGIN),
    ("ssl.keystore.password", "hidden", PEM),
    ("listener.name.outside.ssl.provider", "hidden", PEM),
    ("controller.quorum.voters", "1@localhost:9093,2@elsewhere:9093", ALONE),
    ("controller.quorum.bootstrap.servers", "elsewhere:9093", ALONE),
    ("process.roles", "controller", ALONE),
    ("min.insync.replicas", "2", "set it to 1, or remove it, if one copy is enough"),
]
BY_NAME = {name: (value, advice) for name, value, advice in REFUSED}
EVERY = pytest.mark.parametrize(("name", "value", "advice"), REFUSED, ids=[row[0] for row in REFUSED])


def refused(tmp_path: Path, *args: str, environment: Mapping[str, str] = {}) -> str:
    """The one line of `twofold serve`, which ended with code 2 and left no trace."""
    folder = tmp_path / "data"
    done = commands.run("serve", "--data", str(folder), *args, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert not folder.exists()
    assert not (tmp_path / "twofold-data").exists()
    assert "hidden" not in done.stderr
    return done.stderr.splitlines()[-1]


@EVERY
def test_the_command_line_is_refused_with_what_to_do(tmp_path: Path, name: str, value: str, advice: str) -> None:
    line = refused(tmp_path, "--listen", "127.0.0.1:0", "-o", f"{name}={value}")
    assert line.startswith(f"twofold serve: {name}")
    assert "(from the command line): Twofold has no " in line and line.endswith(advice)


@EVERY
def test_a_file_is_refused_with_what_to_do(tmp_path: Path, name: str, value: str, advice: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"listeners=PLAINTEXT://127.0.0.1:0\n{name}={value}\n")
    line = refused(tmp_path, "--config", str(file))
    assert line.startswith(f"twofold serve: {name}")
    assert f"(from {file}): Twofold has no " in line and line.endswith(advice)


@pytest.mark.parametrize("name", ["authorizer.class.name", "ssl.keystore.password", "process.roles"])
def test_the_environment_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    value, advice = BY_NAME[name]
    line = refused(tmp_path, environment={f"TWOFOLD_{name.upper().replace('.', '_')}": value})
    assert line.startswith(f"twofold serve: {name}")
    assert "(from the environment): Twofold has no " in line and line.endswith(advice)


@EVERY
def test_an_embedded_broker_raises_the_same(tmp_path: Path, name: str, value: str, advice: str) -> None:
    folder = tmp_path / "data"
    with pytest.raises(ConfigError) as caught, Broker(data=str(folder), settings={name: value}):
        pass
    line = refused(tmp_path, "--listen", "127.0.0.1:0", "-o", f"{name}={value}")
    assert f"twofold serve: {caught.value}" == line.replace("the command line", "Broker(settings=...)")
    assert line.endswith(advice)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "ssl.keystore.location: a TLS listener needs a private key"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth=required (from the command line): no listener uses TLS"),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            "sasl.enabled.mechanisms=PLAIN (from the command line): no listener uses",
        ),
        ({"listeners": "SASL_SSL://127.0.0.1:0"}, "sasl.enabled.mechanisms=GSSAPI: Twofold has no GSSAPI; set it to"),
        (
            {"listener.name.outside.ssl.client.auth": "required"},
            "there is no listener OUTSIDE; listeners has",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"},
            "listener.name.sasl_plaintext.plain.sasl.jaas.config: must name the users",
        ),
    ],
)
def test_security_that_is_half_told_stops_the_start(tmp_path: Path, settings: Mapping[str, str], said: str) -> None:
    options = {"listeners": "PLAINTEXT://127.0.0.1:0", **settings}
    line = refused(tmp_path, *(part for name, text in options.items() for part in ("-o", f"{name}={text}")))
    assert line.startswith("twofold serve: ") and said in line


def test_a_folder_that_is_there_is_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with Broker(data=str(folder)):
        pass
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with (
        pytest.raises(ConfigError, match=r"super\.users"),
        Broker(data=str(folder), settings={"super.users": "User:a"}),
    ):
        pass
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


BROKER = ConfigResource(ResourceType.BROKER, "1")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("resource", [BROKER, ALL_BROKERS], ids=["one", "all"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.keystore.location", "/etc/keystore.jks"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("listener.name.outside.ssl.keystore.location", "/etc/keystore.jks"),
        ("principal.builder.class", "com.example.Builder"),
        ("min.insync.replicas", "2"),
        ("authorizer.class.name", "com.example.Authorizer"),
    ],
)
def test_a_change_while_running_is_refused_too(broker: Broker, resource: ConfigResource, name: str, value: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        changes = {resource: [ConfigChange(name, value)]}
        for answer in (admin.incremental_alter_configs(changes), admin.alter_configs({resource: {name: value}})):
            error = answer.errors[resource]
            assert error.name == "INVALID_CONFIG"
            assert error.message.startswith(f"{name}: Twofold has no ")
        shown = admin.describe_configs([BROKER], names=[name]).get()[BROKER]
        assert value not in [entry.value for entry in shown]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("num.partitons=3", "num.partitons (from the command line): no such setting; did you mean num.partitions?"),
        ("xyz=3", "xyz (from the command line): no such setting; docs/settings.md has all"),
    ],
)
def test_a_mistyped_option_is_an_error_that_names_the_nearest_key(tmp_path: Path, key: str, message: str) -> None:
    assert refused(tmp_path, "--listen", "127.0.0.1:0", "-o", key) == f"twofold serve: {message}"


def test_a_mistyped_setting_of_an_embedded_broker_is_an_error_that_names_the_nearest_key() -> None:
    with pytest.raises(ConfigError, match=r"no such setting; did you mean num\.partitions\?"):
        Broker(settings={"num.partitons": 3})


def test_a_near_miss_in_the_environment_is_an_error_that_names_the_nearest_key(tmp_path: Path) -> None:
    line = refused(tmp_path, "--listen", "127.0.0.1:0", environment={"TWOFOLD_NUM_PARTITON": "3"})
    assert line == "twofold serve: num.partiton (from the environment): no such setting; did you mean num.partitions?"


def test_variables_of_others_and_a_mistyped_key_in_a_file_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TWOFOLD_LONG", "TWOFOLD_SEEDS", "TWOFOLD_DEMO_BREAK", "TWOFOLD_BOOTSTRAP_SERVER"):
        monkeypatch.setenv(name, "1")
    file = tmp_path / "server.properties"
    file.write_text("num.partitons=3\n")
    with serving("--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--config", str(file)) as (process, line):
        assert address_of(line).startswith("127.0.0.1:")
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert f"num.partitons (from {file}) is ignored: no such setting; did you mean num.partitions?" in errors


def test_an_id_that_expires_before_its_transaction_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "--listen", "127.0.0.1:0", "-o", "transactional.id.expiration.ms=900000")
    assert line == (
        "twofold serve: transactional.id.expiration.ms=900000 (from the command line): must be longer than "
        "transaction.max.timeout.ms=900000, because an id must not be forgotten before its transaction times out; "
        "change one of them"
    )
    with pytest.raises(ConfigError, match=r"must be shorter than transactional\.id\.expiration\.ms=604800000"):
        Broker(settings={"transaction.max.timeout.ms": 2**31 - 1})


def test_neither_time_can_be_changed_while_running(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for name in ("transactional.id.expiration.ms", "transaction.max.timeout.ms"):
            for resource in (BROKER, ALL_BROKERS):
                answer = admin.incremental_alter_configs({resource: [ConfigChange(name, "1000")]})
                assert answer.errors[resource].name == "INVALID_REQUEST"
