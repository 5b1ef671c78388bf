"""Batch writes that were given no name and die: all of their rows or none, as soon as the next write on the host has
begun. No JVM here."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import when_long
from sink_kit import HERE, SETTINGS, Broker, Orders

from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


def write(server: TwofoldServer, topic: str, numbers: range, orders: Orders) -> int:
    """The prefixes that this host leases are in the test's own directory."""
    env = os.environ | orders.env | {"TMPDIR": str(orders.directory)}
    program = [sys.executable, str(HERE / "batch_app.py"), server.bootstrap_servers, topic]
    done = subprocess.run([*program, str(numbers.start), str(numbers.stop)], env=env, timeout=120, check=False)
    return done.returncode


@pytest.mark.parametrize(
    ("step", "is_decided"),
    [
        ("task: prepared", False),
        pytest.param("commit: checked", False, marks=when_long),
        pytest.param("journal: commit", False, marks=when_long),
        pytest.param("commit: decided", True, marks=when_long),
        ("commit: one ended", True),
        pytest.param("commit: done", True, marks=when_long),
    ],
)
def test_a_batch_that_is_killed_is_there_entirely_or_not_at_all_when_the_next_write_has_begun(
    server: TwofoldServer, tmp_path: Path, step: str, is_decided: bool
) -> None:
    broker, orders = Broker(server.bootstrap_servers), Orders(tmp_path)
    topic = broker.topic(2)
    orders.give(step, "die")
    assert write(server, topic, range(30), orders) == -signal.SIGKILL and orders.left == []
    assert write(server, topic, range(30, 40), orders) == 0
    found = Counter(int(value) for _, _, value in broker.read(topic))
    assert found == Counter(range(0 if is_decided else 30, 40))
    assert broker.open_transactions() == []
