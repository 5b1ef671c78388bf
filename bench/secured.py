"""Twofold and Apache Kafka with the same listeners (PLAINTEXT, SSL, SASL_SSL), the authorizer and the same entries.

The client is `User:bench` over SASL_SSL, and `User:ANONYMOUS` over the others; both have the rights of a producer in
transactions and of a consumer. `admin` is the super user, on a listener of its own.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.servers import KAFKA, TWOFOLD, TunedOracle, TwofoldServer, jars_or_skip
from kits.security.authorities import Authority
from kits.security.guarded import is_ready
from oracle.kafka import SETTINGS
from oracle.processes import free_port, spawn, wait_until
from twofold import Admin
from twofold.client.admin.security import AclBinding
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.security.acl_codes import AclResourceType, Operation, PatternType

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_SSL")
INTERNAL = "INTERNAL"
HOST = "127.0.0.1"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'{MODULE} required username="admin" password="admin" user_admin="admin" user_bench="bench";'
NAMES = "bench"  # topics, groups and transactional ids of the clients begin so
AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker that runs, and how its clients reach it."""

    name: str
    pid: int
    ports: dict[str, int]
    truststore: str

    def address(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}"

    def client(self, protocol: str) -> dict[str, str]:
        """Settings of confluent-kafka."""
        found = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = self.truststore
        if protocol.startswith("SASL"):
            found |= {"sasl.mechanism": "PLAIN", "sasl.username": "bench", "sasl.password": "bench"}
        return found

    def admin(self) -> Admin:
        return Admin(
            bootstrap_servers=self.address(INTERNAL),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="admin",
            sasl_password="admin",
        )

    def grant(self, count: int) -> None:
        """So many entries, those of the clients among them."""
        wanted = entries(count)
        with self.admin() as admin:
            for first in range(0, count, AT_ONCE):
                errors = admin.create_acls(wanted[first : first + AT_ONCE]).errors
                if errors:
                    raise RuntimeError(f"{self.name} took no entry: {next(iter(errors.values()))}")


def entries(count: int) -> list[AclBinding]:
    """Those that the clients need, and for the rest those of other teams: names and prefixes of many lengths."""
    prefixed = PatternType.PREFIXED
    found = [
        AclBinding(kind, NAMES, user, operation, pattern_type=prefixed)
        for user in ("User:bench", "User:ANONYMOUS")
        for kind, operation in (
            (AclResourceType.TOPIC, Operation.READ),
            (AclResourceType.TOPIC, Operation.WRITE),
            (AclResourceType.GROUP, Operation.READ),
            (AclResourceType.TRANSACTIONAL_ID, Operation.WRITE),
        )
    ]
    operations = (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
    for number in range(count - len(found)):
        team = number % 100
        found.append(
            AclBinding(
                AclResourceType.TOPIC,
                f"team-{team}-topic-{number}",
                f"User:team-{team}",
                operations[number % 3],
                pattern_type=prefixed if number % 2 else PatternType.LITERAL,
            )
        )
    return found


def listeners(ports: dict[str, int]) -> dict[str, str]:
    addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    protocols = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)
    return {
        "listeners": addresses,
        "advertised.listeners": addresses,
        "listener.security.protocol.map": f"{protocols},{INTERNAL}:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        "listener.name.internal.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }


class SecuredKafka(TunedOracle):
    """The nodes of a cluster, here one, talk to each other over the listener of the super user."""

    def __init__(self, directory: Path, ports: dict[str, int], settings: dict[str, str]) -> None:
        super().__init__(jars_or_skip(), directory, settings)
        self.ports = ports

    def _write_properties(self, controller_port: int) -> None:
        self.settings |= {
            "listeners": f"{self.settings['listeners']},CONTROLLER://{HOST}:{controller_port}",
            "listener.security.protocol.map": (
                f"{self.settings['listener.security.protocol.map']},CONTROLLER:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": INTERNAL,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": JAAS,
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        }
        super()._write_properties(controller_port)

    def _spawn(self) -> None:
        output = self.directory / "output.log"
        self._process = spawn([*self._java("-server"), "kafka.Kafka", str(self._properties)], output=output)
        ready = partial(is_ready, HOST, self.ports[INTERNAL])
        wait_until(ready, self._process, patience_s=120, output=output)


class SecuredTwofold(TwofoldServer):
    def __init__(self, directory: Path, ports: dict[str, int], settings: dict[str, str]) -> None:
        super().__init__(directory, settings)
        self.ports = ports

    def start(self, *, wait: bool = True) -> None:
        options = self.directory / "server.properties"
        options.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        command = [self.python, "-m", "twofold", "serve", "--config", str(options), "--data", str(self.data)]
        self._process = spawn(command, output=self.output)
        ready = partial(is_ready, HOST, self.ports[INTERNAL])
        wait_until(ready, self._process, patience_s=60, output=self.output)


@contextmanager
def secured(names: Sequence[str]) -> Iterator[list[Secured]]:
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-bench-")))
        authority = Authority(base)
        store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": authority.keystore("broker")}
        found = []
        for name in names:
            ports = {listener: free_port() for listener in (*PROTOCOLS, INTERNAL)}
            directory = base / name
            directory.mkdir()
            settings = listeners(ports) | store
            server: SecuredKafka | SecuredTwofold
            if name == KAFKA:
                server = SecuredKafka(directory, ports, SETTINGS | settings)
            else:
                server = SecuredTwofold(directory, ports, settings)
            stack.callback(server.stop if isinstance(server, SecuredKafka) else server.kill)
            server.start()
            found.append(Secured(name, server.pid, ports, authority.truststore))
        yield found


__all__ = ["KAFKA", "PROTOCOLS", "TWOFOLD", "Secured", "entries", "secured"]
