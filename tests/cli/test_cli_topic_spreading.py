"""Where `twofold topic reassign` puts replicas."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.cli.topic.spreading import spread

NO_RACKS: dict[int, str | None] = {1: None, 2: None, 3: None}
RACKS: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}


def test_partitions_that_are_where_they_should_be_stay_as_they_are() -> None:
    now = {0: (2, 1, 3), 1: (3, 2, 1), 2: (3, 1, 2)}
    assert spread(now, NO_RACKS, 3) == now


def test_leaders_and_replicas_are_spread_over_new_brokers() -> None:
    wanted = spread(dict.fromkeys(range(6), (9,)), NO_RACKS, 1)
    assert Counter(replicas[0] for replicas in wanted.values()) == {1: 2, 2: 2, 3: 2}


def test_a_replica_that_may_stay_stays_and_the_others_come_beside_it() -> None:
    assert spread({0: (1,)}, NO_RACKS, 3) == {0: (1, 2, 3)}


def test_a_broker_that_is_left_out_loses_its_replicas_and_no_other_does() -> None:
    wanted = spread({0: (1, 2), 1: (2, 3), 2: (3, 1)}, {1: None, 2: None}, 2)
    assert {index: set(replicas) for index, replicas in wanted.items()} == {index: {1, 2} for index in range(3)}


def test_replicas_are_in_as_many_racks_as_there_are() -> None:
    for replicas in spread(dict.fromkeys(range(12), (9,)), RACKS, 3).values():
        assert {RACKS[broker] for broker in replicas} == {"a", "b", "c"}


def test_of_replicas_that_may_stay_those_of_different_racks_do() -> None:
    assert spread({0: (1, 2, 3)}, RACKS, 2) == {0: (1, 3)}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="4 replicas need as many brokers, and there are 3"):
        spread({0: (1,)}, NO_RACKS, 4)


@given(
    st.dictionaries(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), min_size=1),
    st.sets(st.integers(1, 9), min_size=1, max_size=6),
    st.data(),
)
def test_any_partitions_get_what_was_asked_for(
    partitions: dict[int, list[int]], brokers: set[int], data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    racks = {broker: data.draw(st.sampled_from([None, "a", "b"])) for broker in sorted(brokers)}
    wanted = spread(partitions, racks, factor)
    assert wanted.keys() == partitions.keys()
    for index, replicas in wanted.items():
        assert len(set(replicas)) == len(replicas) == factor and set(replicas) <= brokers
        stay = [broker for broker in partitions[index] if broker in brokers]
        assert len(set(stay) & set(replicas)) == min(len(stay), factor), "a replica moved that could stay"
    assert spread(wanted, racks, factor) == wanted, "what was reached is to stay"
