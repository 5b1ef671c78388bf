"""Why a TLS connection did not come about, in words that name what to change. Pure.

1. What another try cannot mend (a certificate that is not trusted, no version in common) is fatal; a connection that
   was only closed may be a broker that is starting.
2. A listener without TLS, and a listener with TLS that is asked without, are named as such.
"""

import ssl

from twofold.connections.errors import ConnectionLost, TlsRefused
from twofold.connections.security import PROTOCOL, ConnectionSecurity
from twofold.security.protocols import SecurityProtocol
from twofold.wire.errors import KafkaError

_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
)
_ABOUT_OURS = ("BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_EXPIRED", "CERTIFICATE_UNKNOWN", "CERTIFICATE_REVOKED",
                 "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED")  # fmt: skip
_HINTS = {
    10: "renew it, or look at the clock of this machine",  # X509_V_ERR_CERT_HAS_EXPIRED
    9: "look at the clock of this machine",  # not yet valid
    62: "",  # the host name
    64: "",  # the address
}
_TRUST = "is its authority in ssl.truststore.location?"
_NAMES = (
    "the address that clients use must be among the certificate's names, or, where the network itself is trusted, set "
    "ssl.endpoint.identification.algorithm to an empty text"
)


def no_tls_connection(label: str, security: ConnectionSecurity, error: OSError) -> KafkaError | None:
    """What a failed attempt to connect means; None where it has nothing to do with TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(label, error)
    if isinstance(error, ssl.SSLError):
        return tls_alert(label, security, error)
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return ConnectionLost(
            f"{label} closed the connection during the TLS handshake: is it a listener with TLS? This client has "
            f"{PROTOCOL}={security.protocol}"
        )
    return None


def _not_trusted(label: str, error: ssl.SSLCertVerificationError) -> TlsRefused:
    is_name = error.verify_code in (62, 64)
    hint = _NAMES if is_name else _HINTS.get(error.verify_code, _TRUST)
    return TlsRefused(f"{label} has a certificate that this client does not accept: {error.verify_message}: {hint}")


def tls_alert(label: str, security: ConnectionSecurity, error: ssl.SSLError) -> KafkaError:
    reason = (error.reason or str(error)).upper()
    words = reason.replace("_", " ").lower()
    if any(word in reason for word in _NOT_TLS):
        other = SecurityProtocol.SASL_PLAINTEXT if security.protocol.uses_sasl else SecurityProtocol.PLAINTEXT
        return TlsRefused(
            f"{label} does not speak TLS, and this client has {PROTOCOL}={security.protocol}: set {PROTOCOL}={other}, "
            f"or name the port of a listener with TLS ({words})"
        )
    is_about_ours = any(word in reason for word in _ABOUT_OURS)
    if "CERTIFICATE_REQUIRED" in reason or (not security.has_key and (is_about_ours or "HANDSHAKE_F" in reason)):
        return TlsRefused(
            f"{label} closed the TLS connection ({words}): it asks for a certificate of the client. Set "
            "ssl.keystore.location"
        )
    if is_about_ours:
        return TlsRefused(f"{label} does not accept the certificate of this client (ssl.keystore): {words}")
    if "UNEXPECTED_EOF" in reason:
        return ConnectionLost(f"{label} closed the connection in the middle of TLS: {words}")
    return TlsRefused(f"{label} and this client cannot agree on TLS: {words}")
