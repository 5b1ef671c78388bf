"""`kafka-features.sh` on Apache Kafka and on Twofold, which begin with the same folder of metadata.version 29."""

import os
import re
import shutil
from pathlib import Path

import pytest

from kits.processes.commands import run
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.kafka import Oracle, jars_or_skip
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

PROGRAM = Path(__file__).parent / "java" / "AdminCommands.java"
TOOL = "org.apache.kafka.tools.FeatureCommand --bootstrap-server {servers}"
MV = "--feature metadata.version"

SAME = [
    "describe",
    f"downgrade {MV}=25 --dry-run",
    f"downgrade {MV}=25",
    "describe",
    f"upgrade {MV}=24",
    f"downgrade {MV}=22",  # 23 brought eligible leader replicas
    f"downgrade --unsafe {MV}=16",
    f"downgrade {MV}=26",
    f"upgrade {MV}=29",
    f"upgrade {MV}=99",
    f"downgrade {MV}=24 --feature transaction.version=1",
    "describe",
    f"upgrade {MV}=29 --feature transaction.version=2",
]
# What Apache Kafka does and Twofold does not, and the other way round.
ONLY_KAFKA = [f"downgrade {MV}=23", f"upgrade {MV}=29"]  # transaction.version 2 needs 24 here
AT_30 = [f"upgrade {MV}=30", "describe", f"downgrade {MV}=29"]
ONLY_TWOFOLD = [f"downgrade --unsafe {MV}=29", "describe", f"upgrade {MV}=30"]


def format_at(oracle: Oracle, release: str) -> None:
    oracle.port, controller_port = free_port(), free_port()
    oracle._write_properties(controller_port)
    args = ["format", "-t", "AMfjnEcPR1OcURHLX8pQFQ", "-c", str(oracle._properties), "--standalone"]
    done = oracle.tool("kafka.tools.StorageTool", [*args, "--release-version", release])
    assert done.returncode == 0, done.stdout + done.stderr


def outcomes(oracle: Oracle, servers: str, commands: list[str]) -> list[tuple[str, bool, list[str]]]:
    """Of each command: whether it was done, and what it says about metadata.version."""
    done = oracle.java_program(PROGRAM, [servers, *(f"{TOOL} {command}" for command in commands)], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(commands), done.stdout[-2000:]
    return [(command, "exit 1" not in part, described(part)) for command, part in zip(commands, parts, strict=True)]


def described(part: str) -> list[str]:
    rows = [
        line.split("Epoch")[0].strip() for line in part.splitlines() if line.startswith("Feature: metadata.version")
    ]
    return [re.sub(r"\s+", " ", row) for row in rows]


def test_features_go_up_and_down_as_with_apache_kafka(tmp_path: Path) -> None:
    oracle = Oracle(jars_or_skip(), tmp_path / "oracle")
    oracle.directory.mkdir()
    format_at(oracle, "4.2-IV1")
    server = TwofoldServer(tmp_path / "twofold", {"node.id": "1"})
    shutil.copytree(oracle.data, server.data)
    commands = [*SAME, *ONLY_KAFKA, *AT_30, *ONLY_TWOFOLD]
    oracle._spawn()
    try:
        wanted = outcomes(oracle, oracle.bootstrap_servers, commands)
    finally:
        oracle.stop()
    server.start()
    try:
        found = outcomes(oracle, server.bootstrap_servers, commands)
    finally:
        server.kill()
    same, only_kafka = len(SAME), len(SAME) + len(ONLY_KAFKA)
    at_30 = only_kafka + len(AT_30)
    assert found[:same] == wanted[:same]
    assert [done for _, done, _ in wanted[:same]] == [
        True, True, True, True, False, False, False, False, True, False, True, True, True,
    ]  # fmt: skip
    assert [done for _, done, _ in wanted[same:only_kafka]] == [True, True]
    assert [done for _, done, _ in found[same:only_kafka]] == [False, True]
    assert found[only_kafka:at_30] == wanted[only_kafka:at_30]
    assert [done for _, done, _ in wanted[at_30:]] == [False, True, True]
    assert [done for _, done, _ in found[at_30:]] == [True, True, True]
    assert "FinalizedVersionLevel: 4.3-IV0" in wanted[at_30 + 1][2][0]
    assert "FinalizedVersionLevel: 4.2-IV1" in found[at_30 + 1][2][0]


@pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="starts two servers: TWOFOLD_LONG=1")
def test_apache_kafka_opens_a_folder_whose_level_went_down(tmp_path: Path) -> None:
    """Partitions without directories, no transactions in the log: as a release of that level would have left it."""
    jars = jars_or_skip()
    server = TwofoldServer(tmp_path / "node", {"node.id": "1"})
    server.start()
    try:
        topic(server.bootstrap_servers, "before", 700)
        down = ["metadata.version=12", "transaction.version=0", "group.version=0", "--downgrade", "--unsafe", "--yes"]
        cli(server.bootstrap_servers, "cluster", "features", "set", *down)
        topic(server.bootstrap_servers, "after", 2)
        assert server.stop() == 0
    finally:
        server.kill()
    assert "metadata.version went down to 12 (3.6-IV0); this is lost: 1 brokers" in server.output.read_text()
    oracle = Oracle(jars, tmp_path / "node")
    oracle.start_on_existing_data()
    try:
        with Connection(oracle.host, oracle.port) as wire:
            wanted = [{"name": name} for name in ("before", "after")]
            rows = wire.ask("Metadata", 4, topics=wanted, allow_auto_topic_creation=False)["topics"]
            assert {row["name"]: len(row["partitions"]) for row in rows} == {"before": 700, "after": 2}
            assert all(partition["leader_id"] == 1 for row in rows for partition in row["partitions"])
        (row,) = outcomes(oracle, oracle.bootstrap_servers, ["describe"])[0][2]
        assert "FinalizedVersionLevel: 3.6-IV0" in row
    finally:
        oracle.stop()


def topic(servers: str, name: str, partitions: int) -> None:
    cli(servers, "topic", "create", name, "--partitions", str(partitions))


def cli(servers: str, *args: str) -> None:
    done = run(*args, server=servers)
    assert done.returncode == 0, done.stdout + done.stderr
