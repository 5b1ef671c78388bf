"""Quix Streams, exactly once, and FastStream, at least once."""

from collections import Counter
from pathlib import Path

import pytest

from interop.beside.kit import (
    FASTSTREAM,
    PROGRAMS,
    QUIX,
    SESSION_MS,
    Tool,
    committed,
    create,
    go_through,
    long,
    python_of,
    send,
)
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200), long]


def test_quix_streams_writes_every_record_once_through_crashes_of_itself_and_of_the_broker(tmp_path: Path) -> None:
    python = python_of(f"quixstreams=={QUIX}")
    with TwofoldServer(tmp_path / "broker") as server:
        address = server.bootstrap_servers
        create(address, "in", "out")
        command = [python, str(PROGRAMS / "quix_copy.py"), address, str(tmp_path / "state"), str(SESSION_MS)]
        with Tool(tmp_path, lambda: command, "quix") as tool:
            fed = go_through(
                tool, server, lambda numbers: send(address, "in", numbers), lambda: len(committed(address, "out"))
            )
        expected = sorted((f"k{number % 7}", str(number)) for number in range(fed))
        assert sorted(committed(address, "out")) == expected


def test_faststream_loses_no_record_through_crashes_of_itself_and_of_the_broker(tmp_path: Path) -> None:
    """It promises no more: a record whose acknowledgement was lost in a crash comes again."""
    python = python_of(f"faststream[confluent]=={FASTSTREAM}")
    with TwofoldServer(tmp_path / "broker") as server:
        address = server.bootstrap_servers
        create(address, "in", "out")
        command = [python, str(PROGRAMS / "faststream_copy.py"), address, str(SESSION_MS)]

        def arrived() -> Counter[str]:
            return Counter(value for _, value in committed(address, "out"))

        with Tool(tmp_path, lambda: command, "faststream") as tool:
            fed = go_through(
                tool, server, lambda numbers: send(address, "in", numbers), lambda: len(arrived()), per_crash=300
            )
        found = arrived()
        assert set(found) == {str(number) for number in range(fed)}
        print(f"{fed} records, {found.total() - fed} of them a second time")
