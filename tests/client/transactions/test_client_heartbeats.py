"""Transaction heartbeats (KIP-1309) from the producer's side, against the real broker in virtual time."""

import logging
import re

import pytest

from kits.client.transactions import TOPIC, World, identity_of, play, refuse, state_of
from twofold.client import Producer
from twofold.client.errors import TransactionFailed
from twofold.client.transactions.states import ManagerState
from twofold.wire.errors import NotCoordinator, TransactionalIdAuthorizationFailed

DAY_MS = 86_400_000
INTERVAL_S = 5
MAX_TIMEOUT = {"transaction_max_timeout_ms": DAY_MS}


async def beating(world: World, node: str = "client", **options: object) -> Producer:
    settings = {"transaction_timeout_ms": DAY_MS, "transaction_heartbeat_interval_ms": INTERVAL_S * 1000} | options
    return await world.ready(node, **settings)


async def opened(world: World, node: str = "client", **options: object) -> Producer:
    producer = await beating(world, node, **options)
    await producer.begin_transaction()
    await (await producer.send(TOPIC, b"x", partition=0))
    return producer


def test_a_producer_that_works_for_long_keeps_its_transaction() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        await world.sleep(1800)
        await producer.commit_transaction()
        assert await world.read() == [b"x"]
        assert world.count("TxnHeartbeat") == pytest.approx(1800 / INTERVAL_S, rel=0.02)

    play(story, **MAX_TIMEOUT)


def test_a_producer_that_dies_is_aborted_after_three_intervals_and_one_tick() -> None:
    async def story(world: World) -> None:
        await opened(world)
        world.kill()
        reader = await beating(world, "other", transactional_id="other")
        async with reader.transaction() as txn:
            await txn.send(TOPIC, b"after it", partition=0)
        assert await world.read() == []
        await world.sleep(3 * INTERVAL_S + 1)
        assert await world.read() == [b"after it"]

    play(story, **MAX_TIMEOUT)


def test_a_producer_that_was_away_too_long_is_told_and_goes_on() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        world.sim.network.partition(["client"], ["broker"])
        await world.sleep(60)
        world.sim.network.heal()
        await world.sleep(INTERVAL_S)
        assert state_of(producer) is ManagerState.ABORTABLE_ERROR
        with pytest.raises(
            TransactionFailed,
            match=r"commit_transaction\(\) in state ABORTABLE_ERROR.*epoch 0, the coordinator.*epoch 1",
        ):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"again", partition=0)
        assert await world.read() == [b"again"]

    play(story, **MAX_TIMEOUT)


def test_a_commit_that_comes_before_the_next_heartbeat_finds_out_as_well() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        producer._transactions._heartbeats.stop()  # as if the whole process had been asleep
        await world.sleep(60)
        with pytest.raises(
            TransactionFailed, match=r"the coordinator has aborted the transaction.*Call abort_transact"
        ):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"again", partition=0)
        assert await world.read() == [b"again"]

    play(story, **MAX_TIMEOUT)


def test_heartbeats_go_on_while_the_broker_restarts_and_connections_break() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        for _ in range(20):
            await world.sleep(7)
            world.sim.network.reset("broker", "client")
            await world.restart()
        await producer.commit_transaction()
        assert await world.read() == [b"x"]

    play(story, **MAX_TIMEOUT)


def test_a_coordinator_that_is_elsewhere_is_looked_for_at_once() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        world.script("TxnHeartbeat", refuse(NotCoordinator), refuse(NotCoordinator))
        await world.sleep(INTERVAL_S + 2.5)
        assert world.count("TxnHeartbeat") == 3
        await producer.commit_transaction()

    play(story, **MAX_TIMEOUT)


def test_heartbeats_do_not_stand_in_line_behind_records() -> None:
    """The records have a slow way; the coordinator's connection is another one."""

    async def story(world: World) -> None:
        producer = await opened(world, batch_size=1, request_timeout_ms=3_600_000, delivery_timeout_ms=7_200_000)
        links = producer._cluster._links
        assert all(
            link is not other
            for link in links.values()
            for other in producer._transactions._coordinators._links.values()
        )
        for link in links.values():
            assert link.connection is not None and link.connection._transport is not None
            link.connection._transport.pause_reading()
        for _ in range(50):
            await producer.send(TOPIC, b"more", partition=0)
        await world.sleep(10 * INTERVAL_S)
        assert state_of(producer) is ManagerState.IN_TRANSACTION
        for link in links.values():
            link.connection._transport.resume_reading()  # type: ignore[union-attr]
        await producer.commit_transaction()
        assert len(await world.read()) == 51

    play(story, **MAX_TIMEOUT)


def test_between_transactions_there_is_nothing_to_keep_alive() -> None:
    async def story(world: World) -> None:
        producer = await beating(world)
        await world.sleep(60)
        await producer.begin_transaction()
        await world.sleep(60)  # nothing was sent: the coordinator does not know of it
        await producer.commit_transaction()
        await world.sleep(60)
        assert world.count("TxnHeartbeat") == 0
        before = identity_of(producer)
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"x")
            await world.sleep(2 * INTERVAL_S + 1)
        await world.sleep(60)
        assert world.count("TxnHeartbeat") == 2
        assert identity_of(producer) > before

    play(story, **MAX_TIMEOUT)


def test_a_heartbeat_that_is_not_allowed_is_no_reason_to_give_up() -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        world.script("TxnHeartbeat", refuse(TransactionalIdAuthorizationFailed))
        await world.sleep(3 * INTERVAL_S)
        assert state_of(producer) is ManagerState.IN_TRANSACTION
        await producer.commit_transaction()
        assert await world.read() == [b"x"]

    play(story, **MAX_TIMEOUT)


def test_a_transaction_that_was_kept_without_two_phase_commit_is_kept_alive_by_its_heir() -> None:
    async def story(world: World) -> None:
        await opened(world)
        world.kill()
        heir = world.producer(
            "heir", transaction_timeout_ms=DAY_MS, transaction_heartbeat_interval_ms=INTERVAL_S * 1000
        )
        kept = await heir.init_transactions(keep_prepared_txn=True)
        await world.sleep(120)
        await heir.complete_transaction(kept)
        assert await world.read() == [b"x"]

    play(story, **MAX_TIMEOUT)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        row.getMessage()
        for row in caplog.records
        if row.name.startswith("twofold.client") and row.levelname == "WARNING"
    ]


def test_a_broker_without_heartbeats_is_named_once_and_the_producer_works_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        producer = await world.ready(transaction_heartbeat_interval_ms=1_000)
        for value in (b"0", b"1"):
            async with producer.transaction() as txn:
                await txn.send(TOPIC, value, partition=0)
                await world.sleep(20)
        assert await world.read() == [b"0", b"1"]
        assert (world.versions("InitProducerId"), world.count("TxnHeartbeat")) == ([6], 0)

    with caplog.at_level(logging.WARNING):
        play(story, transaction_heartbeat_enable="false")
    (warning,) = warnings(caplog)
    assert re.search(
        r"InitProducerId up to 6 and no TxnHeartbeat: transaction_heartbeat_interval_ms=1000 has no effect.*"
        r"transaction_timeout_ms=60000.*need InitProducerId 7 and.*transaction\.heartbeat\.enable=true",
        warning,
    )


def test_heartbeats_that_are_switched_off_under_an_open_transaction_do_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        producer = await opened(world)
        await world.sleep(2 * INTERVAL_S)
        world.settings["transaction.heartbeat.enable"] = "false"
        await world.restart()
        await world.sleep(600)
        await producer.commit_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"y", partition=0)
            await world.sleep(600)
        assert await world.read() == [b"x", b"y"]

    with caplog.at_level(logging.WARNING):
        play(story, **MAX_TIMEOUT)
    (warning,) = warnings(caplog)
    assert "no more heartbeats of 'id'" in warning and "does not serve TxnHeartbeat" in warning
