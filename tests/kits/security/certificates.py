"""A certificate authority of its own, and what it has issued, in files."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """`broker` and `client` have the private key and the chain in one file, as Kafka's PEM stores do."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        made = cls(folder, trustme.CA(organization_name="Twofold tests", organization_unit_name="CA"))
        made.authority.cert_pem.write_to_path(str(made.trusted))
        made.issue("broker", "localhost")
        made.issue("client", "bob", organization="Ex")
        return made

    @property
    def trusted(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def broker(self) -> Path:
        return self.folder / "broker.pem"

    @property
    def client(self) -> Path:
        return self.folder / "client.pem"

    def issue(self, file: str, name: str, *, organization: str = "Ex", expired: bool = False) -> Path:
        """NAME.pem with a certificate for the name, and for 127.0.0.1."""
        path = self.folder / f"{file}.pem"
        until = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self.authority.issue_cert(
            f"{name}.example.org" if name != "localhost" else name,
            "127.0.0.1",
            common_name=name,
            organization_name=organization,
            organization_unit_name="Unit",
            not_before=until - timedelta(days=2) if until else None,
            not_after=until,
        )
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def stores(self, *, truststore: bool = True) -> dict[str, str]:
        """Settings of a broker."""
        found = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.broker)}
        if truststore:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.trusted)}
        return found
