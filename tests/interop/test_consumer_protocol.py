"""The consumer protocol of KIP-848 is not served yet: clients that want it are told so, and nothing hangs."""

import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from interop.test_kept_folders import FIXTURES, SETTINGS
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle
from twofold import Admin
from twofold.client.admin.model import FeatureUpdate, NewTopic
from twofold.wire.errors import GroupIdNotFound, InvalidUpdateVersion

pytestmark = pytest.mark.interop

PROGRAM = Path(__file__).parent / "java" / "ConsumerProtocol.java"
PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("consumer-protocol")) as server:
        with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="t")]).get()
        yield server


def error_of_a_modern_consumer(address: str) -> KafkaError:
    """What confluent-kafka says to a consumer of the new protocol that joins a group."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "modern", "group.protocol": "consumer"})
    consumer.subscribe(["t"])
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                error = message.error()
                assert error is not None
                return error
    finally:
        consumer.close()
    raise AssertionError("it waits and says nothing")


def test_confluent_kafka_fails_with_a_message_instead_of_waiting(server: TwofoldServer) -> None:
    error = error_of_a_modern_consumer(server.bootstrap_servers)
    assert error.code() == KafkaError._FATAL
    assert "ConsumerGroupHeartbeat" in error.str() and "API version not supported" in error.str()


@pytest.mark.oracle
def test_the_java_client_fails_with_a_message_instead_of_waiting(server: TwofoldServer, oracle: Oracle) -> None:
    done = oracle.java_program(PROGRAM, [server.bootstrap_servers, "t"])
    assert done.stdout.startswith("UnsupportedVersionException: "), done.stdout + done.stderr


def test_a_new_folder_has_not_raised_group_version_and_refuses_to_raise_it(server: TwofoldServer) -> None:
    with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        assert not admin.describe_features().features["group.version"].finalized
        with pytest.raises(InvalidUpdateVersion, match=r"group\.version=1: the consumer protocol \(KIP-848\) is not"):
            admin.update_features({"group.version": FeatureUpdate(1)})
    assert "group.version" not in server.log_text()


def test_a_group_that_does_not_exist_is_still_not_found(server: TwofoldServer) -> None:
    with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        assert isinstance(admin.describe_groups(["nobody"]).errors["nobody"], GroupIdNotFound)


def test_a_folder_with_group_version_1_opens_and_says_what_is_not_served(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "folder-twofold-0.1.0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for opening in (1, 2):
        with TwofoldServer(tmp_path, SETTINGS) as server:
            said = "holds, and keeps, group.version at level 1: the consumer protocol (KIP-848) is not served"
            assert server.log_text().count(said) == opening
            with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
                assert admin.describe_features().features["group.version"].finalized == 1
                admin.update_features({"group.version": FeatureUpdate(1)})
            assert error_of_a_modern_consumer(server.bootstrap_servers).code() == KafkaError._FATAL
