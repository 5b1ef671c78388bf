"""How the parts of the demo reach the broker: as it comes, or with `--secure` over TLS, each as a user of its own that
may do what it has to and nothing else.

The rights of the pipeline are those of docs/guide/secure-clients.md, for two sinks that write exactly once and one that
does not.
"""

import ipaddress
import secrets
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from names import ENRICHED, EXACT, ORDERS, PLAIN, REVENUE

ADMIN, SHOP, PIPELINE, READER = "admin", "shop", "pipeline", "reader"
GROUP = "demo"
MECHANISM = "SCRAM-SHA-512"
BROKER_OPTIONS = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}
# Of each user: operations and a resource, as `twofold acl add` takes them. `admin`, a super user, makes the topics.
RIGHTS: dict[str, list[tuple[str, ...]]] = {
    SHOP: [("WRITE", "--topic", ORDERS)],
    PIPELINE: [
        ("READ", "--topic", ORDERS),
        ("WRITE", "--topic", PLAIN),
        *(("READ", "WRITE", "--topic", topic) for name in EXACT for topic in (name, f"{name}.decisions")),
        *(("WRITE", "TWO_PHASE_COMMIT", "--transactional-id", f"{name}|", "--prefixed") for name in EXACT),
    ],
    READER: [
        *(("READ", "--topic", topic) for topic in (ENRICHED, REVENUE, PLAIN)),
        ("READ", "--group", GROUP),
    ],
}


class Access:
    """No TLS and no users: what `twofold serve` is by itself."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory, self.address = directory, address

    def prepare(self) -> None:
        """Before the broker's first start."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def broker(self) -> list[str]:
        """Arguments of `twofold serve`."""
        options = [part for name, value in BROKER_OPTIONS.items() for part in ("-o", f"{name}={value}")]
        return ["--listen", self.address, "--data", str(self.data), *options]

    def client(self, _: str) -> dict[str, str]:
        """Settings of confluent-kafka, of this user."""
        return {"bootstrap.servers": self.address}

    def spark(self) -> dict[str, str]:
        """Options of the source and of the sinks."""
        return {"kafka.bootstrap.servers": self.address}


class SecureAccess(Access):
    def prepare(self) -> None:
        write_certificates(self.directory)
        for user in (ADMIN, *RIGHTS):
            self._password_of(user).write_text(secrets.token_urlsafe(24))
            self._password_of(user).chmod(0o600)
            twofold("user", "add", user, "--password-file", str(self._password_of(user)), "--data", str(self.data))
        for user, rights in RIGHTS.items():
            for right in rights:
                twofold("acl", "add", f"User:{user}", *right, "--data", str(self.data))
        settings = BROKER_OPTIONS | {
            "listeners": f"SASL_SSL://{self.address}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "broker.pem"),
            "sasl.enabled.mechanisms": MECHANISM,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "log.dirs": str(self.data),
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _authority(self) -> str:
        return str(self.directory / "ca.pem")

    def _password_of(self, user: str) -> Path:
        return self.directory / f"password-{user}"

    def broker(self) -> list[str]:
        return ["--config", str(self._settings)]

    def client(self, user: str) -> dict[str, str]:
        return super().client(user) | {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self._authority,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self._password_of(user).read_text(),
        }

    def spark(self) -> dict[str, str]:
        """Spark shows its options, so the password is a reference to the file."""
        return super().spark() | {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": self._authority,
            "kafka.sasl.mechanism": MECHANISM,
            "kafka.sasl.username": PIPELINE,
            "kafka.sasl.password": f"${{file:{self._password_of(PIPELINE)}}}",
        }


def twofold(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "twofold", *arguments], check=True, stdout=subprocess.DEVNULL)


def write_certificates(directory: Path) -> None:
    """ca.pem is what clients trust; broker.pem has the broker's key and certificate. The first's key is in no file."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = certificate("the demo's authority", authority_key, "the demo's authority", authority_key)
    issued = certificate("the demo's broker", key, "the demo's authority", authority_key)
    (directory / "ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "broker.pem").write_bytes(private + issued.public_bytes(Encoding.PEM))
    (directory / "broker.pem").chmod(0o600)


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuers_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=key is issuers_key, path_length=None), critical=True)
    )
    if key is not issuers_key:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuers_key, hashes.SHA256())
