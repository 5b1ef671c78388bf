"""The transactional producer against real servers: Twofold, and Apache Kafka where it can be had."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import twofold
from kits.client.topics import create_topic
from kits.processes.server import TwofoldServer
from twofold.client import Admin, Consumer, FeatureUpdate, Producer, TopicPartition, UpgradeType
from twofold.client.admin.group_model import ConsumerGroupMetadata
from twofold.errors import Fenced, TransactionFailed, UnsupportedByBroker
from twofold.runtime.real import run
from twofold.wire.errors import UnsupportedVersion

pytestmark = pytest.mark.interop

SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.max.timeout.ms": "86400000",
}


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("transactions"), SETTINGS) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request: pytest.FixtureRequest) -> str:
    """The address of a running server."""
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


@pytest.fixture(scope="module")
def unstable_oracle() -> Iterator[Any]:
    """Apache Kafka with what it has of KIP-939."""
    from oracle.kafka import running_oracle

    settings = SETTINGS | {"unstable.api.versions.enable": "true"}
    with running_oracle(settings) as node:
        yield node


def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


async def new_topic(server: str, partitions: int = 3) -> str:
    async with Admin(bootstrap_servers=server) as admin:
        return await create_topic(admin, partitions)


async def read(server: str, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """All that a reader gets, partition after partition; waits until nothing is open any more."""
    async with Consumer(
        bootstrap_servers=server, isolation_level=isolation_level, auto_offset_reset="earliest", fetch_max_wait_ms=20
    ) as consumer:
        partitions = [TopicPartition(topic, index) for index in await consumer.partitions_for(topic)]
        consumer.assign(partitions)
        async with Consumer(bootstrap_servers=server) as other:
            ends = await other.end_offsets(partitions)
        found: dict[int, list[bytes]] = {tp.partition: [] for tp in partitions}
        deadline = time.monotonic() + 30
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            assert time.monotonic() < deadline, f"read {found} of {ends}"
            for record in await consumer.poll(100):
                found[record.partition].append(record.value or b"")
        return [value for values in found.values() for value in values]


@asynccontextmanager
async def producing(server: str, **options: Any) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=server, **({"transactional_id": name()} | options)) as producer:
        await producer.init_transactions()
        yield producer


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_committed_is_read_and_what_is_aborted_is_not(server: str, codec: str) -> None:
    async def main() -> None:
        topic = await new_topic(server)
        expected = []
        async with producing(server, compression_type=codec) as producer:
            for number in range(12):
                await producer.begin_transaction()
                for part in range(9):
                    await producer.send(topic, b"%d-%d" % (number, part), partition=part % 3)
                if number % 3 == 2:
                    await producer.flush()
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    expected += [b"%d-%d" % (number, part) for part in range(9)]
        assert sorted(await read(server, topic)) == sorted(expected)
        assert len(await read(server, topic, "read_uncommitted")) == 108

    run(main())


def test_librdkafka_reads_our_transactions(server: str) -> None:
    async def main() -> str:
        topic = await new_topic(server, 1)
        async with producing(server) as producer:
            for number in range(10):
                async with producer.transaction() as txn:
                    await txn.send(topic, b"%d" % number)
                await producer.begin_transaction()
                await (await producer.send(topic, b"aborted"))
                await producer.abort_transaction()
        return topic

    topic = run(main())
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server, "group.id": topic, "isolation.level": "read_committed", "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        found = [message.value() for message in consumer.consume(10, timeout=20)]
    finally:
        consumer.close()
    assert found == [b"%d" % number for number in range(10)]


def test_a_large_transaction_of_whole_columns_is_one_thing(server: str) -> None:
    async def main() -> None:
        topic = await new_topic(server)
        values = [b"%d" % number for number in range(50_000)]
        async with producing(server) as producer:
            async with producer.transaction() as txn:
                delivery = await txn.send_batch(topic, values, values)
            assert sum(part.count for part in await delivery) == 50_000
        assert sorted(await read(server, topic)) == sorted(values)

    run(main())


def test_consume_transform_produce_commits_offsets_with_the_records(server: str) -> None:
    async def main() -> None:
        source, target, group = await new_topic(server, 1), await new_topic(server, 1), name()
        tp = TopicPartition(source, 0)
        async with Producer(bootstrap_servers=server) as producer:
            await (await producer.send_batch(source, None, [b"%d" % number for number in range(100)]))
        async with Consumer(bootstrap_servers=server, max_poll_records=7) as consumer, producing(server) as producer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            position = attempts = 0
            while position < 100:
                attempts += 1
                records = await consumer.poll(1_000)
                await producer.begin_transaction()
                for record in records:
                    await producer.send(target, b"doubled %d" % (2 * int(record.value or b"0")))
                last = records[-1].offset + 1
                await producer.send_offsets_to_transaction({tp: last}, ConsumerGroupMetadata(group))
                if attempts % 2:
                    await producer.abort_transaction()
                    consumer.seek(tp, position)
                else:
                    await producer.commit_transaction()
                    position = last
        async with Admin(bootstrap_servers=server) as admin:
            offsets = (await admin.list_group_offsets([group], require_stable=True)).get()[group].get()
        assert offsets[tp].offset == 100
        assert await read(server, target) == [b"doubled %d" % (2 * number) for number in range(100)]

    run(main())


def test_our_producer_and_librdkafkas_fence_each_other(server: str) -> None:
    async def main() -> None:
        topic, transactional_id = await new_topic(server, 1), name()
        async with producing(server, transactional_id=transactional_id) as ours:
            await ours.begin_transaction()
            await (await ours.send(topic, b"ours"))
            theirs = confluent_kafka.Producer({"bootstrap.servers": server, "transactional.id": transactional_id})
            await asyncio.to_thread(theirs.init_transactions, 30)
            with pytest.raises(Fenced, match=r"we have producer id \d+, epoch \d+, the coordinator has producer id"):
                await ours.commit_transaction()
            theirs.begin_transaction()
            theirs.produce(topic, b"theirs")
            await asyncio.to_thread(theirs.flush, 30)
            async with producing(server, transactional_id=transactional_id) as again:
                async with again.transaction() as txn:
                    await txn.send(topic, b"again")
                with pytest.raises(confluent_kafka.KafkaException):
                    await asyncio.to_thread(theirs.commit_transaction, 30)
        assert await read(server, topic) == [b"again"]

    run(main())


@pytest.mark.parametrize("rest", ["leaves", "sends and leaves", "waits for its record"])
def test_a_zombie_is_told_that_it_is_fenced_when_it_leaves_its_block(server: str, rest: str) -> None:
    async def become_a_zombie(producer: Producer, topic: str) -> None:
        async with producer.transaction() as txn:
            await (await txn.send(topic, b"lost"))
            transactional_id = producer.config.transactional_id
            async with (
                producing(server, transactional_id=transactional_id) as other,
                other.transaction() as theirs,
            ):
                await theirs.send(topic, b"theirs")
            late = None if rest == "leaves" else await txn.send(topic, b"late")
            if rest == "waits for its record" and late is not None:
                await late

    async def main() -> None:
        topic = await new_topic(server, 1)
        message = r"we have producer id \d+, epoch 0, the coordinator has.*Close this producer"
        async with producing(server) as producer:
            with pytest.raises(Fenced, match=message):
                await become_a_zombie(producer, topic)
        assert await read(server, topic) == [b"theirs"]

    run(main())


PAUSED_IN_ITS_BLOCK = """
import sys, twofold
from twofold.errors import KafkaError
server, topic, transactional_id = sys.argv[1:]
with twofold.Producer(bootstrap_servers=server, transactional_id=transactional_id) as producer:
    producer.init_transactions()
    try:
        with producer.transaction() as txn:
            txn.send(topic, b"lost").result()
            print("inside", flush=True)
            sys.stdin.readline()
            txn.send(topic, b"late")
    except KafkaError as error:
        print(type(error).__name__, error, flush=True)
"""


def test_a_process_that_was_paused_in_its_block_is_fenced_when_it_wakes(twofold_server: TwofoldServer) -> None:
    server = twofold_server.bootstrap_servers
    topic, transactional_id = run(new_topic(server, 1)), name()
    command = [sys.executable, "-c", PAUSED_IN_ITS_BLOCK, server, topic, transactional_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        os.kill(process.pid, signal.SIGSTOP)
        with twofold.Producer(bootstrap_servers=server, transactional_id=transactional_id) as other:
            other.init_transactions()
            with other.transaction() as txn:
                txn.send(topic, b"theirs")
        os.kill(process.pid, signal.SIGCONT)
        told, _ = process.communicate("go on\n", timeout=30)
    assert told.startswith("Fenced ") and "Close this producer" in told and "abort_transaction" not in told
    assert run(read(server, topic)) == [b"theirs"]


FORGETFUL = {"producer.id.expiration.ms": "500", "producer.id.expiration.check.interval.ms": "100"}


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=pytest.mark.oracle)])
def forgetful_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a server that forgets a silent producer within a second."""
    if request.param == "twofold":
        with TwofoldServer(tmp_path, FORGETFUL) as running:
            yield running.bootstrap_servers
    else:
        from oracle.kafka import running_oracle

        with running_oracle(FORGETFUL) as node:
            yield node.bootstrap_servers


def test_a_producer_that_the_broker_forgot_with_its_deleted_records_goes_on(forgetful_server: str) -> None:
    server = forgetful_server

    async def main() -> None:
        topic = await new_topic(server, 1)
        tp = TopicPartition(topic, 0)
        async with (
            Producer(bootstrap_servers=server, linger_ms=0) as producer,
            Admin(bootstrap_servers=server) as admin,
        ):
            for number in range(3):
                await (await producer.send(topic, b"%d" % number))
            (await admin.delete_records({tp: 3})).get()
            deadline = time.monotonic() + 30
            while (await admin.describe_producers([tp])).get()[tp]:
                assert time.monotonic() < deadline, "the broker still knows the producer"
                await asyncio.sleep(0.1)
            offsets = [(await (await producer.send(topic, b"%d" % number))).offset for number in range(3, 6)]
        assert offsets == [3, 4, 5]
        assert await read(server, topic) == [b"3", b"4", b"5"]

    run(main())


def test_a_transaction_is_resumed_from_another_producer(server: str) -> None:
    async def main() -> None:
        topic, transactional_id = await new_topic(server, 1), name()
        gone = Producer(bootstrap_servers=server, transactional_id=transactional_id)
        await gone.init_transactions()
        await gone.begin_transaction()
        await (await gone.send(topic, b"x"))
        identity = gone._transactions.identity
        assert identity is not None
        async with Producer(bootstrap_servers=server) as committer:
            await committer.resume(transactional_id, *identity)
            await committer.commit_transaction()
        assert await read(server, topic) == [b"x"]
        await gone.close()

    run(main())


def test_a_transaction_that_took_too_long_is_told_and_the_producer_goes_on(twofold_server: TwofoldServer) -> None:
    server = twofold_server.bootstrap_servers

    async def main() -> None:
        topic = await new_topic(server, 1)
        async with producing(server, transaction_timeout_ms=300) as producer:
            await producer.begin_transaction()
            await (await producer.send(topic, b"late"))
            await asyncio.sleep(1.5)
            with pytest.raises(TransactionFailed, match="state CompleteAbort, timeout 300 ms"):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction() as txn:
                await txn.send(topic, b"in time")
        assert await read(server, topic) == [b"in time"]

    run(main())


async def three_stable_four_open(server: str, producer: Producer, topic: str) -> None:
    """Offsets 0 to 2 are plain records, 3 to 5 are in an open transaction, 6 is plain again."""
    async with Producer(bootstrap_servers=server, linger_ms=0) as plain:
        for value in (b"0", b"1", b"2"):
            await (await plain.send(topic, value))
        await producer.begin_transaction()
        for value in (b"3", b"4", b"5"):
            await (await producer.send(topic, value))
        await (await plain.send(topic, b"6"))


def test_the_lag_goes_by_what_the_isolation_level_reads(server: str) -> None:
    async def main() -> None:
        topic = await new_topic(server, 1)
        tp = TopicPartition(topic, 0)
        async with (
            producing(server) as producer,
            Consumer(bootstrap_servers=server, isolation_level="read_committed") as committed,
            Consumer(bootstrap_servers=server) as uncommitted,
        ):
            await three_stable_four_open(server, producer, topic)
            for consumer in (committed, uncommitted):
                consumer.assign([tp])
                consumer.seek(tp, 1)
            assert (await committed.lag(), await uncommitted.lag(tp)) == ({tp: 2}, {tp: 6})
            while await committed.position(tp) < 3:
                await committed.poll(10_000)
            assert await committed.lag() == {tp: 0}
            await producer.commit_transaction()
            while (await committed.end_offsets([tp]))[tp] < 8:  # the answer to a commit does not wait for its marker
                await asyncio.sleep(0.01)
            assert (await committed.lag(), await uncommitted.lag()) == ({tp: 5}, {tp: 7})

    run(main())


@pytest.mark.parametrize("offset", [4, 6, 7])
def test_a_seek_beyond_the_stable_offset_waits_there_and_to_the_end_goes_no_further(server: str, offset: int) -> None:
    async def main() -> None:
        topic = await new_topic(server, 1)
        tp = TopicPartition(topic, 0)
        async with (
            producing(server) as producer,
            Consumer(bootstrap_servers=server, isolation_level="read_committed") as consumer,
        ):
            await three_stable_four_open(server, producer, topic)
            consumer.assign([tp])
            consumer.seek_to_end()
            assert await consumer.position(tp) == 3
            consumer.seek(tp, offset)
            assert await consumer.poll(300) == []
            assert (await consumer.position(tp), await consumer.lag()) == (offset, {tp: 0})
            await producer.commit_transaction()
            async with producer.transaction() as txn:
                await txn.send(topic, b"8")
            found: list[bytes | None] = []
            while await consumer.position(tp) < 10:
                found += [record.value for record in await consumer.poll(10_000)]
            assert found == [value for value in (b"4", b"5", b"6") if int(value) >= offset] + [b"8"]

    run(main())


def test_a_seek_beyond_the_end_goes_where_the_rule_says(server: str) -> None:
    async def main() -> None:
        topic = await new_topic(server, 1)
        tp = TopicPartition(topic, 0)
        async with (
            producing(server) as producer,
            Consumer(bootstrap_servers=server, isolation_level="read_committed") as consumer,
        ):
            await three_stable_four_open(server, producer, topic)
            consumer.assign([tp])
            consumer.seek(tp, 8)
            await consumer.poll(300)
            assert await consumer.position(tp) == 3  # auto_offset_reset is latest

    run(main())


PREPARE_AND_WAIT = """
import sys, time, twofold
server, topic, transactional_id = sys.argv[1:]
producer = twofold.Producer(
    bootstrap_servers=server, transactional_id=transactional_id, transaction_two_phase_commit_enable=True
)
producer.init_transactions()
producer.begin_transaction()
producer.send_batch(topic, None, [b"%d" % number for number in range(1000)])
print(producer.prepare_transaction(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("commit", [True, False])
def test_a_client_killed_after_prepare_is_recovered_from_its_stored_text(
    twofold_server: TwofoldServer, commit: bool
) -> None:
    server = twofold_server.bootstrap_servers
    topic, transactional_id = run(new_topic(server)), name()
    command = [sys.executable, "-c", PREPARE_AND_WAIT, server, topic, transactional_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stored = process.stdout.readline().strip()
        os.kill(process.pid, signal.SIGKILL)
    twofold_server.kill()
    twofold_server.start()
    assert run(read_open(server, topic)) == 0
    with twofold.Producer(
        bootstrap_servers=server, transactional_id=transactional_id, transaction_two_phase_commit_enable=True
    ) as recovered:
        assert str(recovered.init_transactions(keep_prepared_txn=True)) == stored
        recovered.complete_transaction(stored if commit else "")
    assert len(run(read(server, topic))) == (1_000 if commit else 0)


async def read_open(server: str, topic: str) -> int:
    """How many records a read_committed reader finds while a transaction is open."""
    async with Consumer(bootstrap_servers=server, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, index) for index in await consumer.partitions_for(topic)]
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, 0)
        return len(await consumer.poll(500))


def test_a_killed_producer_with_heartbeats_holds_readers_up_for_three_intervals_only(
    twofold_server: TwofoldServer,
) -> None:
    server = twofold_server.bootstrap_servers
    topic, transactional_id = run(new_topic(server, 1)), name()
    script = PREPARE_AND_WAIT.replace(
        "transaction_two_phase_commit_enable=True",
        "transaction_timeout_ms=86_400_000, transaction_heartbeat_interval_ms=500",
    ).replace("producer.prepare_transaction()", "producer.flush() or 'sent'")
    command = [sys.executable, "-c", script, server, topic, transactional_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == "sent"
        time.sleep(3)  # twice the patience of the coordinator: it lives
        assert run(state_of(server, transactional_id)) == "Ongoing"
        os.kill(process.pid, signal.SIGKILL)
        killed = time.monotonic()
    while run(state_of(server, transactional_id)) != "CompleteAbort":
        assert time.monotonic() - killed < 10
        time.sleep(0.05)
    assert 0.9 < time.monotonic() - killed < 4


async def state_of(server: str, transactional_id: str) -> str:
    async with Producer(bootstrap_servers=server, transactional_id=transactional_id) as producer:
        found = await producer._transactions._calls.describe(transactional_id)
        assert found is not None
        return found.state


# Apache Kafka's limits


@pytest.mark.oracle
def test_what_apache_kafka_lacks_is_one_clear_error(oracle: Any) -> None:
    async def main() -> None:
        producer = Producer(
            bootstrap_servers=oracle.bootstrap_servers,
            transactional_id=name(),
            transaction_two_phase_commit_enable=True,
            transaction_heartbeat_interval_ms=0,
        )
        with pytest.raises(UnsupportedByBroker, match=r"InitProducerId up to 5: transaction_two_phase.* needs 6"):
            await producer.init_transactions()
        await producer.close()

    run(main())


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=pytest.mark.oracle)])
def server_without_heartbeats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "oracle":
        yield str(request.getfixturevalue("oracle").bootstrap_servers)
    else:
        with TwofoldServer(tmp_path, {"transaction.heartbeat.enable": "false"}) as running:
            yield running.bootstrap_servers


def test_without_heartbeats_a_producer_that_wants_them_is_warned_once_and_works(
    server_without_heartbeats: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_without_heartbeats

    async def main() -> None:
        topic = await new_topic(server, 1)
        async with producing(server, transaction_heartbeat_interval_ms=50) as producer:
            for value in (b"0", b"1"):
                async with producer.transaction() as txn:
                    await txn.send(topic, value)
                    await producer.flush()
                    await asyncio.sleep(0.3)  # six intervals
        assert await read(server, topic) == [b"0", b"1"]

    with caplog.at_level(logging.WARNING, "twofold.client"):
        run(main())
    (warning,) = (row.getMessage() for row in caplog.records)
    assert "transaction_heartbeat_interval_ms=50 has no effect" in warning and server in warning


@pytest.mark.oracle
def test_two_phase_commit_works_as_far_as_apache_kafka_has_it(unstable_oracle: Any) -> None:
    """Prepare, commit and abort; a prepared transaction cannot be kept there, and that is said."""
    server = unstable_oracle.bootstrap_servers

    async def main() -> None:
        topic = await new_topic(server, 1)
        async with producing(server, transaction_two_phase_commit_enable=True) as producer:
            for decision in (True, False, True):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % decision)
                state = await producer.prepare_transaction()
                await producer.complete_transaction(state if decision else "")
            other = Producer(
                bootstrap_servers=server,
                transactional_id=producer.config.transactional_id,
                transaction_two_phase_commit_enable=True,
            )
            with pytest.raises(UnsupportedVersion, match=r"does not implement keep_prepared_txn"):
                await other.init_transactions(keep_prepared_txn=True)
            await other.close()
        assert await read(server, topic) == [b"1", b"1"]

    run(main())


@pytest.mark.oracle
@pytest.mark.parametrize("level", [0, 1])
def test_apache_kafka_below_version_2_is_served_as_its_own_clients_serve_it(unstable_oracle: Any, level: int) -> None:
    server = unstable_oracle.bootstrap_servers

    async def set_level(value: int) -> None:
        async with Admin(bootstrap_servers=server) as admin:
            kind = UpgradeType.UPGRADE if value == 2 else UpgradeType.UNSAFE_DOWNGRADE
            await admin.update_features({"transaction.version": FeatureUpdate(value, kind)})
        await asyncio.sleep(1)

    async def main() -> None:
        topic, group = await new_topic(server), name()
        await set_level(level)
        try:
            async with producing(server) as producer:
                for number in range(9):
                    await producer.begin_transaction()
                    for part in range(3):
                        await producer.send(topic, b"%d-%d" % (number, part), partition=part)
                    await producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, group)
                    if number % 3:
                        await producer.commit_transaction()
                    else:
                        await producer.flush()
                        await producer.abort_transaction()
                assert producer._transactions.identity is not None and producer._transactions.identity.epoch == 0
            expected = [b"%d-%d" % (number, part) for number in range(9) if number % 3 for part in range(3)]
            assert sorted(await read(server, topic)) == sorted(expected)
        finally:
            await set_level(2)

    run(main())


def test_data_of_two_thousand_small_transactions_is_whole(tmp_path: Path) -> None:
    with TwofoldServer(tmp_path) as running:
        server = running.bootstrap_servers

        async def main() -> None:
            topic = await new_topic(server, 2)
            async with producing(server, linger_ms=0) as producer:
                for number in range(2_000):
                    async with producer.transaction() as txn:
                        await txn.send(topic, b"%d" % number, partition=number % 2)
            found = await read(server, topic)
            assert found == [b"%d" % number for start in (0, 1) for number in range(start, 2_000, 2)]

        run(main())
