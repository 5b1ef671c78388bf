"""CreateTopics, CreatePartitions, DeleteTopics."""

import uuid
from typing import Any

from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("topics")
case = CASES.case

UNKNOWN_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
ILLEGAL = ("", ".", "..", "a b", "a/b", "ü", "x" * 250)


def topic(
    name: str, partitions: int = 1, factor: int = 1, assignments: dict[int, list[int]] | None = None, **configs: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": at, "broker_ids": ids} for at, ids in (assignments or {}).items()],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(probe: Probe, label: str, version: int, *rows: dict[str, Any], validate_only: bool = False) -> None:
    body = {"topics": list(rows), "timeout": 5000, "validate_only": validate_only}
    probe.ask(label, "CreateTopics", version, body, keep=without_configs)


def without_configs(answer: dict[str, Any]) -> dict[str, Any]:
    """The configs of an answer are compared once, in a case of their own."""
    rows = [{key: value for key, value in row.items() if key != "configs"} for row in answer["topics"]]
    for row, whole in zip(rows, answer["topics"], strict=True):
        row["has configs"] = bool(whole.get("configs"))
    return {**answer, "topics": rows}


@case()
def a_topic_is_created_once(probe: Probe) -> None:
    for version in (2, 4, 5, 7):
        row = topic(probe.name(f"v{version}"), 3)
        create(probe, f"v{version}", version, row)
        create(probe, f"v{version} again", version, row)


@case()
def the_configs_of_a_new_topic_are_told(probe: Probe) -> None:
    row = topic(probe.name(), 1, 1, cleanup_policy="compact", retention_ms="1000", min_insync_replicas="1")
    body = {"topics": [row], "timeout": 5000}
    probe.ask("v7", "CreateTopics", 7, body)
    body = {"topics": [topic(probe.name("other"))], "timeout": 5000, "validate_only": True}
    probe.ask("v5 validate only", "CreateTopics", 5, body)


@case()
def defaults_of_the_broker_for_partitions_and_replicas(probe: Probe) -> None:
    for version in (2, 3, 4, 7):
        create(probe, f"v{version}", version, topic(probe.name(f"v{version}"), -1, -1))


@case()
def illegal_names(probe: Probe) -> None:
    for version in (2, 7):
        create(probe, f"v{version}", version, *[topic(name) for name in ILLEGAL])
    create(probe, "longest", 7, topic(probe.name("y" * (249 - len(probe.name(""))))))


@case()
def names_that_collide(probe: Probe) -> None:
    probe.topic("a.b")
    create(probe, "with an existing topic", 7, topic(probe.name("a_b")))
    create(probe, "validate only", 7, topic(probe.name("a_b")), validate_only=True)
    create(probe, "with each other", 7, topic(probe.name("c.d")), topic(probe.name("c_d")))


@case()
def duplicates_in_one_request(probe: Probe) -> None:
    twice = topic(probe.name("twice"))
    for version in (2, 7):
        create(probe, f"v{version}", version, twice, twice, topic(probe.name(f"once{version}")))


@case()
def partition_counts_and_replication_factors(probe: Probe) -> None:
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (1, 32767), (0, 0), (-1, 1), (1, -1)):
        row = topic(probe.name(f"p{partitions}r{factor}".replace("-", "m")), partitions, factor)
        create(probe, f"{partitions} partitions, factor {factor}", 7, row)
        create(probe, f"{partitions} partitions, factor {factor}, v2", 2, {**row, "name": row["name"] + "v2"})


@case()
def explicit_assignments(probe: Probe) -> None:
    asked: list[tuple[str, int, int, dict[int, list[int]]]] = [
        ("good", -1, -1, {0: [1], 1: [1]}),
        ("good, out of order", -1, -1, {1: [1], 0: [1]}),
        ("with a partition count", 2, -1, {0: [1], 1: [1]}),
        ("with a replication factor", -1, 1, {0: [1]}),
        ("gap", -1, -1, {0: [1], 2: [1]}),
        ("not from 0", -1, -1, {1: [1]}),
        ("negative", -1, -1, {-1: [1]}),
        ("unknown broker", -1, -1, {0: [2]}),
        ("known and unknown broker", -1, -1, {0: [1, 2]}),
        ("negative broker", -1, -1, {0: [-1]}),
        ("a broker twice", -1, -1, {0: [1, 1]}),
        ("no brokers", -1, -1, {0: []}),
        ("unlike replica counts", -1, -1, {0: [1], 1: []}),
    ]
    for label, partitions, factor, assignments in asked:
        row = topic(probe.name(label.replace(" ", "-").replace(",", "")), partitions, factor, assignments)
        create(probe, label, 7, row)
    same = topic(probe.name("partition-twice"), -1, -1, {0: [1]})
    same["assignments"] *= 2
    create(probe, "a partition twice", 7, same)


@case()
def validate_only_creates_nothing(probe: Probe) -> None:
    row = topic(probe.name(), 2)
    for version in (2, 7):
        create(probe, f"v{version}", version, row, validate_only=True)
    create(probe, "wrong", 7, topic(probe.name("wrong"), 0), validate_only=True)
    create(probe, "then for real", 7, row)
    create(probe, "exists", 7, row, validate_only=True)


@case()
def bad_configs(probe: Probe) -> None:
    for label, configs in (
        ("unknown", {"no_such_config": "1"}),
        ("not a number", {"retention_ms": "soon"}),
        ("below its range", {"retention_ms": "-2"}),
        ("empty", {"retention_ms": ""}),
        ("null", {"retention_ms": None}),
        ("unknown policy", {"cleanup_policy": "shred"}),
        ("policy twice", {"cleanup_policy": "delete,delete"}),
        ("no policy", {"cleanup_policy": ""}),
        ("spaces around a number", {"retention_ms": " 1000 "}),
        ("unknown compression", {"compression_type": "brotli"}),
        ("level out of range", {"compression_gzip_level": "10"}),
        ("not a boolean", {"preallocate": "yes"}),
        ("too small a segment", {"segment_bytes": "1"}),
        ("ratio", {"min_cleanable_dirty_ratio": "1.5"}),
        ("number too large", {"max_message_bytes": "99999999999"}),
        ("throttled replicas", {"leader_replication_throttled_replicas": "x"}),
        ("lags that contradict", {"min_compaction_lag_ms": "100", "max_compaction_lag_ms": "50"}),
        ("tiered storage", {"remote_storage_enable": "true"}),
        ("min isr 0", {"min_insync_replicas": "0"}),
        ("min isr above the replicas", {"min_insync_replicas": "3"}),
        ("one good, one bad", {"retention_ms": "1", "segment_ms": "0"}),
        ("broker key", {"log_retention_ms": "1"}),
        ("removed in 4.0", {"message_format_version": "2.8"}),
        ("empty name", {"": "1"}),
    ):
        create(probe, label, 7, topic(probe.name(label.replace(" ", "-").replace(",", "")), **configs))
    twice = topic(probe.name("key-twice"), retention_ms="1")
    twice["configs"].append({"name": "retention.ms", "value": "2"})
    create(probe, "a key twice", 7, twice)


@case()
def which_error_comes_first(probe: Probe) -> None:
    known = probe.topic("known").name
    create(probe, "exists, and 0 partitions", 7, topic(known, 0))
    create(probe, "exists, and bad config", 7, topic(known, retention_ms="soon"))
    create(probe, "bad config, and factor 9", 7, topic(probe.name("a"), 1, 9, retention_ms="soon"))
    create(probe, "0 partitions, and factor 9", 7, topic(probe.name("b"), 0, 9))
    create(probe, "0 partitions, and bad config", 7, topic(probe.name("c"), 0, 1, retention_ms="soon"))
    create(probe, "illegal name, and 0 partitions", 7, topic("a b", 0))
    create(probe, "assignment, and bad config", 7, topic(probe.name("d"), -1, -1, {0: [2]}, retention_ms="soon"))


@case()
def good_and_bad_topics_in_one_request(probe: Probe) -> None:
    create(probe, "mixed", 7, topic(probe.name("good")), topic(probe.name("bad"), 0), topic("a b"))
    create(probe, "none", 7)


@case()
def reserved_names(probe: Probe) -> None:
    create(probe, "metadata", 7, topic("__cluster_metadata"))
    create(probe, "metadata validate only", 7, topic("__cluster_metadata"), validate_only=True)


# CreatePartitions


def grow(probe: Probe, label: str, version: int, *rows: tuple[str, int, Any], validate_only: bool = False) -> None:
    body = {
        "topics": [
            {
                "name": name,
                "count": count,
                "assignments": None if assignments is None else [{"broker_ids": ids} for ids in assignments],
            }
            for name, count, assignments in rows
        ],
        "timeout": 5000,
        "validate_only": validate_only,
    }
    probe.ask(label, "CreatePartitions", version, body)


@case()
def partitions_are_added(probe: Probe) -> None:
    name = probe.topic().name
    for version in (0, 1, 2, 3):
        grow(probe, f"v{version}", version, (name, version + 2, None))
        probe.await_topic(name, version + 2)
    answer = probe.tell("Metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=False)
    probe.record("metadata", answer["topics"])


@case()
def partition_counts_that_cannot_be(probe: Probe) -> None:
    name = probe.topic("three", 3).name
    for count in (3, 2, 1, 0, -1, -(2**31)):
        for version in (0, 3):
            grow(probe, f"to {count} v{version}", version, (name, count, None))


@case()
def partitions_of_topics_that_are_not(probe: Probe) -> None:
    grow(probe, "unknown", 3, (probe.name("none"), 3, None))
    for index, name in enumerate(ILLEGAL):
        grow(probe, f"illegal {index}", 3, (name, 3, None))


@case()
def assignments_of_new_partitions(probe: Probe) -> None:
    name = probe.topic("one").name
    for label, count, assignments in (
        ("too few", 3, [[1]]),
        ("too many", 2, [[1], [1]]),
        ("none", 2, []),
        ("unknown broker", 2, [[2]]),
        ("a broker twice", 2, [[1, 1]]),
        ("no brokers", 2, [[]]),
        ("negative broker", 2, [[-1]]),
        ("more replicas than the topic has", 2, [[1, 2]]),
        ("good", 2, [[1]]),
    ):
        grow(probe, label, 3, (name, count, assignments))


@case()
def adding_partitions_validate_only(probe: Probe) -> None:
    name = probe.topic("one").name
    for version in (0, 3):
        grow(probe, f"good v{version}", version, (name, 5, None), validate_only=True)
    grow(probe, "bad", 3, (name, 1, None), validate_only=True)
    grow(probe, "still one", 3, (name, 2, None))


@case()
def adding_partitions_to_a_topic_twice(probe: Probe) -> None:
    one, two = probe.topic("one").name, probe.topic("two").name
    grow(probe, "twice", 3, (one, 2, None), (one, 3, None), (two, 2, None))
    grow(probe, "nothing", 3)


# DeleteTopics


def delete(probe: Probe, label: str, version: int, *rows: tuple[str | None, uuid.UUID | None]) -> None:
    body = fit(
        "DeleteTopics",
        version,
        {
            "topics": [{"name": name, "topic_id": topic_id} for name, topic_id in rows],
            "topic_names": [name for name, _ in rows],
            "timeout": 5000,
        },
    )
    probe.ask(label, "DeleteTopics", version, body)


@case()
def topics_are_deleted_by_name(probe: Probe) -> None:
    for version in (1, 3, 4, 5, 6):
        name = probe.topic(f"v{version}").name
        delete(probe, f"v{version}", version, (name, None))
        probe.await_gone(name)
        delete(probe, f"v{version} again", version, (name, None))


@case()
def topics_are_deleted_by_id(probe: Probe) -> None:
    topic = probe.topic()
    delete(probe, "known", 6, (None, topic.id))
    probe.await_gone(topic.name)
    delete(probe, "again", 6, (None, topic.id))
    delete(probe, "unknown", 6, (None, UNKNOWN_ID))
    delete(probe, "zero", 6, (None, None))


@case()
def a_topic_is_deleted_by_name_or_by_id_not_both(probe: Probe) -> None:
    topic, other = probe.topic("one"), probe.topic("other")
    delete(probe, "the same", 6, (topic.name, topic.id))
    delete(probe, "two", 6, (topic.name, other.id))
    delete(probe, "in two rows", 6, (topic.name, None), (None, topic.id))


@case()
def deletions_twice_in_one_request(probe: Probe) -> None:
    topic, other, third = probe.topic("one"), probe.topic("other"), probe.topic("third")
    delete(probe, "names v6", 6, (topic.name, None), (topic.name, None), (other.name, None))
    delete(probe, "ids", 6, (None, topic.id), (None, topic.id))
    delete(probe, "names v5", 5, (third.name, None), (third.name, None))
    delete(probe, "unknown names", 5, (probe.name("none"), None), (probe.name("none"), None))


@case()
def deleting_names_that_cannot_be(probe: Probe) -> None:
    for version in (1, 6):
        delete(probe, f"v{version}", version, *[(name, None) for name in ILLEGAL])
    delete(probe, "nothing v1", 1)
    delete(probe, "nothing v6", 6)


@case()
def a_topic_made_again_has_a_new_id_and_an_empty_log(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    probe.tell("DeleteTopics", 1, topic_names=[topic.name], timeout=5000)
    probe.await_gone(topic.name)
    again = probe.topic()
    probe.record("ids differ", topic.id != again.id)
    probe.record("first offset", probe.produce(again.name)["base_offset"])
