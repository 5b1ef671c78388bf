"""A topic that is missing when the sink writes to it: it is created with the partitions that were asked for."""

import uuid

import pytest
from spark_kit import Kit

pytestmark = [pytest.mark.spark]


def write(kit: Kit, name: str, **options: str) -> None:
    frame = kit.spark.range(20).selectExpr("cast(id as string) value", f"'{name}' topic")
    options = {
        "kafka.bootstrap.servers": kit.bootstrap_servers,
        "transactionalIdPrefix": f"p{uuid.uuid4().hex}",
        **options,
    }
    frame.write.format("twofold").options(**options).mode("append").save()


def partitions(kit: Kit, topic: str) -> int | None:
    found = kit.admin.list_topics(timeout=30).topics.get(topic)
    return None if found is None else len(found.partitions)


@pytest.mark.parametrize("of", ["option", "column"])
def test_a_missing_topic_is_created_with_the_partitions_that_were_asked_for(ours: Kit, of: str) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    write(ours, name, **{"topic.partitions": "5"}, **({"topic": name} if of == "option" else {}))
    assert partitions(ours, name) == 5
    assert ours.values(subscribe=name) == list(range(20))


def test_a_topic_that_is_there_keeps_its_partitions(ours: Kit) -> None:
    name = ours.topic(3)
    write(ours, name, **{"topic.partitions": "5"})
    assert partitions(ours, name) == 3


def test_a_number_of_partitions_that_cannot_be_is_refused_and_nothing_is_created(ours: Kit) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    for number in ("0", "-1", "many"):
        with pytest.raises(Exception, match=r"topic\.partitions"):
            write(ours, name, **{"topic.partitions": number})
    assert partitions(ours, name) is None
