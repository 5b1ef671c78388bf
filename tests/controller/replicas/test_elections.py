"""Elections that are asked for, and those that the controller holds by itself."""

import pytest

from kits.metadata.controller import after, context
from kits.metadata.partitions import balance_leaders, cluster, elect_leaders, elect_unclean, state
from twofold.controller.image import MetadataImage
from twofold.controller.records import Config
from twofold.controller.replicas.change import RECOVERING
from twofold.wire.errors import InvalidRequest
from twofold.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

PREFERRED, UNCLEAN = 0, 1
WAITS = {"isr": (1,), "leader": -1}


def elected(image: MetadataImage, kind: int, *indexes: int, topic: str = "t") -> tuple[list[int], MetadataImage]:
    rows = (TopicPartitions(topic=topic, partitions=indexes or (0,)),)
    request = ElectLeadersRequest(topic_partitions=rows, timeout_ms=1000, election_type=kind)
    result = elect_leaders(image, request, context(image))
    codes = [row.error_code for row in result.response.replica_election_results[0].partition_result]
    return codes, after(image, result.records)


def test_the_first_replica_leads_again():
    codes, image = elected(cluster({"leader": 3}), PREFERRED)
    assert codes == [0] and (state(image).leader, state(image).leader_epoch, state(image).isr) == (1, 1, (1, 2, 3))


@pytest.mark.parametrize(
    ("kind", "old", "code"),
    [
        (PREFERRED, {}, 84),
        (UNCLEAN, {"leader": 3}, 84),
        (PREFERRED, {"leader": 3, "isr": (2, 3)}, 80),
        (UNCLEAN, {**WAITS, "replicas": (1,)}, 83),
    ],
)
def test_elections_that_are_not_needed_or_not_possible(kind: int, old: dict[str, object], code: int):
    image = cluster(old, fenced=(1,) if kind == UNCLEAN else ())
    codes, changed = elected(image, kind)
    assert codes == [code] and changed == image


def test_an_unclean_election_takes_whatever_is_alive_and_notes_that_it_recovers():
    codes, image = elected(cluster(WAITS, fenced=(1,)), UNCLEAN)
    found = state(image)
    assert (codes, found.leader, found.isr, found.leader_recovery_state) == ([0], 2, (2,), RECOVERING)


def test_what_is_not_there_and_what_is_no_election():
    assert elected(cluster(), PREFERRED, 7)[0] == [3]
    assert elected(cluster(), PREFERRED, topic="other")[0] == [3]
    with pytest.raises(InvalidRequest):
        elected(cluster(), 2)


def test_of_all_topics_only_what_there_is_to_tell():
    image = cluster({}, {"leader": 2}, {"leader": 2, "isr": (2,)})
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=1000, election_type=PREFERRED)
    result = elect_leaders(image, request, context(image))
    rows = result.response.replica_election_results[0].partition_result
    assert [(row.partition_id, row.error_code) for row in rows] == [(1, 0), (2, 80)]


def test_leaders_are_balanced_where_the_first_replica_is_in_sync():
    image = cluster({}, {"leader": 2}, {"leader": 2, "isr": (2,)})
    result = balance_leaders(image, context(image))
    assert result.response == 1
    image = after(image, result.records)
    assert [state(image, index).leader for index in range(3)] == [1, 1, 2]


def test_a_topic_that_prefers_a_leader_to_its_records_gets_one():
    image = cluster(WAITS, fenced=(1,))
    assert elect_unclean(image, context(image)).records == []
    image = after(image, [Config(2, "t", "unclean.leader.election.enable", "true")])
    result = elect_unclean(image, context(image))
    assert result.response == 1 and state(after(image, result.records)).leader == 2
