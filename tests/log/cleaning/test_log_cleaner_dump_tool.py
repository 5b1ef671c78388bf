"""What compaction leaves on disk, read by Apache Kafka's own dump tool."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kits.log.cleaning import COMPACTED, keyed
from kits.log.partition import NOW, TP, make_runtime, marker
from oracle.kafka import Oracle
from twofold.config.topic import LogConfig
from twofold.log.api import Origin
from twofold.log.manager import LogManager, LogOptions
from twofold.records.compression import Codec
from twofold.runtime.real import RealDisk

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

KEYS = 40
ROUNDS = 400


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, compacted twice: batches that lost records, empty ones, tombstones and markers."""
    path = tmp_path_factory.mktemp("data")
    manager = LogManager(make_runtime(RealDisk()), str(path), LogOptions(transaction_verification_enabled=False))
    manager.load()
    config = replace(LogConfig(), **{**COMPACTED, "segment_bytes": 4000})
    log = manager.get_or_create(TP, None, config)
    log.append(keyed(("k0", "first"), pid=5), leader_epoch=0)
    for number in range(ROUNDS):
        rows = [(f"k{(number + step) % KEYS}", None if number % 7 == 0 else f"value {number}") for step in range(3)]
        codec = Codec(number % len(Codec))
        log.append(keyed(*rows, codec=codec, timestamp=NOW + number), leader_epoch=number // 100)
        if number % 10 == 0:
            log.append(keyed(("t", str(number)), pid=9, seq=number // 10, txn=True), leader_epoch=number // 100)
            end = marker(9, commit=number % 20 == 0, coordinator_epoch=2, timestamp=NOW + number)
            log.append(end, origin=Origin.COORDINATOR, leader_epoch=number // 100, transaction_version=0)
    log.advance_high_watermark(log.log_end_offset)
    log.roll()
    size = log.size_bytes
    for _ in range(2):
        log.cleaned_offset = 0
        assert asyncio.run(manager.cleaner.clean(log))
    assert log.size_bytes < size / 4
    log.append(keyed(("k0", "last")), leader_epoch=9)
    asyncio.run(manager.close())
    return path


def dump(oracle: Oracle, directory: Path, suffix: str, *options: str) -> str:
    files = sorted(map(str, (directory / str(TP)).glob(f"*{suffix}")))
    assert len(files) > 1
    done = oracle.tool("org.apache.kafka.tools.DumpLogSegments", (*options, "--files", ",".join(files)))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cleaned_segments_are_read_record_by_record(oracle: Oracle, directory: Path) -> None:
    text = dump(oracle, directory, ".log", "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in text
    keys = re.findall(r"^\| offset: \d+ .*key: (k\d+|t)\b", text, re.M)
    assert sorted(keys[:-1]) == sorted([f"k{number}" for number in range(KEYS)] + ["t"])
    assert keys[-1] == "k0"
    offsets = [int(match) for match in re.findall(r"^\| offset: (\d+)", text, re.M)]
    assert offsets == sorted(offsets)


def test_emptied_batches_and_horizons_are_read(oracle: Oracle, directory: Path) -> None:
    text = dump(oracle, directory, ".log")
    assert "isvalid: false" not in text
    assert re.search(
        r"lastSequence: 0 producerId: 5 .*count: 0|count: 0 baseSequence: 0 lastSequence: 0 producerId: 5", text
    )
    assert re.search(rf"deleteHorizonMs: OptionalLong\[{NOW + 86_400_000}\]", text), text[:2000]


def test_indexes_of_cleaned_segments_agree(oracle: Oracle, directory: Path) -> None:
    for suffix in (".index", ".timeindex"):
        text = dump(oracle, directory, suffix, "--verify-index-only")
        assert "Mismatches" not in text, text
        assert "out of order" not in text, text
