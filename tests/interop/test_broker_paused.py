"""A broker process that is stopped with SIGSTOP and goes on with SIGCONT: no client that lives is ended for it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from twofold import aio
from twofold.client import Admin, NewTopic

pytestmark = pytest.mark.interop

INTERVAL_MS = 400
INTERVAL_S = INTERVAL_MS / 1000
PAUSE_S = 3.0  # more than seven intervals
PATIENCE_S = 60.0
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}

OPEN_AND_WAIT = """
import sys, time
from twofold import Producer
server, topic, transactional_id, interval = sys.argv[1:]
producer = Producer(
    bootstrap_servers=server, transactional_id=transactional_id, transaction_timeout_ms=600_000,
    transaction_heartbeat_interval_ms=int(interval),
)
producer.init_transactions()
producer.begin_transaction()
producer.send(topic, b"of one that dies")
producer.flush()
print("sent", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("paused"), SETTINGS) as running:
        yield running


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


async def new_topic(server: TwofoldServer) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        (await admin.create_topics([NewTopic(name=topic, num_partitions=2)])).get()
    return topic


async def paused(server: TwofoldServer, seconds: float) -> float:
    """Stop the broker where it is, and let it go on; returns when it woke."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    return time.monotonic()


async def states(server: TwofoldServer, *ids: str) -> list[str]:
    async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        found = (await admin.describe_transactions(ids)).get()
    return [str(found[transactional_id].state.value) for transactional_id in ids]


def producer(server: TwofoldServer, transactional_id: str, **options: Any) -> aio.Producer:
    return aio.Producer(bootstrap_servers=server.bootstrap_servers, transactional_id=transactional_id, **options)


async def begun(server: TwofoldServer, topic: str, count: int, **options: Any) -> list[aio.Producer]:
    producers = [producer(server, f"{topic}-{number}", **options) for number in range(count)]
    for number, each in enumerate(producers):
        await each.init_transactions()
        await each.begin_transaction()
        await each.send(topic, b"%d" % number)
        await each.flush()
    return producers


def test_after_a_pause_of_the_broker_every_healthy_client_commits(server: TwofoldServer) -> None:
    """Eight clients with heartbeats, and eight intervals of silence that are not theirs."""

    async def story() -> None:
        topic = await new_topic(server)
        producers = await begun(
            server, topic, 8, transaction_heartbeat_interval_ms=INTERVAL_MS, transaction_timeout_ms=600_000
        )
        for _ in range(2):
            await paused(server, PAUSE_S)
            await asyncio.sleep(2 * INTERVAL_S)  # time enough for the broker to judge them
        assert await states(server, *(f"{topic}-{number}" for number in range(8))) == ["Ongoing"] * 8
        for each in producers:
            await each.commit_transaction()
        await asyncio.gather(*(each.close() for each in producers))
        assert "granted to every heartbeat, transaction timeout and group session" in server.log_text()

    run(story)


def test_a_client_that_died_during_the_pause_is_ended_within_three_intervals(server: TwofoldServer) -> None:
    async def story() -> None:
        topic = await new_topic(server)
        (healthy,) = await begun(
            server, topic, 1, transaction_heartbeat_interval_ms=INTERVAL_MS, transaction_timeout_ms=600_000
        )
        command = [sys.executable, "-c", OPEN_AND_WAIT, server.bootstrap_servers, topic, f"{topic}-dead"]
        with subprocess.Popen([*command, str(INTERVAL_MS)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert (await asyncio.to_thread(process.stdout.readline)).strip() == "sent"
            killing = asyncio.get_running_loop().call_later(PAUSE_S / 2, process.kill)
            woke = await paused(server, PAUSE_S)
            killing.cancel()
        while (await states(server, f"{topic}-dead"))[0] == "Ongoing":
            assert time.monotonic() - woke < 20
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - woke
        # Three intervals, the sweep twice in an interval, two turns of the clock, and a machine that does other work.
        assert took_s < 3.5 * INTERVAL_S + 0.4 + 1.5
        await healthy.commit_transaction()
        await healthy.close()

    run(story)


def test_a_transaction_timeout_does_not_run_while_the_broker_is_paused(server: TwofoldServer) -> None:
    async def story() -> None:
        topic = await new_topic(server)
        producers = await begun(server, topic, 2, transaction_timeout_ms=2500)
        await paused(server, PAUSE_S)
        await asyncio.sleep(0.5)  # several sweeps
        assert await states(server, f"{topic}-0", f"{topic}-1") == ["Ongoing"] * 2
        await producers[0].commit_transaction()
        while (await states(server, f"{topic}-1"))[0] == "Ongoing":
            await asyncio.sleep(0.05)
        assert (await states(server, f"{topic}-1"))[0] in ("PrepareAbort", "CompleteAbort"), "it still has a timeout"
        await asyncio.gather(*(each.close(flush=False) for each in producers))

    run(story)


def test_a_group_member_keeps_its_membership_over_a_pause_longer_than_its_session(server: TwofoldServer) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with Connection(server.host, server.port) as live, Connection(server.host, server.port) as dead:
        members = join_all(group, [live, dead])
        asyncio.run(paused(server, PAUSE_S))
        woke = time.monotonic()
        assert heartbeat(live, group, members[0]) == 0, "its session is a second, and the pause was three"
        while heartbeat(live, group, members[0]) == 0:
            assert time.monotonic() - woke < 10, "the session of the member that never beats again has to end"
            time.sleep(0.2)
        assert heartbeat(live, group, members[0]) == 27, "the group rebalances without it; who beats is still a member"
        assert time.monotonic() - woke < 1.0 + 0.4 + 1.5


Membership = tuple[str, int]


def join_all(group: str, connections: list[Connection]) -> list[Membership]:
    """Members of one generation, with sessions of a second."""
    body = {
        "group_id": group,
        "session_timeout": 1000,
        "rebalance_timeout": 5000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "group_instance_id": None,
    }
    while connections[0].ask("FindCoordinator", 1, key=group, key_type=0)["error_code"]:
        time.sleep(0.05)
    ids = []
    for connection in connections:
        given = connection.ask("JoinGroup", 7, member_id="", **body)
        assert given["error_code"] == 79
        ids.append(given["member_id"])
    first = connections[0].ask("JoinGroup", 7, member_id=ids[0], **body)
    connections[1].send("JoinGroup", 7, {"member_id": ids[1], **body})
    while heartbeat(connections[0], group, (ids[0], first["generation_id"])) != 27:
        time.sleep(0.02)
    answer = connections[0].ask("JoinGroup", 7, member_id=ids[0], **body)
    assert answer["error_code"] == 0
    connections[1].receive()
    generation = int(answer["generation_id"])
    rows = [{"member_id": member_id, "assignment": b""} for member_id in ids]
    for connection, member_id in zip(connections, ids, strict=True):
        whose = {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": None}
        mine = rows if member_id == answer["leader"] else []
        connection.send("SyncGroup", 5, {**whose, "protocol_type": None, "protocol_name": None, "assignments": mine})
    for connection in connections:
        connection.receive()
    return [(member_id, generation) for member_id in ids]


def heartbeat(connection: Connection, group: str, member: Membership) -> int:
    body = {"group_id": group, "generation_id": member[1], "member_id": member[0], "group_instance_id": None}
    return int(connection.ask("Heartbeat", 4, **body)["error_code"])
