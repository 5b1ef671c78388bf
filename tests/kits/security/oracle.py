"""Apache Kafka with listeners of every protocol: who connects there finds what a real cluster demands."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.security.authorities import Authority, TokenIssuer
from oracle.kafka import Oracle, jars_or_skip
from oracle.processes import free_port

ALICE, ALICES_PASSWORD = "alice", "alice's secret, 1"
BOB, BOBS_PASSWORD = "bob", "bobs-secret"
REAUTH_MS = 2_500
_MODULES = "org.apache.kafka.common.security"
# Name, protocol; the first one is what the fixture itself asks.
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "MTLS": "SSL",
    "OLDCERT": "SSL",
    "OTHERNAME": "SSL",
    "REAUTH": "SASL_SSL",
}


class SecureOracle(Oracle):
    """`address(listener)` is where clients connect; `authority` has signed the certificates."""

    def __init__(self, jars: Path, directory: Path) -> None:
        self.authority = Authority(directory)
        self.issuer = TokenIssuer(directory)
        self.ports = {name: free_port() for name in LISTENERS}
        super().__init__(jars, directory)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.issuer.jwks.as_uri()}"
        self.flags = [*self.flags, allowed]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            self.format_args += ("--add-scram", f"{mechanism}=[name={BOB},password={BOBS_PASSWORD}]")

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def start(self) -> None:
        self.port, controller_port = self.ports["PLAINTEXT"], free_port()
        self._write_properties(controller_port)
        self._format()
        self._spawn()

    def _write_properties(self, controller_port: int) -> None:
        addresses = ",".join(f"{name}://{self.address(name)}" for name in LISTENERS)
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items())
        self.settings |= {
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": addresses,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            **self._tls(),
            **self._sasl(),
        }
        super()._write_properties(controller_port)

    def _tls(self) -> dict[str, str]:
        stores = {
            "": self.authority.keystore("broker"),
            "listener.name.oldcert.": self.authority.keystore("old", expired=True),
            "listener.name.othername.": self.authority.keystore("other", "broker.example"),
        }
        found = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.truststore}
        for prefix, store in stores.items():
            found |= {f"{prefix}ssl.keystore.type": "PEM", f"{prefix}ssl.keystore.location": store}
        return found | {"listener.name.mtls.ssl.client.auth": "required"}

    def _sasl(self) -> dict[str, str]:
        found = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"}
        found["listener.name.reauth.connections.max.reauth.ms"] = str(REAUTH_MS)
        for listener in ("sasl_plaintext", "sasl_ssl", "reauth"):
            prefix = f"listener.name.{listener}"
            user = f'user_{ALICE}="{ALICES_PASSWORD}"'
            found |= {
                f"{prefix}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {user};",
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
                f"{prefix}.oauthbearer.sasl.server.callback.handler.class": (
                    f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
                ),
                f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.issuer.jwks.as_uri(),
                f"{prefix}.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
            }
        return found


@contextmanager
def running_secure_oracle() -> Iterator[SecureOracle]:
    jars = jars_or_skip()
    with tempfile.TemporaryDirectory(prefix="twofold-oracle-", ignore_cleanup_errors=True) as directory:
        oracle = SecureOracle(jars, Path(directory))
        try:
            oracle.start()
            yield oracle
        finally:
            oracle.stop()
