"""transaction.version goes 2, 1, 2, ... while clients copy with transactions: nothing is lost and nothing doubled.

The Java client takes the protocol of the level that it finds when it connects, so that some of its transactions are of
the older protocol and some of the newer; confluent-kafka knows the older one only. A level changes whatever
transactions are open at that moment.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.clients.remote import java_command
from kits.copying.copies import INPUT, SETTINGS, SOURCES, Copy, Feed
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from kits.wire.proxy import Proxy
from oracle.driver import Connection
from oracle.kafka import Oracle, jars_or_skip
from oracle.wire import KEYS

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
COUNT, SECONDS, SWITCH_EVERY_S = (20_000, 40.0, 2.0) if LONG else (3000, 9.0, 1.5)
PATIENCE_S = 90.0
UPGRADE, SAFE_DOWNGRADE = 1, 2
LAST_OLD_END, FIRST_NEW_END = 4, 5


class KafkaServer(Oracle):
    def kill(self) -> None:
        self.stop()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as made:
        yield made


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, proxy: Proxy, tmp_path: Path) -> Iterator[TwofoldServer | KafkaServer]:
    settings = SETTINGS | {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
    directory = tmp_path / "server"
    directory.mkdir()
    running: TwofoldServer | KafkaServer
    if request.param == "oracle":
        running = KafkaServer(jars_or_skip(), directory, settings)
    else:
        running = TwofoldServer(directory, settings)
    running.start()
    proxy.forward_to(running.host, running.port)
    try:
        yield running
    finally:
        running.kill()


def set_level(server: TwofoldServer | KafkaServer, level: int) -> None:
    update = {
        "feature": "transaction.version",
        "max_version_level": level,
        "upgrade_type": UPGRADE if level == 2 else SAFE_DOWNGRADE,
    }
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("UpdateFeatures", 1, timeout=10_000, feature_updates=[update], validate_only=False)
    assert answer["error_code"] == 0, answer


def test_the_level_may_change_under_open_transactions(
    server: TwofoldServer | KafkaServer, proxy: Proxy, tmp_path: Path
) -> None:
    create_topic(server, INPUT, SOURCES)
    copies = [
        Copy(server, tmp_path, "java", COUNT, command=java_command(), timeout_ms=30_000),
        Copy(server, tmp_path, "confluent-kafka", COUNT, timeout_ms=30_000),
    ]
    try:
        for copy in copies:
            copy.start()
        await_open(copies)
        feed = Feed(server, COUNT, SECONDS)
        feed.start()
        switches = switch_until_all_is_copied(server, proxy, copies, feed)
        assert switches >= SECONDS / SWITCH_EVERY_S / 2
        for copy in copies:
            copy.end()
        for copy in copies:
            happened = copy.check()
            assert happened["committed"] >= COUNT / 100
            assert happened["aborting"] >= 1
    finally:
        for copy in copies:
            copy.crash()
    ends = {
        version: many for (name, key, version), many in proxy.seen.items() if key == KEYS["EndTxn"] and is_java(name)
    }
    assert ends[LAST_OLD_END] >= 5
    assert ends[FIRST_NEW_END] >= 5


def is_java(client_id: str | None) -> bool:
    return client_id == "producer-copier-java"


def await_open(copies: list[Copy]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(copy.instances[-1].has("open") for copy in copies):
        assert time.monotonic() < deadline, "the copiers did not start"
        time.sleep(0.05)


def switch_until_all_is_copied(
    server: TwofoldServer | KafkaServer, proxy: Proxy, copies: list[Copy], feed: Feed
) -> int:
    """Returns how often the level has changed; every change breaks the connections, so that clients learn of it."""
    switches, level, deadline = 0, 2, time.monotonic() + SECONDS + PATIENCE_S
    next_switch = time.monotonic()
    while feed.is_alive() or not all(copy.finished() for copy in copies):
        assert time.monotonic() < deadline, f"unfinished after {switches} changes of the level"
        for copy in copies:
            copy.check_running()
        if feed.is_alive() and time.monotonic() > next_switch:
            level = 3 - level
            set_level(server, level)
            proxy.break_connections()
            switches, next_switch = switches + 1, time.monotonic() + SWITCH_EVERY_S
        time.sleep(0.1)
    assert not feed.failures, feed.failures[:3]
    return switches
