"""What is written at each metadata.version is, byte for byte, what Apache Kafka writes there.

Twofold's records make an image inside Apache Kafka, whose own writer writes it at every level.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from oracle.kafka import Oracle, jars_or_skip
from twofold.controller.kept_records import DelegationToken
from twofold.controller.levels import LEVELS
from twofold.controller.quota_records import ClientQuota, QuotaEntity
from twofold.controller.records import (
    Config,
    EndPoint,
    FeatureLevel,
    FeatureRange,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    Topic,
    encode,
)
from twofold.controller.replay import ControllerState, MetadataMachine
from twofold.controller.security.records import UserScramCredential
from twofold.controller.snapshot_records import snapshot_values

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

PROGRAM = Path(__file__).parent / "java" / "MetadataLevels.java"
TOPIC_ID = UUID(int=(7 << 64) + 7)
ONE, TWO = UUID(int=(1 << 64) + 1), UUID(int=(2 << 64) + 2)

RECORDS: Sequence[MetadataRecord] = (
    FeatureLevel("metadata.version", 30),
    RegisterBroker(
        1, ONE, 11, (EndPoint("PLAINTEXT", "localhost", 9092, 0),), (FeatureRange("metadata.version", 7, 30),), "r1",
        fenced=False, in_controlled_shutdown=True, log_dirs=(ONE, TWO), cordoned_log_dirs=(TWO,),
    ),
    Topic("orders", TOPIC_ID),
    Partition(0, TOPIC_ID, (1, 2), (1,), 1, 4, 5, directories=(ONE, TWO), eligible_leader_replicas=(2,)),
    Partition(1, TOPIC_ID, (2, 1), (2, 1), 2, 0, 0, (TWO, ONE), (1,), (3,), 1, last_known_elr=(1,)),
    Config(2, "orders", "retention.ms", "1000"),
    ClientQuota((QuotaEntity("user", None),), "producer_byte_rate", 1.5, remove=False),
    ProducerIds(1, 11, 3000),
    UserScramCredential("eve", 1, b"salt", b"stored", b"server", 4096),
    DelegationToken("User:eve", "User:eve", ("User:bob",), 1, 2, 3, "token"),
)  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[str]]:
    """By first word and level, what Apache Kafka says."""
    oracle = Oracle(jars_or_skip(), tmp_path_factory.mktemp("levels"))
    done = oracle.java_program(PROGRAM, [encode(record).hex() for record in RECORDS])
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        kind, level, rest = line.split(" ", 2)
        found[f"{kind} {level}"].append(rest)
    return found


def test_the_levels_and_what_they_changed_are_those_of_kafka(told: Mapping[str, Sequence[str]]) -> None:
    names = {key: rows[0] for key, rows in told.items() if key.startswith("level")}
    assert names == {f"level {row.number}": f"{row.name} {'true' if row.brings else 'false'}" for row in LEVELS}


@pytest.mark.parametrize("level", [row.number for row in LEVELS])
def test_a_snapshot_at_a_level_has_the_bytes_of_kafka(told: Mapping[str, Sequence[str]], level: int) -> None:
    records = [*RECORDS, FeatureLevel("metadata.version", level)]
    image = MetadataMachine().apply_all(ControllerState(), enumerate(records)).image
    assert [value.hex() for value in snapshot_values(image)] == told[f"snapshot {level}"]


@pytest.mark.parametrize("level", [row.number for row in LEVELS])
def test_the_change_of_a_partition_has_the_bytes_of_kafka(told: Mapping[str, Sequence[str]], level: int) -> None:
    change = PartitionChange(3, TOPIC_ID, isr=(2,), leader=2)
    assert [encode(change, level).hex()] == told[f"change {level}"]
