"""Faults that a test asks for, as stock clients see them."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from fuzz.seeds import entity, request_frame
from oracle.driver import CLOSED, SILENT, Connection
from twofold.broker.network.dispatch import served_apis
from twofold.embedded import Broker, Faults
from twofold.wire.apis import Api
from twofold.wire.codec import decode_response
from twofold.wire.error_codes import compile_look
from twofold.wire.errors import InvalidRequest, NotLeaderOrFollower
from twofold.wire.schema import schema_of

WITHOUT_A_FIELD = {("DescribeLogDirs", 1)}  # for an error of the whole request
_numbers = itertools.count()
QUICK = {"retry.backoff.ms": 20, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}


@pytest.fixture
def broker(twofold_session_broker: Broker) -> Broker:
    return twofold_session_broker


@pytest.fixture
def faults(broker: Broker) -> Faults:
    return broker.faults


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name)
    return name


@pytest.fixture
def wire(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.host, broker.port) as connection:
        yield connection


def producer_of(broker: Broker, **settings: Any) -> Producer:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0} | QUICK | dotted)


def send(producer: Producer, topic: str, value: str) -> list[KafkaError | None]:
    """The outcome of one record."""
    outcome: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(20)
    return outcome


def stored(broker: Broker, topic: str, *, isolation: str = "read_uncommitted") -> list[bytes | None]:
    """Everything that is in the topic now."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    try:
        while (message := consumer.poll(20)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message.value())
        raise AssertionError("no end of the partition within 20 s")
    finally:
        consumer.close()


# --- requests ---


def test_a_request_that_fails_by_plan_is_retried_by_a_stock_producer_and_stored_once(
    broker: Broker, faults: Faults, topic: str
) -> None:
    faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(producer_of(broker), topic, "a") == [None]
    assert stored(broker, topic) == [b"a"]
    faults.fail_next("Produce", NotLeaderOrFollower)
    assert send(producer_of(broker), topic, "b") == [None]
    assert stored(broker, topic) == [b"a", b"b"]


def test_an_error_that_is_not_retried_reaches_the_application_and_nothing_is_stored(
    broker: Broker, faults: Faults, topic: str
) -> None:
    producer = producer_of(broker)
    faults.fail_next("Produce", 87)
    (error,) = send(producer, topic, "a")
    assert error is not None and error.code() == KafkaError.INVALID_RECORD
    assert send(producer, topic, "b") == [None]
    assert stored(broker, topic) == [b"b"]


def test_a_plan_for_a_client_id_leaves_the_others_alone(broker: Broker, faults: Faults, topic: str) -> None:
    faults.fail_next("Produce", "INVALID_RECORD", times=None, client_id="unlucky")
    unlucky, other = producer_of(broker, client_id="unlucky"), producer_of(broker, client_id="other")
    assert send(other, topic, "a") == [None]
    for _ in range(2):
        (error,) = send(unlucky, topic, "b")
        assert error is not None and error.code() == KafkaError.INVALID_RECORD
    faults.clear()
    assert send(unlucky, topic, "c") == [None]
    assert stored(broker, topic) == [b"a", b"c"]


def test_a_lost_answer_doubles_the_record_unless_the_producer_is_idempotent(
    broker: Broker, faults: Faults, topic: str
) -> None:
    faults.drop_next("Produce", handled=True)
    assert send(producer_of(broker, enable_idempotence=False), topic, "twice") == [None]
    assert stored(broker, topic) == [b"twice", b"twice"]
    faults.drop_next("Produce", handled=True)
    assert send(producer_of(broker, enable_idempotence=True), topic, "once") == [None]
    assert stored(broker, topic) == [b"twice", b"twice", b"once"]


def test_a_request_that_does_not_arrive_is_not_carried_out(broker: Broker, faults: Faults, topic: str) -> None:
    faults.drop_next("Produce")
    producer = producer_of(broker, enable_idempotence=False, message_send_max_retries=0)
    (error,) = send(producer, topic, "lost")
    assert error is not None
    assert stored(broker, topic) == []


def test_a_produce_without_acks_that_fails_by_plan_closes_the_connection(
    broker: Broker, faults: Faults, topic: str, wire: Connection
) -> None:
    faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    assert wire.outcome("Produce", 9, {"acks": 0, "timeout": 1000, "topic_data": []}) == CLOSED


def test_a_delayed_request_begins_when_its_time_has_come_on_the_moved_clock(faults: Faults, wire: Connection) -> None:
    faults.delay_next("Metadata", 60)
    assert wire.outcome("Metadata", 9, {"topics": []}, patience_s=0.05) == SILENT
    faults.advance(61)
    assert wire.receive()


@pytest.mark.parametrize("api", served_apis(), ids=lambda api: api.name)
def test_every_api_can_be_failed_in_its_own_form(faults: Faults, wire: Connection, api: Api) -> None:
    """In its first and last version: the answer is read by the version's schema, and has the error."""
    source = Random(api.key)
    for version in {api.min_version, api.max_version}:
        found: set[int] = set()
        for _ in range(20):
            message = entity(schema_of(api.module, version, "request"), source)
            if getattr(message, "acks", 1) != 0:  # such a Produce has no answer
                faults.fail_next(api.name, InvalidRequest)
                frame = request_frame(api.key, version, message)
                wire.send_raw(len(frame).to_bytes(4, "big") + frame)
                answer = wire.receive()
                assert answer is not None, f"version {version}: closed"
                response = decode_response(api.key, version, answer)[1]
                found |= set(compile_look(type(response))(response))
            if found:
                break
        has_no_field = (api.name, version) in WITHOUT_A_FIELD
        assert found == (set() if has_no_field else {InvalidRequest.code}), f"version {version}"


@pytest.mark.parametrize("api", ["Fetch", "Metadata", "FindCoordinator", "InitProducerId", "EndTxn", "Heartbeat"])
def test_waiting_for_a_request_ends_after_its_time(faults: Faults, api: str) -> None:
    with pytest.raises(TimeoutError, match=f"no {api} of the client id nobody"):
        faults.wait_for_request(api, client_id="nobody", timeout_s=0.01)


def test_what_is_wrong_with_a_plan_is_said(faults: Faults) -> None:
    with pytest.raises(ValueError, match="'Produc': perhaps Produce"):
        faults.fail_next("Produc", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="'NOT_LEADER': perhaps NOT_"):
        faults.fail_next("Produce", "NOT_LEADER")
    with pytest.raises(ValueError, match="code 9999"):
        faults.fail_next("Produce", 9999)
    with pytest.raises(ValueError, match="times=0"):
        faults.drop_next("Produce", times=0)
    with pytest.raises(ValueError, match="seconds=-1: at least 0"):
        faults.advance(-1)
    with pytest.raises(ValueError, match="write_s=-1: at least 0"):
        faults.slow_disk(write_s=-1)
    with pytest.raises(ValueError, match="seconds=-1: at least 0"):
        faults.delay_next("Fetch", -1)


@pytest.mark.parametrize("endless", [math.inf, math.nan])
def test_a_time_that_has_no_end_is_refused(faults: Faults, endless: float) -> None:
    """The clock would be moved for ever, and every later call would wait for that."""
    calls: list[Callable[[], None]] = [
        lambda: faults.advance(endless),
        lambda: faults.slow_disk(sync_s=endless),
        lambda: faults.delay_next("Fetch", endless),
        lambda: faults.wait_for_request("Fetch", timeout_s=endless),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a number of seconds that ends"):
            call()


def test_faults_are_for_a_broker_that_runs() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        Broker().faults.advance(1)
    with pytest.raises(RuntimeError, match="not running"):
        Broker().faults.pause()


# --- the network ---


def test_dropped_connections_are_made_again_by_a_stock_producer(broker: Broker, faults: Faults, topic: str) -> None:
    producer = producer_of(broker)
    assert send(producer, topic, "a") == [None]
    assert faults.drop_connections() >= 1
    assert send(producer, topic, "b") == [None]
    assert stored(broker, topic) == [b"a", b"b"]


def test_without_a_network_no_client_gets_through_until_it_is_up(broker: Broker, faults: Faults, topic: str) -> None:
    producer = producer_of(broker)
    with faults.no_network():
        with Connection(broker.host, broker.port) as wire:
            assert wire.receive() is None, "it was closed"
        producer.produce(topic, "late")
        assert producer.flush(0.1) == 1
    assert producer.flush(20) == 0
    assert stored(broker, topic) == [b"late"]


# --- the process ---


def test_a_paused_broker_accepts_connections_and_answers_when_it_goes_on(faults: Faults, broker: Broker) -> None:
    with faults.paused():
        wire = Connection(broker.host, broker.port)
        assert wire.outcome("Metadata", 9, {"topics": []}, patience_s=0.1) == SILENT
        with pytest.raises(RuntimeError, match="paused"):
            faults.drop_connections()
    assert wire.receive()
    wire.close()


def test_a_paused_broker_can_be_stopped() -> None:
    with Broker() as broker:
        broker.faults.pause()


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
def test_a_killed_broker_has_what_it_acknowledged_and_recovers_it(
    twofold_broker: Broker, caplog: pytest.LogCaptureFixture, is_paused: bool
) -> None:
    broker, producer = twofold_broker, producer_of(twofold_broker)
    broker.create_topic("orders")
    assert send(producer, "orders", "acknowledged") == [None]
    wire = Connection(broker.host, broker.port)
    broker.faults.delay_next("Metadata", 3600)
    wire.send("Metadata", 9, {"topics": []})
    wire.await_read()
    if is_paused:
        broker.faults.pause()
    broker.faults.kill()
    assert wire.receive() is None, "what was asked is not answered"
    assert not (Path(broker.data) / ".kafka_cleanshutdown").exists()
    with caplog.at_level(logging.INFO):
        broker.start()
    assert "after an unclean shutdown" in caplog.text
    assert send(producer, "orders", "after") == [None]
    assert stored(broker, "orders") == [b"acknowledged", b"after"]
    broker.faults.stop()
    assert (Path(broker.data) / ".kafka_cleanshutdown").exists()
    with pytest.raises(RuntimeError, match="not running"):
        broker.faults.kill()


# --- the disk ---


def test_a_slow_disk_holds_up_what_waits_for_it(broker: Broker, faults: Faults) -> None:
    faults.slow_disk(sync_s=0.25)
    began = time.monotonic()
    broker.create_topic(f"slow-{next(_numbers)}")
    assert time.monotonic() - began >= 0.25
    faults.slow_disk()


def test_a_slow_write_holds_up_the_producer(broker: Broker, faults: Faults, topic: str) -> None:
    producer = producer_of(broker)
    assert send(producer, topic, "a") == [None]
    faults.slow_disk(write_s=0.25)
    began = time.monotonic()
    assert send(producer, topic, "b") == [None]
    assert time.monotonic() - began >= 0.25


# --- the clock ---


def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_fenced(
    broker: Broker, faults: Faults, topic: str
) -> None:
    producer = producer_of(broker, transactional_id=f"tx-{topic}", transaction_timeout_ms=60_000)
    producer.init_transactions(20)
    producer.begin_transaction()
    assert send(producer, topic, "never seen") == [None]
    faults.advance(75)  # the timeout, and the time between two looks of the coordinator
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(20)
    assert raised.value.args[0].fatal()
    producer = producer_of(broker, transactional_id=f"tx-{topic}")
    producer.init_transactions(20)
    producer.begin_transaction()
    assert send(producer, topic, "seen") == [None]
    producer.commit_transaction(20)
    assert stored(broker, topic, isolation="read_committed") == [b"seen"]


def test_a_member_of_a_group_that_goes_silent_loses_its_partitions_and_the_other_keeps_its_membership(
    broker: Broker, faults: Faults
) -> None:
    broker.create_topic("shared", partitions=2)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
    settings |= QUICK | {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 100}
    lost: list[str] = []
    dead, alive = Consumer(settings | {"client.id": "dead"}), Consumer(settings | {"client.id": "alive"})
    for consumer in (dead, alive):
        consumer.subscribe(["shared"], on_lost=lambda consumer, _: lost.append(consumer.memberid()))
    end = time.monotonic() + 40
    while [len(consumer.assignment()) for consumer in (dead, alive)] != [1, 1]:
        for consumer in (dead, alive):
            consumer.poll(0.05)
        assert time.monotonic() < end
    member = alive.memberid()
    faults.drop_next(times=None, client_id="dead")
    faults.advance(40)
    faults.wait_for_request("Heartbeat", client_id="alive")
    faults.advance(10)
    while len(alive.assignment()) < 2:
        alive.poll(0.05)
        assert time.monotonic() < end
    assert (alive.memberid(), lost) == (member, [])
    alive.close()
    faults.clear()
    dead.close()


@pytest.mark.twofold_settings({"log.retention.check.interval.ms": 10_000})
def test_records_go_when_their_retention_has_passed_on_the_moved_clock(twofold_broker: Broker) -> None:
    config = {"retention.ms": "90000", "segment.ms": "30000"}
    config["message.timestamp.type"] = "LogAppendTime"  # the clock of the producer is not moved
    twofold_broker.create_topic("short", config=config)
    producer = producer_of(twofold_broker)
    assert send(producer, "short", "old") == [None]
    twofold_broker.faults.advance(60)
    assert send(producer, "short", "new") == [None]
    assert stored(twofold_broker, "short") == [b"old", b"new"]
    twofold_broker.faults.advance(60)
    assert stored(twofold_broker, "short") == [b"new"]


def test_the_moved_time_is_no_pause_of_the_broker_and_stays_over_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Broker() as broker:
        broker.faults.advance(600)
        broker.restart()
        with Connection(broker.host, broker.port) as wire:
            wire.ask("Metadata", 9, topics=[])
        broker.faults.advance(60)
    assert not [line for line in caplog.messages if "clock" in line or "could not listen" in line]
