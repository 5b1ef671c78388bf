"""The simulated network: streams that keep their order, and faults that a test asks for."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.runtime.sim import Simulation

T = TypeVar("T")


class Recorder(asyncio.Protocol):
    """Remembers everything that happens to it."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.lost = asyncio.get_running_loop().create_future()

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.messages.append(data)

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc
        self.lost.set_result(exc)


Body = Callable[[Simulation, Recorder, Recorder], Awaitable[T]]


def with_pair(body: Body[T], *, seed: int = 0) -> T:
    """Run `body` with a connection from node "client" to node "server"."""

    async def main(sim: Simulation) -> T:
        client, server = await connect(sim)
        return await body(sim, client, server)

    with Simulation(seed) as sim:
        return sim.run(main(sim), timeout_s=3600)


async def connect(sim: Simulation) -> tuple[Recorder, Recorder]:
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    listener = await sim.runtime("server").network.listen(accept, "", 0)
    _, protocol = await sim.runtime("client").network.connect(Recorder, "server", listener.port)
    assert isinstance(protocol, Recorder)
    listener.close()
    return protocol, accepted[0]


def test_messages_arrive_in_order_after_a_delay_and_close_ends_both_sides() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        started = sim.now_s
        client.transport.write(b"hello ")
        client.transport.writelines([b"wor", bytearray(b"ld"), memoryview(b"!")])
        assert server.messages == []
        await asyncio.sleep(1)
        assert server.messages == [b"hello ", b"world!"]
        server.transport.write(b"bye")
        server.transport.close()
        assert server.transport.is_closing()
        server.transport.write(b"ignored")
        assert await client.lost is None and await server.lost is None
        assert sim.now_s > started
        assert client.messages == [b"bye"]
        assert client.events == ["made", "eof", "lost"]
        assert server.events == ["made", "lost"]

    with_pair(body)


@given(st.integers(0, 2**32), st.lists(st.binary(min_size=1, max_size=30), max_size=30), st.floats(0, 0.2))
def test_what_arrives_is_a_prefix_of_what_was_sent(seed: int, messages: list[bytes], drop: float) -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.set_link("client", "server", drop=drop, split=0.3)
        for message in messages:
            client.transport.write(message)
            await asyncio.sleep(sim.random.choice((0, 0, 0.001)))
        await asyncio.sleep(5)
        sent = b"".join(messages)
        assert sent.startswith(server.data)
        if server.data != sent:
            assert isinstance(client.error, ConnectionResetError) and isinstance(server.error, ConnectionResetError)
        else:
            assert not client.lost.done()

    with_pair(body, seed=seed)


def test_lost_message_breaks_the_connection_on_both_sides() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        client.transport.write(b"arrives")
        sim.network.set_link("client", "server", drop=1.0, one_way=True)
        client.transport.write(b"is lost")
        sim.network.set_link("client", "server", drop=0.0)
        client.transport.write(b"is behind the gap")
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.data == b"arrives"
        client.transport.write(b"into the void")

    with_pair(body)


def test_duplicate_delivers_twice_and_split_cuts_a_message() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.set_link("client", "server", duplicate=1.0)
        client.transport.write(b"twice")
        await asyncio.sleep(1)
        assert server.messages == [b"twice", b"twice"]
        sim.network.set_link("client", "server", duplicate=0.0, split=1.0)
        server.messages.clear()
        client.transport.write(b"in parts")
        await asyncio.sleep(1)
        assert len(server.messages) == 2 and server.data == b"in parts"

    with_pair(body)


def test_latency_is_that_of_the_link() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.set_link("client", "server", latency_s=(2.0, 3.0), one_way=True)
        client.transport.write(b"slow")
        server.transport.write(b"fast")
        await asyncio.sleep(0.5)
        assert (client.data, server.data) == (b"fast", b"")
        await asyncio.sleep(1.4)
        assert server.data == b""
        await asyncio.sleep(1.2)
        assert server.data == b"slow"

    with_pair(body)


def test_connections_overtake_each_other() -> None:
    orders = set[bytes]()
    for seed in range(20):

        async def main(sim: Simulation) -> bytes:
            order: list[bytes] = []

            class Collect(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    order.append(data)

            listener = await sim.runtime("b").network.listen(Collect, "b", 0)
            network = sim.runtime("a").network
            transports = [(await network.connect(asyncio.Protocol, "b", listener.port))[0] for _ in range(2)]
            for name, transport in zip((b"1", b"2"), transports, strict=True):
                transport.write(name)
            await asyncio.sleep(1)
            return b"".join(order)

        with Simulation(seed) as sim:
            orders.add(sim.run(main(sim)))
    assert orders == {b"12", b"21"}


def test_partition_stalls_messages_and_heal_delivers_them_in_order() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        cut = sim.network.partition("client", "server")
        for n in range(5):
            client.transport.write(b"%d" % n)
            server.transport.write(b"%d" % (9 - n))
        await asyncio.sleep(10)
        assert server.data == client.data == b""
        cut.heal()
        await asyncio.sleep(1)
        assert (server.data, client.data) == (b"01234", b"98765")
        assert not client.lost.done() and not server.lost.done()

    with_pair(body)


def test_one_way_partition_stops_one_direction() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.partition(["client"], ["server"], one_way=True)
        client.transport.write(b"a")
        server.transport.write(b"b")
        await asyncio.sleep(1)
        assert (server.data, client.data) == (b"", b"b")

    with_pair(body)


def test_partition_from_all_others_spares_connections_within() -> None:
    async def main(sim: Simulation) -> None:
        sim.network.partition(["a", "b"])
        sim.network.partition("c", ["a", "c"])
        for node in "abc":
            await sim.runtime(node).network.listen(Recorder, "", 9092)
        await sim.runtime("a").network.connect(Recorder, "b", 9092)
        await sim.runtime("c").network.connect(Recorder, "localhost", 9092)
        with pytest.raises(TimeoutError):
            await sim.runtime("c").network.connect(Recorder, "a", 9092)
        sim.network.heal()
        await sim.runtime("c").network.connect(Recorder, "a", 9092)

    with Simulation(0) as sim:
        sim.run(main(sim), timeout_s=100)


def test_long_partition_breaks_the_sender_only_and_the_other_end_learns_when_it_sends() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.partition("client", "server")
        client.transport.write(b"never arrives")
        error = await client.lost
        assert isinstance(error, TimeoutError) and error.errno == errno.ETIMEDOUT
        sim.network.heal()
        await asyncio.sleep(100)
        assert not server.lost.done() and server.data == b""
        server.transport.write(b"anybody there?")
        assert isinstance(await server.lost, ConnectionResetError)
        assert client.data == b""

    with_pair(body)


def test_message_stalled_on_its_way_to_a_lost_end_is_answered_by_a_reset_after_the_heal() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.partition("client", "server")
        client.transport.write(b"never arrives")
        await client.lost
        server.transport.write(b"anybody there?")
        await asyncio.sleep(1)
        sim.network.heal()
        healed_at = sim.now_s
        assert isinstance(await server.lost, ConnectionResetError)
        assert sim.now_s - healed_at < 1

    with_pair(body)


def test_connect_through_a_partition_waits_for_heal_or_times_out() -> None:
    async def main(sim: Simulation) -> None:
        await sim.runtime("b").network.listen(Recorder, "b", 9092)
        sim.network.partition("a", "b")
        started = sim.now_s
        with pytest.raises(TimeoutError):
            await sim.runtime("a").network.connect(Recorder, "b", 9092)
        assert sim.now_s - started == pytest.approx(sim.network.connect_timeout_s)
        attempt = sim.runtime("a").spawn(sim.runtime("a").network.connect(Recorder, "b", 9092), name="connect")
        await asyncio.sleep(5)
        assert not attempt.done()
        sim.network.heal()
        await attempt

    with Simulation(0) as sim:
        sim.run(main(sim), timeout_s=100)


def test_a_port_without_a_listener_is_refused_and_a_taken_port_too() -> None:
    async def main(sim: Simulation) -> None:
        network = sim.runtime("a").network
        with pytest.raises(ConnectionRefusedError, match="no node listens on b:9092"):
            await network.connect(Recorder, "b", 9092)
        listener = await network.listen(Recorder, "a", 9092)
        with pytest.raises(OSError, match="already in use"):
            await network.listen(Recorder, "0.0.0.0", 9092)
        with pytest.raises(OSError, match="the host is a"):
            await network.listen(Recorder, "elsewhere", 9093)
        await sim.runtime("b").network.listen(Recorder, "", 9092)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Recorder, "a", 9092)
        first, second = [await network.listen(Recorder, "", 0) for _ in range(2)]
        assert first.port != second.port

    with Simulation(0) as sim:
        sim.run(main(sim))


def test_addresses_are_known_on_both_sides() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        assert client.transport.get_extra_info("peername") == server.transport.get_extra_info("sockname")
        assert client.transport.get_extra_info("sockname") == server.transport.get_extra_info("peername")
        assert server.transport.get_extra_info("peername")[0] == "client"

    with_pair(body)


def test_reset_breaks_every_connection_between_two_nodes() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        client.transport.write(b"under way")
        assert sim.network.reset("client", "elsewhere") == 0
        assert sim.network.reset("client", "server") == 1
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.data == b""

    with_pair(body)


def test_reader_that_pauses_stops_the_writer_and_gets_everything_after_resuming() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        client.transport.set_write_buffer_limits(high=10_000, low=1_000)
        assert client.transport.get_write_buffer_limits() == (1_000, 10_000)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        chunk = b"x" * 8_000
        written = 0
        while "pause" not in client.events:
            client.transport.write(chunk)
            written += len(chunk)
        assert written > sim.network.window_bytes
        assert client.transport.get_write_buffer_size() > 10_000
        await asyncio.sleep(10)
        assert server.data == b"" and client.events == ["made", "pause"]
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(server.data) == written
        assert client.events == ["made", "pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0

    with_pair(body)


def test_pausing_inside_data_received_holds_the_next_message() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        receive = server.data_received

        def receive_one(data: bytes) -> None:
            receive(data)
            server.transport.pause_reading()

        server.data_received = receive_one
        for n in range(3):
            client.transport.write(b"%d" % n)
        for n in range(1, 4):
            await asyncio.sleep(1)
            assert len(server.messages) == n
            server.transport.resume_reading()
        assert server.data == b"012"

    with_pair(body)


def test_resuming_inside_data_received_never_nests_the_next_call() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        receive = server.data_received
        depths, depth = list[int](), 0

        def receive_and_toggle(data: bytes) -> None:
            nonlocal depth
            depth += 1
            depths.append(depth)
            server.transport.pause_reading()
            server.transport.resume_reading()
            receive(data)
            depth -= 1

        server.transport.pause_reading()
        server.data_received = receive_and_toggle
        for n in range(3):
            client.transport.write(b"%d" % n)
        await asyncio.sleep(1)
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.data == b"012" and depths == [1, 1, 1]

    with_pair(body)


def test_close_flushes_to_a_slow_reader_before_it_ends() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        server.transport.pause_reading()
        client.transport.write(b"y" * 500_000)
        client.transport.close()
        await asyncio.sleep(10)
        assert not client.lost.done()
        server.transport.resume_reading()
        assert await server.lost is None and await client.lost is None
        assert len(server.data) == 500_000

    with_pair(body)


def test_closing_with_unread_data_resets_the_sender_instead_of_leaving_it_waiting() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        server.transport.pause_reading()
        client.transport.write(b"z" * 500_000)
        await asyncio.sleep(1)
        server.transport.close()
        await server.lost
        await client.lost
        assert client.events[-1] == "lost"

    with_pair(body)


def test_abort_discards_what_is_under_way_and_resets_the_peer() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        client.transport.write(b"never read")
        client.transport.abort()
        assert await client.lost is None
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.data == b""

    with_pair(body)


def test_half_close_lets_the_other_side_answer() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        def answer() -> bool:
            server.transport.write(b"answer to " + server.data)
            return True

        server.eof_received = answer
        client.transport.write(b"question")
        assert client.transport.can_write_eof()
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert client.data == b"answer to question"
        server.transport.close()
        assert await client.lost is None

    with_pair(body)


def test_buffered_protocol_receives_through_its_buffer() -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(3)
            self.data = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.buffer[:nbytes]

    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        buffered = Buffered()
        server.transport.set_protocol(buffered)
        assert server.transport.get_protocol() is buffered
        client.transport.write(b"0123456789")
        await asyncio.sleep(1)
        assert buffered.data == b"0123456789"

    with_pair(body)


def test_protocol_that_raises_loses_its_connection_and_fails_the_run() -> None:
    lost: list[Exception | None] = []

    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        def explode(data: bytes) -> None:
            raise ValueError("bad frame")

        server.data_received = explode
        client.transport.write(b"garbage")
        lost.extend([await server.lost, await client.lost])

    with pytest.raises(BaseExceptionGroup) as raised:
        with_pair(body)
    assert [str(error) for error in raised.value.exceptions] == ["bad frame"]
    assert str(lost[0]) == "bad frame" and isinstance(lost[1], ConnectionResetError)


def test_killed_process_resets_its_peers_at_once() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        server.transport.write(b"last words")
        sim.crash("server", power_cut=False)
        assert isinstance(await client.lost, ConnectionResetError)
        assert server.events == ["made"], "a dead node hears nothing"
        server.transport.write(b"from the grave")
        server.transport.close()
        await asyncio.sleep(1)
        assert client.data == b""

    with_pair(body)


def test_node_that_dies_in_the_moment_of_a_reset_hears_nothing() -> None:
    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.network.reset("client")
        sim.crash("server")
        await client.lost
        await asyncio.sleep(1)
        assert server.events == ["made"]

    with_pair(body)


def test_peer_of_a_machine_without_power_learns_at_once_or_when_it_sends() -> None:
    noticed = set[bool]()

    async def body(sim: Simulation, client: Recorder, server: Recorder) -> None:
        sim.crash("server")
        sim.runtime("server")
        await asyncio.sleep(1000)
        noticed.add(client.lost.done())
        client.transport.write(b"still there?")
        assert isinstance(await client.lost, ConnectionResetError)
        assert server.data == b""

    for seed in range(20):
        with_pair(body, seed=seed)
    assert noticed == {True, False}


def test_listener_dies_with_its_node_and_its_port_is_free_after_the_restart() -> None:
    async def main(sim: Simulation) -> None:
        await sim.runtime("b").network.listen(Recorder, "", 9092)
        sim.crash("b")
        with pytest.raises(ConnectionRefusedError):
            await sim.runtime("a").network.connect(Recorder, "b", 9092)
        await sim.runtime("b").network.listen(Recorder, "", 9092)
        await sim.runtime("a").network.connect(Recorder, "b", 9092)

    with Simulation(0) as sim:
        sim.run(main(sim))


def test_node_that_crashes_while_connecting_leaves_no_connection_behind() -> None:
    ends = list[Recorder]()

    def accept() -> Recorder:
        ends.append(Recorder())
        return ends[-1]

    async def main(sim: Simulation) -> None:
        client = sim.runtime("a")
        await sim.runtime("b").network.listen(accept, "", 9092)
        sim.network.set_link("a", "b", latency_s=(1.0, 1.0))
        attempt = client.spawn(client.network.connect(Recorder, "b", 9092), name="connect")
        await asyncio.sleep(1.5)
        sim.crash("a", power_cut=False)
        with contextlib.suppress(asyncio.CancelledError):
            await attempt
        assert isinstance(await ends[0].lost, ConnectionResetError)

    with Simulation(0) as sim:
        sim.run(main(sim), timeout_s=100)


def test_cancelled_connect_resets_what_the_other_side_had_accepted() -> None:
    ends = list[Recorder]()

    def accept() -> Recorder:
        ends.append(Recorder())
        return ends[-1]

    async def main(sim: Simulation) -> None:
        await sim.runtime("b").network.listen(accept, "", 9092)
        sim.network.set_link("a", "b", latency_s=(1.0, 1.0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sim.runtime("a").network.connect(Recorder, "b", 9092), 1.5)
        assert isinstance(await ends[0].lost, ConnectionResetError)

    with Simulation(0) as sim:
        sim.run(main(sim), timeout_s=100)


def test_tasks_started_by_a_protocol_belong_to_its_node() -> None:
    ran = list[str]()

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            self.task = asyncio.get_running_loop().create_task(self.work())

        async def work(self) -> None:
            await asyncio.sleep(1)
            ran.append("finished")

    async def main(sim: Simulation, crash: bool) -> None:
        listener = await sim.runtime("b").network.listen(Server, "", 0)
        transport, _ = await sim.runtime("a").network.connect(asyncio.Protocol, "b", listener.port)
        transport.write(b"go")
        await asyncio.sleep(0.5)
        if crash:
            sim.crash("b")
        await asyncio.sleep(2)

    for crash in (True, False):
        with Simulation(0) as sim:
            sim.run(main(sim, crash))
    assert ran == ["finished"]
