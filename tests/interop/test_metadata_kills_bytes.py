"""The metadata log that a killed process leaves: Apache Kafka reads it to its end; a torn end is cut, and damage in the
middle is not.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kits.metadata_kills.ledger import read_transactions
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.kafka import Oracle, jars_or_skip
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
TRIES = 25 if LONG else 3
PARTITIONS = 20_000
WHOLE, HALF = "whole", ("taken-back", "open")
LOG = Path("__cluster_metadata-0") / f"{0:020d}.log"
WATCH = Path(__file__).parent.parent / "kits" / "metadata_kills" / "watch.py"
Row = dict[str, Any]


class Killed(NamedTuple):
    """A folder whose metadata log has transactions that ended, were aborted, and one that is open; with its records."""

    data: Path
    rows: list[Row]

    @property
    def batches(self) -> list[Row]:
        return [row for row in self.rows if row["what"] == "batch"]

    @property
    def latest_epoch_at(self) -> int:
        """Where the batches begin that the last life wrote."""
        epoch = self.batches[-1]["leader_epoch"]
        return next(int(batch["position"]) for batch in self.batches if batch["leader_epoch"] == epoch)

    @property
    def created_at(self) -> int:
        """Where the batch ends with which the whole topic is there."""
        begun = next(
            row["offset"] for row in self.records("BeginTransaction") if row["value"]["name"] == "CreateTopics"
        )
        ended = next(row["offset"] for row in self.records("EndTransaction") if row["offset"] > begun)
        batch = next(batch for batch in self.batches if batch["last_offset"] >= ended)
        return int(batch["position"] + batch["size"])

    def records(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["what"] == "record" and row["value"]["type"] == kind]

    def copy(self, directory: Path) -> Path:
        shutil.copytree(self.data, directory)
        return directory


def dump(data: Path) -> list[Row]:
    command = [sys.executable, "-m", "twofold", "log", "dump", "--records", "--format", "json", str(data / LOG)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kill_half_way(server: TwofoldServer, name: str) -> None:
    """Kill the broker while it creates the topic."""
    log = server.data / LOG
    wanted = str(log.stat().st_size + 75 * PARTITIONS // 2)
    watch = subprocess.Popen([sys.executable, WATCH, str(server.pid), log.parent, wanted, "0"], stdout=subprocess.PIPE)
    assert watch.stdout is not None
    assert watch.stdout.readline() == b"ready\n"
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0, "retries": 0})
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    watch.communicate(timeout=60)
    server.kill()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    server = TwofoldServer(tmp_path_factory.mktemp("killed"))
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(WHOLE, 2000, 1)])[WHOLE].result(60)
        for name in HALF:
            if not server.running:
                server.start()
            kill_half_way(server, name)
    finally:
        server.kill()
    found = Killed(server.data, dump(server.data))
    transactions = read_transactions(found.rows)
    assert transactions.ended["CreateTopics"] == 1
    assert transactions.aborted["CreateTopics"] == 1
    assert transactions.open == "CreateTopics"
    return found


@pytest.mark.oracle
def test_apache_kafka_reads_the_log_of_a_killed_process_to_its_end(killed: Killed, tmp_path: Path):
    tool = Oracle(jars_or_skip(), tmp_path)
    arguments = ["--cluster-metadata-decoder", "--files", str(killed.data / LOG)]
    done = tool.tool("org.apache.kafka.tools.DumpLogSegments", arguments, timeout=300)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
    pattern = r'^\| offset: (\d+) .*payload: (\{"type":.*\})$'
    seen = [(int(at), json.loads(text)) for at, text in re.findall(pattern, done.stdout, flags=re.MULTILINE)]
    assert [offset for offset, _ in seen] == [row["offset"] for row in killed.rows if row["what"] == "record"]
    kinds = {"BEGIN": "BeginTransaction", "END": "EndTransaction", "ABORT": "AbortTransaction"}
    theirs = [
        (offset, kinds[record["type"].split("_")[0]], *record["data"].values())
        for offset, record in seen
        if record["type"].endswith("_TRANSACTION_RECORD")
    ]
    ours = sorted(
        (row["offset"], kind, *list(row["value"].values())[1:])
        for kind in kinds.values()
        for row in killed.records(kind)
    )
    assert theirs == ours
    assert theirs[-1][1:] == ("BeginTransaction", "CreateTopics")
    assert ("AbortTransaction", "Controller failover") in [row[1:] for row in theirs]
    assert "isvalid: false" not in done.stdout


@pytest.mark.parametrize("seed", range(TRIES))
def test_a_log_that_is_cut_anywhere_starts_and_serves_what_is_whole(killed: Killed, tmp_path: Path, seed: int):
    chance = random.Random(seed)
    size = (killed.data / LOG).stat().st_size
    last = killed.batches[-1]["position"]
    position = chance.randrange(last + 1, size) if seed % 2 else chance.randrange(killed.batches[2]["position"], size)
    server = TwofoldServer(tmp_path / "server")
    os.truncate(killed.copy(server.data) / LOG, position)
    server.start()
    try:
        with Connection(server.host, server.port) as connection:
            answer = connection.ask("Metadata", 9, topics=None, allow_auto_topic_creation=False)
            found = {row["name"]: len(row["partitions"]) for row in answer["topics"]}
            assert found == ({WHOLE: 2000} if position >= killed.created_at else {}), f"cut at {position}"
            rows = [{"name": "later", "num_partitions": 3, "replication_factor": 1}]
            assert connection.ask("CreateTopics", 5, topics=rows, timeout=10_000)["topics"][0]["error_code"] == 0
        assert server.stop() == 0
    finally:
        server.kill()
    assert read_transactions(dump(server.data)).open is None


@pytest.mark.parametrize("seed", range(TRIES))
def test_a_flipped_byte_in_the_middle_stops_the_broker_with_file_and_offset(killed: Killed, tmp_path: Path, seed: int):
    chance = random.Random(seed)
    batch = chance.choice([batch for batch in killed.batches if batch["position"] < killed.latest_epoch_at])
    position = batch["position"] + chance.randrange(batch["size"])
    data = killed.copy(tmp_path / "data")
    with (data / LOG).open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    before = (data / LOG).read_bytes()
    command = [sys.executable, "-m", "twofold", "serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = done.stdout + done.stderr
    assert done.returncode not in (0, -9), told
    assert str(data / LOG.parent) in told
    assert LOG.name in told
    assert re.search(rf"offset {batch['base_offset']}\b", told), f"byte {position} of {batch}: {told}"
    assert "Traceback" not in told
    assert len(told.splitlines()) == 1, told
    assert (data / LOG).read_bytes() == before, "what is damaged is left as it was found"
