"""Listeners with TLS and SASL: what clients have to show, and how it is checked.

1. A key counts for all listeners, or with `listener.name.NAME.` before it for one; `sasl.jaas.config` and
   `connections.max.reauth.ms` may have a mechanism between the two, in lower case.
2. What these keys refuse depends on each other: `twofold.config.listener_security` decides.
"""

from twofold.config.definition import ConfigType, at_least, one_of
from twofold.config.keys.key import CLASS, HIGH, INT, LIST, LONG, LOW, STRING, setting

PASSWORD = ConfigType.PASSWORD
OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"

KEYS = (
    # TLS
    setting("ssl.cipher.suites", LIST, (), dynamic=True,
            doc="The cipher suites, by their IANA names; empty for OpenSSL's choice. Those of TLS 1.3 are named all or "
            "none."),
    setting("ssl.client.auth", STRING, "none", rule=one_of("required", "requested", "none"), dynamic=True,
            doc="Whether clients show a certificate. A listener with SASL_SSL takes it with its prefix only."),
    setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), dynamic=True,
            doc="TLSv1.2, TLSv1.3, or both."),
    setting("ssl.key.password", PASSWORD, None, dynamic=True, doc="What the private key is encrypted with."),
    setting("ssl.keystore.certificate.chain", PASSWORD, None, dynamic=True,
            doc="The broker's certificate and those above it, in PEM."),
    setting("ssl.keystore.key", PASSWORD, None, dynamic=True, doc="The broker's private key, in PEM."),
    setting("ssl.keystore.location", STRING, None, dynamic=True,
            doc="A file with the broker's private key and its certificates in PEM. It is read anew when it changes."),
    setting("ssl.keystore.type", STRING, "JKS", dynamic=True, doc="PEM; Java's stores are not read."),
    setting("ssl.principal.mapping.rules", STRING, "DEFAULT", importance=LOW,
            doc="Which user a client's certificate is: DEFAULT, or RULE:pattern/replacement/[LU] with RE2's patterns."),
    setting("ssl.truststore.certificates", PASSWORD, None, dynamic=True,
            doc="The certificates that clients' certificates lead to, in PEM."),
    setting("ssl.truststore.location", STRING, None, dynamic=True,
            doc="A file with these in PEM. It is read anew when it changes."),
    setting("ssl.truststore.type", STRING, "JKS", dynamic=True, doc="PEM; Java's stores are not read."),
    # SASL
    setting("sasl.enabled.mechanisms", LIST, ("GSSAPI",), dynamic=True,
            doc="Any of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER."),
    setting("sasl.jaas.config", PASSWORD, None, dynamic=True,
            doc="The login module and its options, with the prefix of listener and mechanism. For PLAIN the users: "
            "user_NAME=\"PASSWORD\"."),
    setting("connections.max.reauth.ms", LONG, 0,
            doc="How long an authentication is valid at most; 0 for no limit. Then the client authenticates again, or "
            "the connection is closed."),
    setting("connection.failed.authentication.delay.ms", INT, 100, rule=at_least(0), importance=LOW,
            doc="How long a failed authentication is answered late."),
    setting("sasl.server.max.receive.size", INT, 524_288, rule=at_least(1),
            doc="The largest message of a client that is not authenticated."),
    setting("sasl.server.callback.handler.class", CLASS, None,
            doc=f"None, or for OAUTHBEARER {OAUTH_HANDLER}, which is what Twofold does."),
    setting("sasl.oauthbearer.jwks.endpoint.url", STRING, None,
            doc="file:///...: the file with the public keys (a JWK set) of tokens. It is read anew when it changes."),
    setting("sasl.oauthbearer.expected.audience", LIST, (), importance=HIGH,
            doc="Audiences (aud) of which a token must name one."),
    setting("sasl.oauthbearer.expected.issuer", STRING, None, importance=HIGH,
            doc="The issuer (iss) that a token must name."),
    setting("sasl.oauthbearer.clock.skew.seconds", INT, 30, rule=at_least(0), importance=LOW,
            doc="How far a token's nbf may lie ahead."),
    setting("sasl.oauthbearer.scope.claim.name", STRING, "scope", importance=LOW,
            doc="The claim with the scopes, which have to be well formed and grant nothing."),
    setting("sasl.oauthbearer.sub.claim.name", STRING, "sub", importance=LOW, doc="The claim with the user's name."),
    # Twofold's own; DescribeConfigs shows Kafka's only.
    setting("authentication.timeout.ms", INT, 10_000, rule=at_least(1), internal=True,
            doc="How long a client may take for TLS and SASL together. Twofold's own setting."),
    setting("max.unauthenticated.connections", INT, 1000, rule=at_least(1), internal=True,
            doc="Connections that are not authenticated yet; above, the oldest of the address that has most is closed. "
            "Twofold's own setting."),
)  # fmt: skip

PER_LISTENER = frozenset(
    {key.name for key in KEYS if not key.internal} - {"connection.failed.authentication.delay.ms"}
    | {"max.connections", "max.connection.creation.rate"}
)
PER_MECHANISM = frozenset({"sasl.jaas.config", "connections.max.reauth.ms", "sasl.server.callback.handler.class"}) | {
    name for name in PER_LISTENER if name.startswith("sasl.oauthbearer.")
}
