"""What the log writes about transactions, read by Apache Kafka's own dump tool."""

import asyncio
import re
from pathlib import Path

import pytest

from kits.log.partition import NOW, TP, data_batch, make_runtime, marker
from oracle.kafka import Oracle
from twofold.config.topic import LogConfig
from twofold.log.api import Origin
from twofold.log.manager import LogManager, LogOptions
from twofold.runtime.real import RealDisk

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

ROUNDS = 30


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two producers in turn: the transactions of one are committed, those of the other aborted."""
    directory = tmp_path_factory.mktemp("data")
    manager = LogManager(make_runtime(RealDisk()), str(directory), LogOptions(transaction_verification_enabled=False))
    manager.load()
    log = manager.get_or_create(TP, None, LogConfig(segment_bytes=3000, index_interval_bytes=300))
    for number in range(ROUNDS):
        epoch = number // 10
        for pid in (1, 2):
            batch = data_batch(2, pid=pid, seq=2 * number, txn=True, value=b"v" * 50, timestamp=NOW + number)
            log.append(batch, leader_epoch=epoch)
        if number % 3 == 2:
            for pid in (1, 2):
                end = marker(pid, commit=pid == 1, timestamp=NOW + number + 100, coordinator_epoch=4)
                log.append(end, origin=Origin.COORDINATOR, leader_epoch=epoch, transaction_version=0)
    asyncio.run(manager.close())
    return directory / str(TP)


def dump(oracle: Oracle, partition: Path, suffix: str, *options: str) -> str:
    files = sorted(map(str, partition.glob(f"*{suffix}")))
    assert len(files) > 2
    done = oracle.tool("org.apache.kafka.tools.DumpLogSegments", (*options, "--files", ",".join(files)))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_markers_are_read(oracle: Oracle, partition: Path) -> None:
    text = dump(oracle, partition, ".log", "--deep-iteration")
    assert "isvalid: false" not in text
    assert text.count("endTxnMarker: COMMIT coordinatorEpoch: 4") == ROUNDS // 3
    assert text.count("endTxnMarker: ABORT coordinatorEpoch: 4") == ROUNDS // 3


def test_aborted_transactions_are_read(oracle: Oracle, partition: Path) -> None:
    text = dump(oracle, partition, ".txnindex")
    rows = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", text)
    assert [tuple(map(int, row)) for row in rows] == [
        (2, 14 * round_ + 2, 14 * round_ + 13, 14 * round_ + 14) for round_ in range(ROUNDS // 3)
    ]


def test_indexes_agree_with_segments_that_hold_markers(oracle: Oracle, partition: Path) -> None:
    for suffix in (".index", ".timeindex"):
        text = dump(oracle, partition, suffix, "--verify-index-only")
        assert "Mismatches" not in text, text
        assert "mismatch" not in text, text
        assert "out of order" not in text, text


def test_open_transactions_in_snapshots_are_read(oracle: Oracle, partition: Path) -> None:
    text = dump(oracle, partition, ".snapshot")
    assert "currentTxnFirstOffset: OptionalLong[28]" in text
    assert "coordinatorEpoch: 4" in text
