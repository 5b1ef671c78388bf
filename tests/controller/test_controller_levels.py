"""metadata.version is obeyed: in which version a record is written, what is left out, what is refused, and that the
image is the same before and after it was read back."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.test_controller_records import RECORDS
from kits.metadata.controller import broker_records, fold
from twofold.controller.features import initial_levels, metadata_version, supports_transactions
from twofold.controller.image import MetadataImage
from twofold.controller.kept_records import DelegationToken
from twofold.controller.levels import LEVELS, changes_between, describe
from twofold.controller.lowering import losses
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    BrokerRegistrationChange,
    ClearElr,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    RegisterBroker,
    Topic,
    decode,
    encode,
    encode_all,
    fitted,
)
from twofold.controller.security.records import UserScramCredential
from twofold.controller.snapshot_records import snapshot_records, snapshot_values
from twofold.wire.errors import UnsupportedVersion

MV = "metadata.version"
TOPIC_ID, DIRECTORY = UUID(int=1 << 64), UUID(int=2 << 64)
NUMBERS = [level.number for level in LEVELS]
SCRAM = UserScramCredential("u", 1, b"s", b"k", b"k", 4096)
TOKEN = DelegationToken("User:a", "User:a", (), 1, 2, 3, "t")

BROKER = RegisterBroker(1, TOPIC_ID, 11, (), (), None, log_dirs=(DIRECTORY,))
PARTITION = Partition(0, TOPIC_ID, (1,), (1,), 1, directories=(DIRECTORY,))
CHANGE = PartitionChange(0, TOPIC_ID, leader=1, directories=(DIRECTORY,))


def version(record: MetadataRecord, level: int) -> int:
    return encode(record, level)[2]


def test_levels_are_numbered_without_a_gap():
    assert list(range(7, 31)) == NUMBERS
    assert describe(13) == "13 (3.6-IV1)"
    assert [level.number for level in changes_between(12, 17)] == [13, 14, 15, 17]
    assert changes_between(17, 22) == []


@pytest.mark.parametrize(
    ("record", "since"),
    [(BROKER, {7: 1, 8: 2, 17: 3, 30: 4}), (PARTITION, {7: 0, 17: 1, 23: 2}), (CHANGE, {7: 0, 17: 1, 23: 2})],
    ids=["broker", "partition", "change"],
)
def test_a_record_has_the_version_of_the_level(record: MetadataRecord, since: dict[int, int]):
    for level in NUMBERS:
        expected = max(found for first, found in since.items() if first <= level)
        assert version(record, level) == expected, level


def test_log_directories_are_left_out_below_their_level():
    for record in (BROKER, PARTITION, CHANGE, BrokerRegistrationChange(1, 11, fenced=-1, log_dirs=(DIRECTORY,))):
        for level in NUMBERS:
            read = decode(encode(record, level))
            assert (repr(DIRECTORY) in repr(read)) == (level >= 17)
            assert read == fitted(record, level)


@pytest.mark.parametrize(
    ("record", "first"),
    [
        (BeginTransaction("x"), 13),
        (EndTransaction(), 13),
        (AbortTransaction("x"), 13),
        (SCRAM, 11),
        (TOKEN, 14),
        (ClearElr("a"), 23),
        (PARTITION._replace(eligible_leader_replicas=(1,)), 23),
        (CHANGE._replace(last_known_elr=(1,)), 23),
        (BROKER._replace(cordoned_log_dirs=(DIRECTORY,)), 30),
        (BrokerRegistrationChange(1, 11, cordoned_log_dirs=(DIRECTORY,)), 30),
        (BROKER._replace(is_migrating_zk_broker=True), 8),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else None,
)
def test_what_would_be_lost_is_refused_before_it_is_written(record: MetadataRecord, first: int):
    for level in NUMBERS:
        if level >= first:
            assert decode(encode(record, level)) == fitted(record, level)
        else:
            with pytest.raises(UnsupportedVersion, match="nothing was changed") as error:
                encode(record, level)
            assert describe(level) in str(error.value) and describe(first) in str(error.value)


def test_what_says_nothing_is_no_loss():
    for level in NUMBERS:
        encode(PARTITION._replace(eligible_leader_replicas=(), last_known_elr=()), level)
        encode(BrokerRegistrationChange(1, 11, cordoned_log_dirs=()), level)


@given(RECORDS, st.sampled_from(NUMBERS))
def test_what_is_read_back_at_a_level_is_the_fitted_record(record: MetadataRecord, level: int):
    try:
        read = decode(encode(record, level))
    except UnsupportedVersion:
        return
    assert read == fitted(record, level)
    assert fitted(record, 30) == record


def test_a_level_that_is_set_on_the_way_holds_for_the_rest():
    values = encode_all([PARTITION, FeatureLevel(MV, 12), PARTITION, FeatureLevel(MV, 17), PARTITION], 30)
    assert [value[2] for value in values] == [2, 0, 0, 0, 1]
    with pytest.raises(UnsupportedVersion):
        encode_all([FeatureLevel(MV, 12), EndTransaction()], 30)


def test_transactions_come_with_level_13():
    for level in NUMBERS:
        image = fold([FeatureLevel(MV, level)]).image
        assert metadata_version(image) == level
        assert supports_transactions(image) == (level >= 13)
    assert supports_transactions(MetadataImage()), "a new cluster starts at the newest level"


# -- images


def full() -> list[MetadataRecord]:
    """An image of everything that some level cannot carry."""
    return [
        *initial_levels(),
        *broker_records(1),
        BrokerRegistrationChange(1, 101, cordoned_log_dirs=(DIRECTORY,)),
        Topic("a", TOPIC_ID),
        Partition(0, TOPIC_ID, (1, 2), (1,), 1, directories=(DIRECTORY, DIRECTORY)),
        Partition(1, TOPIC_ID, (1, 2), (), -1, eligible_leader_replicas=(2,), last_known_elr=(1,)),
        SCRAM,
        TOKEN,
    ]


@pytest.mark.parametrize("level", NUMBERS)
def test_a_lowered_image_is_what_its_snapshot_says(level: int):
    image = fold([*full(), FeatureLevel(MV, level)]).image
    values = list(snapshot_values(image))
    records = [record for value in values if (record := decode(value)) is not None]
    assert records == list(snapshot_records(image))
    again = fold(records).image
    assert (again.topics, again.features, again.kept, again.acls, again.scram) == (
        image.topics, image.features, image.kept, image.acls, image.scram
    )  # fmt: skip
    assert again.brokers[1].log_dirs == image.brokers[1].log_dirs
    assert values == [encode(record, level) for record in records]
    assert losses(image, level) == []


def test_each_level_takes_away_what_came_with_the_next():
    image = fold(full()).image
    directories = [
        "1 brokers with the ids of their log directories",
        "1 partitions with the log directories of their replicas",
    ]
    expected = [
        (30, []),
        (29, ["1 brokers with cordoned log directories"]),
        (22, ["1 partitions with eligible leader replicas"]),
        (16, directories),
        (13, ["1 delegation tokens"]),
        (10, ["1 SCRAM credentials"]),
    ]
    told: list[str] = []
    for level, more in expected:
        told += more
        assert losses(image, level) == told
        assert losses(image, max(7, level - 1))[: len(told)] == told


def test_a_partition_that_waits_for_an_eligible_replica_still_does_below_their_level():
    image = fold([*full(), FeatureLevel(MV, 22)]).image
    partition = image.partition("a", 1)
    assert partition is not None
    assert (partition.isr, partition.leader, partition.eligible_leader_replicas) == ((2,), -1, ())


def test_a_level_that_goes_up_again_brings_nothing_back():
    image = fold([*full(), FeatureLevel(MV, 7), FeatureLevel(MV, 30)]).image
    assert image.brokers[1].log_dirs == () and not image.kept and not image.scram
    assert losses(image, 7) == []


def test_a_lowering_that_is_aborted_took_nothing_away():
    before = fold(full())
    state = fold([BeginTransaction("x"), FeatureLevel(MV, 13), AbortTransaction()], before)
    assert (state.image.topics, state.image.brokers, state.image.kept) == (
        before.image.topics, before.image.brokers, before.image.kept,
    )  # fmt: skip


@given(st.lists(RECORDS, max_size=3), st.sampled_from(NUMBERS))
def test_records_that_say_more_than_the_level_holds_leave_the_image_that_is_read_back(
    records: list[MetadataRecord], level: int
):
    base = [FeatureLevel(MV, level), *broker_records(1), Topic("a", TOPIC_ID)]
    mine = [r._replace(topic_id=TOPIC_ID) if isinstance(r, Partition) else r for r in records]
    mine = [r for r in mine if isinstance(r, Partition | RegisterBroker | NoOp)]
    written: list[MetadataRecord] = []
    for record in [*base, *mine]:
        try:
            encode(record, level)
        except UnsupportedVersion:
            continue
        written.append(record)
    read = [decode(value) for value in encode_all(written, level)]
    assert fold(written).image == fold([record for record in read if record is not None]).image
