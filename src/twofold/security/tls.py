"""TLS contexts of both ends of a connection, from settings with Kafka's names.

1. Keys and certificates are PEM: a file with the private key and its chain (`ssl.keystore.location`), or inline
   (`ssl.keystore.key`, `ssl.keystore.certificate.chain`); trusted certificates likewise. JKS, which is Kafka's default,
   and PKCS12 are refused with the command that converts them.
2. A server trusts what its truststore says and never the system's roots. A client without a truststore trusts the
   system's roots, as Java's does.
3. A truststore's certificates are trusted themselves, also where they are not self-signed, as in Java.
4. TLS 1.2 and 1.3. There is no renegotiation, no compression and no session ticket.
5. What cannot be used is a `TlsError` that names the setting. It never shows a key or a password.
"""

import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum

from twofold.security import pem

PEM = "PEM"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_OF_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_SUITE = re.compile(r"TLS_(?:(ECDHE_ECDSA|ECDHE_RSA|DHE_RSA|RSA)_)WITH_(\w+)")


class TlsError(ValueError):
    """A setting of TLS that cannot be used. `value` is None where it is a secret."""

    def __init__(self, setting: str, value: str | None, reason: str) -> None:
        super().__init__(f"{setting}: {reason}" if value is None else f"{setting}={value}: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason


class ClientAuth(StrEnum):
    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"

    @property
    def verify_mode(self) -> ssl.VerifyMode:
        if self is ClientAuth.NONE:
            return ssl.CERT_NONE
        return ssl.CERT_REQUIRED if self is ClientAuth.REQUIRED else ssl.CERT_OPTIONAL


def _secret() -> str | None:
    return field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`prefix` stands before the names in errors, for example `listener.name.external.`."""

    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = _secret()
    keystore_key: str | None = _secret()
    keystore_certificate_chain: str | None = None
    key_password: str | None = _secret()
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = _secret()
    truststore_certificates: str | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification_algorithm: str = "https"
    prefix: str = ""

    @classmethod
    def of(cls, texts: Mapping[str, str], prefix: str = "") -> "TlsSettings":
        """From texts by Kafka's names (`ssl.keystore.location`); an empty text stands for none."""
        values: dict[str, object] = {"prefix": prefix}
        for one in fields(cls):
            text = texts.get(setting_name(one.name))
            if text is None or one.name == "prefix":
                continue
            if one.name in ("enabled_protocols", "cipher_suites"):
                values[one.name] = tuple(item.strip() for item in text.split(",") if item.strip())
            elif one.name == "client_auth":
                values[one.name] = _client_auth(text.strip(), prefix)
            elif text.strip() or one.name == "endpoint_identification_algorithm":
                values[one.name] = text.strip()
        if not values.get("enabled_protocols", True):
            del values["enabled_protocols"]
        return cls(**values)  # type: ignore[arg-type]

    @property
    def verifies_clients(self) -> bool:
        return self.client_auth is not ClientAuth.NONE

    def files(self) -> tuple[str, ...]:
        """The files that a context is made of: when one changes, a new context may differ."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        self._restrict(context)
        if not self._load_key(context):
            raise self._error(
                "keystore_location", None, "a TLS listener needs a private key and its certificate in PEM"
            )
        context.verify_mode = self.client_auth.verify_mode
        if self.verifies_clients and not self._load_trusted(context):
            raise self._error(
                "truststore_location", None, f"ssl.client.auth={self.client_auth} needs certificates that are trusted"
            )
        return context

    def client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._restrict(context)
        algorithm = self.endpoint_identification_algorithm.lower()
        if algorithm not in ("", "https"):
            value = self.endpoint_identification_algorithm
            raise self._error("endpoint_identification_algorithm", value, "must be https, or empty to check no name")
        context.check_hostname = algorithm == "https"
        self._load_key(context)
        if not self._load_trusted(context):
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _restrict(self, context: ssl.SSLContext) -> None:
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for name in self.enabled_protocols:
            if name not in VERSIONS:
                value = ",".join(self.enabled_protocols)
                raise self._error("enabled_protocols", value, f"{name} is not served; TLSv1.2 and TLSv1.3 are")
        versions = sorted(VERSIONS[name] for name in self.enabled_protocols)
        if self.cipher_suites:
            versions = self._choose_suites(context, versions)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]

    def _choose_suites(self, context: ssl.SSLContext, versions: list[ssl.TLSVersion]) -> list[ssl.TLSVersion]:
        """Python chooses among the suites of TLS 1.2 only: those of 1.3 are all there, or 1.3 is not."""
        value = ",".join(self.cipher_suites)
        newer = SUITES_OF_1_3.intersection(self.cipher_suites)
        older = [name for name in self.cipher_suites if name not in SUITES_OF_1_3]
        if newer and newer != SUITES_OF_1_3 and ssl.TLSVersion.TLSv1_3 in versions:
            missing = ", ".join(sorted(SUITES_OF_1_3 - newer))
            raise self._error("cipher_suites", value, f"TLS 1.3 has all its suites or is not enabled: add {missing}")
        if older:
            names = [_openssl_name(name) for name in older]
            for name, found in zip(older, names, strict=True):
                if found is None or not _is_known(found):
                    raise self._error("cipher_suites", value, f"{name} is not known to the OpenSSL of this Python")
            context.set_ciphers(":".join(name for name in names if name))
        usable = {ssl.TLSVersion.TLSv1_2: bool(older), ssl.TLSVersion.TLSv1_3: bool(newer)}
        left = [version for version in versions if usable[version]]
        if not left:
            raise self._error("cipher_suites", value, "no enabled protocol can use any of them")
        return left

    def _load_key(self, context: ssl.SSLContext) -> bool:
        location = self.keystore_location
        if not location and not self.keystore_key and not self.keystore_certificate_chain:
            return False
        self._check_type("keystore", self.keystore_type, location)
        if location:
            self._load_pair(context, "keystore_location", location, self._read("keystore_location", location), "")
            return True
        if not self.keystore_key or not self.keystore_certificate_chain:
            name = "keystore_certificate_chain" if self.keystore_key else "keystore_key"
            raise self._error(name, None, "ssl.keystore.key and ssl.keystore.certificate.chain belong together")
        self._load_pair(context, "keystore_key", None, self.keystore_key, self.keystore_certificate_chain)
        return True

    def _load_pair(self, context: ssl.SSLContext, field_name: str, value: str | None, key: str, chain: str) -> None:
        found_key, found_chain = pem.private_key(key), pem.certificates(chain or key)
        if not found_key:
            raise self._error(field_name, value, "has no private key in PEM (-----BEGIN PRIVATE KEY-----)")
        if not found_chain:
            name = "keystore_certificate_chain" if chain else field_name
            raise self._error(name, value, "has no certificate in PEM (-----BEGIN CERTIFICATE-----)")
        asked = False

        def password() -> str:
            nonlocal asked
            asked = True
            return self.key_password or ""

        try:
            with _as_file(found_key + found_chain) as path:
                context.load_cert_chain(path, password=password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                why = (
                    "does not open the private key" if self.key_password else "is needed: the private key is encrypted"
                )
                raise self._error("key_password", None, why) from None
            raise self._error(field_name, value, f"cannot be used: {_reason(error)}") from None

    def _load_trusted(self, context: ssl.SSLContext) -> bool:
        location, inline = self.truststore_location, self.truststore_certificates
        if not location and not inline:
            return False
        self._check_type("truststore", self.truststore_type, location)
        name = "truststore_location" if location else "truststore_certificates"
        text = self._read(name, location) if location else inline or ""
        found = pem.certificates(text)
        if not found:
            raise self._error(name, location, "has no certificate in PEM (-----BEGIN CERTIFICATE-----)")
        try:
            context.load_verify_locations(cadata=found)
        except ssl.SSLError as error:
            raise self._error(name, location, f"cannot be used: {_reason(error)}") from None
        return True

    def _check_type(self, store: str, kind: str, location: str | None) -> None:
        if kind.upper() == PEM:
            return
        where = location or "STORE"
        convert = (
            f"keytool -importkeystore -srckeystore {where} -destkeystore store.p12 -deststoretype PKCS12, "
            f"then openssl pkcs12 -in store.p12 -out {store}.pem"
        )
        raise self._error(
            f"{store}_type", kind, f"is not read, PEM is; set ssl.{store}.type=PEM, and convert with {convert}"
        )

    def _read(self, field_name: str, location: str) -> str:
        try:
            with open(location, encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError as error:
            raise self._error(field_name, location, f"cannot be read: {error.strerror}") from None

    def _error(self, field_name: str, value: str | None, reason: str) -> TlsError:
        return TlsError(self.prefix + setting_name(field_name), value, reason)


def setting_name(field_name: str) -> str:
    """`ssl.keystore.location` of `keystore_location`."""
    return "ssl." + field_name.replace("_", ".")


def _client_auth(text: str, prefix: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        raise TlsError(f"{prefix}ssl.client.auth", text, "must be none, requested or required") from None


def _openssl_name(name: str) -> str | None:
    """`ECDHE-RSA-AES128-GCM-SHA256` of `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`."""
    found = _SUITE.fullmatch(name)
    if found is None:
        return None
    exchange = "" if found[1] == "RSA" else found[1].replace("_", "-") + "-"
    cipher = re.sub(r"AES_(128|256)", r"AES\1", found[2]).replace("_CBC_", "_").replace("_", "-")
    if cipher.startswith("CHACHA20-POLY1305"):
        cipher = "CHACHA20-POLY1305"
    return exchange + cipher


def _is_known(name: str) -> bool:
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        probe.set_ciphers(name)
    except ssl.SSLError:
        return False
    return any(cipher["name"] == name for cipher in probe.get_ciphers())


def _reason(error: Exception) -> str:
    """Of OpenSSL's errors the words, without file and line of its source."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(reason).replace("_", " ").lower()


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """The text as a file, in memory where the system has that: `load_cert_chain` takes nothing else."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("twofold-tls")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "key.pem")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(text)
            yield path
