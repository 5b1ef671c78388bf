"""A process with a two-phase transaction, to be killed; and another one that ends it. Run by the tests as

python two_phase_app.py wire|producer prepare ADDRESS ID TOPIC GROUP        prints the state, and waits to be killed
python two_phase_app.py wire|producer complete ADDRESS ID STATE             prints what it found and what it did
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from kits.wire.driver import NO_IDENTITY
from kits.wire.two_phase import prepared_state, two_phase_driver
from twofold import aio
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition

VALUES = (b"left", b"right")
OFFSET = 7


async def prepare_by_wire(address: str, transactional_id: str, topic: str, group: str) -> str:
    driver = two_phase_driver(real_runtime(), address, transactional_id, timeout_ms=1)
    await driver.init()
    await driver.send({TopicPartition(topic, index): [value] for index, value in enumerate(VALUES)})
    await driver.send_offsets(group, {TopicPartition(topic, 0): OFFSET})
    return await driver.prepare()


async def complete_by_wire(address: str, transactional_id: str, state: str) -> str:
    driver = two_phase_driver(real_runtime(), address, transactional_id, timeout_ms=1)
    found = await driver.recover()
    commit = state == prepared_state(found)
    if found != NO_IDENTITY:
        await driver.finish(commit)
    await driver.close()
    return prepared_state(found)


def _producer(address: str, transactional_id: str) -> aio.Producer:
    return aio.Producer(
        bootstrap_servers=address, transactional_id=transactional_id, transaction_two_phase_commit_enable=True
    )


async def prepare_by_producer(address: str, transactional_id: str, topic: str, group: str) -> str:
    producer = _producer(address, transactional_id)
    await producer.init_transactions()
    await producer.begin_transaction()
    for index, value in enumerate(VALUES):
        await producer.send(topic, value, partition=index)
    await producer.send_offsets_to_transaction({TopicPartition(topic, 0): OFFSET}, group)
    return str(await producer.prepare_transaction())


async def complete_by_producer(address: str, transactional_id: str, state: str) -> str:
    async with _producer(address, transactional_id) as producer:
        found = await producer.init_transactions(keep_prepared_txn=True)
        await producer.complete_transaction(state)
    return str(found)


ACTIONS: dict[tuple[str, str], Callable[..., Awaitable[str]]] = {
    ("wire", "prepare"): prepare_by_wire,
    ("wire", "complete"): complete_by_wire,
    ("producer", "prepare"): prepare_by_producer,
    ("producer", "complete"): complete_by_producer,
}


async def main(client: str, action: str, *arguments: str) -> None:
    print("said:" + await asyncio.wait_for(ACTIONS[client, action](*arguments), 30), flush=True)
    if action == "prepare":
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
