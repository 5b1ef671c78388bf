"""CreateTopics, CreatePartitions, DeleteTopics: what is written and which error comes first, as Kafka 4.3.1 answers."""

from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.metadata.controller import (
    after,
    context,
    create,
    create_partitions,
    create_topics,
    delete_topics,
    image_with,
    topic,
)
from twofold.controller.context import new_id
from twofold.controller.image import MetadataImage
from twofold.controller.records import Config, Partition, RemoveTopic, Topic
from twofold.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from twofold.wire.messages.create_topics import CreatableTopic
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

ONE = image_with(1)
THREE = image_with(1, 2, 3)


def with_topics(image: MetadataImage, *topics: CreatableTopic) -> MetadataImage:
    return after(image, create_topics(image, create(*topics), context(image)).records)


KNOWN = with_topics(ONE, topic("known", 3), topic("dotted.name"), topic("x"))


# -- CreateTopics


def test_a_topic_is_one_batch_of_its_record_its_configs_and_its_partitions():
    result = create_topics(ONE, create(topic("a", 2, 1, retention_ms="1000", cleanup_policy="compact")), context(ONE))
    first, *rest = result.records
    assert isinstance(first, Topic) and first.name == "a"
    assert [type(record) for record in rest] == [Config, Config, Partition, Partition]
    assert [record.name for record in rest if isinstance(record, Config)] == ["cleanup.policy", "retention.ms"]
    partition = rest[-1]
    assert partition == Partition(1, first.topic_id, (1,), (1,), 1, directories=(UUID(int=1 << 64),))


def test_the_answer_tells_id_counts_and_all_configs_in_order():
    row = create_topics(ONE, create(topic("a", 2, 1, retention_ms="1000")), context(ONE)).response.topics[0]
    assert (row.error_code, row.error_message) == (0, None)
    assert (row.num_partitions, row.replication_factor) == (2, 1)
    assert row.topic_id is not None
    assert row.configs is not None
    names = [config.name for config in row.configs]
    assert names == sorted(names) and len(names) == 33
    sources = {config.name: (config.value, config.config_source) for config in row.configs}
    assert sources["retention.ms"] == ("1000", 1)
    assert sources["retention.bytes"] == ("-1", 5)


def test_the_answer_shows_what_was_set_for_the_cluster():
    image = after(ONE, [Config(4, "", "log.retention.bytes", "5")])
    row = create_topics(image, create(topic("a")), context(image, log_retention_ms="9")).response.topics[0]
    assert row.configs is not None
    sources = {config.name: (config.value, config.config_source) for config in row.configs}
    assert sources["retention.bytes"] == ("5", 3)
    assert sources["retention.ms"] == ("9", 4)


def test_minus_one_means_the_brokers_defaults():
    row = create_topics(
        THREE, create(topic("a", -1, -1)), context(THREE, num_partitions="4", default_replication_factor="2")
    ).response.topics[0]
    assert (row.num_partitions, row.replication_factor) == (4, 2)


CREATE_ERRORS: list[tuple[str, CreatableTopic, int]] = [
    ("exists", topic("known"), 36),
    ("exists beats all else", topic("known", 0, 9, retention_ms="x"), 36),
    ("space in the name", topic("a b"), 17),
    ("empty name", topic(""), 17),
    ("dot", topic("."), 17),
    ("two dots", topic(".."), 17),
    ("too long", topic("x" * 250), 17),
    ("illegal name beats partitions", topic("a b", 0, 0), 17),
    ("collision", topic("dotted_name"), 17),
    ("metadata topic", topic("__cluster_metadata"), 42),
    ("unknown config", topic("new", nope="1"), 40),
    ("bad config value", topic("new", retention_ms="soon"), 40),
    ("null config", topic("new", retention_ms=None), 40),
    ("configs that contradict", topic("new", min_compaction_lag_ms="10", max_compaction_lag_ms="5"), 40),
    ("bad config beats partitions", topic("new", 0, 1, retention_ms="soon"), 40),
    ("bad config beats assignment", topic("new", -1, -1, {0: [9]}, retention_ms="soon"), 40),
    ("no partitions", topic("new", 0), 37),
    ("negative partitions", topic("new", -2), 37),
    ("factor 0", topic("new", 1, 0), 38),
    ("negative factor", topic("new", 1, -2), 38),
    ("more replicas than brokers", topic("new", 1, 2), 38),
    ("factor 0 beats no partitions", topic("new", 0, 0), 38),
    ("no partitions beats too many replicas", topic("new", 0, 9), 37),
    ("assignment and a count", topic("new", 2, -1, {0: [1]}), 42),
    ("assignment and a factor", topic("new", -1, 1, {0: [1]}), 42),
    ("gap", topic("new", -1, -1, {0: [1], 2: [1]}), 39),
    ("partition twice", topic("new", -1, -1, [(0, [1]), (0, [1])]), 39),
    ("negative partition", topic("new", -1, -1, {-1: [1]}), 39),
    ("no replicas", topic("new", -1, -1, {0: []}), 39),
    ("unknown broker", topic("new", -1, -1, {0: [7]}), 39),
    ("broker twice", topic("new", -1, -1, {0: [1, 1]}), 39),
]


@pytest.mark.parametrize(("asked", "code"), [row[1:] for row in CREATE_ERRORS], ids=[row[0] for row in CREATE_ERRORS])
def test_what_cannot_be_created(asked: CreatableTopic, code: int):
    result = create_topics(KNOWN, create(asked), context(KNOWN))
    row = result.response.topics[0]
    assert row.error_code == code
    assert row.error_message
    assert (row.num_partitions, row.replication_factor, row.configs, row.topic_id) == (-1, -1, (), None)
    assert result.records == []


def test_unlike_numbers_of_replicas_are_refused():
    row = create_topics(THREE, create(topic("a", -1, -1, {0: [1, 2], 1: [3]})), context(THREE)).response.topics[0]
    assert row.error_code == 39


def test_a_manual_assignment_may_come_in_any_order():
    result = create_topics(THREE, create(topic("a", -1, -1, {1: [3, 1], 0: [2, 3]})), context(THREE))
    partitions = [record for record in result.records if isinstance(record, Partition)]
    assert [(p.partition_id, p.replicas, p.leader) for p in partitions] == [(0, (2, 3), 2), (1, (3, 1), 3)]


def test_a_fenced_broker_is_assigned_but_neither_in_sync_nor_leader():
    image = image_with(1, 2, fenced=[2])
    records = create_topics(image, create(topic("a", -1, -1, {0: [2, 1]})), context(image)).records
    assert records[-1] == Partition(
        0,
        records[0].topic_id,  # type: ignore[union-attr]
        (2, 1),
        (1,),
        1,
        directories=(UUID(int=2 << 64), UUID(int=1 << 64)),
    )
    only_fenced = create_topics(image, create(topic("a", -1, -1, {0: [2]})), context(image))
    assert only_fenced.response.topics[0].error_code == 39


def test_without_a_living_broker_nothing_is_created():
    image = image_with(1, fenced=[1])
    assert create_topics(image, create(topic("a")), context(image)).response.topics[0].error_code == 38


def test_names_given_twice_are_one_refused_row_and_the_others_go_on():
    result = create_topics(ONE, create(topic("b"), topic("b"), topic("c")), context(ONE))
    assert [(row.name, row.error_code) for row in result.response.topics] == [("c", 0), ("b", 42)]
    assert [record.name for record in result.records if isinstance(record, Topic)] == ["c"]


def test_one_bad_topic_does_not_stop_the_others():
    result = create_topics(ONE, create(topic("good"), topic("bad", 0)), context(ONE))
    assert [row.error_code for row in result.response.topics] == [0, 37]
    assert [record.name for record in result.records if isinstance(record, Topic)] == ["good"]


def test_colliding_names_of_one_request_are_not_compared_with_each_other():
    result = create_topics(ONE, create(topic("z.y"), topic("z_y")), context(ONE))
    assert [row.error_code for row in result.response.topics] == [0, 0]


def test_validate_only_answers_the_same_and_writes_nothing():
    result = create_topics(KNOWN, create(topic("v", 2), topic("known"), validate_only=True), context(KNOWN))
    assert result.records == []
    assert [row.error_code for row in result.response.topics] == [0, 36]
    assert result.response.topics[0].topic_id is not None


def test_the_last_of_a_config_given_twice_wins():
    asked = topic("a", retention_ms="1")
    twice = CreatableTopic(
        name="a",
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(*asked.configs, *topic("a", retention_ms="2").configs),
    )
    records = create_topics(ONE, create(twice), context(ONE)).records
    assert [record.value for record in records if isinstance(record, Config)] == ["2"]


def test_topic_ids_are_never_reserved_ones_and_never_begin_with_a_dash():
    class Rigged:
        def __init__(self) -> None:
            self.values = iter([62 << 122, (5 << 122) | 7])

        def getrandbits(self, bits: int) -> int:
            return next(self.values)

        def randrange(self, stop: int) -> int:
            return 0

        def shuffle(self, x: list[Any]) -> None:
            pass

    assert new_id(Rigged()).int >> 122 == 5


def test_an_id_that_is_taken_is_not_given_again():
    once = with_topics(ONE, topic("a"))
    again = create_topics(once, create(topic("b")), context(once)).records
    assert isinstance(again[0], Topic)
    assert again[0].topic_id not in once.topic_names


# -- placement


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 30), st.integers(0, 1000))
def test_placement_uses_distinct_brokers_and_spreads_the_leaders(brokers: int, factor: int, partitions: int, seed: int):
    factor = min(factor, brokers)
    image = image_with(*range(1, brokers + 1))
    records = create_topics(image, create(topic("a", partitions, factor)), context(image, seed=seed)).records
    placed = [record for record in records if isinstance(record, Partition)]
    assert [p.partition_id for p in placed] == list(range(partitions))
    assert all(len(set(p.replicas)) == factor and p.leader == p.replicas[0] and p.isr == p.replicas for p in placed)
    leaders = Counter(p.leader for p in placed)
    full_rounds = partitions // brokers
    assert all(full_rounds <= leaders[broker] <= full_rounds + 1 for broker in range(1, brokers + 1))


@given(st.integers(0, 1000))
def test_replicas_are_spread_over_the_racks(seed: int):
    from kits.metadata.controller import broker_records, fold
    from twofold.controller.features import initial_levels

    records = [*initial_levels()]
    for broker_id in range(1, 7):
        records += broker_records(broker_id, rack=f"rack{broker_id % 3}")  # type: ignore[arg-type]
    image = fold(records).image
    created = create_topics(image, create(topic("a", 12, 3)), context(image, seed=seed)).records
    for partition in created:
        if isinstance(partition, Partition):
            assert {broker % 3 for broker in partition.replicas} == {0, 1, 2}


def test_placement_is_decided_by_the_chance_that_was_handed_in():
    asked = create(topic("a", 9, 2))
    once, again = (create_topics(THREE, asked, context(THREE, seed=5)).records for _ in range(2))
    assert once == again


# -- CreatePartitions


def grow(image: MetadataImage, *rows: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> Any:
    topics = tuple(
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else tuple(CreatePartitionsAssignment(broker_ids=tuple(ids)) for ids in assignments),
        )
        for name, count, assignments in rows
    )
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    return create_partitions(image, request, context(image))


def test_new_partitions_follow_those_that_are_there():
    result = grow(KNOWN, ("known", 5, None))
    assert [record.partition_id for record in result.records] == [3, 4]
    grown = after(KNOWN, result.records).topic("known")
    assert grown is not None and sorted(grown.partitions) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (("known", 3, None), 37),
        (("known", 2, None), 37),
        (("known", 0, None), 37),
        (("known", -1, None), 37),
        (("unknown", 3, None), 3),
        (("a b", 3, None), 3),
        (("__cluster_metadata", 3, None), 3),
        (("known", 5, [[1]]), 39),
        (("known", 4, [[1], [1]]), 39),
        (("known", 4, []), 39),
        (("known", 4, [[2]]), 39),
        (("known", 4, [[1, 1]]), 39),
        (("known", 4, [[]]), 39),
        (("known", 4, [[-1]]), 39),
    ],
)
def test_partitions_that_cannot_be_added(row: tuple[str, int, list[list[int]] | None], code: int):
    result = grow(KNOWN, row)
    assert [answer.error_code for answer in result.response.results] == [code]
    assert result.records == []


def test_new_partitions_have_as_many_replicas_as_the_others():
    image = with_topics(THREE, topic("a", 1, 2))
    assert all(len(record.replicas) == 2 for record in grow(image, ("a", 4, None)).records)
    assert grow(image, ("a", 2, [[1, 2, 3]])).response.results[0].error_code == 39
    assert grow(image, ("a", 2, [[3, 1]])).records[0].replicas == (3, 1)


def test_adding_to_a_topic_twice_is_one_refused_row():
    result = grow(KNOWN, ("known", 5, None), ("known", 6, None), ("x", 2, None))
    assert [(row.name, row.error_code) for row in result.response.results] == [("x", 0), ("known", 42)]


def test_adding_validate_only_writes_nothing():
    result = grow(KNOWN, ("known", 5, None), validate_only=True)
    assert result.records == []
    assert result.response.results[0].error_code == 0


# -- DeleteTopics


def delete(
    image: MetadataImage, *rows: tuple[str | None, UUID | None], names: tuple[str, ...] = (), **config: Any
) -> Any:
    states = tuple(DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in rows)
    request = DeleteTopicsRequest(topics=states, topic_names=names, timeout_ms=1000)
    return delete_topics(image, request, context(image, **config))


def id_of(name: str) -> UUID:
    found = KNOWN.topic(name)
    assert found is not None
    return found.topic_id


def test_topics_are_deleted_by_name_or_id_and_the_answer_has_both():
    result = delete(KNOWN, ("known", None), (None, id_of("x")))
    assert result.records == [RemoveTopic(id_of("known")), RemoveTopic(id_of("x"))]
    assert [(row.name, row.topic_id, row.error_code) for row in result.response.responses] == [
        ("known", id_of("known"), 0),
        ("x", id_of("x"), 0),
    ]


def test_topics_are_deleted_by_the_names_of_older_versions():
    result = delete(KNOWN, names=("known", "nope"))
    assert {row.name: row.error_code for row in result.response.responses} == {"known": 0, "nope": 3}


STRANGER = uuid4()


@pytest.mark.parametrize(
    ("rows", "codes"),
    [
        ([("nope", None)], {("nope", None): 3}),
        ([("a b", None)], {("a b", None): 3}),
        ([(None, STRANGER)], {(None, STRANGER): 100}),
        ([(None, None)], {(None, None): 42}),
        ([("x", STRANGER)], {("x", STRANGER): 42}),
        ([("x", None), ("x", None)], {("x", None): 42}),
        ([("nope", None), ("nope", None)], {("nope", None): 42}),
        ([(None, STRANGER), (None, STRANGER)], {(None, STRANGER): 42}),
        ([("__cluster_metadata", None)], {("__cluster_metadata", None): 3}),
    ],
)
def test_topics_that_cannot_be_deleted(
    rows: list[tuple[str | None, UUID | None]], codes: dict[tuple[str | None, UUID | None], int]
):
    result = delete(KNOWN, *rows)
    assert result.records == []
    assert {(row.name, row.topic_id): row.error_code for row in result.response.responses} == codes
    assert len(result.response.responses) == len(codes)


def test_a_topic_given_by_name_and_by_id_stays_and_is_one_row():
    result = delete(KNOWN, ("x", None), (None, id_of("x")), ("known", None))
    rows = {(row.name, row.topic_id): row.error_code for row in result.response.responses}
    assert rows == {("x", id_of("x")): 42, ("known", id_of("known")): 0}
    assert result.records == [RemoveTopic(id_of("known"))]


def test_deletion_can_be_switched_off():
    result = delete(KNOWN, ("x", None), delete_topic_enable="false")
    assert result.records == []
    assert result.response.responses[0].error_code == 73
    assert "delete.topic.enable" in result.response.responses[0].error_message


def test_a_deleted_topic_leaves_nothing_behind():
    image = with_topics(ONE, topic("a.b", 2, retention_ms="1"))
    gone = after(image, delete(image, ("a.b", None)).records)
    assert (gone.topics, gone.topic_names, gone.configs, gone.collidable) == (
        ONE.topics,
        ONE.topic_names,
        ONE.configs,
        ONE.collidable,
    )
    assert create_topics(gone, create(topic("a_b")), context(gone)).response.topics[0].error_code == 0
