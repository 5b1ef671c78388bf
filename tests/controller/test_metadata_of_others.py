"""Metadata that Apache Kafka wrote and Twofold has no part for: kept, given back, or refused."""

from uuid import UUID

import pytest

from kits.metadata.controller import (
    DIRECTORY_ID,
    broker_records,
    context,
    fold,
    image_with,
    register_broker,
    registration,
)
from twofold.controller.delta import delta_between
from twofold.controller.fitness.openable import first_problem, without_effect
from twofold.controller.image import MetadataImage
from twofold.controller.kept_records import DelegationToken, RemoveDelegationToken
from twofold.controller.quota_records import ClientQuota, QuotaEntity
from twofold.controller.records import (
    ClearElr,
    Config,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    Topic,
    decode,
    encode,
)
from twofold.controller.replay import ControllerState
from twofold.controller.replicas.updates import lead_again
from twofold.controller.security.records import (
    AccessControlEntry,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    UserScramCredential,
)
from twofold.controller.snapshot_records import snapshot_records

ACL = AccessControlEntry(UUID(int=7), 2, "secret", 3, "User:eve", "*", 3, 2)
SCRAM = UserScramCredential("eve", 1, b"salt", b"stored", b"server", 4096)
TOKEN = DelegationToken("User:eve", "User:eve", ("User:bob",), 1, 2, 3, "token")
QUOTA = ClientQuota((QuotaEntity("user", "eve"), QuotaEntity("client-id", None)), "producer_byte_rate", 1024.5, False)
KEPT: list[MetadataRecord] = [ACL, SCRAM, TOKEN, QUOTA]
TOPIC_ID = UUID(int=1 << 64)


def with_topic(**fields: object) -> list[MetadataRecord]:
    state: dict[str, object] = {"replicas": (1,), "isr": (1,), "leader": 1, "directories": (DIRECTORY_ID,)} | fields
    return [*levels(), Topic("a", TOPIC_ID), Partition(0, TOPIC_ID, **state)]  # type: ignore[arg-type]


def levels(**changed: int) -> list[MetadataRecord]:
    found = {"metadata_version": 30, "transaction_version": 2} | changed
    return [FeatureLevel(name.replace("_", "."), level) for name, level in found.items()]


def problem(records: list[MetadataRecord]) -> str | None:
    return first_problem(fold(records).image, node_id=1, directory_id=DIRECTORY_ID)


# --- kept ---

# Written by Apache Kafka 4.3.1.
VECTORS = [
    (
        "a quota",
        ClientQuota((QuotaEntity("user", "somebody"),), "producer_byte_rate", 1048576.0, False),
        "010e00020575736572"
        + "09736f6d65626f6479"
        + "00"
        + "1370726f64756365725f627974655f72617465"
        + "4130000000000000"
        "00" + "00",
    ),
    ("an entry that goes", RemoveAccessControlEntry(UUID(int=7)), "011300" + UUID(int=7).hex + "00"),
    ("eligible leaders that do not count", ClearElr("a"), "011c00026100"),
]


@pytest.mark.parametrize(("record", "text"), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_the_bytes_of_what_is_kept(record: MetadataRecord, text: str):
    assert encode(record).hex() == text
    assert decode(bytes.fromhex(text)) == record


@pytest.mark.parametrize("record", KEPT, ids=lambda record: type(record).__name__)
def test_what_is_kept_survives_its_encoding(record: MetadataRecord):
    assert decode(encode(record)) == record


def test_a_later_record_replaces_what_is_kept_and_removals_take_it_away():
    more = SCRAM._replace(iterations=8192)
    image = fold([*KEPT, more, ACL._replace(id=UUID(int=8))]).image
    assert set(image.kept.values()) == {TOKEN}
    assert set(image.acls) == {ACL, ACL._replace(id=UUID(int=8))} and list(image.scram.values()) == [more]
    assert image.quotas == {frozenset(QUOTA.entity): {QUOTA.key: QUOTA.value}}
    removals: list[MetadataRecord] = [
        RemoveAccessControlEntry(UUID(int=7)),
        RemoveAccessControlEntry(UUID(int=8)),
        RemoveUserScramCredential("eve", 1),
        RemoveDelegationToken("token"),
        QUOTA._replace(entity=QUOTA.entity[::-1], value=0.0, remove=True),
    ]
    left = fold(removals, ControllerState(image)).image
    assert not left.kept and not len(left.acls) and not left.scram and not left.quotas


def test_a_delta_carries_what_is_kept_and_cleared():
    before = fold(with_topic(eligible_leader_replicas=(1,), last_known_elr=(1,))).image
    records: list[MetadataRecord] = [*KEPT, ClearElr("")]
    after = fold(records, ControllerState(before)).image
    cleared = after.partition("a", 0)
    assert cleared is not None and (cleared.eligible_leader_replicas, cleared.last_known_elr) == ((), ())
    assert cleared.partition_epoch == 1
    assert delta_between(before, after, records).apply(before) == after


def test_the_records_of_a_snapshot_give_the_image_again():
    records: list[MetadataRecord] = [
        *with_topic(leader_epoch=3, partition_epoch=5, last_known_elr=(1,), adding_replicas=(2,)),
        Config(2, "a", "retention.ms", "7"),
        Config(4, "", "message.max.bytes", "9"),
        ProducerIds(1, 1, 3000),
        *KEPT,
    ]
    image = fold(records, ControllerState(image_with(1, 2, fenced=[2]))).image
    written = list(snapshot_records(image))
    assert written[0] == FeatureLevel("metadata.version", 30), "it says how to read the rest"
    read = [decode(encode(record)) for record in written]
    again = fold([record for record in read if record is not None]).image
    assert _timeless(again) == _timeless(image)
    assert list(snapshot_records(again)) == written


def _timeless(image: MetadataImage) -> dict[str, object]:
    found = {
        name: getattr(image, name) for name in ("topics", "topic_names", "configs", "features", "acls", "scram", "kept")
    }
    found["brokers"] = [(broker.broker_id, broker.epoch, broker.fenced) for broker in image.brokers.values()]
    return found | {"next": image.next_producer_id}


# --- what may be opened ---


def test_a_folder_of_one_node_may_be_opened_with_what_has_no_effect():
    brokers = [*broker_records(1), *broker_records(2, fenced=True)]
    records = [*with_topic(), SCRAM, TOKEN, QUOTA, *levels(share_version=1, streams_version=1), *brokers]
    assert problem(records) is None
    assert [line.split(":")[0] for line in without_effect(fold(records).image)] == [
        "1 delegation tokens",
    ]  # fmt: skip


def test_settings_that_were_changed_while_running_and_would_be_believed_are_named():
    """The folder opens: without a listener that asks for them they had no effect in Apache Kafka either."""
    settings = [
        Config(4, "1", "ssl.keystore.location", "/etc/keystore.jks"),
        Config(4, "", "min.insync.replicas", "2"),
        Config(4, "", "log.retention.ms", "1000"),
        Config(2, "a", "min.insync.replicas", "2"),
    ]
    records = [*with_topic(), *broker_records(1), *settings]
    assert problem(records) is None
    assert without_effect(fold(records).image) == [
        "the setting min.insync.replicas of all brokers: Twofold has no replication yet",
        "the setting ssl.keystore.location of broker 1: Twofold has no change of this setting while the broker runs "
        "yet",
    ]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([*levels(), ACL], ["1 access control entries", "authorizer.class.name=", "twofold acl remove --data"]),
        (levels(metadata_version=31), ["metadata.version", "31", "from 7 to 30", "downgrade"]),
        (levels(metadata_version=5), ["metadata.version", "5", "from 7 to 30", "upgrade"]),
        (levels(transaction_version=4), ["transaction.version", "4", "from 0 to 3"]),
        ([*levels(), FeatureLevel("tomorrow.version", 1)], ["tomorrow.version", "at no level"]),
        ([*levels(), FeatureLevel("share.version", 2)], ["share.version", "2", "from 0 to 1"]),
        (
            [*levels(), *broker_records(1), *broker_records(2)],
            ["broker 2 is registered", "kafka-cluster.sh unregister"],
        ),
        (with_topic(replicas=(1, 2)), ["a-0", "replicas 1, 2", "kafka-reassign-partitions.sh"]),
        (with_topic(replicas=(2,)), ["a-0", "replicas 2", "node 1"]),
        (with_topic(directories=(UUID(int=5 << 64),)), ["a-0", "AAAAAAAAAAUAAAAAAAAAAA", "log.dirs"]),
        ([*with_topic(), Config(2, "a", "remote.storage.enable", "true")], ["topic a", "remote.storage.enable=true"]),
    ],
    ids=lambda value: "" if isinstance(value, list) and value and not isinstance(value[0], str) else None,
)
def test_what_cannot_be_served_is_refused_with_what_was_found_and_what_to_do(
    records: list[MetadataRecord], words: list[str]
):
    found = problem(records)
    assert found is not None
    assert [word for word in words if word not in found] == [], found


def test_reserved_directory_ids_name_no_directory():
    assert all(problem(with_topic(directories=(UUID(int=number),))) is None for number in range(3))


# --- eligible leader replicas (KIP-966) ---


def test_a_broker_registers_under_levels_that_are_only_kept():
    image = fold([FeatureLevel("share.version", 1)], ControllerState(image_with())).image
    request = registration(broker_id=1)
    assert register_broker(image, request, context(image), lambda _: False).response.error_code == 0


def test_the_last_replica_leads_again_from_beside_the_isr():
    broker = RegisterBroker(1, UUID(int=1), 5, (), (), None, log_dirs=(DIRECTORY_ID,))
    for waiting in ({"eligible_leader_replicas": (1,)}, {"last_known_elr": (1,)}, {}):
        state = {"isr": (), "leader": -1, "leader_recovery_state": 1} | waiting
        image = fold([*with_topic(**state), broker]).image
        records = [record for record in lead_again(image, context(image), 1) if record is not None]
        elected = fold(records, ControllerState(image)).image.partition("a", 0)
        assert elected is not None
        assert (elected.isr, elected.leader, elected.leader_epoch) == ((1,), 1, 1)
        assert (elected.eligible_leader_replicas, elected.last_known_elr) == ((), ())
        assert elected.leader_recovery_state == 0
    others = fold([*with_topic(replicas=(1, 2), isr=(), leader=-1, eligible_leader_replicas=(2,)), broker]).image
    assert not any(lead_again(others, context(others), 1))
    in_sync = fold([*with_topic(leader=-1), broker]).image
    assert list(lead_again(in_sync, context(in_sync), 1)) == [PartitionChange(0, TOPIC_ID, leader=1)]
