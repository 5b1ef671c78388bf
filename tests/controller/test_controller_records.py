"""Metadata records: byte for byte what Apache Kafka 4.3 writes."""

import logging
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    BrokerRegistrationChange,
    Config,
    EndPoint,
    EndTransaction,
    FeatureLevel,
    FeatureRange,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    Topic,
    UnregisterBroker,
    UnsupportedRecord,
    decode,
    encode,
)
from twofold.machine.schema import MalformedRecord

TOPIC_ID = UUID("3799153b-949d-4182-81a1-4d2c52ec50a9")
DIRECTORY = UUID("997f6da3-f402-4dac-bb45-5ab04fef765b")

VECTORS: list[tuple[str, MetadataRecord, str]] = [
    ("begin", BeginTransaction("Bootstrap records"), "01170001001212426f6f747374726170207265636f726473"),
    ("end", EndTransaction(), "01180000"),
    (
        "abort",
        AbortTransaction("Controller failover"),
        "01190001001414436f6e74726f6c6c6572206661696c6f766572",
    ),
    ("feature", FeatureLevel("transaction.version", 2), "010c00147472616e73616374696f6e2e76657273696f6e000200"),
    # The rest was read from the log of a running 4.3.1.
    ("metadata.version", FeatureLevel("metadata.version", 30), "010c00116d657461646174612e76657273696f6e001e00"),
    ("no-op", NoOp(), "01140000"),
    ("producer ids", ProducerIds(1, 11, 1000), "010f0000000001000000000000000b00000000000003e800"),
    ("topic", Topic("a", TOPIC_ID), "01020002613799153b949d418281a14d2c52ec50a900"),
    (
        "config",
        Config(2, "a", "cleanup.policy", "compact,delete"),
        "0104000202610f636c65616e75702e706f6c6963790f636f6d706163742c64656c65746500",
    ),
    (
        "partition",
        Partition(0, TOPIC_ID, (1,), (1,), 1, directories=(DIRECTORY,)),
        "010302000000003799153b949d418281a14d2c52ec50a9020000000102000000010101000000010000000000000000"
        "02997f6da3f4024dacbb455ab04fef765b00",
    ),
    ("remove topic", RemoveTopic(TOPIC_ID), "0109003799153b949d418281a14d2c52ec50a900"),
    (
        "partition without leader",
        PartitionChange(0, UUID("7dddbeab-3844-4371-86fa-b5df7fd7fc96"), leader=-1),
        "010502000000007dddbeab3844437186fab5df7fd7fc96010104ffffffff",
    ),
    (
        "registration change",
        BrokerRegistrationChange(1, 11, cordoned_log_dirs=()),
        "01110300000001000000000000000b01030101",
    ),
    ("unfence", BrokerRegistrationChange(1, 11, fenced=-1), "01110000000001000000000000000b010001ff"),
    (
        "broker",
        RegisterBroker(
            1,
            UUID("3d1abdff-ad84-41bb-9897-8fca3bf0a6b6"),
            11,
            (EndPoint("PLAINTEXT", "127.0.0.1", 51735, 0),),
            (
                FeatureRange("eligible.leader.replicas.version", 0, 1),
                FeatureRange("metadata.version", 7, 30),
                FeatureRange("share.version", 0, 1),
                FeatureRange("kraft.version", 0, 1),
                FeatureRange("group.version", 0, 1),
                FeatureRange("streams.version", 0, 1),
                FeatureRange("transaction.version", 0, 2),
            ),
            None,
            log_dirs=(DIRECTORY,),
        ),
        "01000400000001003d1abdffad8441bb98978fca3bf0a6b6000000000000000b020a504c41494e544558540a3132372e302e302e31"
        "ca170000000821656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e0000000100116d65746164617461"
        "2e76657273696f6e0007001e000e73686172652e76657273696f6e00000001000e6b726166742e76657273696f6e00000001000e67"
        "726f75702e76657273696f6e00000001001073747265616d732e76657273696f6e0000000100147472616e73616374696f6e2e7665"
        "7273696f6e000000020000010001001102997f6da3f4024dacbb455ab04fef765b",
    ),
]


@pytest.mark.parametrize(("record", "text"), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_the_bytes_are_those_of_kafka(record: MetadataRecord, text: str):
    assert encode(record).hex() == text
    decoded = decode(bytes.fromhex(text))
    assert decoded == record
    assert type(decoded) is type(record)


INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
INTS = st.lists(INT, max_size=4).map(tuple)
IDS = st.lists(st.uuids(), max_size=3).map(tuple)
BYTE = st.integers(-128, 127)
TEXT = st.text(max_size=20)
RECORDS = st.one_of(
    st.builds(Topic, TEXT, st.uuids()),
    st.builds(RemoveTopic, st.uuids()),
    st.builds(UnregisterBroker, INT, LONG),
    st.builds(Config, BYTE, TEXT, TEXT, st.none() | TEXT),
    st.builds(
        Partition,
        INT,
        st.uuids(),
        INTS,
        INTS,
        INT,
        INT,
        INT,
        directories=IDS,
        removing_replicas=INTS,
        adding_replicas=INTS,
        leader_recovery_state=BYTE,
        eligible_leader_replicas=st.none() | INTS,
        last_known_elr=st.none() | INTS,
    ),
    st.builds(
        PartitionChange,
        INT,
        st.uuids(),
        isr=st.none() | INTS,
        leader=INT,
        replicas=st.none() | INTS,
        removing_replicas=st.none() | INTS,
        adding_replicas=st.none() | INTS,
        leader_recovery_state=BYTE,
        eligible_leader_replicas=st.none() | INTS,
        last_known_elr=st.none() | INTS,
        directories=st.none() | IDS,
    ),
    st.builds(
        RegisterBroker,
        INT,
        st.uuids(),
        LONG,
        st.lists(st.builds(EndPoint, TEXT, TEXT, st.integers(0, 65535), st.integers(0, 3)), max_size=2).map(tuple),
        st.lists(st.builds(FeatureRange, TEXT, st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
        st.none() | TEXT,
        fenced=st.booleans(),
        in_controlled_shutdown=st.booleans(),
        log_dirs=IDS,
        cordoned_log_dirs=IDS,
        is_migrating_zk_broker=st.booleans(),
    ),
    st.builds(
        BrokerRegistrationChange,
        INT,
        LONG,
        fenced=st.sampled_from([-1, 0, 1]),
        in_controlled_shutdown=st.sampled_from([0, 1]),
        log_dirs=IDS,
        cordoned_log_dirs=st.none() | IDS,
    ),
    st.builds(BeginTransaction, st.none() | TEXT),
    st.builds(AbortTransaction, st.none() | TEXT),
    st.builds(ProducerIds, INT, LONG, LONG),
)


@given(RECORDS)
def test_every_record_survives_its_encoding(record: MetadataRecord):
    decoded = decode(encode(record))
    assert decoded == record
    assert type(decoded) is type(record)


@given(st.binary(max_size=60))
def test_garbage_is_refused_with_a_reason(data: bytes):
    try:
        outcome = repr(decode(b"\x01" + data))
    except (MalformedRecord, UnsupportedRecord) as error:
        outcome = str(error)
    assert outcome


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a record of releases before 3.3", "01070000"),
        ("a kind that nobody knows", "01630000"),
        ("a newer partition record", "01030900"),
        ("a newer frame", "02180000"),
    ],
)
def test_what_cannot_be_applied_is_refused(name: str, text: str):
    with pytest.raises(UnsupportedRecord):
        decode(bytes.fromhex(text))


@pytest.mark.parametrize("text", ["", "01", "0118", "0118000000", "01020002"])
def test_a_broken_frame_is_refused(text: str):
    with pytest.raises(MalformedRecord):
        decode(bytes.fromhex(text))


def test_a_record_without_consequence_is_skipped_and_the_log_can_tell(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        assert decode(bytes.fromhex("011b0000")) is None
    assert "RegisterController" in caplog.text


def test_older_versions_are_read_with_defaults():
    partition_v0 = "01030000000001" + TOPIC_ID.hex + "0200000001020000000101010000000100000002" + "00000003" + "00"
    assert decode(bytes.fromhex(partition_v0)) == Partition(1, TOPIC_ID, (1,), (1,), 1, 2, 3)
    broker_v0 = "01000000000001" + TOPIC_ID.hex + "000000000000000b" + "01" + "01" + "00" + "01" + "00"
    assert decode(bytes.fromhex(broker_v0)) == RegisterBroker(1, TOPIC_ID, 11, (), (), None)


def test_a_registration_change_is_written_in_the_lowest_version_that_holds_it():
    def version(**fields: object) -> int:
        return encode(BrokerRegistrationChange(1, 2, **fields))[2]  # type: ignore[arg-type]

    assert version(fenced=1) == 0
    assert version(in_controlled_shutdown=1) == 1
    assert version(log_dirs=(DIRECTORY,)) == 2
    assert version(cordoned_log_dirs=()) == 3
