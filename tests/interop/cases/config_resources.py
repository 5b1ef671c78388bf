"""ListConfigResources (version 0: ListClientMetricsResources) and AlterConfigs."""

from collections.abc import Sequence
from typing import Any

from interop.cases.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, describe, value_is
from oracle.compare import Cases, Differs, Probe
from oracle.wire import fit

CASES = Cases("config-resources")
case = CASES.case

VERSIONS = (0, 1, 2)
Configs = Sequence[tuple[str, str | None]]


def resources(probe: Probe, label: str, version: int, *kinds: int) -> None:
    """Topics of other cases are left out."""
    mine = probe.name("")

    def keep(answer: dict[str, Any]) -> dict[str, Any]:
        rows = [
            row
            for row in answer["config_resources"]
            if row.get("resource_type") != TOPIC or row["resource_name"].startswith(mine)
        ]
        rows.sort(key=lambda row: (row.get("resource_type", CLIENT_METRICS), row["resource_name"]))
        return {"error_code": answer["error_code"], "config_resources": rows}

    body = fit("ListConfigResources", version, {"resource_types": list(kinds)})
    probe.ask(label, "ListConfigResources", version, body, keep=keep)


@case()
def resources_by_type(probe: Probe) -> None:
    probe.topic("plain")
    probe.topic("configured", retention_ms="5000")
    resources(probe, "v0", 0)
    resources(probe, "all", 1)
    for kind in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, 0, 1, 3, 64, -1):
        resources(probe, f"type {kind}", 1, kind)
    resources(probe, "two types", 1, TOPIC, BROKER)
    resources(probe, "the same twice", 1, BROKER, BROKER)
    resources(probe, "one that is not", 1, BROKER, 99)


# AlterConfigs


def alter(
    probe: Probe, label: str, version: int, *rows: tuple[int, str, Configs], validate_only: bool = False, **options: Any
) -> Any:
    body = {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in configs],
            }
            for kind, name, configs in rows
        ],
        "validate_only": validate_only,
    }
    return probe.ask(label, "AlterConfigs", version, body, **options)


@case()
def what_is_not_named_goes(probe: Probe) -> None:
    for version in VERSIONS:
        name = probe.topic(f"v{version}", retention_ms="77", segment_ms="88").name
        keys = (TOPIC, name, ["retention.ms", "segment.ms", "flush.ms"])
        alter(probe, f"replace v{version}", version, (TOPIC, name, [("retention.ms", "5"), ("flush.ms", "6")]))
        flushed = (TOPIC, name, ["flush.ms"])
        describe(probe, f"until v{version}", 4, flushed, until=value_is("6"))
        describe(probe, f"after v{version}", 4, keys, synonyms=True)
        alter(probe, f"take all back v{version}", version, (TOPIC, name, []))
        describe(probe, f"until back v{version}", 4, flushed, until=value_is("9223372036854775807"))
        describe(probe, f"after all v{version}", 4, keys, synonyms=True)


@case()
def alterations_that_cannot_be(probe: Probe) -> None:
    name = probe.topic(flush_ms="77").name
    for label, configs in (
        ("null", [("retention.ms", None)]),
        ("unknown key", [("no.such", "1")]),
        ("unknown key with null", [("no.such", None)]),
        ("empty key", [("", "1")]),
        ("the same key twice", [("retention.ms", "1"), ("retention.ms", "2")]),
        ("not a number", [("retention.ms", "soon")]),
        ("below its range", [("retention.ms", "-2")]),
        ("empty value", [("retention.ms", "")]),
        ("a bad policy", [("cleanup.policy", "shred")]),
        ("lags that contradict", [("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "5")]),
        ("one good, one bad", [("segment.ms", "5000"), ("retention.ms", "soon")]),
    ):
        for version in VERSIONS:
            alter(probe, f"{label} v{version}", version, (TOPIC, name, configs), validate_only=True)
            alter(probe, f"{label}, for good v{version}", version, (TOPIC, name, configs))
    describe(probe, "what came of it", 4, (TOPIC, name, ["retention.ms", "flush.ms", "segment.ms"]))


@case()
def altering_what_is_not(probe: Probe) -> None:
    change: Configs = [("retention.ms", "1")]
    alter(probe, "unknown", 2, (TOPIC, probe.name("none"), change))
    alter(probe, "unknown, nothing", 2, (TOPIC, probe.name("none"), []))
    for index, name in enumerate(("", ".", "a b", "x" * 250)):
        alter(probe, f"illegal {index}", 2, (TOPIC, name, change))
    for kind in (0, 1, 3, 99, -1):
        alter(probe, f"type {kind}", 2, (kind, "x", change))


@case()
def altering_validate_only(probe: Probe) -> None:
    name = probe.topic(retention_ms="77").name
    for version in VERSIONS:
        alter(probe, f"good v{version}", version, (TOPIC, name, [("retention.ms", "1")]), validate_only=True)
        alter(probe, f"nothing v{version}", version, (TOPIC, name, []), validate_only=True)
    describe(probe, "unchanged", 4, (TOPIC, name, ["retention.ms"]))


REFUSED_TWICE = Differs(
    "a client must not hang: as IncrementalAlterConfigs",
    {
        "responses": [
            {
                "error_code": 42,
                "error_message": "<text>",
                "resource_type": TOPIC,
                "resource_name": "config-resources-altering-several-resources.two",
            }
        ]
        * 2
    },
)


@case({"the same twice": REFUSED_TWICE})
def altering_several_resources(probe: Probe) -> None:
    one, two = probe.topic("one").name, probe.topic("two").name
    change: Configs = [("retention.ms", "77")]
    alter(probe, "one unknown", 2, (TOPIC, one, change), (TOPIC, probe.name("none"), change), keep=by_name)
    alter(probe, "the same twice", 2, (TOPIC, two, change), (TOPIC, two, [("segment.ms", "77")]), patience_s=1.0)
    alter(probe, "nothing", 2)
    describe(probe, "the good one", 4, (TOPIC, one, ["retention.ms"]), until=value_is("77"))
    describe(probe, "the other", 4, (TOPIC, two, ["retention.ms"]))


def by_name(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "responses": sorted(answer["responses"], key=lambda row: row["resource_name"])}


@case()
def altering_a_broker(probe: Probe) -> None:
    for label, name, configs in (
        ("read-only key", "1", [("node.id", "5")]),
        ("read-only key of the cluster", "", [("socket.request.max.bytes", "5")]),
        ("bad value", "1", [("message.max.bytes", "big")]),
        ("null", "1", [("message.max.bytes", None)]),
        ("other broker", "2", [("message.max.bytes", "1000")]),
        ("not a number", "one", [("message.max.bytes", "1000")]),
        ("unknown key", "1", [("no.such.key", "1")]),
        ("good", "1", [("message.max.bytes", "2000000")]),
        ("good for all", "", [("message.max.bytes", "2000000")]),
        ("nothing", "1", []),
    ):
        alter(probe, label, 2, (BROKER, name, configs), validate_only=True)


@case()
def a_broker_is_replaced_as_a_whole(probe: Probe) -> None:
    """What holds for this broker and what holds for all, one after the other; both are as before in the end."""
    keys = ["log.cleaner.threads", "num.replica.fetchers"]
    for name in ("", "1"):
        label = name or "all"
        before = [("log.cleaner.threads", "2"), ("num.replica.fetchers", "2")]
        alter(probe, f"{label}: both", 2, (BROKER, name, before))
        wanted = (BROKER, "1", keys)
        describe(probe, f"{label}: after both", 4, wanted, synonyms=True, until=values_are("2", "2"))
        describe(probe, f"{label}: itself", 4, (BROKER, name, keys), synonyms=True, until=values_are("2", "2"))
        alter(probe, f"{label}: one", 2, (BROKER, name, before[:1]))
        describe(probe, f"{label}: after one", 4, wanted, synonyms=True, until=values_are("1", "2"))
        describe(probe, f"{label}: with documentation", 4, wanted, documentation=True)
        alter(probe, f"{label}: none", 2, (BROKER, name, []))
        describe(probe, f"{label}: after none", 4, wanted, synonyms=True, until=values_are("1", "1"))


def values_are(*wanted: str) -> Any:
    return lambda answer: sorted(row["value"] for row in answer["results"][0]["configs"]) == sorted(wanted)


# What depends on how a server was set up, and what Twofold adds.
OWN = {"log.dir", "log.dirs"}
ADDED = {
    "log.reserve.bytes",
    "max.partitions.per.request",
    "metrics.listener",
    "metrics.max.partitions",
    "quota.new.transactional.ids.rate",
    "quota.open.transactions.max",
    "transaction.heartbeat.enable",
}
DEFAULT = 5


@case()
def every_setting_of_the_broker(probe: Probe) -> None:
    """Each by its name, type and default, whether it is sensitive and whether it may change while the broker runs."""

    def keep(answer: dict[str, Any]) -> dict[str, Any]:
        rows = [row for row in answer["results"][0]["configs"] if row["name"] not in OWN | ADDED]
        return {
            row["name"]: {
                "type": row["config_type"],
                "read only": row["read_only"],
                "sensitive": row["is_sensitive"],
                "documented": bool(row["documentation"]),
                "default": [synonym["value"] for synonym in row["synonyms"] if synonym["source"] == DEFAULT],
            }
            for row in rows
        }

    describe(probe, "all", 4, (BROKER, "1", None), synonyms=True, documentation=True, keep=keep)
