"""Settings of what Kafka has and Twofold has not: known, so that tools which read them find Kafka's defaults.

1. They are kept and shown like all others and change nothing; a log line tells so when one is set.
2. A family without rows here is known by its prefix alone.
3. What its user relies on is not ignored but refused (`missing`), also under names that have no row here.
"""

from collections.abc import Mapping

from twofold.config.definition import INT_MAX, LONG_MAX, ConfigType, Importance, Rule, Value, at_least, between
from twofold.config.keys.key import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    SHORT,
    STRING,
    SettingKey,
    setting,
)
from twofold.config.keys.missing import (
    AUTHORIZER,
    CLUSTER,
    DELEGATION_TOKENS,
    KERBEROS,
    SASL,
    TIERED_STORAGE,
    TLS,
    MissingPart,
    Refused,
    by_other_settings,
    unless_default,
    unless_empty,
    unless_equal,
)

PASSWORD = ConfigType.PASSWORD

FOREIGN_FAMILIES: Mapping[str, str] = {
    "remote.": "tiered storage",
    "rlmm.": "tiered storage",
    "rsm.": "tiered storage",
    "share.": "share groups",
    "group.share.": "share groups",
    "group.streams.": "streams groups",
    "delegation.token.": "delegation tokens",
    "kafka.metrics.": "pluggable metrics",
    "zookeeper.": "ZooKeeper",
}


# What of these has no row with an effect (`security.py`) is a part that Twofold does not have.
SECURITY_FAMILIES: Mapping[str, MissingPart] = {"ssl.": TLS, "sasl.kerberos.": KERBEROS, "sasl.": SASL}


def foreign_family(name: str) -> str | None:
    """What a setting is for, if that is something that Twofold does not have."""
    return next((what for prefix, what in FOREIGN_FAMILIES.items() if name.startswith(prefix)), None)


# Settings of Kafka's authorizer and of ZooKeeper: no keys of the broker, so DescribeConfigs does not show them.
REFUSED_NAMES: Mapping[str, Refused] = {
    "super.users": by_other_settings(AUTHORIZER, "authorizer.class.name is set"),
    "allow.everyone.if.no.acl.found": by_other_settings(AUTHORIZER, "authorizer.class.name is set"),
    "zookeeper.connect": unless_empty(CLUSTER),
}


def of(
    name: str,
    kind: ConfigType,
    default: Value,
    *,
    rule: Rule | None = None,
    importance: Importance = MEDIUM,
    dynamic: bool = False,
    refused: Refused | None = None,
) -> SettingKey:
    doc = f"Of Kafka's {foreign_family(name)}, which Twofold does not have."
    for prefix, missing in SECURITY_FAMILIES.items():
        if name.startswith(prefix):
            refused = unless_default(missing, default)
            doc = f"Of Kafka's {missing.what}, which Twofold does not have."
            break
    return setting(
        name, kind, default, doc=doc, rule=rule, importance=importance, dynamic=dynamic, effect=False, refused=refused
    )


KEYS = (
    # TLS
    of("ssl.allow.dn.changes", BOOLEAN, False, importance=LOW),
    of("ssl.allow.san.changes", BOOLEAN, False, importance=LOW),
    of("ssl.endpoint.identification.algorithm", STRING, "https", dynamic=True, importance=LOW),
    of("ssl.engine.factory.class", CLASS, None, dynamic=True, importance=LOW),
    of("ssl.keymanager.algorithm", STRING, "SunX509", dynamic=True),
    of("ssl.keystore.password", PASSWORD, None, dynamic=True),
    of("ssl.protocol", STRING, "TLSv1.3", dynamic=True),
    of("ssl.provider", STRING, None, dynamic=True),
    of("ssl.secure.random.implementation", STRING, None, dynamic=True, importance=LOW),
    of("ssl.trustmanager.algorithm", STRING, "PKIX", dynamic=True),
    of("ssl.truststore.password", PASSWORD, None, dynamic=True),
    # SASL
    of("sasl.client.callback.handler.class", CLASS, None),
    of("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", dynamic=True),
    of("sasl.kerberos.min.time.before.relogin", LONG, 60_000, dynamic=True),
    of("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), dynamic=True),
    of("sasl.kerberos.service.name", STRING, None, dynamic=True),
    of("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, dynamic=True),
    of("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, dynamic=True),
    of("sasl.login.callback.handler.class", CLASS, None),
    of("sasl.login.class", CLASS, None),
    of("sasl.login.connect.timeout.ms", INT, None, importance=LOW),
    of("sasl.login.read.timeout.ms", INT, None, importance=LOW),
    of("sasl.login.refresh.buffer.seconds", SHORT, 300, dynamic=True),
    of("sasl.login.refresh.min.period.seconds", SHORT, 60, dynamic=True),
    of("sasl.login.refresh.window.factor", DOUBLE, 0.8, dynamic=True),
    of("sasl.login.refresh.window.jitter", DOUBLE, 0.05, dynamic=True),
    of("sasl.login.retry.backoff.max.ms", LONG, 10_000, importance=LOW),
    of("sasl.login.retry.backoff.ms", LONG, 100, importance=LOW),
    of("sasl.oauthbearer.assertion.algorithm", STRING, "RS256"),
    of("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    of("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, rule=between(0, 86_400), importance=LOW),
    of("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    of("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False),
    of("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, rule=between(0, 3600), importance=LOW),
    of("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    of("sasl.oauthbearer.assertion.file", STRING, None),
    of("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    of("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    of("sasl.oauthbearer.assertion.template.file", STRING, None),
    of("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    of("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    of("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, importance=LOW),
    of("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, importance=LOW),
    of("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, importance=LOW),
    of(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    of(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    ),
    of("sasl.oauthbearer.scope", STRING, None),
    of("sasl.oauthbearer.token.endpoint.url", STRING, None),
    # Delegation tokens
    of("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, rule=at_least(1), importance=LOW),
    of("delegation.token.expiry.time.ms", LONG, 86_400_000, rule=at_least(1)),
    of("delegation.token.max.lifetime.ms", LONG, 604_800_000, rule=at_least(1)),
    of("delegation.token.secret.key", PASSWORD, None, refused=unless_empty(DELEGATION_TOKENS)),
    # Share groups
    of("group.share.assignment.interval.ms", INT, 1000, rule=at_least(0), dynamic=True),
    of("group.share.assignors", LIST, ("simple",)),
    of("group.share.delivery.count.limit", INT, 5, rule=between(2, 10)),
    of("group.share.heartbeat.interval.ms", INT, 5000, rule=at_least(1)),
    of("group.share.max.assignment.interval.ms", INT, 15_000, rule=at_least(0)),
    of("group.share.max.delivery.count.limit", INT, 10, rule=between(5, 25)),
    of("group.share.max.heartbeat.interval.ms", INT, 15_000, rule=at_least(1)),
    of("group.share.max.partition.max.record.locks", INT, 4000, rule=between(2000, 10_000)),
    of("group.share.max.record.lock.duration.ms", INT, 60_000, rule=between(30_000, 3_600_000)),
    of("group.share.max.session.timeout.ms", INT, 60_000, rule=at_least(1)),
    of("group.share.max.share.sessions", INT, 2000, rule=at_least(1)),
    of("group.share.max.size", INT, 200, rule=between(1, 1000)),
    of("group.share.min.assignment.interval.ms", INT, 0, rule=at_least(0)),
    of("group.share.min.delivery.count.limit", INT, 2, rule=between(2, 5)),
    of("group.share.min.heartbeat.interval.ms", INT, 5000, rule=at_least(1)),
    of("group.share.min.partition.max.record.locks", INT, 100, rule=between(100, 2000)),
    of("group.share.min.record.lock.duration.ms", INT, 15_000, rule=between(1000, 30_000)),
    of("group.share.min.session.timeout.ms", INT, 45_000, rule=at_least(1)),
    of("group.share.partition.max.record.locks", INT, 2000, rule=between(100, 10_000)),
    of("group.share.record.lock.duration.ms", INT, 30_000, rule=between(1000, 3_600_000)),
    of("group.share.session.timeout.ms", INT, 45_000, rule=at_least(1)),
    of("share.coordinator.append.linger.ms", INT, -1, rule=at_least(-1)),
    of("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, rule=at_least(524_288), dynamic=True),
    of("share.coordinator.load.buffer.size", INT, 5_242_880, rule=at_least(1), importance=HIGH),
    of("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, rule=between(0, 500)),
    of("share.coordinator.state.topic.compression.codec", INT, 0, importance=HIGH),
    of("share.coordinator.state.topic.min.isr", SHORT, 2, rule=at_least(1), importance=HIGH),
    of("share.coordinator.state.topic.num.partitions", INT, 50, rule=at_least(1), importance=HIGH),
    of("share.coordinator.state.topic.replication.factor", SHORT, 3, rule=at_least(1), importance=HIGH),
    of("share.coordinator.state.topic.segment.bytes", INT, 104_857_600, rule=at_least(1), importance=HIGH),
    of("share.coordinator.threads", INT, 1, rule=at_least(1)),
    of("share.coordinator.write.timeout.ms", INT, 5000, rule=at_least(1), importance=HIGH),
    of("share.fetch.purgatory.purge.interval.requests", INT, 1000),
    # Streams groups
    of("group.streams.assignment.interval.ms", INT, 1000, rule=at_least(0), dynamic=True),
    of("group.streams.heartbeat.interval.ms", INT, 5000, rule=at_least(1)),
    of("group.streams.initial.rebalance.delay.ms", INT, 3000, rule=at_least(0)),
    of("group.streams.max.assignment.interval.ms", INT, 15_000, rule=at_least(0)),
    of("group.streams.max.heartbeat.interval.ms", INT, 15_000, rule=at_least(1)),
    of("group.streams.max.session.timeout.ms", INT, 60_000, rule=at_least(1)),
    of("group.streams.max.size", INT, INT_MAX, rule=at_least(1)),
    of("group.streams.max.standby.replicas", INT, 2, rule=at_least(0)),
    of("group.streams.min.assignment.interval.ms", INT, 0, rule=at_least(0)),
    of("group.streams.min.heartbeat.interval.ms", INT, 5000, rule=at_least(1)),
    of("group.streams.min.session.timeout.ms", INT, 45_000, rule=at_least(1)),
    of("group.streams.num.standby.replicas", INT, 0, rule=at_least(0)),
    of("group.streams.session.timeout.ms", INT, 45_000, rule=at_least(1)),
    # Tiered storage
    of("remote.fetch.max.wait.ms", INT, 500, rule=at_least(1), dynamic=True),
    of("remote.list.offsets.request.timeout.ms", LONG, 30_000, rule=at_least(1), dynamic=True),
    of(
        "remote.log.index.file.cache.total.size.bytes",
        LONG,
        1_073_741_824,
        rule=at_least(1),
        dynamic=True,
        importance=LOW,
    ),
    of("remote.log.manager.copier.thread.pool.size", INT, 10, rule=at_least(1), dynamic=True),
    of("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, rule=at_least(1), dynamic=True),
    of("remote.log.manager.copy.quota.window.num", INT, 11, rule=at_least(1)),
    of("remote.log.manager.copy.quota.window.size.seconds", INT, 1, rule=at_least(1)),
    of("remote.log.manager.expiration.thread.pool.size", INT, 10, rule=at_least(1), dynamic=True),
    of("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, rule=at_least(1), dynamic=True),
    of("remote.log.manager.fetch.quota.window.num", INT, 11, rule=at_least(1)),
    of("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, rule=at_least(1)),
    of("remote.log.manager.follower.thread.pool.size", INT, 2, rule=at_least(1), dynamic=True),
    of("remote.log.manager.task.interval.ms", LONG, 30_000, rule=at_least(1), importance=LOW),
    of("remote.log.manager.thread.pool.size", INT, 2, rule=at_least(1)),
    of("remote.log.metadata.custom.metadata.max.bytes", INT, 128, rule=at_least(0), importance=LOW),
    of(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
    ),
    of("remote.log.metadata.manager.class.path", STRING, None),
    of("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config."),
    of("remote.log.metadata.manager.listener.name", STRING, None),
    of("remote.log.reader.max.pending.tasks", INT, 100, rule=at_least(1)),
    of("remote.log.reader.threads", INT, 10, rule=at_least(1), dynamic=True),
    of("remote.log.storage.manager.class.name", STRING, None),
    of("remote.log.storage.manager.class.path", STRING, None),
    of("remote.log.storage.manager.impl.prefix", STRING, "rsm.config."),
    of("remote.log.storage.system.enable", BOOLEAN, False, refused=unless_equal(TIERED_STORAGE, False, "false")),
    # Pluggable metrics
    of("kafka.metrics.polling.interval.secs", INT, 10, rule=at_least(1), importance=LOW),
    of("kafka.metrics.reporters", LIST, (), importance=LOW),
)
