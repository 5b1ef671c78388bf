"""A member of a cluster that is closed: controllers over TLS with a login, and access control entries."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.cluster.apache import ApacheCluster, Done, eventually
from kits.processes.server import TwofoldServer
from kits.security.authorities import Authority
from oracle.driver import Connection
from oracle.kafka import jars_or_skip
from twofold.config.keys.missing import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.interop, pytest.mark.oracle, pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = {"admin": "admin's secret", "apache": "apache's secret", "nine": "nine's secret", "eve": "eve's secret"}
LOGIN = "listener.name.controller.plain.sasl.jaas.config"
CREATE = {"name": "made", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
AUTHORIZATION_FAILED = (29, 31)


def login(user: str, *, serves: bool = False) -> str:
    known = "".join(f' user_{name}="{password}"' for name, password in USERS.items()) if serves else ""
    return f'{PLAIN} username="{user}" password="{USERS[user]}"{known};'


def common(authority: Authority) -> dict[str, str]:
    """Of all nodes."""
    return {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:apache;User:nine",
        "listener.name.controller.ssl.truststore.type": "PEM",
        "listener.name.controller.ssl.truststore.location": authority.truststore,
    }


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[ApacheCluster]:
    settings = {
        **common(authority),
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.ssl.keystore.type": "PEM",
        "listener.name.controller.ssl.keystore.location": authority.keystore("controller"),
        LOGIN: login("apache", serves=True),
    }
    running = ApacheCluster(
        jars_or_skip(), tmp_path_factory.mktemp("apache"), controllers=1, brokers=1, settings=settings
    )
    try:
        for node in running.nodes:
            node.write_properties()
            node.format()
            node.start()
        running.controllers[0].await_ready()
        yield running
    finally:
        running.stop()


def member_of(cluster: ApacheCluster, authority: Authority, directory: Path, user: str) -> TwofoldServer:
    member = TwofoldServer(
        directory,
        {**common(authority), "node.id": "9", "controller.listener.names": "CONTROLLER", LOGIN: login(user)},
    )
    member.flags = ["--join", cluster.bootstrap_controllers, "--coordinators-only"]
    return member


def acls(cluster: ApacheCluster, authority: Authority, *args: str) -> Done:
    config = cluster.directory / "admin.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.truststore}\n"
        f"sasl.jaas.config={login('admin')}\n"
    )
    server = ["--bootstrap-controller", cluster.bootstrap_controllers, "--command-config", str(config)]
    return cluster.tool("org.apache.kafka.tools.AclCommand", [*server, *args])


def test_a_member_logs_in_over_tls_and_the_principal_goes_with_what_it_forwards(
    cluster: ApacheCluster, authority: Authority, tmp_path: Path
) -> None:
    member = member_of(cluster, authority, tmp_path, "nine")
    member.start(wait=False)
    try:
        eventually(lambda: "is unfenced" in member.log_text(), within_s=30, what="unfenced")
        eventually(lambda: listens(member), within_s=10, what="it serves")
        with Connection(member.host, member.port) as anonymous:
            refused = anonymous.ask("CreateTopics", 5, topics=[CREATE], timeout=10000)
            assert refused["topics"][0]["error_code"] in AUTHORIZATION_FAILED, refused
            allowed = acls(cluster, authority, "--add", "--allow-principal", "User:ANONYMOUS", "--operation", "Create",
                           "--operation", "Describe", "--topic", "made")  # fmt: skip
            assert allowed.returncode == 0, allowed.stdout + allowed.stderr
            created = anonymous.ask("CreateTopics", 5, topics=[CREATE], timeout=10000)
            assert created["topics"][0]["error_code"] == 0, created
            # The entries hold here as well: what may be described can be seen, and nothing else.
            asked = [{"name": "made"}, {"name": "other"}]
            shown = anonymous.ask("Metadata", 4, topics=asked, allow_auto_topic_creation=False)
            assert {row["name"]: row["error_code"] for row in shown["topics"]} == {"made": 0, "other": 29}
    finally:
        member.kill()


def listens(member: TwofoldServer) -> bool:
    try:
        with Connection(member.host, member.port) as connection:
            connection.ask("ApiVersions", 0)
    except OSError:
        return False
    return True


def refusal(member: TwofoldServer) -> str:
    member.start(wait=False)
    member.wait_for_end()
    return member.log_text().splitlines()[-1]


def test_a_user_without_rights_on_the_cluster_is_told_what_it_needs_and_joins_with_that(
    cluster: ApacheCluster, authority: Authority, tmp_path: Path
) -> None:
    member = member_of(cluster, authority, tmp_path, "eve")
    assert "prepare the directory with `kafka-storage.sh format --cluster-id ID`" in refusal(member)
    properties = tmp_path / "eve.properties"
    properties.write_text(
        f"process.roles=broker\nnode.id=9\nlog.dirs={member.data}\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers={cluster.bootstrap_controllers}\n"
    )
    done = cluster.tool("kafka.tools.StorageTool", ["format", "-t", cluster.cluster_id, "-c", str(properties)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its user needs ClusterAction on the cluster" in refusal(member)
    allowed = acls(
        cluster, authority, "--add", "--allow-principal", "User:eve", "--operation", "ClusterAction", "--cluster"
    )
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr
    member.start(wait=False)
    try:
        eventually(lambda: "is unfenced" in member.log_text(), within_s=60, what="unfenced")
    finally:
        member.kill()


def test_a_wrong_password_is_named_and_not_shown(cluster: ApacheCluster, authority: Authority, tmp_path: Path) -> None:
    member = member_of(cluster, authority, tmp_path, "nine")
    member.settings[LOGIN] = f'{PLAIN} username="nine" password="not this";'
    said = refusal(member)
    assert "no controller answers" in said and "nine" in said
    assert "not this" not in member.log_text()


def test_controllers_that_want_tls_are_named(cluster: ApacheCluster, authority: Authority, tmp_path: Path) -> None:
    member = TwofoldServer(tmp_path, {"node.id": "9", "initial.broker.registration.timeout.ms": "2000"})
    member.flags = ["--join", cluster.bootstrap_controllers, "--coordinators-only"]
    assert "TLS" in refusal(member)
