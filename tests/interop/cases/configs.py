"""DescribeConfigs and IncrementalAlterConfigs."""

from collections.abc import Sequence
from typing import Any

from oracle.compare import Cases, Differs, Probe
from oracle.wire import fit

CASES = Cases("configs")
case = CASES.case

UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

BROKER_KEYS = [
    "auto.create.topics.enable",
    "compression.type",
    "default.replication.factor",
    "log.cleanup.policy",
    "log.retention.bytes",
    "log.retention.hours",
    "log.retention.ms",
    "log.segment.bytes",
    "message.max.bytes",
    "min.insync.replicas",
    "node.id",
    "num.partitions",
    "socket.request.max.bytes",
    "transactional.id.expiration.ms",
]


def describe(
    probe: Probe,
    label: str,
    version: int,
    *resources: tuple[int, str, Sequence[str] | None],
    synonyms: bool = False,
    documentation: bool = False,
    **options: Any,
) -> Any:
    rows = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    body = {"resources": rows, "include_synonyms": synonyms, "include_documentation": documentation}
    return probe.ask(label, "DescribeConfigs", version, fit("DescribeConfigs", version, body), **options)


@case()
def all_configs_of_a_topic(probe: Probe) -> None:
    name = probe.topic(cleanup_policy="compact,delete", retention_ms="1000").name
    for version in (1, 2, 3, 4):
        describe(probe, f"v{version}", version, (TOPIC, name, None))


@case()
def configs_with_synonyms(probe: Probe) -> None:
    name = probe.topic(cleanup_policy="compact", retention_ms="1000", segment_bytes="2097152").name
    for version in (1, 4):
        describe(probe, f"v{version}", version, (TOPIC, name, None), synonyms=True)


@case()
def configs_with_documentation(probe: Probe) -> None:
    name = probe.topic().name
    describe(probe, "v3", 3, (TOPIC, name, None), documentation=True)
    describe(probe, "v4", 4, (TOPIC, name, None), documentation=True, synonyms=True)


@case()
def some_configs(probe: Probe) -> None:
    name = probe.topic().name
    for label, keys in (
        ("one", ["retention.ms"]),
        ("two and an unknown one", ["retention.ms", "cleanup.policy", "no.such"]),
        ("only an unknown one", ["no.such"]),
        ("the same twice", ["retention.ms", "retention.ms"]),
        ("none", []),
    ):
        for version in (1, 4):
            describe(probe, f"{label} v{version}", version, (TOPIC, name, keys))


@case()
def configs_of_topics_that_are_not(probe: Probe) -> None:
    describe(probe, "unknown", 4, (TOPIC, probe.name("none"), None))
    for index, name in enumerate(("", ".", "..", "a b", "ü", "x" * 250)):
        describe(probe, f"illegal {index}", 4, (TOPIC, name, None))


@case()
def configs_of_the_broker(probe: Probe) -> None:
    for version in (1, 4):
        describe(probe, f"v{version}", version, (BROKER, "1", BROKER_KEYS))
    describe(probe, "with synonyms", 4, (BROKER, "1", BROKER_KEYS), synonyms=True)
    describe(probe, "unknown keys", 4, (BROKER, "1", ["no.such"]))


@case()
def configs_of_brokers_that_are_not(probe: Probe) -> None:
    for name in ("2", "-1", "one", "1.0"):
        describe(probe, f"broker {name}", 4, (BROKER, name, ["num.partitions"]))
    describe(probe, "cluster default", 4, (BROKER, "", ["num.partitions"]))
    describe(probe, "cluster default, all", 4, (BROKER, "", None))


@case()
def configs_of_other_resources(probe: Probe) -> None:
    for kind in (UNKNOWN, 1, 3, 5, 99, -1):
        describe(probe, f"type {kind}", 4, (kind, "x", None))


ONLY_TOPICS_AND_BROKERS = Differs("only topics and brokers have configurations here", 42)


def refused(answer: dict[str, Any]) -> Any:
    return answer["results"][0]["error_code"]


@case(
    {
        "loggers": ONLY_TOPICS_AND_BROKERS,
        "a subscription of metrics": ONLY_TOPICS_AND_BROKERS,
    }
)
def configs_of_loggers_subscriptions_and_groups(probe: Probe) -> None:
    describe(probe, "loggers", 4, (BROKER_LOGGER, "1", None), keep=refused)
    describe(probe, "loggers of another broker", 4, (BROKER_LOGGER, "7", None), keep=refused)
    describe(probe, "a subscription of metrics", 4, (CLIENT_METRICS, "x", None), keep=refused)
    describe(probe, "a group", 4, (GROUP, "x", None), keep=refused)


@case()
def configs_of_several_resources(probe: Probe) -> None:
    name = probe.topic().name
    both = ((TOPIC, name, ["retention.ms"]), (BROKER, "1", ["num.partitions"]), (TOPIC, probe.name("none"), None))
    describe(probe, "mixed", 4, *both)
    describe(probe, "the same twice", 4, (TOPIC, name, ["retention.ms"]), (TOPIC, name, ["segment.ms"]))
    describe(probe, "nothing", 4)


# IncrementalAlterConfigs


def alter(
    probe: Probe,
    label: str,
    version: int,
    *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]],
    validate_only: bool = False,
) -> Any:
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in configs],
        }
        for kind, name, configs in resources
    ]
    return probe.ask(label, "IncrementalAlterConfigs", version, {"resources": rows, "validate_only": validate_only})


def value_is(wanted: str | None) -> Any:
    return lambda answer: answer["results"][0]["configs"][0]["value"] == wanted


@case()
def set_and_delete(probe: Probe) -> None:
    name = probe.topic().name
    for version in (0, 1):
        alter(probe, f"set v{version}", version, (TOPIC, name, [("retention.ms", SET, "1234")]))
        keys = (TOPIC, name, ["retention.ms"])
        describe(probe, f"after set v{version}", 4, keys, synonyms=True, until=value_is("1234"))
        alter(probe, f"delete v{version}", version, (TOPIC, name, [("retention.ms", DELETE, None)]))
        describe(probe, f"after delete v{version}", 4, keys, synonyms=True, until=value_is("-1"))
    alter(probe, "delete what is not set", 1, (TOPIC, name, [("retention.ms", DELETE, None)]))
    alter(probe, "delete with a value", 1, (TOPIC, name, [("retention.ms", DELETE, "5")]))


@case()
def append_and_subtract(probe: Probe) -> None:
    name = probe.topic().name
    key = "cleanup.policy"
    for label, operation, value, after in (
        ("append", APPEND, "compact", "delete,compact"),
        ("append what is there", APPEND, "compact", "delete,compact"),
        ("subtract", SUBTRACT, "delete", "compact"),
        ("subtract what is not there", SUBTRACT, "delete", "compact"),
        ("append two", APPEND, "delete,compact", "compact,delete"),
        ("subtract nothing", SUBTRACT, "", "compact,delete"),
    ):
        alter(probe, label, 1, (TOPIC, name, [(key, operation, value)]))
        describe(probe, f"after {label}", 4, (TOPIC, name, [key]), until=value_is(after))


@case()
def operations_that_cannot_be(probe: Probe) -> None:
    name = probe.topic().name
    for label, configs in (
        ("append to a number", [("retention.ms", APPEND, "1")]),
        ("subtract from a number", [("retention.ms", SUBTRACT, "1")]),
        ("set null", [("retention.ms", SET, None)]),
        ("append null", [("cleanup.policy", APPEND, None)]),
        ("subtract null", [("cleanup.policy", SUBTRACT, None)]),
        ("append a bad policy", [("cleanup.policy", APPEND, "shred")]),
        ("the same key twice", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]),
        ("unknown key", [("no.such", SET, "1")]),
        ("delete an unknown key", [("no.such", DELETE, None)]),
        ("append to an unknown key", [("no.such", APPEND, "1")]),
        ("empty key", [("", SET, "1")]),
        ("not a number", [("retention.ms", SET, "soon")]),
        ("below its range", [("retention.ms", SET, "-2")]),
        ("empty value", [("retention.ms", SET, "")]),
        ("lags that contradict", [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "5")]),
        ("nothing", []),
        ("one good, one bad", [("segment.ms", SET, "5000"), ("retention.ms", SET, "soon")]),
    ):
        for version in (0, 1):
            alter(probe, f"{label} v{version}", version, (TOPIC, name, configs))
    describe(probe, "nothing happened", 4, (TOPIC, name, ["retention.ms", "cleanup.policy", "segment.ms"]))


@case()
def an_unknown_operation(probe: Probe) -> None:
    """Once only: it makes the oracle's controller resign, and the next change waits for the election."""
    name = probe.topic().name
    alter(probe, "operation 9", 1, (TOPIC, name, [("retention.ms", 9, "1")]))
    describe(probe, "nothing happened", 4, (TOPIC, name, ["retention.ms"]))


@case()
def altering_topics_that_are_not(probe: Probe) -> None:
    change = [("retention.ms", SET, "1")]
    alter(probe, "unknown", 1, (TOPIC, probe.name("none"), change))
    for index, name in enumerate(("", ".", "a b", "x" * 250)):
        alter(probe, f"illegal {index}", 1, (TOPIC, name, change))


@case()
def altering_validate_only(probe: Probe) -> None:
    name = probe.topic().name
    alter(probe, "good", 1, (TOPIC, name, [("retention.ms", SET, "1")]), validate_only=True)
    alter(probe, "bad", 1, (TOPIC, name, [("retention.ms", SET, "soon")]), validate_only=True)
    describe(probe, "unchanged", 4, (TOPIC, name, ["retention.ms"]))


@case()
def altering_several_resources(probe: Probe) -> None:
    one, two = probe.topic("one").name, probe.topic("two").name
    change = [("retention.ms", SET, "77")]
    alter(probe, "one unknown", 1, (TOPIC, one, change), (TOPIC, probe.name("none"), change))
    alter(probe, "the same twice", 1, (TOPIC, two, change), (TOPIC, two, [("segment.ms", SET, "77")]))
    alter(probe, "nothing", 1)
    describe(probe, "the good one", 4, (TOPIC, one, ["retention.ms"]), until=value_is("77"))


@case()
def altering_other_resources(probe: Probe) -> None:
    for kind in (UNKNOWN, 1, 3, 99, -1):
        alter(probe, f"type {kind}", 1, (kind, "x", [("retention.ms", SET, "1")]))


@case()
def altering_a_broker(probe: Probe) -> None:
    for label, name, configs in (
        ("read-only key", "1", [("node.id", SET, "5")]),
        ("read-only key of the cluster", "", [("socket.request.max.bytes", SET, "5")]),
        ("bad value", "1", [("message.max.bytes", SET, "big")]),
        ("other broker", "2", [("message.max.bytes", SET, "1000")]),
        ("not a number", "one", [("message.max.bytes", SET, "1000")]),
        ("unknown key", "1", [("no.such.key", SET, "1")]),
    ):
        alter(probe, label, 1, (BROKER, name, configs), validate_only=True)


@case()
def a_topic_config_takes_effect(probe: Probe) -> None:
    """The partition follows a changed limit without a restart."""
    from oracle.batches import Record, batch
    from oracle.compare import attempts, produce_body

    name = probe.topic().name
    probe.produce(name)
    probe.tell(
        "IncrementalAlterConfigs",
        0,
        resources=[
            {
                "resource_type": TOPIC,
                "resource_name": name,
                "configs": [{"name": "max.message.bytes", "config_operation": SET, "value": "100"}],
            }
        ],
    )
    large = batch([Record(value=b"x" * 200)])
    for _ in attempts():
        answer = probe.tell("Produce", 7, **produce_body(name, large))
        if answer["responses"][0]["partition_responses"][0]["error_code"] != 0:
            break
    probe.record("too large now", answer["responses"][0]["partition_responses"][0]["error_code"])
