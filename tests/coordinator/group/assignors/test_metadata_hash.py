"""The hash that makes a group notice a change of its topics. The values are those of Apache Kafka 4.3.1."""

from uuid import UUID

from twofold.coordinator.group.assignors.hashes import group_hash, topic_hash

ID = UUID("b168d4bc-9291-5ba1-fbe1-77024b1fb551")
RACKS = [["r1"], ["r2", "r1"], []]


def test_a_topic_has_the_hash_of_apache_kafka() -> None:
    assert topic_hash(ID, "orders", 3) == -4202305203191295525
    assert topic_hash(ID, "orders", 3, RACKS) == -6650410634045809457


def test_a_group_has_the_hash_of_its_topics_in_order() -> None:
    assert group_hash([topic_hash(ID, "orders", 3), 7]) == 2081042881145087176
    assert group_hash([]) == 0


def test_whatever_an_assignment_depends_on_changes_the_hash() -> None:
    seen = [
        topic_hash(ID, "orders", 3),
        topic_hash(ID, "orders", 4),
        topic_hash(ID, "order", 3),
        topic_hash(UUID(int=ID.int + 1), "orders", 3),
        topic_hash(ID, "orders", 3, RACKS),
        topic_hash(ID, "orders", 3, [["r1"], ["r2"], []]),
    ]
    assert len(set(seen)) == len(seen)


def test_the_order_of_replicas_and_brokers_without_racks_do_not() -> None:
    assert topic_hash(ID, "orders", 3, [["r1"], ["r1", "r2"], []]) == topic_hash(ID, "orders", 3, RACKS)
    assert topic_hash(ID, "orders", 3, [[], [], []]) == topic_hash(ID, "orders", 3)
