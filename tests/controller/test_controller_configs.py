"""IncrementalAlterConfigs: operations, and which error comes first, as Kafka 4.3.1 answers."""

from typing import Any

import pytest

from kits.metadata.controller import after, context, create, create_topics, image_with, incremental_alter_configs, topic
from twofold.controller.image import MetadataImage
from twofold.controller.records import Config
from twofold.machine import Result
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from twofold.wire.values import AlterOperation

SET, DELETE, APPEND, SUBTRACT = AlterOperation
TOPIC, BROKER = 2, 4

_ONE = image_with(1)
IMAGE = after(_ONE, create_topics(_ONE, create(topic("c"), topic("d", retention_ms="7")), context(_ONE)).records)

Change = tuple[str, int, str | None]


def alter(
    image: MetadataImage, *resources: tuple[int, str, list[Change]], validate_only: bool = False, **settings: Any
) -> Result[Any, Any]:
    request = IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(AlterableConfig(name=k, config_operation=op, value=v) for k, op, v in changes),
            )
            for kind, name, changes in resources
        ),
        validate_only=validate_only,
    )
    return incremental_alter_configs(image, request, context(image, **settings))


def codes(result: Result[Any, Any]) -> list[int]:
    return [row.error_code for row in result.response.responses]


def test_set_and_delete():
    result = alter(IMAGE, (TOPIC, "c", [("retention.ms", SET, "5000")]))
    assert result.records == [Config(TOPIC, "c", "retention.ms", "5000")]
    image = after(IMAGE, result.records)
    assert dict(image.topic_configs("c")) == {"retention.ms": "5000"}
    gone = alter(image, (TOPIC, "c", [("retention.ms", DELETE, None)]))
    assert gone.records == [Config(TOPIC, "c", "retention.ms", None)]
    assert not after(image, gone.records).topic_configs("c")


@pytest.mark.parametrize(
    "change",
    [
        ("retention.ms", SET, "7"),
        ("retention.bytes", DELETE, None),
        ("nobody.knows.this", DELETE, None),
        ("cleanup.policy", APPEND, "delete"),
        ("cleanup.policy", SUBTRACT, "compact"),
    ],
    ids=str,
)
def test_what_changes_nothing_succeeds(change: Change):
    result = alter(IMAGE, (TOPIC, "d", [change]))
    assert codes(result) == [0]
    after_it = after(IMAGE, result.records)
    kept = {name: value for name, value in after_it.topic_configs("d").items() if name != "cleanup.policy"}
    assert kept == {"retention.ms": "7"}
    assert after_it.topic_configs("d").get("cleanup.policy", "delete") == "delete"


def test_no_changes_at_all_succeed():
    result = alter(IMAGE, (TOPIC, "c", []))
    assert codes(result) == [0]
    assert result.records == []


def value_after(image: MetadataImage, *changes: Change, name: str = "cleanup.policy", **settings: Any) -> str | None:
    for change in changes:
        image = after(image, alter(image, (TOPIC, "c", [change]), **settings).records)
    return image.topic_configs("c").get(name)


def test_append_and_subtract_start_from_what_holds_and_keep_the_order():
    append = ("cleanup.policy", APPEND, "compact")
    assert value_after(IMAGE, append) == "delete,compact"
    assert value_after(IMAGE, append, append) == "delete,compact"
    assert value_after(IMAGE, append, ("cleanup.policy", SUBTRACT, "delete")) == "compact"
    assert value_after(IMAGE, ("cleanup.policy", SUBTRACT, "delete")) == ""
    assert value_after(IMAGE, ("cleanup.policy", SUBTRACT, "delete"), append) == "compact"
    assert value_after(IMAGE, ("cleanup.policy", APPEND, " compact , delete")) == "delete,compact"
    assert value_after(IMAGE, ("cleanup.policy", SUBTRACT, "delete"), log_cleanup_policy="compact,delete") == "compact"


BAD: list[tuple[str, int, str, list[Change], int]] = [
    ("append to a number", TOPIC, "c", [("retention.ms", APPEND, "5")], 40),
    ("subtract from a number", TOPIC, "c", [("retention.ms", SUBTRACT, "5")], 40),
    ("append to what nobody knows", TOPIC, "c", [("zz", APPEND, "5")], 40),
    ("append a bad item", TOPIC, "c", [("cleanup.policy", APPEND, "zzz")], 40),
    ("null with set", TOPIC, "c", [("retention.ms", SET, None)], 42),
    ("null with append", TOPIC, "c", [("cleanup.policy", APPEND, None)], 42),
    ("null with subtract", TOPIC, "c", [("cleanup.policy", SUBTRACT, None)], 42),
    ("a key twice", TOPIC, "c", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42),
    ("unknown operation", TOPIC, "c", [("retention.ms", 9, "1")], -1),
    ("unknown key", TOPIC, "c", [("zz", SET, "1")], 40),
    ("bad value", TOPIC, "c", [("retention.ms", SET, "x")], 40),
    ("one good, one bad", TOPIC, "c", [("retention.bytes", SET, "1"), ("retention.ms", SET, "x")], 40),
    ("unknown topic", TOPIC, "nope", [("retention.ms", SET, "1")], 3),
    ("unknown topic without changes", TOPIC, "nope", [], 3),
    ("a bad key beats an unknown topic", TOPIC, "nope", [("zz", SET, "1")], 40),
    ("no topic name", TOPIC, "", [("retention.ms", SET, "1")], 42),
    ("illegal topic name", TOPIC, "b ad", [("retention.ms", SET, "1")], 17),
    ("unknown type", 9, "c", [("retention.ms", SET, "1")], 42),
    ("type 0", 0, "c", [], 42),
    ("read-only setting", BROKER, "1", [("log.dirs", SET, "/x")], 42),
    ("read-only setting for all", BROKER, "", [("num.partitions", SET, "3")], 42),
    ("bad value of a setting", BROKER, "1", [("log.retention.ms", SET, "x")], 42),
    ("another broker", BROKER, "7", [("log.retention.ms", SET, "1")], 42),
    ("no broker id", BROKER, "xx", [("log.retention.ms", SET, "1")], 42),
    ("a broker's own setting for all", BROKER, "", [("listeners", SET, "PLAINTEXT://:1")], 42),
    ("a listener that nothing would open", BROKER, "1", [("listeners", SET, "SSL://:1")], 40),
]


@pytest.mark.parametrize(("kind", "name", "changes", "code"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_cannot_be_altered(kind: int, name: str, changes: list[Change], code: int):
    result = alter(IMAGE, (kind, name, changes))
    assert codes(result) == [code]
    assert result.records == []
    assert bool(result.response.responses[0].error_message) == (code != -1)


def test_a_resource_twice_is_refused_twice():
    result = alter(
        IMAGE,
        (TOPIC, "c", [("retention.ms", SET, "1")]),
        (TOPIC, "c", [("retention.bytes", SET, "1")]),
        (TOPIC, "d", [("retention.ms", SET, "1")]),
    )
    assert codes(result) == [42, 42, 0]
    assert result.records == [Config(TOPIC, "d", "retention.ms", "1")]


def test_one_bad_resource_does_not_stop_the_others():
    result = alter(IMAGE, (TOPIC, "c", [("retention.ms", SET, "8")]), (TOPIC, "d", [("retention.ms", SET, "x")]))
    assert codes(result) == [0, 40]
    assert result.records == [Config(TOPIC, "c", "retention.ms", "8")]


def test_validate_only_writes_nothing():
    for value, code in (("8", 0), ("x", 40)):
        result = alter(IMAGE, (TOPIC, "c", [("retention.ms", SET, value)]), validate_only=True)
        assert codes(result) == [code]
        assert result.records == []


def test_a_contradiction_with_what_is_set_already_is_seen():
    image = after(IMAGE, [Config(TOPIC, "c", "max.compaction.lag.ms", "100")])
    assert codes(alter(image, (TOPIC, "c", [("min.compaction.lag.ms", SET, "200")]))) == [40]


def test_settings_of_one_broker_and_of_all():
    result = alter(
        IMAGE,
        (BROKER, "1", [("log.retention.ms", SET, "100000")]),
        (BROKER, "", [("log.retention.ms", SET, "100001"), ("message.max.bytes", SET, "2000000")]),
    )
    assert codes(result) == [0, 0]
    image = after(IMAGE, result.records)
    assert dict(image.broker_configs(1)) == {"log.retention.ms": "100000"}
    assert dict(image.broker_configs()) == {"log.retention.ms": "100001", "message.max.bytes": "2000000"}


def test_an_unknown_setting_is_kept():
    assert alter(IMAGE, (BROKER, "1", [("zz", SET, "3")])).records == [Config(BROKER, "1", "zz", "3")]
