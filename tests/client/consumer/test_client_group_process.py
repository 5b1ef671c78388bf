"""A member as a process that is stopped and goes on: real signals, real sockets, a real broker."""

import asyncio
import json
import signal
import sys
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
async def reader(**options: Any) -> AsyncIterator[Reader]:
    program = Path(group_reader.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), json.dumps(options), stdout=asyncio.subprocess.PIPE
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
def test_a_process_that_was_stopped_for_longer_than_its_session_neither_reads_on_nor_commits(strategy: str) -> None:
    asyncio.run(stop_and_go_on(strategy))


async def stop_and_go_on(strategy: str) -> None:
    async with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        await asyncio.to_thread(broker.create_topic, "t", partitions=2)
        options = OPTIONS | {"bootstrap_servers": broker.bootstrap_servers, "partition_assignment_strategy": strategy}
        async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(RECORDS):
                await producer.send("t", b"%d" % number, partition=number % 2)
        async with reader(**options) as stopped, Consumer(enable_auto_commit=False, **options) as other:
            await stopped.until(lambda: sum(said[0] == "record" for said in stopped.said) > 10)
            stopped.process.send_signal(signal.SIGSTOP)
            await read_to_the_end(other)
            before = len(stopped.said)
            stopped.process.send_signal(signal.SIGCONT)
            # The one that took over goes on polling, or the next round would wait for it.
            polling = asyncio.create_task(poll_for_ever(other))
            await stopped.until(lambda: any(said[0] == "lost" for said in stopped.said[before:]))
            polling.cancel()
            woken = [said[0] for said in stopped.said[before:]]
            # The record that it had in its hands when it was stopped may show now; its commit is refused.
            assert woken[: woken.index("lost")] in ([], ["refused"], ["record", "refused"])
            async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                offsets = (await admin.list_group_offsets(["g"])).get()["g"].get()
            assert {tp: row.offset for tp, row in offsets.items()} == dict.fromkeys(PARTITIONS, RECORDS // 2)
