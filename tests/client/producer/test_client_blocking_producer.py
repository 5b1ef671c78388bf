"""The producer for code without asyncio, against a broker in this process."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import twofold
from twofold.client import Consumer, LoopThread, TopicPartition
from twofold.client.producer.blocking import BOX_BYTES
from twofold.embedded import Broker
from twofold.errors import (
    BufferExhausted,
    ClientClosed,
    GaveUp,
    IllegalTransactionCall,
    InDoubt,
    PreparedAborted,
    TransactionAborted,
)
from twofold.version import VERSION
from twofold.wire.errors import MessageTooLarge


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"transaction.two.phase.commit.enable": True, "num.partitions": 1}
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:200].replace("[", "-").replace("]", "")


def read(broker: Broker, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    async def read_all() -> list[bytes]:
        async with Consumer(
            bootstrap_servers=broker.bootstrap_servers,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
        ) as consumer:
            tp = TopicPartition(topic, 0)
            consumer.assign([tp])
            end = (await consumer.end_offsets([tp]))[tp]
            found: list[bytes] = []
            while await consumer.position(tp) < end:
                found += [record.value or b"" for record in await consumer.poll(100)]
            return found

    with LoopThread() as loop:
        return loop.run(read_all(), timeout_s=30)


def producer_of(broker: Broker, **options: Any) -> twofold.Producer:
    return twofold.Producer(bootstrap_servers=broker.bootstrap_servers, **options)


def test_send_returns_a_handle_to_wait_on(broker: Broker, topic: str) -> None:
    with producer_of(broker) as producer:
        delivery = producer.send(topic, b"value", key=b"key", headers=[("h", b"1")], timestamp_ms=5)
        assert delivery.result(timeout_s=30) == (topic, 0, 0, 5)
        assert delivery.done() and delivery.result() == delivery.result()
    assert delivery.result().offset == 0, "also after the producer was closed"


def test_a_web_server_in_place_of_a_broker_is_told_from_one_that_is_not_there() -> None:
    """It waits for the end of a line of HTTP, so there is no answer to judge by."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as web:
        web.daemon_threads, web.block_on_close = True, False
        threading.Thread(target=web.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{web.server_port}"
        told = rf"{address} accepts connections and answers nothing: either it does not speak Kafka"
        with twofold.Producer(bootstrap_servers=address, max_block_ms=3000) as producer:
            delivery = producer.send("orders", b"first")
            with pytest.raises(GaveUp, match=told):
                delivery.result(timeout_s=30)
        web.shutdown()


def test_records_of_a_thread_keep_their_order_and_many_threads_may_send(broker: Broker, topic: str) -> None:
    with producer_of(broker, linger_ms=1) as producer:
        producer.send(topic, b"0:first").result()

        def work(number: int) -> None:
            for index in range(1_000):
                producer.send(topic, b"%d:%d" % (number, index))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    found = read(broker, topic)
    assert len(found) == 8_001
    for number in range(1, 9):
        mine = [value for value in found if value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, index) for index in range(1_000)]


def test_leaving_the_block_sends_what_is_buffered(broker: Broker, topic: str) -> None:
    with producer_of(broker, linger_ms=10_000) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(100))


def test_an_exception_drops_what_is_buffered(broker: Broker, topic: str) -> None:
    producer = producer_of(broker, linger_ms=10_000)
    producer.partitions_for(topic)
    deliveries = []

    def work() -> None:
        with producer:
            deliveries.append(producer.send(topic, b"x"))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        work()
    with pytest.raises(ClientClosed):
        deliveries[0].result()


def test_a_closed_producer_says_so(broker: Broker, topic: str) -> None:
    producer = producer_of(broker)
    producer.close()
    producer.close()
    for call in (lambda: producer.send(topic, b"x"), producer.flush, lambda: producer.send_batch(topic, None, [b"x"])):
        with pytest.raises(ClientClosed):
            call()


def test_what_is_wrong_at_once_is_raised_at_once(broker: Broker, topic: str) -> None:
    with producer_of(broker, max_request_size=1_000) as producer, pytest.raises(MessageTooLarge):
        producer.send(topic, b"x" * 1_000)
    with pytest.raises(ValueError, match="acks=1 does not go with transactional_id"):
        producer_of(broker, acks=1, transactional_id="id")
    with pytest.raises(ValueError, match=r"unknown setting 'linger'"):
        twofold.Producer.from_config({"linger": 5})


def test_what_goes_wrong_later_the_handle_tells(broker: Broker, topic: str) -> None:
    with producer_of(broker, max_block_ms=3_000) as producer:
        with pytest.raises(TypeError, match=r"value\[0\] is of type str"):
            producer.send(topic, "text").result()
        with pytest.raises(Exception, match="there is no partition 7"):
            producer.send(topic, b"x", partition=7).result()
        assert producer.send(topic, b"fine").result().offset == 0


def test_a_send_that_finds_the_box_full_waits_and_not_for_ever() -> None:
    with twofold.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer:
        sent = 0

        def send_for_ever() -> None:
            nonlocal sent
            while True:  # the loop waits for metadata that never come
                producer.send("topic", b"x" * 10_000)
                sent += 1

        started = time.monotonic()
        with pytest.raises(BufferExhausted, match="max_block_ms=300"):
            send_for_ever()
        assert BOX_BYTES <= sent * 10_100 <= 3 * BOX_BYTES
        assert time.monotonic() - started < 10
        producer.close(flush=False)


def test_columns_are_sent_whole(broker: Broker, topic: str) -> None:
    with producer_of(broker) as producer:
        producer.send(topic, b"before")
        delivery = producer.send_batch(topic, [b"k"] * 1_000, [b"%d" % number for number in range(1_000)])
        assert [(part.base_offset, part.count) for part in delivery.result(timeout_s=30)] == [(1, 1_000)]
        assert delivery.count == 1_000 and delivery.done()
    assert read(broker, topic)[1:] == [b"%d" % number for number in range(1_000)]


def test_a_wait_may_have_an_end(broker: Broker, topic: str) -> None:
    with producer_of(broker, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.partitions_for(topic)
        delivery = producer.send(topic, b"x")
        with pytest.raises(TimeoutError):
            delivery.result(timeout_s=0.05)
        producer.flush()
        assert delivery.result().offset == 0


# Transactions


def test_blocks_commit_and_abort(broker: Broker, topic: str) -> None:
    with producer_of(broker, transactional_id=topic) as producer:
        assert producer.init_transactions() == twofold.PreparedTxnState()
        with producer.transaction() as txn:
            txn.send(topic, b"one")
            txn.send_batch(topic, None, [b"two", b"three"])
            txn.send_offsets({TopicPartition(topic, 0): 3}, "group")
        with pytest.raises(KeyError):
            send_and_fail(producer, topic)
        with producer.transaction() as txn:
            txn.send(topic, b"aborted")
            txn.abort()
        with producer.transaction() as txn:
            txn.send(topic, b"four")
            txn.commit()
    assert read(broker, topic) == [b"one", b"two", b"three", b"four"]


def send_and_fail(producer: twofold.Producer, topic: str) -> None:
    with producer.transaction() as txn:
        txn.send(topic, b"lost")
        raise KeyError("mine")


def test_calls_outside_of_their_state_are_refused_at_once(broker: Broker, topic: str) -> None:
    with producer_of(broker, transactional_id=topic) as producer:
        with pytest.raises(IllegalTransactionCall, match=r"send\(\) in state UNINITIALIZED"):
            producer.send(topic, b"x")
        producer.init_transactions()
        with pytest.raises(IllegalTransactionCall, match=r"commit_transaction\(\) in state READY"):
            producer.commit_transaction()


def test_abort_fails_what_is_still_in_the_box(broker: Broker, topic: str) -> None:
    with producer_of(broker, transactional_id=topic, linger_ms=10_000, batch_size=1_000_000) as producer:
        producer.init_transactions()
        producer.partitions_for(topic)
        producer.begin_transaction()
        deliveries = [producer.send(topic, b"x" * 100) for _ in range(2_000)]
        producer.abort_transaction()
        assert all(delivery.done() for delivery in deliveries)
        for delivery in deliveries:
            with pytest.raises(TransactionAborted):
                delivery.result()
    assert read(broker, topic) == []


def test_two_phase_commit_from_prepare_to_recovery(broker: Broker, topic: str) -> None:
    options = {"transactional_id": topic, "transaction_two_phase_commit_enable": True}
    with producer_of(broker, **options) as producer:
        producer.init_transactions()
        with producer.transaction() as txn:
            txn.send(topic, b"one")
            assert txn.prepared_state == twofold.PreparedTxnState()
            stored = str(txn.prepare())
            assert str(txn.prepared_state) == stored
        with pytest.raises(InDoubt) as caught:
            prepare_and_fail(producer, topic)
    assert str(caught.value.state) != stored
    with producer_of(broker, **options) as recovered:
        assert recovered.init_transactions(keep_prepared_txn=True) == caught.value.state
        with pytest.raises(TypeError, match="a prepared transaction's state is text"):
            recovered.complete_transaction(None)  # type: ignore[arg-type]
        done = recovered.complete_transaction(str(caught.value.state).encode())
        assert done is twofold.TransactionOutcome.COMMITTED
        recovered.begin_transaction()
        recovered.send(topic, b"three")
        state = recovered.prepare_transaction()
        assert recovered.complete_transaction(twofold.PreparedTxnState()) is twofold.TransactionOutcome.ABORTED
        assert state
    with producer_of(broker, **options) as again:
        again.init_transactions(keep_prepared_txn=True)
        with pytest.raises(PreparedAborted, match=rf"transaction {state} of"):
            again.complete_transaction(state)
    assert read(broker, topic) == [b"one", b"two"]


def prepare_and_fail(producer: twofold.Producer, topic: str) -> None:
    with producer.transaction() as txn:
        txn.send(topic, b"two")
        txn.prepare()
        raise KeyError("the database is gone")


def test_heartbeats_go_on_while_the_application_computes(broker: Broker, topic: str) -> None:
    """Four intervals of work without a call to the producer: three would have been too many."""
    with producer_of(broker, transactional_id=topic, transaction_heartbeat_interval_ms=200) as producer:
        producer.init_transactions()
        with producer.transaction() as txn:
            txn.send(topic, b"x").result()
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                sum(range(1_000))
    assert read(broker, topic) == [b"x"]


def test_resume_ends_what_another_left(broker: Broker, topic: str) -> None:
    gone = producer_of(broker, transactional_id=topic)
    gone.init_transactions()
    gone.begin_transaction()
    gone.send(topic, b"x").result()
    identity = gone._core._transactions.identity
    assert identity is not None
    with producer_of(broker) as committer:
        committer.resume(topic, *identity)
        committer.commit_transaction()
    assert read(broker, topic) == [b"x"]
    gone.close()


def test_settings_come_under_kafkas_names_too(broker: Broker, topic: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "0", "compression.type": "zstd"}
    with twofold.Producer.from_config(config) as producer:
        assert producer.send(topic, b"x").result().offset == 0
        assert producer.config.compression_type == "zstd"


def test_a_serializer_that_fails_is_heard_at_once_and_nothing_is_sent(broker: Broker, topic: str) -> None:
    with producer_of(broker, value_serializer=lambda text: text.encode()) as producer:
        with pytest.raises(AttributeError, match="encode"):
            producer.send(topic, 5)
        with pytest.raises(AttributeError, match="encode"):
            producer.send_batch(topic, None, ["fine", 5])
        producer.send(topic, "text", key=b"a key is sent as it is where no serializer is set")
    assert read(broker, topic) == [b"text"]
    with pytest.raises(ValueError, match="value_serializer='json' is not callable"):
        producer_of(broker, value_serializer="json")


def test_public_names_are_these() -> None:
    assert twofold.__all__ == [
        "Admin",
        "Consumer",
        "ConsumerGroupMetadata",
        "ConsumerRecord",
        "NewTopic",
        "OffsetAndMetadata",
        "PreparedTxnState",
        "Producer",
        "RebalanceListener",
        "TopicPartition",
        "TransactionOutcome",
    ]
    assert {*twofold.__all__, "__version__", "aio", "embedded", "errors"} <= set(dir(twofold))
    assert all(getattr(twofold, name) is not None for name in dir(twofold))
    assert twofold.__version__ == VERSION
    public = sorted(name for name in vars(twofold.Producer) if not name.startswith("_"))
    asynchronous = sorted(name for name in vars(twofold.client.Producer) if not name.startswith("_"))
    assert public == [name for name in asynchronous if name != "check_send"]
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        twofold.Nothing  # noqa: B018
