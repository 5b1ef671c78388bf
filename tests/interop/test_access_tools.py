"""Apache Kafka's own tools for entries and SCRAM users, asked of Twofold."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.security.guarded import GuardedTwofold, LoggedIn
from kits.security.rights import ACL_FILTER
from oracle.kafka import Done, Oracle, jars_or_skip

long = pytest.mark.skipif(os.environ.get("TWOFOLD_LONG") != "1", reason="seconds for each tool: TWOFOLD_LONG=1")
pytestmark = [pytest.mark.oracle, pytest.mark.interop]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedTwofold]:
    running = GuardedTwofold(tmp_path_factory.mktemp("guarded"))
    running.start()
    try:
        yield running
    finally:
        running.kill()


def tool(server: GuardedTwofold, main_class: str, *args: str) -> Done:
    """Run as the super user."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="admin";'
    config = server.directory / "client.properties"
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    jars = Oracle(jars_or_skip(), Path(server.directory))
    where = ("--bootstrap-server", server.bootstrap_servers, "--command-config", str(config))
    return jars.tool(main_class, [*where, *args], timeout=120)


def test_kafka_acls_grants_two_phase_commit(server: GuardedTwofold) -> None:
    added = tool(
        server, "org.apache.kafka.tools.AclCommand", "--add", "--allow-principal", "User:alice", "--operation",
        "TwoPhaseCommit", "--operation", "Write", "--transactional-id", "orders-",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert added.returncode == 0 and "operation=TWO_PHASE_COMMIT" in added.stdout, added.stdout + added.stderr
    with LoggedIn(server.host, server.port, "admin") as admin:
        answer = admin.ask("DescribeAcls", 3, **{**ACL_FILTER, "principal_filter": "User:alice"})
        (row,) = answer["resources"]
        assert (row["resource_name"], row["pattern_type"]) == ("orders-", 4)
        assert sorted(entry["operation"] for entry in row["acls"]) == [4, 15]


@long
def test_kafka_configs_makes_a_scram_user(server: GuardedTwofold) -> None:
    user = ("--entity-type", "users", "--entity-name", "carol")
    made = tool(
        server, "kafka.admin.ConfigCommand", "--alter", *user, "--add-config",
        "SCRAM-SHA-512=[iterations=8192,password=carol-password]",
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    with LoggedIn(server.host, server.port, "admin") as admin:
        answer = admin.ask("DescribeUserScramCredentials", 0, users=[{"name": "carol"}])
        assert answer["results"][0]["credential_infos"] == [{"mechanism": 2, "iterations": 8192}]


@long
def test_kafka_acls_lists_and_removes_what_it_has_added(server: GuardedTwofold) -> None:
    command = "org.apache.kafka.tools.AclCommand"
    entry = ("--allow-principal", "User:dave", "--operation", "Read", "--topic", "orders", "--group", "readers")
    assert tool(server, command, "--add", *entry).returncode == 0
    listed = tool(server, command, "--list", "--principal", "User:dave").stdout
    assert listed.count("principal=User:dave, host=*, operation=READ, permissionType=ALLOW") == 2, listed
    assert "name=orders, patternType=LITERAL" in listed and "resourceType=GROUP, name=readers" in listed
    removed = tool(server, command, "--remove", "--force", *entry)
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert "User:dave" not in tool(server, command, "--list", "--principal", "User:dave").stdout.partition("\n")[2]


@long
def test_kafka_configs_sets_shows_and_removes_quotas(server: GuardedTwofold) -> None:
    command = "kafka.admin.ConfigCommand"
    who = ("--entity-type", "users", "--entity-name", "dave", "--entity-type", "clients", "--entity-default")
    rates = "producer_byte_rate=1024,request_percentage=25.5"
    added = tool(server, command, "--alter", *who, "--add-config", rates)
    assert added.returncode == 0, added.stdout + added.stderr
    shown = tool(server, command, "--describe", *who).stdout
    assert "producer_byte_rate=1024.0" in shown and "request_percentage=25.5" in shown
    removed = tool(server, command, "--alter", *who, "--delete-config", "producer_byte_rate")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    shown = tool(server, command, "--describe", *who).stdout
    assert "producer_byte_rate" not in shown and "request_percentage=25.5" in shown


@long
def test_kafka_configs_shows_and_removes_scram_users(server: GuardedTwofold) -> None:
    command = "kafka.admin.ConfigCommand"
    user = ("--entity-type", "users", "--entity-name", "erin")
    tool(server, command, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=erins]")
    assert "SCRAM-SHA-256=iterations=4096" in tool(server, command, "--describe", *user).stdout
    removed = tool(server, command, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert "SCRAM-SHA-256" not in tool(server, command, "--describe", *user).stdout
