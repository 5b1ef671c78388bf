"""Deleting a topic under a prepared transaction, with `twofold serve`, its tools and a stock client."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kits.processes.server import TwofoldServer
from twofold import aio
from twofold.client import Admin, NewTopic, TopicPartition

pytestmark = pytest.mark.interop


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(
        tmp_path_factory.mktemp("two-phase-topics"), {"transaction.two.phase.commit.enable": "true"}
    ) as running:
        yield running


def twofold(server: TwofoldServer, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "twofold", *arguments, "--bootstrap-server", server.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done.stdout + done.stderr


async def prepare(server: TwofoldServer) -> str:
    async with Admin(bootstrap_servers=server.bootstrap_servers) as admin:
        (await admin.create_topics([NewTopic(name=name, num_partitions=1) for name in ("orders", "audit")])).get()
    producer = two_phase_producer(server)
    await producer.init_transactions()
    await producer.begin_transaction()
    for topic in ("orders", "audit"):
        await producer.send(topic, topic.encode(), partition=0)
    state = str(await producer.prepare_transaction())
    await producer.close()
    return state


def two_phase_producer(server: TwofoldServer) -> aio.Producer:
    return aio.Producer(
        bootstrap_servers=server.bootstrap_servers, transactional_id="billing", transaction_two_phase_commit_enable=True
    )


async def read(server: TwofoldServer, topic: str) -> list[bytes | None]:
    partition = TopicPartition(topic, 0)
    async with aio.Consumer(
        bootstrap_servers=server.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([partition])
        return [record.value for record in await consumer.poll(2000)]


def test_a_topic_under_a_prepared_transaction_is_deleted_only_after_its_end(server: TwofoldServer) -> None:
    asyncio.run(prepare(server))
    refused = twofold(server, "topic", "delete", "orders", "--yes", code=1)
    assert "POLICY_VIOLATION" in refused
    assert "'billing'" in refused and "`twofold txn describe billing`" in " ".join(refused.split())
    assert "orders-0" in twofold(server, "txn", "describe", "billing"), "the command that was named shows it"
    a_stock_client_is_refused(server)

    async def recover() -> None:
        async with two_phase_producer(server) as producer:
            state = await producer.init_transactions(keep_prepared_txn=True)
            assert state
            await producer.commit_transaction()
        assert (await read(server, "orders"), await read(server, "audit")) == ([b"orders"], [b"audit"])

    asyncio.run(recover())
    assert "deleted orders" in twofold(server, "topic", "delete", "orders", "--yes")


def a_stock_client_is_refused(server: TwofoldServer) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    with pytest.raises(KafkaException) as failure:
        admin.delete_topics(["audit"])["audit"].result(30)
    assert failure.value.args[0].code() == KafkaError.POLICY_VIOLATION
