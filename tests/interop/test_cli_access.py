"""`twofold acl` and `twofold user`, on a stopped folder and on a running broker; a broker that nobody could use."""

import json
import os
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from interop.test_believed_settings import AUTHORIZER
from kits.processes import commands
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.processes import free_port, spawn, wait_until

pytestmark = pytest.mark.interop

FIXTURE = Path(__file__).parent.parent / "fixtures" / "guarded-kafka-4.3.1.tar.gz"
GUARDED = {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin"}


def twofold(*args: str, stdin: str = "", environment: Mapping[str, str] = {}) -> Any:
    return commands.run(*args, stdin=stdin, env=environment)


def listed(*args: str) -> list[dict[str, Any]]:
    done = twofold("acl", "list", "--format", "json", *args)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


class ScramServer(TwofoldServer):
    """Clients log in with SCRAM, and at the plain port, if there is one, not at all."""

    plain_port = 0

    def start(self, *, wait: bool = True) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        listeners = [f"SASL_PLAINTEXT://{self.host}:{self.port}"]
        if self.plain_port:
            listeners.append(f"PLAINTEXT://{self.host}:{self.plain_port}")
        settings = self.settings | {
            "listeners": ",".join(listeners),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        }
        options = self.directory / "server.properties"
        options.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [self.python, "-m", "twofold", "serve", "--config", str(options), "--data", str(self.data)]
        self._process = spawn(command, output=self.output)
        wait_until(partial(_answers, self.host, self.port), self._process, patience_s=60, output=self.output)

    def client(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": password,
        }  # fmt: skip

    def written(self, topic: str, *who: str) -> str:
        """What became of a record: "" or the name of the error."""
        producer = Producer(self.client(*who) | {"message.timeout.ms": 20_000})
        fates: list[str] = []
        producer.produce(topic, b"x", on_delivery=lambda error, _: fates.append(error.name() if error else ""))
        producer.flush(30)
        return fates[0]


def _answers(host: str, port: int) -> bool:
    try:
        with Connection(host, port) as connection:
            return bool(connection.ask("ApiVersions", 0)["api_keys"])
    except OSError:
        return False


def test_a_broker_that_no_principal_could_use_is_not_started_and_the_way_back_leads_in(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    refused = twofold("serve", "--listen", "127.0.0.1:0", "--data", folder, "-o", f"authorizer.class.name={AUTHORIZER}")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "neither a super user nor an access control entry" in line and "twofold acl add --data" in line
    added = twofold("acl", "add", "User:ANONYMOUS", "ALL", "--cluster", "--topic", "*", "--data", folder)
    assert added.returncode == 0, added.stderr
    server = TwofoldServer(tmp_path, {"authorizer.class.name": AUTHORIZER})
    with server:
        rows = listed("-b", server.bootstrap_servers)
        assert {row["resource_type"] for row in rows} == {"CLUSTER", "TOPIC"}
        in_use = twofold("acl", "list", "--data", folder)
        assert in_use.returncode == 1 and "is in use: stop its broker first" in in_use.stderr


def test_entries_are_added_listed_and_removed_on_a_stopped_folder(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    added = twofold("acl", "add", "User:bob", "READ", "describe", "--topic", "orders-", "--prefixed", *data)
    assert added.stdout.splitlines() == [
        "added: User:bob may READ topic prefix orders-",
        "added: User:bob may DESCRIBE topic prefix orders-",
    ]
    denied = ("acl", "add", "User:*", "WRITE", "--topic", "orders-secret", "--deny", "--host", "10.0.0.1", *data)
    assert twofold(*denied).stdout == "added: User:* may not WRITE topic orders-secret from 10.0.0.1\n"
    assert len(listed("--topic", "orders-secret", *data)) == 3, "what applies to it"
    assert len(listed("--topic", "orders-2026", *data)) == 2
    assert listed("--principal", "User:*", *data) == [{
        "principal": "User:*", "permission": "DENY", "operation": "WRITE", "resource_type": "TOPIC",
        "resource_name": "orders-secret", "pattern_type": "LITERAL", "host": "10.0.0.1",
    }]  # fmt: skip
    assert twofold("acl", "remove", "--topic", "orders-2026", "--yes", *data).returncode == 1, "no such entry"
    unasked = twofold("acl", "remove", "--principal", "User:bob", *data)
    assert unasked.returncode == 2 and "add --yes" in unasked.stderr and len(listed(*data)) == 3
    gone = twofold("acl", "remove", "--principal", "User:bob", "--operation", "READ", "--yes", *data)
    assert gone.stdout == "removed: User:bob may READ topic prefix orders-\n"
    assert twofold("acl", "remove", "--all", "--yes", *data).returncode == 0
    assert listed(*data) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("acl", "add", "User:a", "READ"), "name what the entry is about"),
        (("acl", "add", "User:a", "FLY", "--topic", "t"), "'FLY' is no operation: ALL, READ, "),
        (("acl", "remove"), "name the entries by principal, resource, operation or host"),
        (("acl", "remove", "--all", "--topic", "t"), "or all of them by --all"),
        (("user", "add", "a"), "give the password with --password-file"),
        (("user", "add", "a", "--password-file", "/none"), "cannot read --password-file /none"),
        (("user", "add", "a", "--iterations", "100", "--password-file", "-"), "4096<=x<=16384"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    done = twofold(*args, "--data", str(tmp_path / "data"))
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_first_user_is_made_before_the_first_start_and_logs_in(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    assert twofold("user", "add", "admin", "--password-file", "-", *data, stdin="s3cret-a\n").returncode == 0
    added = twofold("user", "add", "alice", *data, environment={"TWOFOLD_USER_PASSWORD": "s3cret-b"})
    assert added.stdout == "set the password of alice for SCRAM-SHA-512\n"
    assert twofold("acl", "add", "User:alice", "WRITE", "--topic", "orders", *data).returncode == 0
    server = ScramServer(tmp_path, GUARDED)
    server.start()
    try:
        admin, alice = ("admin", "s3cret-a", "SCRAM-SHA-512"), ("alice", "s3cret-b", "SCRAM-SHA-512")
        assert server.written("orders", *admin) == ""
        assert server.written("orders", *alice) == ""
        assert server.written("other", *alice) == "TOPIC_AUTHORIZATION_FAILED"
        assert "'User:alice' from 127.0.0.1 may not" in server.log_text()
    finally:
        server.kill()
    shown = twofold("user", "list", "--format", "json", *data)
    assert [row["user"] for row in json.loads(shown.stdout)] == ["admin", "alice"]
    assert twofold("user", "remove", "alice", "--yes", *data).stdout == "removed alice (SCRAM-SHA-512)\n"
    assert twofold("user", "remove", "alice", "--yes", *data).returncode == 1
    everything = server.log_text() + shown.stdout + shown.stderr
    assert "s3cret" not in everything
    assert oct(os.stat(tmp_path / "data").st_mode & 0o777) == "0o700"


def test_txn_blocked_names_the_principal_that_holds_readers_back_also_after_kill_nine(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    twofold("user", "add", "alice", "--password-file", "-", *data, stdin="s3cret\n")
    twofold("acl", "add", "User:alice", "WRITE", "--topic", "orders", "--transactional-id", "mine", *data)
    twofold("acl", "add", "User:alice", "CREATE", "--topic", "orders", *data)
    server = ScramServer(tmp_path, {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"})
    server.plain_port = free_port()
    operator = ("-b", f"{server.host}:{server.plain_port}")
    server.start()
    try:
        login = server.client("alice", "s3cret", "SCRAM-SHA-512")
        producer = Producer(login | {"transactional.id": "mine", "transaction.timeout.ms": 600_000})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"held back")
        producer.flush(30)
        for is_restarted in (False, True):
            if is_restarted:
                server.kill()
                server.start()
            (row,) = json.loads(twofold("txn", "blocked", "--format", "json", *operator).stdout)
            assert (row["transactional_id"], row["opened_by"]) == ("mine", "User:alice")
        described = json.loads(twofold("txn", "describe", "mine", "--format", "json", *operator).stdout)
        assert described[0]["opened_by"] == "User:alice"
        ended = twofold("txn", "terminate", "--transactional-id", "mine", "--yes", *operator)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(twofold("txn", "blocked", "--format", "json", *operator).stdout) == []
    finally:
        server.kill()


@pytest.fixture
def folder_of_kafka(tmp_path: Path) -> Path:
    """Made by Apache Kafka 4.3.1 with its authorizer (tools/make_guarded_fixture.py)."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_users_and_entries_that_apache_kafka_stored_are_obeyed(folder_of_kafka: Path) -> None:
    server = ScramServer(folder_of_kafka, GUARDED)
    server.start()
    try:
        alice, bob = ("alice", "alice-password", "SCRAM-SHA-256"), ("bob", "bob-password", "SCRAM-SHA-512")
        assert server.written("orders", *alice) == ""
        assert server.written("orders-secret", *alice) == "TOPIC_AUTHORIZATION_FAILED"
        assert server.written("orders", *bob) == "TOPIC_AUTHORIZATION_FAILED"
        with pytest.raises(KafkaException):
            Producer(server.client("alice", "wrong", "SCRAM-SHA-256")).list_topics(timeout=5)
    finally:
        server.kill()
    rows = listed("--data", str(folder_of_kafka / "data"))
    assert len(rows) == 4 and {row["principal"] for row in rows} == {"User:alice", "User:bob", "User:*"}
