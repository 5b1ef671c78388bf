"""What all clients together can make a server hold is bounded, and those who behave are served meanwhile."""

import struct
from functools import partial

import pytest

from broker.network.test_server import OTHER, serving
from kits.node.sockets import connected, framed, on_loop, until
from twofold.broker.network import server as server_module
from twofold.broker.network.admission import ServerLimits
from twofold.broker.network.server import Server

MB = 1024 * 1024


def has_at_most(server: Server, connections: int) -> bool:
    return len(server.connections) <= connections


async def is_served(address) -> bool:
    async with connected(*address) as wire:
        wire.send(OTHER + b"hello")
        return await wire.receive() == OTHER + b"hello"


@on_loop
async def test_unfinished_requests_of_all_connections_stay_below_queued_max_request_bytes(caplog):
    async with serving(max_request_memory=8 * MB) as (server, address):
        attackers = []
        for number in range(24):
            attacker = connected(*address)
            wire = await attacker.__aenter__()
            attackers.append((attacker, wire))
            wire.send_raw(struct.pack(">i", 100 * MB) + bytes(MB))
            await until(partial(has_at_most, server, number + 1))
            assert server.request_bytes <= 8 * MB
            assert await is_served(address)
        await until(lambda: len(server.connections) < 12)
        assert await attackers[0][1].closed_by_peer(), "who has waited longest goes first"
        assert "queued.max.request.bytes allows 8388608" in caplog.text
        for attacker, _ in attackers:
            await attacker.__aexit__(None, None, None)
        await until(lambda: not server.connections)
        assert server.request_bytes == 0


@on_loop
async def test_requests_that_wait_behind_an_unread_answer_count_as_held_until_they_are_handled():
    async with serving() as (server, address), connected(*address) as wire:
        wire.pause_reading()
        wire.send(OTHER + b"big20000000")
        await until(lambda: server.held_bytes > 0)
        for _ in range(10):
            wire.send(OTHER + bytes(100_000))
        await until(lambda: server.request_bytes > 0)
        wire.resume_reading()
        assert len(await wire.receive()) == 20_000_000
        for _ in range(10):
            assert len(await wire.receive()) == 100_002
        assert server.request_bytes == 0


def test_answers_that_the_client_does_not_read_are_given_up_where_they_grow_too_many(monkeypatch, caplog):
    monkeypatch.setattr(server_module, "MAX_HELD_BYTES", 8 * MB)

    @on_loop
    async def scenario():
        async with serving() as (server, address):
            deaf = [connected(*address) for _ in range(12)]
            wires = [await one.__aenter__() for one in deaf]
            for number, wire in enumerate(wires):
                wire.pause_reading()
                wire.send(OTHER + b"big12000000")
                if number > 0:
                    await until(lambda: server.held_bytes > 0)
                assert await is_served(address)
            await until(lambda: server.held_bytes <= 2 * 8 * MB)
            assert "answers that are not read" in caplog.text
            assert len(server.connections) < 12
            for one in deaf:
                await one.__aexit__(None, None, None)
            await until(lambda: not server.connections)
            assert server.held_bytes == 0

    scenario()


@on_loop
async def test_a_byte_now_and_then_does_not_keep_a_connection_open():
    async with serving(max_idle_ms=400) as (server, address), connected(*address) as slow, connected(*address) as busy:
        request = framed(OTHER + bytes(100_000))
        sent = 0
        await until(lambda: len(server.connections) == 2)
        while len(server.connections) > 1 and sent < len(request):
            slow.send_raw(request[sent : sent + 1])
            sent += 1
            busy.send(OTHER + b"hello")
            assert await busy.receive() == OTHER + b"hello"
        assert await slow.closed_by_peer()
        assert sent < len(request)


@on_loop
async def test_large_pieces_of_a_request_are_activity():
    async with serving(max_idle_ms=400) as (server, address), connected(*address) as wire:
        body = OTHER + bytes(60 * 20_000)
        data = framed(body)
        loop_time = server.runtime.clock.monotonic
        begun = loop_time()
        for start in range(0, len(data), 20_000):
            wire.send_raw(data[start : start + 20_000])
            await server.runtime.timers.sleep(0.015)
        assert await wire.receive() == body
        assert loop_time() - begun > 0.8, "the test is about a request that takes longer than the limit"


@on_loop
async def test_connections_never_take_the_files_that_the_logs_need(caplog):
    async with serving(limits=ServerLimits(max_open_sockets=2)) as (server, address):
        async with connected(*address) as one, connected(*address) as two:
            await until(lambda: len(server.connections) == 2)
            async with connected(*address) as three:
                assert await three.closed_by_peer()
            for wire in (one, two):
                wire.send(OTHER + b"hello")
                assert await wire.receive() == OTHER + b"hello"
        assert "ulimit -n" in caplog.text


@on_loop
async def test_ten_thousand_requests_in_one_go_are_answered_in_order_when_they_are_read_at_last():
    async with serving() as (server, address), connected(*address) as wire:
        wire.pause_reading()
        for number in range(10_000):
            wire.send(OTHER + b"%09d" % number)
        assert await is_served(address)
        wire.resume_reading()
        for number in range(10_000):
            assert await wire.receive() == OTHER + b"%09d" % number
        assert (server.request_bytes, server.held_bytes) == (0, 0)


def test_the_rest_of_a_gzip_stream_is_not_copied_for_each_of_its_members():
    import gzip
    import time

    from twofold.records.compression import decompress

    member = gzip.compress(b"")
    begun = time.process_time()
    assert decompress(1, member * 10_000) == b""
    few = time.process_time() - begun
    begun = time.process_time()
    assert decompress(1, member * 40_000) == b""
    assert time.process_time() - begun < 12 * few + 0.5, (
        "four times as many members take four times as long, not sixteen"
    )


@pytest.mark.parametrize("count", [2**31 - 1, 2**27])
def test_a_lying_count_at_any_depth_is_refused_before_room_is_made_for_it(count):
    """kio's reader ends the process where it cannot have the memory."""
    from twofold.wire import codec

    # LeaveGroup 5: group id, then members; Produce 13 and others have arrays in arrays.
    varint = bytearray()
    value = count + 1
    while value > 127:
        varint.append(value & 127 | 128)
        value >>= 7
    varint.append(value)
    with pytest.raises(codec.Undecodable, match="items where"):
        codec.decode_request(13, 5, b"\x02g" + bytes(varint) + b"\0\0", 0)
    metadata = struct.pack(">i", count) + b"\0\0"
    with pytest.raises(codec.Undecodable, match="items where"):
        codec.decode_request(3, 0, metadata, 0)
    with pytest.raises(codec.Undecodable, match="items where"):
        codec.decode_response(3, 0, struct.pack(">i", 1) + metadata)


def test_more_entries_than_are_handled_at_once_are_refused():
    from twofold.wire import codec
    from twofold.wire.entries import MAX_ENTRIES

    for number in (MAX_ENTRIES, MAX_ENTRIES + 1):
        data = struct.pack(">i", number) + b"\0\0" * number
        if number <= MAX_ENTRIES:
            assert len(codec.decode_request(3, 0, data, 0).topics) == number
        else:
            with pytest.raises(codec.Undecodable, match="more than 120000 entries"):
                codec.decode_request(3, 0, data, 0)
