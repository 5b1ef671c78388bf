"""Flink's KafkaSource and its KafkaSink with DeliveryGuarantee.EXACTLY_ONCE."""

from pathlib import Path

import pytest

from interop.beside.kit import PROGRAMS, Tool, committed, create, go_through, java_of, long, send
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200), long]


def newest_checkpoint(directory: Path) -> list[str]:
    """The one that is complete; none before the first."""
    complete = [path.parent for path in directory.glob("*/chk-*/_metadata")]
    return [str(max(complete, key=lambda path: path.stat().st_mtime))] if complete else []


def test_flinks_sink_writes_every_record_once_through_crashes_of_itself_and_of_the_broker(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    program = java_of("flink", str(PROGRAMS / "FlinkCopy.java"))
    with TwofoldServer(tmp_path / "broker") as server:
        address = server.bootstrap_servers
        create(address, "in", "out")
        tool = Tool(tmp_path, lambda: [*program, address, str(checkpoints), *newest_checkpoint(checkpoints)], "flink")
        with tool:
            fed = go_through(
                tool,
                server,
                lambda numbers: send(address, "in", numbers),
                lambda: len(committed(address, "out")),
            )
        assert sorted(int(value) for _, value in committed(address, "out")) == list(range(fed))
