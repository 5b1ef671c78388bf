"""A member as a process that is stopped and goes on: real signals, real sockets, a real broker."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kits.client import group_reader
from twofold.client import Admin, Consumer, Producer, TopicPartition
from twofold.embedded import Broker

PATIENCE_S = 60.0
RECORDS = 400
OPTIONS: dict[str, Any] = {
    "group_id": "g",
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 200,
    "auto_offset_reset": "earliest",
}
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]


class Reader:
    """What the process has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[list[Any]] = []

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                assert self.process.returncode is None, f"the reader ended: {self.said[-3:]}"
                await asyncio.sleep(0.02)


@asynccontextmanager
async def reader(*arguments: str, **options: Any) -> AsyncIterator[Reader]:
    program = Path(group_reader.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), json.dumps(options), *arguments, stdout=asyncio.subprocess.PIPE
    )
    found = Reader(process)
    listening = asyncio.create_task(found.listen())
    try:
        yield found
    finally:
        process.kill()
        await process.wait()
        await listening


async def read_to_the_end(consumer: Consumer) -> None:
    """Take over everything, read it, and commit it."""
    consumer.subscribe(["t"])
    async with asyncio.timeout(PATIENCE_S):
        while set(consumer.assignment) != set(PARTITIONS) or any((await consumer.lag()).values()):
            await consumer.poll(100)
    await consumer.commit()


async def poll_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll(100)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_process_that_was_stopped_for_longer_than_its_session_neither_reads_on_nor_commits(
    strategy: str, commits: bool
) -> None:
    asyncio.run(stop_and_go_on(strategy, commits))


async def stop_and_go_on(strategy: str, commits: bool) -> None:
    arguments = ["commits"] if commits else []
    async with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        await asyncio.to_thread(broker.create_topic, "t", partitions=2)
        options = OPTIONS | {"bootstrap_servers": broker.bootstrap_servers, "partition_assignment_strategy": strategy}
        async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(RECORDS):
                await producer.send("t", b"%d" % number, partition=number % 2)
        async with reader(*arguments, **options) as stopped, Consumer(enable_auto_commit=False, **options) as other:
            await stopped.until(lambda: sum(said[0] == "record" for said in stopped.said) > 10)
            stopped.process.send_signal(signal.SIGSTOP)
            await read_to_the_end(other)
            before, woken_at = len(stopped.said), time.monotonic()
            stopped.process.send_signal(signal.SIGCONT)
            # The one that took over goes on polling, or the next round would wait for it.
            polling = asyncio.create_task(poll_for_ever(other))
            await stopped.until(lambda: any(said[0] == "lost" for said in stopped.said[before:]))
            polling.cancel()
            check_woken(stopped.said[before:], woken_at)
            async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                offsets = (await admin.list_group_offsets(["g"])).get()["g"].get()
            assert {tp: row.offset for tp, row in offsets.items()} == dict.fromkeys(PARTITIONS, RECORDS // 2)


def check_woken(said: list[list[Any]], woken_at: float) -> None:
    """Before it hears that its partitions are lost, it shows no record but one that it had when it was stopped, whose
    commit is refused."""
    kinds = [row[0] for row in said]
    until_lost = said[: kinds.index("lost")]
    assert {row[0] for row in until_lost} <= {"record", "refused"}
    late = [row for row in until_lost if row[0] == "record" and row[3] > woken_at]
    assert late == []
