"""The server by itself: framing, order, bounds. A dispatcher of the test's own stands in for the APIs."""

import asyncio
import logging
import struct
from contextlib import asynccontextmanager
from functools import partial

import pytest

from kits.node.sockets import connected, framed, on_loop, settle, until
from twofold.broker.network import server as server_module
from twofold.broker.network.admission import ServerLimits
from twofold.broker.network.context import NO_RESPONSE, CloseConnection, Frame, Later
from twofold.broker.network.dispatch import Dispatcher
from twofold.broker.network.options import ServerOptions
from twofold.broker.network.server import Server, ServerConnection
from twofold.runtime.real import real_runtime

PRODUCE = b"\x00\x00"
OTHER = b"\x00\x03"


class Script(Dispatcher):
    """Echoes requests; what stands after the key says how."""

    def __init__(self):
        self.seen = []
        self.futures = {}

    def dispatch(self, peer, frame):
        body = bytes(frame)
        self.seen.append(body)
        command = body[2:]
        if command.startswith(b"bad"):
            raise CloseConnection("a bad request")
        if command.startswith(b"mute"):
            return NO_RESPONSE
        if command.startswith(b"later"):
            future = asyncio.get_running_loop().create_future()
            self.futures[command] = future
            return Later(future, overlaps=body[:2] == PRODUCE)
        if command.startswith(b"task"):
            return asyncio.get_running_loop().create_task(self._slow(command, body))
        if command.startswith(b"big"):
            return Frame([struct.pack(">i", int(command[3:])), bytes(int(command[3:]))])
        return Frame([framed(body)])

    async def _slow(self, command, body):
        self.futures[command] = asyncio.get_running_loop().create_future()
        await self.futures[command]
        return Frame([framed(body)])

    def answer(self, command):
        self.futures[command].set_result(Frame([framed(command)]))


def is_missing(connection: ServerConnection, count: int) -> bool:
    return connection._missing == count


@asynccontextmanager
async def serving(script=None, **options):
    server = Server(real_runtime(), script or Script(), ServerOptions(**options))
    server.open()
    listener = await server.listen("127.0.0.1", 0)
    try:
        yield server, ("127.0.0.1", listener.port)
    finally:
        await server.stop(0.0, lambda: None)


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_of_an_impossible_size_ends_the_connection_with_a_line_that_names_the_setting(size, caplog):
    @on_loop
    async def scenario():
        async with serving(max_request_bytes=1000) as (_, address), connected(*address) as wire:
            wire.send_raw(struct.pack(">i", size) + b"xxxx")
            assert await wire.closed_by_peer()
            host, port = wire.writer.get_extra_info("sockname")
            assert f"{host}:{port}" in caplog.text
            assert f"{size} bytes" in caplog.text
            assert "socket.request.max.bytes=1000" in caplog.text

    scenario()


@pytest.mark.parametrize(
    ("sent", "spoken"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"POST / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
    ],
)
def test_a_client_that_speaks_another_protocol_is_named_as_such_in_the_log(sent, spoken, caplog):
    @on_loop
    async def scenario():
        async with serving() as (_, address), connected(*address) as wire:
            wire.send_raw(sent)
            assert await wire.closed_by_peer()

    scenario()
    assert f"it speaks {spoken}, and this listener (PLAINTEXT) speaks Kafka in plain text" in caplog.text


@on_loop
async def test_a_frame_of_the_largest_size_is_served():
    async with serving(max_request_bytes=3_000_000) as (_, address), connected(*address) as wire:
        body = OTHER + bytes(3_000_000 - 2)
        wire.send(body)
        assert await wire.receive() == body


@on_loop
async def test_the_good_requests_before_a_bad_frame_are_answered():
    async with serving() as (_, address), connected(*address) as wire:
        wire.send_raw(framed(OTHER + b"1") + framed(OTHER + b"2") + struct.pack(">i", -5))
        assert await wire.receive() == OTHER + b"1"
        assert await wire.receive() == OTHER + b"2"
        assert await wire.closed_by_peer()


@on_loop
async def test_frames_that_arrive_byte_by_byte_are_put_together():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as wire:
        bodies = [OTHER + b"first", OTHER + bytes(range(200)), OTHER + b"x"]
        for byte in b"".join(map(framed, bodies)):
            wire.send_raw(bytes([byte]))
            await settle(2)
        for body in bodies:
            assert await wire.receive() == body


def test_frames_arrive_on_the_standard_loop_as_well():
    async def scenario():
        async with serving() as (_, address), connected(*address) as wire:
            for size in (1, 1000, 300_000, 5_000_000, 900_000, 900_000):
                body = OTHER + bytes(size)
                wire.send(body)
                assert await wire.receive() == body

    asyncio.run(scenario())


@on_loop
async def test_frames_cut_anywhere_are_put_together():
    bodies = [OTHER + bytes([n]) * size for n, size in enumerate([0, 5, 70_000, 1, 300_000, 2])]
    stream = b"".join(map(framed, bodies))
    async with serving() as (_, address):
        for step in (3, 1000, 65_537, 262_144, len(stream)):
            async with connected(*address) as wire:
                for at in range(0, len(stream), step) if step > 3 else [0, 3, 4, 6, 9, 1000]:
                    end = at + step if step > 3 else {0: 3, 3: 4, 4: 6, 6: 9, 9: 1000, 1000: len(stream)}[at]
                    wire.send_raw(stream[at:end])
                    await wire.writer.drain()
                    await settle(3)
                for body in bodies:
                    assert await wire.receive() == body


@on_loop
async def test_a_claimed_size_costs_memory_only_as_its_bytes_arrive():
    async with serving() as (server, address), connected(*address) as wire:
        wire.send_raw(struct.pack(">i", 100_000_000) + OTHER)
        await until(lambda: any(c._frame is not None for c in server.connections))
        (connection,) = server.connections
        for sent, held in ((0, 64 * 1024), (100_000, 1_200_000), (1_000_000, 1_200_000), (2_000_000, 5_000_000)):
            wire.send_raw(bytes(sent))
            expected = connection._missing - sent
            await until(partial(is_missing, connection, expected))
            assert len(connection._frame) + sum(map(len, connection._parts)) <= held
            assert server.request_bytes <= held


@on_loop
async def test_a_frame_larger_than_its_first_buffer_arrives_whole():
    body = OTHER + bytes(range(256)) * 20_000
    async with serving() as (_, address), connected(*address) as wire:
        wire.send(body)
        assert await wire.receive() == body


@on_loop
async def test_the_buffer_of_a_frame_is_used_again_when_nothing_refers_to_it():
    class Keeper(Script):
        kept = memoryview(b"")

        def dispatch(self, peer, frame):
            if frame[2:6] == b"keep":
                self.kept = memoryview(frame)[6:]
            return super().dispatch(peer, frame)

    script = Keeper()
    async with serving(script) as (server, address), connected(*address) as wire:
        buffers = set()
        for _ in range(3):
            wire.send(OTHER + bytes(900_000))
            await wire.receive()
            (spare,) = server.buffers.spare
            buffers.add(id(spare))
        assert len(buffers) == 1
        wire.send(OTHER + b"keep" + b"x" * 900_000)
        await wire.receive()
        wire.send(OTHER + b"y" * 900_000)
        assert await wire.receive() == OTHER + b"y" * 900_000
        assert bytes(script.kept) == b"x" * 900_000, "what somebody still looks at is not overwritten"


@on_loop
async def test_an_idle_connection_holds_no_buffer():
    async with serving() as (server, address), connected(*address) as wire:
        wire.send(OTHER + bytes(500_000))
        await wire.receive()
        (connection,) = server.connections
        assert connection._frame is None
        assert connection._head == b""


@on_loop
async def test_pipelined_requests_are_answered_in_order():
    async with serving() as (_, address), connected(*address) as wire:
        for n in range(1000):
            wire.send(OTHER + str(n).encode())
        for n in range(1000):
            assert await wire.receive() == OTHER + str(n).encode()


@on_loop
async def test_a_request_waits_until_the_one_before_it_is_answered():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as wire:
        wire.send(OTHER + b"later")
        wire.send(OTHER + b"next")
        await until(lambda: script.seen == [OTHER + b"later"])
        await settle()
        assert script.seen == [OTHER + b"later"]
        script.answer(b"later")
        assert await wire.receive() == b"later"
        assert await wire.receive() == OTHER + b"next"


@on_loop
async def test_produces_overlap_and_are_answered_in_order():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as wire:
        for n in range(3):
            wire.send(PRODUCE + b"later%d" % n)
        wire.send(PRODUCE + b"now")
        wire.send(OTHER + b"after")
        await until(lambda: len(script.seen) == 4)
        await settle()
        assert len(script.seen) == 4, "only a Produce may overtake waiting"
        script.answer(b"later2")
        script.answer(b"later0")
        assert await wire.receive() == b"later0"
        await settle()
        script.answer(b"later1")
        for expected in (b"later1", b"later2", PRODUCE + b"now", OTHER + b"after"):
            assert await wire.receive() == expected


@on_loop
async def test_a_produce_waits_for_another_kind_of_request():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as wire:
        wire.send(OTHER + b"later")
        wire.send(PRODUCE + b"now")
        await until(lambda: len(script.seen) == 1)
        await settle()
        assert len(script.seen) == 1
        script.answer(b"later")
        assert await wire.receive() == b"later"
        assert await wire.receive() == PRODUCE + b"now"


@on_loop
async def test_a_request_without_an_answer_keeps_the_order_of_the_others():
    async with serving() as (_, address), connected(*address) as wire:
        wire.send(PRODUCE + b"mute")
        wire.send(OTHER + b"1")
        wire.send(PRODUCE + b"mute")
        wire.send(OTHER + b"2")
        assert await wire.receive() == OTHER + b"1"
        assert await wire.receive() == OTHER + b"2"


@on_loop
async def test_a_refused_request_ends_the_connection_after_the_answers_before_it():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as wire:
        wire.send(PRODUCE + b"later")
        wire.send(PRODUCE + b"bad")
        wire.send(PRODUCE + b"never")
        await until(lambda: len(script.seen) == 2)
        script.answer(b"later")
        assert await wire.receive() == b"later"
        assert await wire.closed_by_peer()
        assert len(script.seen) == 2


@on_loop
async def test_reading_stops_while_enough_requests_are_queued():
    script = Script()
    async with serving(script, max_queued_requests=10) as (server, address), connected(*address) as wire:
        wire.send(OTHER + b"later")
        await until(lambda: bool(script.futures))
        for _ in range(1000):
            wire.send(OTHER + bytes(10_000))
            await settle(1)
        (connection,) = server.connections
        await until(lambda: connection._reading_paused)
        # What was already in the shared buffer is cut, nothing after it is read.
        limit = 10 + server_module.SHARED_BUFFER_BYTES // 10_000 + 1
        assert len(connection._queue) <= limit
        script.answer(b"later")
        await wire.receive()
        for _ in range(1000):
            assert len(await wire.receive()) == 10_002


@on_loop
async def test_reading_stops_while_enough_bytes_are_queued():
    script = Script()
    async with serving(script, max_queued_bytes=1_000_000) as (server, address), connected(*address) as wire:
        wire.send(OTHER + b"later")
        await until(lambda: bool(script.futures))
        for _ in range(50):
            wire.send(OTHER + bytes(400_000))
        (connection,) = server.connections
        await until(lambda: connection._reading_paused)
        assert connection._queued_bytes <= 1_000_000 + 400_002
        script.answer(b"later")
        await wire.receive()
        for _ in range(50):
            assert len(await wire.receive()) == 400_002


@on_loop
async def test_a_client_that_never_reads_costs_one_answer():
    script = Script()
    async with serving(script) as (server, address), connected(*address) as wire:
        wire.pause_reading()
        for _ in range(200):
            wire.send(OTHER + b"big1000000")
        (connection,) = await first_connection(server)
        await until(lambda: not connection._writable)
        handled = len(script.seen)
        await asyncio.sleep(0.05)
        assert len(script.seen) == handled, "handling goes on although nobody reads"
        buffered = connection.transport.get_write_buffer_size()
        assert buffered <= 1_000_004 + server_module.WRITE_HIGH_WATER_BYTES
        wire.resume_reading()
        for _ in range(200):
            assert len(await wire.receive()) == 1_000_000


@on_loop
async def test_the_more_is_held_for_clients_that_do_not_read_the_smaller_answers_become():
    async with serving() as (server, address):
        largest = server.max_response_bytes()
        async with connected(*address) as wire:
            wire.pause_reading()
            wire.send(OTHER + b"big20000000")
            await until(lambda: server.held_bytes > 5_000_000)
            held = server.held_bytes
            assert server.max_response_bytes() == largest, "there is plenty"
            server.held_bytes = server_module.MAX_HELD_BYTES - 100_000
            assert server.max_response_bytes() == 100_000
            server.held_bytes = 2 * server_module.MAX_HELD_BYTES
            assert server.max_response_bytes() == server_module.MIN_RESPONSE_BYTES
            server.held_bytes = held
        await until(lambda: not server.connections)
        assert server.held_bytes == 0


@on_loop
async def test_what_was_held_is_not_counted_once_it_was_read():
    async with serving() as (server, address), connected(*address) as wire:
        wire.pause_reading()
        wire.send(OTHER + b"big20000000")
        await until(lambda: server.held_bytes > 0)
        wire.resume_reading()
        assert len(await wire.receive()) == 20_000_000
        await until(lambda: server.held_bytes == 0)


async def first_connection(server):
    await until(lambda: bool(server.connections))
    return tuple(server.connections)


@on_loop
async def test_one_busy_connection_does_not_starve_the_others():
    script = Script()
    async with serving(script) as (_, address), connected(*address) as busy, connected(*address) as other:
        busy.send_raw(framed(OTHER + b"b") * 3000)
        other.send(OTHER + b"o")
        assert await other.receive() == OTHER + b"o"
        behind = script.seen.index(OTHER + b"o")
        assert behind < 3000


@on_loop
async def test_too_many_connections_are_refused_and_later_ones_are_served_again():
    async with serving(limits=ServerLimits(max_connections=2)) as (server, address):
        async with connected(*address) as first, connected(*address):
            await until(lambda: len(server.connections) == 2)
            async with connected(*address) as third:
                assert await third.closed_by_peer()
            first.send(OTHER + b"still served")
            assert await first.receive() == OTHER + b"still served"
        await until(lambda: not server.connections)
        async with connected(*address) as again:
            again.send(OTHER + b"again")
            assert await again.receive() == OTHER + b"again"


def test_refused_connections_leave_a_line_with_the_setting(caplog):
    @on_loop
    async def scenario():
        async with serving(limits=ServerLimits(max_per_ip=1)) as (server, address), connected(*address):
            await until(lambda: len(server.connections) == 1)
            async with connected(*address) as second:
                assert await second.closed_by_peer()
        assert "max.connections.per.ip=1" in caplog.text

    scenario()


def test_a_flood_of_bad_frames_does_not_flood_the_log(caplog):
    @on_loop
    async def scenario():
        async with serving() as (_, address):
            for _ in range(50):
                async with connected(*address) as wire:
                    wire.send_raw(b"\xff" * 4)
                    assert await wire.closed_by_peer()

    with caplog.at_level(logging.WARNING):
        scenario()
    assert 1 <= len([r for r in caplog.records if "closed" in r.message]) <= 30


@on_loop
async def test_idle_connections_are_closed_and_busy_ones_are_not():
    script = Script()
    async with (
        serving(script, max_idle_ms=100) as (_, address),
        connected(*address) as idle,
        connected(*address) as busy,
    ):
        busy.send(OTHER + b"later")
        assert await idle.closed_by_peer()
        await asyncio.sleep(0.2)
        script.answer(b"later")
        assert await busy.receive() == b"later"


@on_loop
async def test_requests_that_come_before_the_broker_is_ready_wait():
    script = Script()
    server = Server(real_runtime(), script)
    listener = await server.listen("127.0.0.1", 0)
    async with connected("127.0.0.1", listener.port) as wire:
        wire.send(OTHER + b"early")
        await until(lambda: any(c._queue for c in server.connections))
        assert script.seen == []
        server.open()
        assert await wire.receive() == OTHER + b"early"
    await server.stop(0.0, lambda: None)


@on_loop
async def test_stopping_answers_what_was_asked_and_then_hangs_up():
    script = Script()
    server = Server(real_runtime(), script)
    server.open()
    listener = await server.listen("127.0.0.1", 0)
    async with connected("127.0.0.1", listener.port) as waiting, connected("127.0.0.1", listener.port) as idle:
        waiting.send(OTHER + b"later")
        waiting.send(OTHER + b"queued")
        await until(lambda: bool(script.futures))
        await until(lambda: len(server.connections) == 2)
        stopping = asyncio.ensure_future(server.stop(10.0, lambda: script.answer(b"later")))
        assert await waiting.receive() == b"later"
        assert await waiting.receive() == OTHER + b"queued"
        assert await waiting.closed_by_peer()
        assert await idle.closed_by_peer()
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", listener.port)


@on_loop
async def test_stopping_does_not_wait_for_ever():
    script = Script()
    server = Server(real_runtime(), script)
    server.open()
    listener = await server.listen("127.0.0.1", 0)
    async with connected("127.0.0.1", listener.port) as wire:
        wire.send(OTHER + b"later")
        await until(lambda: bool(script.futures))
        await server.stop(0.05, lambda: None)
        assert await wire.closed_by_peer()


@on_loop
async def test_a_parked_answer_is_cancelled_and_a_running_task_is_not_when_the_client_goes_away():
    script = Script()
    async with serving(script) as (server, address):
        async with connected(*address) as wire, connected(*address) as other:
            wire.send(OTHER + b"later")
            other.send(OTHER + b"task")
            await until(lambda: len(script.futures) == 2)
        await until(lambda: not server.connections)
        assert script.futures[b"later"].cancelled()
        assert not script.futures[b"task"].cancelled()
        script.futures[b"task"].set_result(None)
        await settle()


@on_loop
async def test_two_thousand_idle_connections_leave_the_server_quick():
    async with serving() as (server, address):
        clients = []
        try:
            for _ in range(2000):
                clients.append(await asyncio.open_connection(*address))
            await until(lambda: len(server.connections) == 2000)
            async with connected(*address) as wire:
                wire.send(OTHER + b"hello")
                assert await wire.receive() == OTHER + b"hello"
        finally:
            for _, writer in clients:
                writer.transport.abort()
        await until(lambda: len(server.connections) <= 1)
