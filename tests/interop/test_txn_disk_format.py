"""What transactions leave on the disk, read by Apache Kafka's own dump tool without a complaint.

Producers of both protocols commit, abort, are fenced and time out, with offsets of groups in their transactions; the
server is killed in between, and one transaction is still open when it stops.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from kits.wire.look import await_nothing_open
from kits.wire.session import OLD, TV1, TV2, Session
from oracle.kafka import Oracle, jars_or_skip

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "log.index.interval.bytes": "300",
}
TOPIC, PARTITIONS = "written", 2
ROUNDS = 12
PROTOCOLS = (OLD, TV1, TV2)

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
ENDED: set[int | None] = {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}
BEFORE: dict[int, set[int | None]] = {
    EMPTY: ENDED | {None},
    ONGOING: ENDED | {ONGOING},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: ENDED | {ONGOING},
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
}
"""The states that may come before a state, None for the first record of an id."""


class Written(NamedTuple):
    data: Path
    commits: int
    aborts: int


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    server = TwofoldServer(tmp_path_factory.mktemp("disk"), SETTINGS)
    server.start()
    try:
        create_topic(server, TOPIC, PARTITIONS)
        commits = aborts = 0
        for half in range(2):
            sessions = [
                Session(server.bootstrap_servers, f"id-{versions.name}", versions, name="writer").open()
                for versions in PROTOCOLS
            ]
            for number in range(ROUNDS):
                for session in sessions:
                    commit = number % 3 != 2
                    write(session, f"{half} {number}")
                    assert session.until_ready(partial(session.end, commit)) == 0
                    commits, aborts = commits + commit, aborts + (not commit)
            write(sessions[0], "fenced")
            sessions[0].open()
            late = Session(server.bootstrap_servers, "id-late", TV2, name="late", timeout_ms=300).open()
            write(late, "late")
            aborts += 2
            await_nothing_open(server, TOPIC, PARTITIONS)
            for session in (*sessions, late):
                session.close()
            if half == 0:
                server.kill()
                server.start()
        left = Session(server.bootstrap_servers, "id-open", TV2, name="open").open()
        write(left, "open")
        left.close()
        assert server.stop() == 0
        yield Written(server.data, commits, aborts)
    finally:
        server.kill()


def write(session: Session, value: str) -> None:
    for partition in range(PARTITIONS):
        session.write(TOPIC, partition, f"{value} {session.id}", value * 50)
    session.write_offsets(f"group-{session.id}", TOPIC, {0: session.epoch})


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """The programs of Apache Kafka; no node of it runs."""
    return Oracle(jars_or_skip(), tmp_path_factory.mktemp("tool"))


def dump(tool: Oracle, files: list[Path], *options: str) -> dict[Path, str]:
    """What the tool prints for each file; it must not complain of any."""
    assert files
    done = tool.tool("org.apache.kafka.tools.DumpLogSegments", [*options, "--files", ",".join(map(str, files))])
    assert done.returncode == 0, done.stdout + done.stderr
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J:")]
    # It compares the first offset of every segment with -1, also of Apache Kafka's own.
    real = [line for line in complaints if "Non-consecutive" not in line and "-1 is followed by" not in line]
    assert not real, real
    for bad in ("isvalid: false", "Could not decode", "Mismatches", "mismatch", "out of order", "unknown"):
        assert bad not in done.stdout, done.stdout[:3000]
    parts = re.split(r"^Dumping (.*)\n", done.stdout, flags=re.M)[1:]
    return dict(zip(map(Path, parts[::2]), parts[1::2], strict=True))


def markers(text: str) -> Counter[str]:
    return Counter(re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: \d+", text))


def test_segments_hold_every_record_and_every_marker(tool: Oracle, written: Written) -> None:
    for partition in range(PARTITIONS):
        files = sorted((written.data / f"{TOPIC}-{partition}").glob("*.log"))
        text = "".join(dump(tool, files, "--deep-iteration", "--print-data-log").values())
        assert markers(text) == {"COMMIT": written.commits, "ABORT": written.aborts}
        offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", text, re.M)]
        assert offsets == list(range(3 * (written.commits + written.aborts) + 2))


def test_the_index_of_aborted_transactions_names_each_of_them(tool: Oracle, written: Written) -> None:
    directory = written.data / f"{TOPIC}-1"
    text = "".join(dump(tool, sorted(directory.glob("*.txnindex"))).values())
    rows = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", text)
    assert len(rows) == written.aborts
    log = "".join(dump(tool, sorted(directory.glob("*.log")), "--deep-iteration").values())
    ended = re.findall(r"^\| offset: (\d+) .*endTxnMarker: ABORT", log, re.M)
    assert [last for _, _, last, _ in rows] == ended
    for _, first, last, stable in rows:
        assert int(first) < int(last) < int(stable)


def test_producer_snapshots_hold_the_open_transaction(tool: Oracle, written: Written) -> None:
    files = sorted((written.data / f"{TOPIC}-0").glob("*.snapshot"))
    text = dump(tool, files)[files[-1]]
    rows = re.findall(r"producerId: (\d+) .*currentTxnFirstOffset: (\S+)", text)
    assert len(rows) == len(PROTOCOLS) + 2
    first_open = 3 * (written.commits + written.aborts)
    assert [where for _, where in rows if where != "OptionalLong.empty"] == [f"OptionalLong[{first_open}]"]


def test_indexes_agree_with_segments_that_hold_markers(tool: Oracle, written: Written) -> None:
    for topic in (f"{TOPIC}-*", "__transaction_state-*", "__consumer_offsets-*"):
        files = [file for suffix in ("index", "timeindex") for file in sorted(written.data.glob(f"{topic}/*.{suffix}"))]
        files = [file for file in files if file.suffix != ".txnindex"]
        assert len(dump(tool, files, "--verify-index-only")) == len(files)


def decoded(text: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and value of every record that is no marker."""
    rows = re.findall(r"^\| offset: .* key: (\{.*?\}) payload: (.*)$", text, re.M)
    return [(json.loads(key), json.loads(value) if value.startswith("{") else None) for key, value in rows]


def test_the_transaction_log_is_a_history_of_legal_steps(tool: Oracle, written: Written) -> None:
    files = sorted(written.data.glob("__transaction_state-*/*.log"))
    history: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for text in dump(tool, files, "--transaction-log-decoder").values():
        assert text.count("| offset:") == len(decoded(text)), "every record was decoded"
        for key, value in decoded(text):
            assert value is not None, "no id has expired"
            history[key["data"]["transactionalId"]].append(value["data"])
    assert history.keys() == {*(f"id-{versions.name}" for versions in PROTOCOLS), "id-late", "id-open"}
    for transactional_id, steps in history.items():
        before = None
        for step in steps:
            assert before in BEFORE[step["transactionStatus"]], f"{transactional_id}: {before} before {step}"
            before = step["transactionStatus"]
        assert before == (ONGOING if transactional_id == "id-open" else before)
        assert before in ENDED or transactional_id == "id-open"
    ends = Counter(step["transactionStatus"] for steps in history.values() for step in steps)
    assert ends[COMPLETE_COMMIT] == ends[PREPARE_COMMIT] == written.commits
    assert ends[COMPLETE_ABORT] == ends[PREPARE_ABORT] == written.aborts


def test_the_offsets_of_groups_are_read_with_their_markers(tool: Oracle, written: Written) -> None:
    files = sorted(written.data.glob("__consumer_offsets-*/*.log"))
    texts = dump(tool, files, "--offsets-decoder").values()
    groups = {key["data"]["group"] for text in texts for key, _ in decoded(text)}
    assert groups == {*(f"group-id-{versions.name}" for versions in PROTOCOLS), "group-id-late", "group-id-open"}
    assert sum(map(markers, texts), Counter()) == {"COMMIT": written.commits, "ABORT": written.aborts}
