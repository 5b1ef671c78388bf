"""Kafka Streams, exactly_once_v2: a count per key, whose state is a changelog in the broker."""

from collections import Counter
from pathlib import Path

import pytest

from interop.beside.kit import PROGRAMS, SESSION_MS, Tool, committed, create, go_through, java_of, long, send, wait_for
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200), long]


def counting(server: TwofoldServer, directory: Path, name: str) -> Tool:
    program = java_of("streams", str(PROGRAMS / "StreamsCount.java"))
    arguments = [server.bootstrap_servers, str(directory / f"{name}-state"), str(SESSION_MS)]
    return Tool(directory, lambda: [*program, *arguments], name)


def check_counts(server: TwofoldServer, fed: int) -> None:
    """Each record of a key has made one count: 1, 2, 3 and so on, none missing, none twice, in their order."""
    found: dict[str, list[int]] = {}
    for key, value in committed(server.bootstrap_servers, "out"):
        found.setdefault(key, []).append(int(value))
    expected = Counter(f"k{number % 7}" for number in range(fed))
    assert {key: len(counts) for key, counts in found.items()} == dict(expected)
    assert all(counts == list(range(1, len(counts) + 1)) for counts in found.values())


def test_streams_counts_every_record_once_through_crashes_of_itself_and_of_the_broker(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path / "broker") as server:
        create(server.bootstrap_servers, "in", "out")
        with counting(server, tmp_path, "streams") as tool:
            fed = go_through(
                tool,
                server,
                lambda numbers: send(server.bootstrap_servers, "in", numbers),
                lambda: len(committed(server.bootstrap_servers, "out")),
            )
        check_counts(server, fed)


def test_a_paused_streams_instance_whose_tasks_another_one_has_taken_doubles_nothing(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path / "broker") as server:
        address = server.bootstrap_servers
        create(address, "in", "out")
        send(address, "in", range(2_000))
        with counting(server, tmp_path, "first") as first:
            wait_for(lambda: len(committed(address, "out")) > 0, first, "the first counts")
            send(address, "in", range(2_000, 20_000))
            first.pause()
            with counting(server, tmp_path, "second") as second:
                wait_for(lambda: len(committed(address, "out")) >= 20_000, second, "the counts of the second")
                first.wake()
                send(address, "in", range(20_000, 22_000))
                wait_for(lambda: len(committed(address, "out")) >= 22_000, second, "the rest")
        check_counts(server, 22_000)
