"""Certificates and tokens for tests: made anew each time, so that no key lies in the repository."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.algorithms import RSAAlgorithm

LOCAL = ("localhost", "127.0.0.1")
KEY_ID = "tests"


class Authority:
    """A certificate authority, and PEM files of what it has signed."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=f"tests {name}")
        self.truststore = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.truststore)

    def keystore(self, name: str, *names: str, expired: bool = False) -> str:
        """A file with a private key and its certificate; `names` are what it is valid for."""
        over = datetime(2020, 1, 1, tzinfo=UTC) if expired else None
        cert = self._ca.issue_cert(*(names or LOCAL), common_name=name, not_after=over)
        path = self._folder / f"{name}.keystore.pem"
        key = load_pem_private_key(cert.private_key_pem.bytes(), None)
        # Java reads no other form.
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(text + b"".join(blob.bytes() for blob in cert.cert_chain_pems))
        return str(path)


class TokenIssuer:
    """Signs tokens, and tells the key that checks them as a JWKS file."""

    def __init__(self, folder: Path) -> None:
        self._key: RSAPrivateKey = generate_private_key(public_exponent=65537, key_size=2048)
        self.jwks = folder / "jwks.json"
        public: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(self._key.public_key()))
        self.jwks.write_text(json.dumps({"keys": [public | {"kid": KEY_ID, "use": "sig", "alg": "RS256"}]}))

    def token(self, subject: str, lifetime_s: float = 3600) -> str:
        now = int(time.time())
        claims = {"sub": subject, "iat": now, "exp": now + int(lifetime_s), "aud": "kafka", "iss": "https://tests"}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": KEY_ID})
