"""Consumers of the protocol of KIP-848: real clients join, share, leave and are told why they cannot."""

import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from interop.test_kept_folders import FIXTURES, SETTINGS
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle
from twofold import Admin
from twofold.client.admin.model import FeatureUpdate, NewTopic, UpgradeType
from twofold.wire.errors import GroupIdNotFound

pytestmark = pytest.mark.interop

PROGRAM = Path(__file__).parent / "java" / "ConsumerProtocol.java"
PATIENCE_S = 30.0
RECORDS = 40
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("consumer-protocol"), QUICK) as server:
        with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 4)]).get()
        yield server


def consumer(address: str, group: str, protocol: str = "consumer", **options: object) -> Consumer:
    told = {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    made = Consumer({**told, **options})
    made.subscribe(["t"])
    return made


def poll_until_shared(consumers: Sequence[Consumer], partitions: int = 4) -> None:
    """Until every consumer has a part, and every partition one of them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for one in consumers:
            message = one.poll(0.05)
            assert message is None or message.error() is None, message.error()
        owned = [sorted(place.partition for place in one.assignment()) for one in consumers]
        if all(owned) and sorted(place for part in owned for place in part) == list(range(partitions)):
            return
    raise AssertionError(f"the partitions are shared as {owned}")


def error_of_a_modern_consumer(address: str) -> KafkaError:
    """What confluent-kafka says to a consumer of the new protocol that joins a group."""
    one = consumer(address, "modern")
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            message = one.poll(0.2)
            if message is not None:
                error = message.error()
                assert error is not None
                return error
    finally:
        one.close()
    raise AssertionError("it waits and says nothing")


def test_consumers_share_and_the_one_that_is_left_gets_all(server: TwofoldServer) -> None:
    one, two = (consumer(server.bootstrap_servers, "share") for _ in range(2))
    poll_until_shared([one, two])
    one.close()
    poll_until_shared([two])
    two.close()


def test_a_classic_and_a_new_consumer_are_one_group(server: TwofoldServer) -> None:
    classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "partition.assignment.strategy": "range"}
    old = consumer(server.bootstrap_servers, "mixed", "classic", **classic)
    poll_until_shared([old])
    new = consumer(server.bootstrap_servers, "mixed")
    poll_until_shared([old, new])
    new.close()
    poll_until_shared([old])
    old.close()


def test_what_was_committed_is_not_read_again(server: TwofoldServer) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce("t", str(number).encode(), partition=number % 4)
    assert producer.flush(PATIENCE_S) == 0
    seen: list[bytes | None] = []
    for _ in range(2):
        reader = consumer(server.bootstrap_servers, "reads")
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < RECORDS and time.monotonic() < deadline:
            message = reader.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                seen.append(message.value())
        poll_until_shared([reader])
        assert reader.poll(0.5) is None
        reader.close()
    assert len(seen) == RECORDS and set(seen) == {str(number).encode() for number in range(RECORDS)}


@pytest.mark.oracle
def test_the_java_client_consumes(server: TwofoldServer, oracle: Oracle) -> None:
    done = oracle.java_program(PROGRAM, [server.bootstrap_servers, "t"])
    assert done.stdout.startswith("assigned "), done.stdout + done.stderr


def test_a_group_that_does_not_exist_is_still_not_found(server: TwofoldServer) -> None:
    with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        assert isinstance(admin.describe_groups(["nobody"]).errors["nobody"], GroupIdNotFound)


def test_group_version_0_says_no_and_1_goes_on(server: TwofoldServer) -> None:
    with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        admin.update_features({"group.version": FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)})
        assert not admin.describe_features().features["group.version"].finalized
        error = error_of_a_modern_consumer(server.bootstrap_servers)
        assert error.code() == KafkaError._FATAL
        assert "ConsumerGroupHeartbeat" in error.str()
        admin.update_features({"group.version": FeatureUpdate(1)})
    one = consumer(server.bootstrap_servers, "after")
    poll_until_shared([one])
    one.close()


def test_a_folder_of_before_stays_at_its_level(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "folder-twofold-0.1.0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    with TwofoldServer(tmp_path, SETTINGS) as server, Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        level = admin.describe_features().features["group.version"].finalized
    with TwofoldServer(tmp_path, SETTINGS) as server, Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        assert admin.describe_features().features["group.version"].finalized == level
