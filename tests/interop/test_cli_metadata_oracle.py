"""`twofold metadata` on logs of Apache Kafka, and Apache Kafka's own metadata shell and dump tool on a log of ours."""

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kits.processes import commands
from kits.processes.commands import Done
from oracle.kafka import Oracle, jars_or_skip, shell_jars_or_skip
from twofold.client import NewTopic
from twofold.client.admin.blocking import Admin
from twofold.controller.features import initial_levels
from twofold.controller.image import TOPIC_RESOURCE
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    Config,
    EndTransaction,
    MetadataRecord,
    Partition,
    Topic,
    encode,
)
from twofold.metadata_log.metadata_log import MetadataLog
from twofold.runtime.real import real_runtime, run

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

FIXTURE = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"
SEGMENT = f"{0:020d}.log"
SNAPSHOT = "00000000000000000090-0000000001.checkpoint"
NEEDS_MORE = re.compile(r"/image/cluster/controllers(/.*)?")  # Twofold has no use for it and does not keep it
TRIES = 10
PATIENCE_S = 6
Row = dict[str, Any]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """The programs of Apache Kafka; no node of it runs."""
    found = Oracle(jars_or_skip(), tmp_path_factory.mktemp("tool"))
    found.more_jars = (shell_jars_or_skip(),)
    return found


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A metadata log that Apache Kafka wrote."""
    directory = tmp_path_factory.mktemp("theirs")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(directory, filter="data")
    return directory / "data" / "__cluster_metadata-0"


TOPICS = {name: UUID(int=number) for number, name in enumerate(("whole", "taken-back", "plain", "half"), 100)}


def created(name: str, partitions: int) -> list[MetadataRecord]:
    topic_id = TOPICS[name]
    directory = UUID(int=0xD1 << 64)
    rows = (Partition(index, topic_id, (1,), (1,), 1, directories=(directory,)) for index in range(partitions))
    return [Topic(name, topic_id), *rows, Config(TOPIC_RESOURCE, name, "retention.ms", "5")]


STORY: list[list[MetadataRecord]] = [
    [BeginTransaction("Bootstrap records"), *initial_levels(), EndTransaction()],
    [BeginTransaction("CreateTopics"), *created("whole", 2)],
    [Partition(2, TOPICS["whole"], (1,), (1,), 1), EndTransaction()],
    [BeginTransaction("CreateTopics"), *created("taken-back", 3)],
    [AbortTransaction("Controller failover")],
    [*created("plain", 1), BeginTransaction("CreateTopics")],
    [*created("half", 2)],
]
RECORDS = [record for batch in STORY for record in batch]


def write_log(directory: Path, *batches: list[MetadataRecord]) -> Path:
    """A metadata log of ours, as its writer puts it on disk."""

    async def write() -> None:
        failures: list[object] = []
        log = MetadataLog(
            real_runtime(),
            str(directory),
            node_id=1,
            directory_id=UUID(int=0xD1 << 64),
        )
        log.listen(lambda _: None, failures.append)
        assert not list(log.replay())
        epoch = await log.become_leader()
        for batch in batches:
            await log.wait_committed(log.append([encode(record) for record in batch], epoch))
        await log.close()
        assert not failures

    run(write())
    return directory / "__cluster_metadata-0"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a committed, an aborted and an open transaction."""
    return write_log(tmp_path_factory.mktemp("ours"), *STORY)


def their_shell(tool: Oracle, path: Path, *command: str, until: str) -> list[str]:
    """What it prints, once that has `until` in it: it sometimes runs the command before it has loaded anything."""
    for _ in range(TRIES):
        done = tool.tool("org.apache.kafka.shell.MetadataShell", ["--snapshot", str(path), *command], timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        if until in done.stdout:
            break
    assert until in done.stdout
    return done.stdout.splitlines()


def their_tree(tool: Oracle, path: Path) -> list[str]:
    return their_shell(tool, path, "tree", "/image", until="finalized_transaction.version")


def twofold(*arguments: object) -> Done:
    done = commands.run("metadata", *map(str, arguments), timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done


def our_shell(path: Path, *command: str) -> list[str]:
    return twofold("shell", path, *command).stdout.splitlines()


def dumped(path: Path) -> list[Row]:
    return [json.loads(line) for line in twofold("dump", path, "--format", "json").stdout.splitlines()]


def dumped_by_them(tool: Oracle, path: Path) -> list[tuple[int, Row]]:
    """Offsets and records, as DumpLogSegments decodes them."""
    arguments = ["--cluster-metadata-decoder", "--files", str(path)]
    done = tool.tool("org.apache.kafka.tools.DumpLogSegments", arguments, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^\| offset: (\d+) .* payload: (\{.*\})$", done.stdout, re.M)
    return [(int(offset), json.loads(payload)) for offset, payload in found]


def word(name: str) -> str:
    return {"NoOp": "NO_OP"}.get(name) or re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper()


def values(lines: list[str]) -> dict[str, str]:
    """The printout of `tree`: what is at which path."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        if line.endswith(":"):
            names[depth:] = [line.strip()[:-1]]
        else:
            found["/" + "/".join(names[:depth])] = line.strip()
    return found


def same_numbers(theirs: str, ours: str) -> bool:
    """`leaderEpoch=1, isr=[1]` and `leader_epoch=1 isr=[1]`: the same names with the same numbers and lists."""
    said = dict(re.findall(r"(\w+)=(\[[^]]*\]|[^,() ]+)", theirs))
    told = dict(re.findall(r"(\w+)=(\[[^]]*\]|\S+)", ours))
    names = {
        "replicas": "replicas", "directories": "directories", "isr": "isr", "removingReplicas": "removing_replicas",
        "addingReplicas": "adding_replicas", "elr": "eligible_leader_replicas", "lastKnownElr": "last_known_elr",
        "leader": "leader", "leaderEpoch": "leader_epoch", "partitionEpoch": "partition_epoch",
    }  # fmt: skip
    return {ours: said[theirs] for theirs, ours in names.items()} == {name: told[name] for name in names.values()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [SEGMENT, SNAPSHOT])
def test_both_shells_show_the_same_tree_of_a_log_of_apache_kafka(tool: Oracle, theirs: Path, name: str) -> None:
    expected, found = (values(lines) for lines in (
        their_tree(tool, theirs / name), our_shell(theirs / name, "tree", "/image")
    ))  # fmt: skip
    expected = {path: value for path, value in expected.items() if not path.startswith("/cluster/controllers")}
    assert set(found) == set(expected) and len(found) > 70
    compared = 0
    for path, value in expected.items():
        if re.fullmatch(r"/topics/by\w+/[^/]+/\d+", path):
            assert same_numbers(value, found[path]), path
            compared += 1
        elif path.startswith(("/configs", "/clientQuotas", "/producerIds", "/features/finalized", "/topics")):
            assert found[path] == value, path
            compared += 1
    assert compared > 60
    assert found["/features/metadataVersion"] == "30 (4.3-IV0)" and "4.3-IV0" in expected["/features/metadataVersion"]
    if name == SEGMENT:
        their_offset = re.search(r"offset (\d+), epoch (\d+), ", expected["/provenance"])
        assert their_offset is not None
        assert found["/provenance"].startswith(f"offset={their_offset[1]} epoch={their_offset[2]} ")


@pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 compares more")
@pytest.mark.timeout(300)
def test_both_shells_find_the_same_paths(tool: Oracle, theirs: Path) -> None:
    expected = [
        path
        for path in their_shell(tool, theirs / SEGMENT, "find", "/image", until="finalized_")
        if not NEEDS_MORE.fullmatch(path)
    ]
    assert our_shell(theirs / SEGMENT, "find", "/image") == expected


@pytest.mark.timeout(300)
def test_our_dump_and_theirs_read_the_same_records(tool: Oracle, theirs: Path, ours: Path) -> None:
    for path in (theirs / SEGMENT, ours / SEGMENT):
        expected = dumped_by_them(tool, path)
        rows = [row for row in dumped(path) if row["what"] == "record" and not row["control"]]
        assert [(row["offset"], f"{word(row['type'])}_RECORD") for row in rows] == [
            (offset, record["type"]) for offset, record in expected
        ]


@pytest.mark.timeout(300)
def test_their_dump_reads_our_transactions_to_the_end(tool: Oracle, ours: Path) -> None:
    found = dumped_by_them(tool, ours / SEGMENT)
    assert [record["type"] for _, record in found] == [f"{word(type(record).__name__)}_RECORD" for record in RECORDS]
    names = [record["data"].get("name") for _, record in found if record["type"] == "BEGIN_TRANSACTION_RECORD"]
    assert names == ["Bootstrap records", "CreateTopics", "CreateTopics", "CreateTopics"]
    (aborted,) = (record["data"] for _, record in found if record["type"] == "ABORT_TRANSACTION_RECORD")
    assert aborted["reason"] == "Controller failover"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [EndTransaction(), AbortTransaction("Controller failover")])
def test_both_shells_show_only_the_committed_transactions_of_our_log(
    tool: Oracle, tmp_path: Path, end: MetadataRecord
) -> None:
    log = write_log(tmp_path, *STORY, [end])
    expected, found = values(their_tree(tool, log / SEGMENT)), values(our_shell(log, "tree", "/image"))
    assert set(found) == set(expected)
    shown = ["plain", "whole"] if isinstance(end, AbortTransaction) else ["half", "plain", "whole"]
    assert our_shell(log, "ls", "/image/topics/byName") == shown
    assert sorted(path for path in expected if path.endswith("/name") and "byName" in path) == [
        f"/topics/byName/{name}/name" for name in shown
    ]
    assert {path for path in found if path.startswith("/topics/byName/whole/")} == {
        f"/topics/byName/whole/{name}" for name in ("0", "1", "2", "id", "name")
    }
    assert sorted(path for path in found if path.startswith("/configs/")) == [
        f"/configs/TOPIC:{name}/retention.ms" for name in shown
    ]
    their_offset = re.match(r"offset (\d+),", expected["/provenance"])
    assert their_offset is not None and found["/provenance"].startswith(f"offset={their_offset[1]} ")


@pytest.mark.timeout(300)
def test_their_shell_waits_for_the_end_of_a_transaction_and_ours_shows_what_was_before_it(
    tool: Oracle, ours: Path
) -> None:
    """Theirs reads the log to its end, and then waits for an image of its end, which there is none of."""
    arguments = ["--snapshot", str(ours / SEGMENT), "tree", "/image"]
    with pytest.raises(subprocess.TimeoutExpired) as waited:
        tool.tool("org.apache.kafka.shell.MetadataShell", arguments, timeout=PATIENCE_S)
    assert not waited.value.stdout
    assert our_shell(ours, "ls", "/image/topics/byName") == ["plain", "whole"]
    assert "half" not in "\n".join(our_shell(ours, "tree", "/image"))


def test_our_tools_mark_the_open_transaction_of_our_log(ours: Path) -> None:
    done = twofold("shell", ours, "cat", "/local/transaction")
    begin = 3 + RECORDS.index(created("plain", 1)[-1]) + 1  # after the three control records of the first epoch
    assert done.stdout.startswith(f"start_offset={begin} name=CreateTopics records=4 ")
    assert "OPEN TRANSACTION CreateTopics" in done.stderr
    told = [row for row in dumped(ours) if row["what"] == "transaction"]
    assert [row["state"] for row in told] == ["committed", "committed", "aborted", "open"]
    assert told[-1]["begin"] == begin and told[-1]["records"] == 4
    assert "OPEN: the transaction CreateTopics" in twofold("dump", ours.parent).stdout


@pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 compares more")
@pytest.mark.timeout(300)
def test_a_running_apache_kafka_is_read_while_it_writes(oracle: Oracle) -> None:
    with Admin(bootstrap_servers=oracle.bootstrap_servers) as admin:
        for number in range(2):
            name = f"looked-at-{number}"
            admin.create_topics([NewTopic(name=name, num_partitions=3)]).get()
            assert our_shell(oracle.data, "ls", f"/image/topics/byName/{name}") == ["0", "1", "2", "id", "name"]
            rows = dumped(oracle.data)
            assert {"name": name} in [{"name": row["value"]["name"]} for row in rows if row.get("type") == "Topic"]
        admin.delete_topics([f"looked-at-{number}" for number in range(2)])
    assert "Bootstrap records" in twofold("dump", "--transactions", oracle.data).stdout
