"""Records of neighbouring partitions are read, written and applied in runs: with the same result as one by one."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.controller.levels import ELIGIBLE_LEADER_REPLICAS, NEWEST
from twofold.controller.records import (
    FeatureLevel,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    Topic,
    decode,
    decode_all,
    encode,
    encode_all,
)
from twofold.controller.replay import ControllerState, MetadataMachine
from twofold.machine.schema import MalformedRecord

IDS = [UUID(int=1), UUID(int=2)]
PARTITIONS = 3
MACHINE = MetadataMachine()

few = st.sampled_from([(1,), (1, 2), ()])
changes = st.builds(
    lambda partition, topic, isr, leader, eligible: PartitionChange(
        partition, topic, isr, leader, eligible_leader_replicas=eligible
    ),
    st.integers(0, PARTITIONS - 1),
    st.sampled_from(IDS),
    st.one_of(st.none(), few),
    st.sampled_from([-2, -1, 1]),
    st.one_of(st.none(), few),
)
partitions = st.builds(
    lambda *fields: Partition(*fields),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(IDS),
    few,
    few,
    st.sampled_from([-1, 1]),
    st.sampled_from([0, 300]),
)
levels = st.builds(FeatureLevel, name=st.just("metadata.version"), feature_level=st.sampled_from([7, 25, NEWEST]))
records = st.lists(st.one_of(changes, partitions, changes, partitions, levels, st.just(NoOp())), max_size=12)


def one_by_one(found: list[MetadataRecord], level: int) -> list[bytes]:
    values = []
    for record in found:
        values.append(encode(record, level))
        level = record.feature_level if isinstance(record, FeatureLevel) else level
    return values


@given(found=records)
def test_runs_are_written_and_read_as_single_records_are(found: list[MetadataRecord]) -> None:
    found = [
        record._replace(eligible_leader_replicas=None) if isinstance(record, PartitionChange) else record
        for record in found
    ]
    values = encode_all(found, NEWEST)
    assert values == one_by_one(found, NEWEST)
    assert decode_all(enumerate(values, 7)) == [(offset, decode(value)) for offset, value in enumerate(values, 7)]


def test_a_run_is_written_in_the_version_of_the_level_that_is_set_before_it() -> None:
    same = [PartitionChange(index, IDS[0], leader=1) for index in range(2)]
    level = ELIGIBLE_LEADER_REPLICAS - 1
    assert encode_all([*same, FeatureLevel("metadata.version", level), *same], NEWEST) == [
        *(encode(record, NEWEST) for record in same),
        encode(FeatureLevel("metadata.version", level), NEWEST),
        *(encode(record, level) for record in same),
    ]


@pytest.mark.parametrize("size", [0, 2, 3, 5, 6])
def test_a_cut_record_behind_its_neighbour_is_malformed(size: int) -> None:
    value = encode(PartitionChange(1, IDS[0], leader=1))
    with pytest.raises(MalformedRecord):
        decode_all([(0, value), (1, value[:size])])
    with pytest.raises(MalformedRecord):
        decode_all([(0, value), (1, value[:-1])])


@given(found=st.lists(changes, max_size=15))
def test_runs_of_changes_come_to_the_same_image(found: list[PartitionChange]) -> None:
    created: list[MetadataRecord] = []
    for name, topic_id in zip("ab", IDS, strict=True):
        created.append(Topic(name, topic_id))
        created += (Partition(index, topic_id, (1, 2), (1, 2), 1) for index in range(PARTITIONS))
    start = MACHINE.apply_all(ControllerState(), enumerate(created))
    at_once = MACHINE.apply_all(start, enumerate(found, 100))
    state = start
    for offset, record in enumerate(found, 100):
        state = MACHINE.apply(state, record, offset)
    assert at_once == state
