"""One connection: negotiation, bounds, order, and an orderly end."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, hang_up, silence
from twofold.connections.connection import Address, Connection, ConnectionLimits, open_connection
from twofold.connections.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConnectionLost,
    ListenerMismatch,
    NoAnswer,
    UnsupportedByBroker,
)
from twofold.runtime.sim import Simulation
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages.metadata import MetadataRequest

METADATA = KEYS["Metadata"]
REQUEST = MetadataRequest(topics=[])

Story = Callable[[Simulation, FakeBroker], Awaitable[None]]


def play(story: Story) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 1}).start()
            await story(sim, broker)

        sim.run(main(), timeout_s=600)


async def connect(sim: Simulation, **limits: Any) -> Connection:
    return await open_connection(sim.runtime("client"), Address("broker", PORT), ConnectionLimits(**limits))


def test_the_highest_common_version_is_spoken() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.versions[METADATA] = (0, 9)
        connection = await connect(sim)
        await connection.request(REQUEST, METADATA)
        assert broker.requests[-1][:2] == ("Metadata", 9)
        assert connection.version(METADATA, at_most=4) == 4

    play(story)


def test_a_broker_that_knows_only_older_api_versions_is_asked_again_in_its_own() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.versions[KEYS["ApiVersions"]] = (0, 2)
        connection = await connect(sim)
        assert [(api, version) for api, version, _ in broker.requests] == [("ApiVersions", 2)]
        assert connection.version(METADATA) == APIS[METADATA].max_version

    play(story)


def test_what_a_broker_lacks_is_named_with_both_ranges() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        del broker.versions[KEYS["DescribeProducers"]]
        broker.versions[KEYS["Fetch"]] = (0, 3)
        connection = await connect(sim)
        with pytest.raises(UnsupportedByBroker, match="broker:9092 does not serve DescribeProducers"):
            connection.version(KEYS["DescribeProducers"])
        with pytest.raises(UnsupportedByBroker, match="serves Fetch 0 to 3, this client speaks 4 to 18"):
            connection.version(KEYS["Fetch"])
        assert not connection.supports(KEYS["Fetch"]) and connection.supports(METADATA, 9)

    play(story)


def test_requests_are_pipelined_and_answered_in_order() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.delay_s = 0.5
        connection = await connect(sim)
        start = sim.now_s
        answers = [connection.send(REQUEST, METADATA) for _ in range(4)]
        done: list[int] = []

        def note(index: int, _: object) -> None:
            done.append(index)

        for index, answer in enumerate(answers):
            answer.add_done_callback(partial(note, index))
        await asyncio.wait(answers)
        assert done == [0, 1, 2, 3]
        assert sim.now_s - start < 2.5, "the broker works one after the other, the network does not wait for it"

    play(story)


def test_requests_in_flight_have_a_bound_and_the_rest_wait_their_turn() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        connection = await connect(sim, max_in_flight=3)
        highest = 0

        async def ask() -> None:
            nonlocal highest
            waiting = sim.runtime("client").spawn(connection.request(REQUEST, METADATA), name="ask")
            await sim.runtime("client").timers.sleep(0)
            highest = max(highest, connection.in_flight)
            await waiting

        await asyncio.gather(*(ask() for _ in range(20)))
        assert highest == 3 and broker.seen["Metadata"] == 20
        for _ in range(3):
            connection.send(REQUEST, METADATA)
        with pytest.raises(RuntimeError, match="3 requests are in flight"):
            connection.send(REQUEST, METADATA)

    play(story)


def test_a_waiter_that_is_cancelled_passes_its_turn_on() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        connection = await connect(sim, max_in_flight=1)
        client = sim.runtime("client")
        first = connection.send(REQUEST, METADATA)
        cancelled = client.spawn(connection.request(REQUEST, METADATA), name="cancelled")
        last = client.spawn(connection.request(REQUEST, METADATA), name="last")
        await client.timers.sleep(0)
        first.add_done_callback(lambda _: cancelled.cancel())
        await last
        assert broker.seen["Metadata"] == 2

    play(story)


def test_everything_in_flight_fails_when_the_broker_hangs_up() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.script("Metadata", silence, hang_up)
        connection = await connect(sim)
        answers = [connection.send(REQUEST, METADATA) for _ in range(3)]
        await asyncio.wait(answers)
        for answer in answers:
            with pytest.raises(ConnectionLost, match="broker:9092 closed the connection with 3 requests in flight"):
                answer.result()
        assert connection.closed and connection.in_flight == 0
        with pytest.raises(ConnectionLost):
            connection.send(REQUEST, METADATA)

    play(story)


def test_an_overdue_answer_ends_the_connection_and_names_broker_and_setting() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.script("Metadata", silence)
        connection = await connect(sim, request_timeout_ms=2_000)
        start = sim.now_s
        answer = connection.send(REQUEST, METADATA)
        with pytest.raises(NoAnswer, match=r"broker:9092 did not answer Metadata v13 within 2000 ms \(request_timeout"):
            await answer
        assert sim.now_s - start == pytest.approx(2.0, abs=0.01)
        assert connection.closed

    play(story)


def test_closing_fails_what_is_in_flight() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        broker.script("Metadata", silence)
        connection = await connect(sim)
        answer = connection.send(REQUEST, METADATA)
        connection.close()
        with pytest.raises(ClientClosed):
            await answer

    play(story)


def test_no_listener_and_no_answer_are_told_apart() -> None:
    async def story(sim: Simulation, broker: FakeBroker) -> None:
        with pytest.raises(BrokerUnreachable, match="cannot connect to nowhere:1: "):
            await open_connection(sim.runtime("client"), Address("nowhere", 1), ConnectionLimits())
        sim.network.partition("broker", "client")
        start = sim.now_s
        with pytest.raises(BrokerUnreachable, match=r"within 1500 ms \(socket_connection_setup_timeout_ms\)"):
            await connect(sim, connect_timeout_ms=1_500)
        assert sim.now_s - start == pytest.approx(1.5, abs=0.01)

    play(story)


class _Garbage(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "web:80 does not speak Kafka in plain text: it speaks HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it speaks SSH"),
        (b"\x7f\0\0\0", "it sent a frame of 2130706432 bytes"),
        (b"\0\0\0\x04\0\0\0\x63", "answered what was not asked"),
        (b"\0\0\0\x06\0\0\0\0\0\0", "answered ApiVersions v4 with garbage"),
    ],
)
def test_what_is_not_kafka_ends_the_connection(answer: bytes, message: str) -> None:
    async def story(sim: Simulation, _: FakeBroker) -> None:
        await sim.runtime("web").network.listen(lambda: _Garbage(answer), "web", 80)
        with pytest.raises(ConnectionLost, match=message):
            await open_connection(sim.runtime("client"), Address("web", 80), ConnectionLimits())

    play(story)


def test_a_listener_with_tls_is_named_to_a_plain_client_that_does_not_try_again() -> None:
    async def story(sim: Simulation, _: FakeBroker) -> None:
        alert = b"\x15\x03\x03\0\2\2\x28"
        await sim.runtime("web").network.listen(lambda: _Garbage(alert), "web", 80)
        message = "web:80 does not speak Kafka in plain text: it speaks TLS.*set SSL or SASL_SSL"
        with pytest.raises(ListenerMismatch, match=message) as caught:
            await open_connection(sim.runtime("client"), Address("web", 80), ConnectionLimits())
        assert not caught.value.retriable

    play(story)
