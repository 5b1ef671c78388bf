"""Apache Kafka's own tools for entries and SCRAM users, asked of Twofold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.security.guarded import GuardedTwofold, LoggedIn
from kits.security.rights import ACL_FILTER
from oracle.kafka import Done, Oracle, jars_or_skip

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
