"""A data folder goes from Apache Kafka to Twofold and back, or the other way, and nobody who reads it can tell.

What is compared is what clients see (`support.folder_story`): topics and their ids, settings, all records, offsets of
partitions and groups, transactions in every state. With TWOFOLD_LONG=1 every way of ending is tried.
"""

import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from kits.folders.oracle import ACLS, SNAPSHOTS, TWO_PHASE, FolderOracle, StaticOracle, add_foreign, foreign
from kits.folders.story import Identity, Story, plain
from kits.processes.server import TwofoldServer
from oracle.kafka import COMMON_SETTINGS, Oracle, is_ready
from oracle.processes import free_port, spawn, stop, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
long = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs it")
FIXTURE = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"
OLD = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000"
}  # a kept folder is, and stays as it is
SETTINGS = COMMON_SETTINGS | {"transaction.two.phase.commit.enable": "true"} | OLD


@contextmanager
def story_of(server: Oracle | TwofoldServer, *, clean: bool) -> Iterator[Story]:
    """A started server, ended with or without a chance to say good-bye."""
    try:
        with Story(server.host, server.port) as story:
            yield story
        if isinstance(server, Oracle):
            server.stop(clean=clean)
        elif clean:
            assert server.stop() == 0
    finally:
        server.stop() if isinstance(server, Oracle) else server.kill()


def made_by_kafka(oracle: FolderOracle, *, clean: bool) -> tuple[dict[str, Any], Any, Any]:
    oracle.start()
    with story_of(oracle, clean=clean) as story:
        identities = story.fill()
        add_foreign(story)
        return story.look(), identities, foreign(story)


def opened_by_kafka(directory: Path, *, static: bool = False, settings: Mapping[str, str] = {}) -> FolderOracle:
    oracle = (StaticOracle if static else FolderOracle)(directory, TWO_PHASE | dict(settings))
    oracle.port, controller_port = free_port(), free_port()
    oracle._write_properties(controller_port)
    oracle._spawn()
    return oracle


def opened_by_twofold(directory: Path) -> TwofoldServer:
    server = TwofoldServer(directory, SETTINGS)
    server.start()
    return server


def starts_with(oracle: Oracle) -> None:
    """Twofold takes the settings of Apache Kafka as they are."""
    output = oracle.directory / "twofold.log"
    command = [sys.executable, "-m", "twofold", "serve", "--config", str(oracle._properties)]
    process = spawn(command, output=output)
    try:
        wait_until(lambda: is_ready(oracle.host, oracle.port), process, patience_s=30, output=output)
    finally:
        assert stop(process, how=signal.SIGTERM, patience_s=20) == 0


def take_over(story: Story, group: str) -> None:
    """A consumer of the classic protocol goes on where one of the new protocol has stopped."""
    offsets = story.committed(group)
    story.produce("plain", [b"four"], partition=1)
    consumer = Consumer(
        {"bootstrap.servers": story.address, "group.id": group, "enable.auto.commit": False,
         "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe(["plain"])
    deadline = time.monotonic() + 30
    found: list[bytes] = []
    while b"four" not in found and time.monotonic() < deadline:
        found += [message.value() or b"" for message in consumer.consume(1, 0.5)]
    assert found == [b"four"] or not offsets, "it begins where the other one stopped"
    consumer.commit(asynchronous=False)
    consumer.close()


def begins(story: Story) -> dict[int, tuple[int, bool]]:
    """Since when the transactions of a partition are open, by the broker's clock, and whether that is only a bound."""
    answer = story.wire.ask("DescribeProducers", 0, topics=[{"name": "mixed", "partition_indexes": [0]}])
    rows = answer["topics"][0]["partitions"][0]["active_producers"]
    return {
        row["producer_id"]: (row["current_txn_start_time_ms"], row["current_txn_start_time_is_bound"])
        for row in rows
        if row["current_txn_start_offset"] >= 0
    }


def test_when_a_transaction_began_is_known_again_after_a_visit_to_apache_kafka(tmp_path: Path) -> None:
    """It passes over the file that keeps it."""
    with story_of(opened_by_twofold(tmp_path), clean=True) as story:
        story.fill()
        before, told = story.look(), begins(story)
    assert told and not any(is_bound for _, is_bound in told.values())
    kept = (tmp_path / "data" / "mixed-0" / "producer-times").read_bytes()
    with story_of(opened_by_kafka(tmp_path, settings=OLD), clean=True) as story:
        assert story.look() == before
        assert begins(story) == dict.fromkeys(told, (-1, False)), "it does not know the fields"
    assert (tmp_path / "data" / "mixed-0" / "producer-times").read_bytes() == kept
    with story_of(opened_by_twofold(tmp_path), clean=True) as story:
        assert begins(story) == told


def test_a_kept_folder_of_apache_kafka_goes_back_to_it(tmp_path: Path) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    identities = {name: Identity(*pair) for name, pair in expected["identities"].items()}
    with story_of(opened_by_twofold(tmp_path), clean=False) as story:
        assert plain(story.look()) == expected["look"]
        story.end("open", identities["open"], commit=True)
        take_over(story, "modern")
        after, modern = story.look(), story.committed("modern")
    with story_of(opened_by_kafka(tmp_path, settings=OLD), clean=False) as story:
        assert story.look() == after
        found = foreign(story)
        assert found["modern"] == modern and found["quotas"] and found["credentials"]
        story.end("prepared", identities["prepared"], commit=False)


@long
@pytest.mark.parametrize(
    ("clean", "static"), [(False, False), (True, False), (True, True)], ids=["kill -9", "clean", "clean, static voters"]
)
def test_a_folder_of_apache_kafka_opens_and_goes_back(tmp_path: Path, clean: bool, static: bool) -> None:
    oracle = (StaticOracle if static else FolderOracle)(tmp_path, TWO_PHASE | SNAPSHOTS)
    before, identities, kept = made_by_kafka(oracle, clean=clean)
    assert len(list((oracle.data / "__cluster_metadata-0").glob("*.checkpoint"))) > 2, "there is a snapshot to read"
    if clean:
        starts_with(oracle)
    server = opened_by_twofold(tmp_path)
    with story_of(server, clean=clean) as story:
        assert story.look() == before
        assert story.committed("modern") == kept["modern"]
        story.retry("open", b"open", identities["open"])
        story.end("open", identities["open"], commit=True)
        take_over(story, "modern")
        take_over(story, "alive")
        after = story.look()
        modern, alive = story.committed("modern"), story.committed("alive")
    assert "SCRAM credentials" in server.log_text() and "client quotas" not in server.log_text()
    with story_of(opened_by_kafka(tmp_path, static=static), clean=True) as story:
        assert story.look() == after
        assert foreign(story) == kept | {"modern": modern}
        assert story.committed("alive") == alive
        story.end("prepared", identities["prepared"], commit=False)


@long
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill -9"])
@pytest.mark.parametrize("static", [True, False], ids=["static voters", "voters in the log"])
def test_a_folder_of_twofold_opens_in_apache_kafka_and_comes_back(tmp_path: Path, clean: bool, static: bool) -> None:
    with story_of(opened_by_twofold(tmp_path), clean=clean) as story:
        identities = story.fill(kept=True)
        before = story.look()
    with story_of(opened_by_kafka(tmp_path, static=static, settings=SNAPSHOTS), clean=clean) as story:
        found = story.look()
        kept = [look["transactions"].pop("kept") for look in (before, found)]
        assert kept[0] == kept[1]
        assert found == before
        for name in ("open", "prepared"):
            story.end(name, identities[name], commit=name == "open")
        after = story.look()
    with story_of(opened_by_twofold(tmp_path), clean=True) as story:
        assert story.look() == after
        story.end("kept", identities["kept"], commit=True)


@long
def test_access_control_lists_are_never_dropped_in_silence(tmp_path: Path) -> None:
    oracle = FolderOracle(tmp_path, ACLS)
    oracle.start()
    with story_of(oracle, clean=True) as story:
        entry = {
            "resource_type": 2, "resource_name": "secret", "resource_pattern_type": 3, "principal": "User:eve",
            "host": "*", "operation": 3, "permission_type": 2,
        }  # fmt: skip
        answer = story.wire.ask("CreateAcls", 3, creations=[entry])
        assert answer["results"][0]["error_code"] == 0, answer
    server = TwofoldServer(tmp_path, SETTINGS)
    with pytest.raises(RuntimeError, match=r"1 access control entries, .*authorizer.class.name="):
        server.start()
    assert "Traceback" not in server.log_text()
    assert (oracle.data / ".kafka_cleanshutdown").exists(), "the folder is left as it was"


@long
def test_a_feature_level_that_apache_kafka_lacks_is_taken_back_before_the_move(tmp_path: Path) -> None:
    with story_of(opened_by_twofold(tmp_path), clean=True) as story:
        set_transaction_version(story, 3, upgrade_type=1)
    with pytest.raises((RuntimeError, AssertionError, TimeoutError)):
        opened_by_kafka(tmp_path)
    with story_of(opened_by_twofold(tmp_path), clean=True) as story:
        assert story.levels()["transaction.version"] == 3
        set_transaction_version(story, 2, upgrade_type=2)
    with story_of(opened_by_kafka(tmp_path), clean=True) as story:
        assert story.levels()["transaction.version"] == 2


def set_transaction_version(story: Story, level: int, *, upgrade_type: int) -> None:
    update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": upgrade_type}
    answer = story.wire.ask("UpdateFeatures", 1, timeout=10000, feature_updates=[update], validate_only=False)
    assert answer["error_code"] == 0, answer
