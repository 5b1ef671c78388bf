"""Apache Kafka and Twofold with an authorizer and SASL PLAIN: `admin` is a super user, `alice` is not."""

import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from kits.security import rights
from kits.security.certificates import Certificates
from kits.security.rights import Right, Row, codes
from oracle.driver import Connection, WireClosed
from oracle.kafka import EXACT_SETTINGS, Oracle, jars_or_skip
from oracle.processes import spawn, wait_until
from oracle.twofold import Twofold
from oracle.wire import fit
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.security.acl_codes import Permission

ALICE = "User:alice"
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="admin" '
    'user_admin="admin" user_alice="alice";'
)
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "group.initial.rebalance.delay.ms": "0",
}
Binding = tuple[int, str, int, str, str, int, int]  # type, name, pattern, principal, host, operation, permission


class LoggedIn(Connection):
    """A connection of a user."""

    def __init__(self, host: str, port: int, user: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(host, port)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        assert self.ask("SaslHandshake", 1, mechanism="PLAIN")["error_code"] == 0
        token = f"\0{user}\0{user}".encode()
        assert self.ask("SaslAuthenticate", 1, auth_bytes=token)["error_code"] == 0


def is_ready(host: str, port: int, tls: ssl.SSLContext | None = None) -> bool:
    try:
        with LoggedIn(host, port, "admin", tls) as connection:
            brokers = connection.ask("Metadata", 1, topics=[])["brokers"]
            body = {"transactional_id": None, "transaction_timeout": 60000}
            return bool(brokers) and connection.ask("InitProducerId", 0, **body)["error_code"] == 0
    except (OSError, WireClosed, AssertionError):
        return False


class GuardedOracle(Oracle):
    """The controller's listener needs a login too, or anonymous clients would have to be super users."""

    def _write_properties(self, controller_port: int) -> None:
        client = f"SASL_PLAINTEXT://{self.host}:{self.port}"
        self.settings |= SETTINGS | {
            "listeners": f"{client},CONTROLLER://{self.host}:{controller_port}",
            "advertised.listeners": client,
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": JAAS,
        }
        super()._write_properties(controller_port)

    def _spawn(self) -> None:
        output = self.directory / "output.log"
        command = [*self._java("-Xms128M", "-Xmx384M"), "kafka.Kafka", str(self._properties)]
        self._process = spawn(command, output=output)
        wait_until(partial(is_ready, self.host, self.port), self._process, patience_s=120, output=output)


class GuardedTwofold(Twofold):
    certificates: Certificates | None = None  # with them it speaks SASL_SSL

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self.certificates is None else ssl.create_default_context(cafile=str(self.certificates.trusted))

    def start(self, *, wait: bool = True) -> None:
        if self.certificates is None:
            self.settings |= SETTINGS | {"listeners": f"SASL_PLAINTEXT://{self.host}:{self.port}"}
        else:
            jaas = {"listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS}
            own = jaas | {"listeners": f"SASL_SSL://{self.host}:{self.port}"}
            plain = {key: value for key, value in SETTINGS.items() if not key.startswith("listener.name")}
            self.settings |= plain | own | self.certificates.stores(truststore=False)
        options = self.directory / "server.properties"
        options.parent.mkdir(parents=True, exist_ok=True)
        options.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        command = [self.python, "-m", "twofold", "serve", "--config", str(options), "--data", str(self.data)]
        self._process = spawn(command, output=self.output)
        ready = partial(is_ready, self.host, self.port, self.tls)
        wait_until(ready, self._process, patience_s=60, output=self.output)


class Asked:
    """One server, its two users, and the scene that the table of rights needs."""

    def __init__(self, name: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.server, self._tls = name, tls
        self.admin, self.alice = LoggedIn(host, port, "admin", tls), LoggedIn(host, port, "alice", tls)
        self._pair: tuple[int, int] | None = None
        self._ids: dict[str, UUID] = {}
        self._host, self._port = host, port

    def name(self, text: str) -> str:
        return text

    def topic_id(self, text: str) -> UUID:
        return self._ids[text]

    def set_scene(self) -> None:
        for name in (rights.T, rights.OTHER):
            self.create(name)
        for group in (rights.G, rights.GONE):
            self._until_found(group, 0)
            self._until(partial(self._commits, group))
        for name in (rights.X, "init"):
            self._until_found(name, 1)
        assert self.pair != (-1, -1)

    def _commits(self, group: str) -> bool:
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
        body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        return codes(self.admin.ask("OffsetCommit", 7, **body, topics=[{"name": rights.T, "partitions": [row]}])) == {0}

    def create(self, name: str) -> None:
        row = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        self._until(lambda: codes(self.admin.ask("CreateTopics", 4, topics=[row], timeout=5000)) <= {0, 36})

        def led() -> bool:
            body = {"topics": [{"name": name, "topic_id": None}], "allow_auto_topic_creation": False}
            (found,) = self.admin.ask("Metadata", 12, **body)["topics"]
            self._ids[name] = found["topic_id"]
            return found["error_code"] == 0 and all(row["leader_id"] >= 0 for row in found["partitions"])

        self._until(led)

    def fresh_transaction(self) -> None:
        """What was begun before is over for the next row that asks for the producer's id and epoch."""
        self._pair = None

    @property
    def pair(self) -> tuple[int, int]:
        def begun() -> bool:
            answer = self.admin.ask("InitProducerId", 4, transactional_id=rights.X, transaction_timeout=60_000)
            self._pair = answer["producer_id"], answer["producer_epoch"]
            return bool(answer["error_code"] == 0)

        if self._pair is None:
            self._until(begun)
        assert self._pair is not None
        return self._pair

    def grant(self, bindings: Sequence[Binding]) -> None:
        """These entries and no others; returns when the authorizer has them."""
        every = {**rights.ACL_FILTER, "principal_filter": None}
        self.admin.ask("DeleteAcls", 3, filters=[every])
        keys = (
            "resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation",
            "permission_type",
        )  # fmt: skip
        rows = [dict(zip(keys, binding, strict=True)) for binding in bindings]
        assert codes(self.admin.ask("CreateAcls", 3, creations=rows)) <= {0}
        self._until(lambda: self.described() == set(bindings))

    def described(self, **wanted: Any) -> set[Binding]:
        answer = self.admin.ask("DescribeAcls", 3, **{**rights.ACL_FILTER, "principal_filter": None, **wanted})
        return {
            (
                row["resource_type"], row["resource_name"], row["pattern_type"], entry["principal"], entry["host"],
                entry["operation"], entry["permission_type"],
            )
            for row in answer["resources"]
            for entry in row["acls"]
        }  # fmt: skip

    def join(self, group: str, topics: tuple[str, ...], *, found: int | None = None) -> None:
        """The admin reads these topics, or as many of them as there are, as a member of a consumer group."""
        self._until_found(group, 0)
        body, count = rights.reader(group, topics), len(topics) if found is None else found
        self._until(lambda: rights.has_topics(self.admin.ask("ConsumerGroupHeartbeat", 1, **body), topics[:count]))

    def until_assigned(self, client: LoggedIn, body: dict[str, Any]) -> None:
        """A member joins until it has partitions."""
        self._until_found(body["group_id"], 0)

        def is_assigned() -> bool:
            answer = client.ask("ConsumerGroupHeartbeat", 1, **body)
            return bool(answer["error_code"] == 0 and answer["assignment"]["topic_partitions"])

        self._until(is_assigned)

    def ask(self, row: Row) -> dict[str, Any]:
        for name in row.creates:
            self.create(name)
        for group, topics in row.reads.items():
            self.join(group, topics)
        body = fit(row.api, row.version, row.body(self))
        try:
            return self.alice.ask(row.api, row.version, **body)
        except WireClosed:
            self.alice = LoggedIn(self._host, self._port, "alice", self._tls)
            return {"closed": True}

    def _until_found(self, key: str, kind: int) -> None:
        self._until(lambda: not self.admin.ask("FindCoordinator", 3, key=key, key_type=kind)["error_code"])

    def _until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"{self.server} does not get there"
            time.sleep(0.01)


def bindings(granted: Sequence[Right], permission: Permission = Permission.ALLOW) -> list[Binding]:
    return [(int(one.kind), one.name, 3, ALICE, "*", int(one.operation), int(permission)) for one in granted]


@contextmanager
def guarded_pair(settings: Mapping[str, str] = {}) -> Iterator[tuple[Asked, Asked]]:
    """Apache Kafka and Twofold, each with the scene set."""
    jars = jars_or_skip()
    with tempfile.TemporaryDirectory(prefix="twofold-guarded-", ignore_cleanup_errors=True) as directory:
        (Path(directory) / "kafka").mkdir()
        oracle = GuardedOracle(jars, Path(directory) / "kafka", EXACT_SETTINGS | dict(settings))
        twofold = GuardedTwofold(Path(directory) / "twofold", EXACT_SETTINGS | dict(settings))
        try:
            oracle.start()
            twofold.start()
            servers = [Asked(server.name, server.host, server.port) for server in (oracle, twofold)]
            for server in servers:
                server.set_scene()
            yield servers[0], servers[1]
        finally:
            oracle.stop()
            twofold.kill()
