"""Settings of Kafka's clients, which come with `kafka.` in front: those without effect here, those that are refused.

Our clients' own settings are not listed: `twofold.client.config` has them.
"""

# Accepted and without effect: a reader here has no group, no poll loop and no buffers of that kind.
CONSUMER_WITHOUT_EFFECT = frozenset(
    [
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "client.rack",
        "exclude.internal.topics",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
    ]
)
PRODUCER_WITHOUT_EFFECT = frozenset(["metadata.max.idle.ms", "partitioner.availability.timeout.ms"])
COMMON_WITHOUT_EFFECT = frozenset(
    [
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "config.providers",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    ]
)
SECURITY_PROTOCOL = "security.protocol"
# Only used with a security.protocol.
SECURITY_PREFIXES = ("sasl.", "ssl.")

PARTITIONER = "partitioner.class"
_PRODUCER = "org.apache.kafka.clients.producer."
BY_KEY = f"{_PRODUCER}internals.DefaultPartitioner"
ROUND_ROBIN = f"{_PRODUCER}RoundRobinPartitioner"
STICKY = f"{_PRODUCER}UniformStickyPartitioner"
PARTITIONERS = (BY_KEY, ROUND_ROBIN, STICKY)
"""Kafka's own. Any other one is a class of the user's, which needs a JVM."""

_READ = "what is read, and from where, is the query's to know"
REFUSED_ON_READ = {
    "auto.offset.reset": f"set startingOffsets instead: {_READ}",
    "key.deserializer": "keys are bytes: convert them with DataFrame operations",
    "value.deserializer": "values are bytes: convert them with DataFrame operations",
    "enable.auto.commit": f"{_READ}; offsets are in its checkpoint",
    "interceptor.classes": "there are no interceptors: they could change what is read",
}
REFUSED_ON_WRITE = {
    "key.serializer": "keys are written as they are: convert them with DataFrame operations",
    "value.serializer": "values are written as they are: convert them with DataFrame operations",
    "transactional.id": "every task has one of its own: set the option transactionalIdPrefix",
    "transaction.two.phase.commit.enable": "set the option exactlyOnce to auto, 2pc, resume or off",
}
