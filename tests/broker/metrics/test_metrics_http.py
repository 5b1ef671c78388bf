"""`/metrics` over HTTP on a simulated network: good requests, bad ones, slow ones, and those who never stop asking."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twofold.broker.metrics.http import (
    ANSWER_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    REQUEST_TIMEOUT_S,
    BadRequest,
    MetricsServer,
    NotNow,
    parse,
)
from twofold.runtime.sim import Simulation

PORT = 9100
PAGE = b"a_metric 1\n" * 100
GOOD = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"


class Client(asyncio.Protocol):
    """Keeps what arrives."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.data = b""
        self.closed_at: float | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_at = self.world.now

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def answers(self) -> list[tuple[int, bytes]]:
        """(status, body) of what has arrived, each to its last byte."""
        found = []
        rest = self.data
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            matched = re.search(rb"^Content-Length: (\d+)", head, re.M)
            assert matched is not None, head
            size = int(matched.group(1))
            assert len(rest) >= size
            found.append((int(head.split()[1]), rest[:size]))
            rest = rest[size:]
        return found

    @property
    def statuses(self) -> list[int]:
        return [status for status, _ in self.answers()]


class World:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.runtime = sim.runtime("node")
        self.made = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.page = PAGE
        self.is_well = True
        self.server = MetricsServer(self.runtime, self.make, {"/readyz": lambda: (self.is_well, "why\n")})

    @property
    def now(self) -> float:
        return self.runtime.clock.monotonic()

    async def make(self) -> bytes:
        self.made += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.page

    async def connect(self, data: bytes = b"") -> Client:
        network = self.sim.runtime("client").network
        _, client = await network.connect(lambda: Client(self), "node", PORT)
        assert isinstance(client, Client)
        if data:
            client.send(data)
        return client

    async def sleep(self, seconds: float) -> None:
        await self.runtime.timers.sleep(seconds)

    async def ask(self, data: bytes) -> Client:
        client = await self.connect(data)
        await self.sleep(1)
        return client


def play(story: Callable[[World], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            world = World(sim)
            await world.server.listen("node", PORT)
            await story(world)
            world.server.stop()
            assert not world.server.sessions or await _all_gone(world)

        sim.run(main(), timeout_s=3600)


async def _all_gone(world: World) -> bool:
    await world.sleep(1)
    return not world.server.sessions


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    import functools
    import inspect

    @functools.wraps(test)
    def wrapper(**arguments: Any) -> None:
        play(lambda world: test(world, **arguments))

    parameters = list(inspect.signature(test).parameters.values())[1:]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapper


# What is answered


@story
async def test_a_get_is_answered_with_the_page_and_the_connection_stays(world: World) -> None:
    client = await world.ask(GOOD)
    assert client.answers() == [(200, PAGE)]
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in client.data
    assert client.closed_at is None
    client.send(GOOD)
    await world.sleep(1)
    assert client.statuses == [200, 200]


@story
async def test_head_has_the_length_of_the_page_and_no_body(world: World) -> None:
    client = await world.ask(GOOD.replace(b"GET", b"HEAD"))
    assert client.data.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(PAGE)}\r\n".encode() in client.data
    assert client.data.endswith(b"\r\n\r\n")


@story
async def test_a_probe_is_answered_with_200_or_503_and_its_reasons(world: World) -> None:
    asked = GOOD.replace(b"/metrics", b"/readyz")
    client = await world.ask(asked)
    world.is_well = False
    client.send(asked)
    await world.sleep(1)
    assert client.answers() == [(200, b"why\n"), (503, b"why\n")]
    assert client.closed_at is None and world.made == 0
    refused = await world.ask(asked.replace(b"GET", b"POST"))
    assert refused.statuses == [405]


@story
async def test_a_probe_is_answered_while_the_page_is_being_made(world: World) -> None:
    world.gate = asyncio.Event()
    waiting = await world.ask(GOOD)
    assert (await world.ask(GOOD.replace(b"/metrics", b"/readyz"))).statuses == [200]
    assert waiting.statuses == []
    world.gate.set()
    await world.sleep(1)
    assert waiting.statuses == [200]


@story
async def test_a_page_that_cannot_be_made_at_this_moment_is_a_503_with_the_reason(world: World) -> None:
    world.error = NotNow("the broker is starting")
    assert (await world.ask(GOOD)).answers() == [(503, b"the broker is starting\n")]


@story
async def test_another_path_is_told_which_ones_there_are(world: World) -> None:
    client = await world.ask(GOOD.replace(b"/metrics", b"/health"))
    assert client.answers() == [(404, b"/health is not here: /metrics, /readyz\n")]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", 200),
        (b"GET /metrics?name[]=up HTTP/1.1", 200),
        (b"GET http://node:9100/metrics HTTP/1.1", 200),
        (b"GET /metrics HTTP/1.9", 200),
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"GET /Metrics HTTP/1.1", 404),
        (b"GET /../../etc/passwd HTTP/1.1", 404),
        (b"GET http://node HTTP/1.1", 404),
        (b"POST / HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"DELETE /metrics HTTP/1.1", 405),
        (b"OPTIONS /metrics HTTP/1.1", 405),
        (b"get /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2.0", 505),
        (b"GET /metrics HTTP/0.9", 505),
        (b"GET /metrics", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"GET /metrics HTTP/1.1 ", 400),
        (b"GET /met rics HTTP/1.1", 400),
        (b" GET /metrics HTTP/1.1", 400),
        (b"GET /metrics http/1.1", 400),
        (b"GET /metrics HTTP/1.x", 400),
        (b"G(T /metrics HTTP/1.1", 400),
        ("GET /mätrics HTTP/1.1".encode(), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\x00\x00\x00\x20\x00\x12\x00\x03\x00\x00\x00\x01", 400),
    ],
    ids=repr,
)
@story
async def test_request_lines_and_their_answers(world: World, request_line: bytes, status: int) -> None:
    client = await world.ask(request_line + b"\r\nHost: node\r\n\r\n")
    assert client.statuses == [status]
    assert (b"Allow: GET, HEAD\r\n" in client.data) == (status == 405)
    assert (client.closed_at is not None) == (status in (400, 505)), "a stream that makes no sense is not read on"
    assert world.made == (status == 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", 400),
        (b"Host: node\r\nUser-Agent: Prometheus/3\r\nAccept: */*;q=0.5\r\nAccept-Encoding: gzip\r\n", 200),
        (b"HOST:node\r\n", 200),
        (b"Host : node\r\n", 400),
        (b"Host node\r\n", 400),
        (b"Host: node\r\n folded: line\r\n", 400),
        (b"Host: node\r\n: empty\r\n", 400),
        (b"Host: node\r\nX: \xff\r\n", 400),
    ],
    ids=repr,
)
@story
async def test_headers_and_their_answers(world: World, headers: bytes, status: int) -> None:
    client = await world.ask(b"GET /metrics HTTP/1.1\r\n" + headers + b"\r\n")
    assert client.statuses == [status]


@pytest.mark.parametrize(
    ("version", "connection", "stays"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: TE, Close\r\n", False),
        (b"1.1", b"Connection: keep-alive\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
    ],
    ids=repr,
)
@story
async def test_the_request_decides_whether_the_connection_stays(
    world: World, version: bytes, connection: bytes, stays: bool
) -> None:
    client = await world.ask(b"GET /metrics HTTP/" + version + b"\r\nHost: node\r\n" + connection + b"\r\n")
    assert client.statuses == [200]
    assert (client.closed_at is None) == stays
    assert (b"Connection: keep-alive" in client.data) == stays


@pytest.mark.parametrize(
    "header", [b"Content-Length: 5", b"Content-Length: x", b"Transfer-Encoding: chunked"], ids=repr
)
@story
async def test_a_request_with_a_body_is_the_last_of_its_connection(world: World, header: bytes) -> None:
    client = await world.ask(b"GET /metrics HTTP/1.1\r\nHost: node\r\n" + header + b"\r\n\r\n" + GOOD)
    assert client.statuses == [200], "what follows may be the body: it is not taken for a request"
    assert client.closed_at is not None


@story
async def test_a_body_of_no_bytes_is_none(world: World) -> None:
    client = await world.ask(b"GET /metrics HTTP/1.1\r\nHost: node\r\nContent-Length: 0\r\n\r\n")
    assert client.statuses == [200] and client.closed_at is None


@story
async def test_lines_may_end_without_a_carriage_return(world: World) -> None:
    assert (await world.ask(b"\r\n\nGET /metrics HTTP/1.1\nHost: node\n\n")).statuses == [200]


# Pieces and pipelines


@story
async def test_a_request_may_come_byte_by_byte(world: World) -> None:
    client = await world.connect()
    for byte in GOOD:
        client.send(bytes([byte]))
        await world.sleep(0.1)
    await world.sleep(1)
    assert client.answers() == [(200, PAGE)]


@story
async def test_requests_in_one_piece_are_answered_in_order(world: World) -> None:
    other = b"GET /nothing HTTP/1.1\r\nHost: node\r\n\r\n"
    client = await world.ask(GOOD + other + GOOD.replace(b"GET", b"PUT") + GOOD)
    await world.sleep(1)
    assert client.statuses == [200, 404, 405, 200]


@story
async def test_a_thousand_requests_in_one_piece_are_answered(world: World) -> None:
    client = await world.connect(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n" * 1000)
    for _ in range(1000):
        await world.sleep(1)
        if client.data.count(b"HTTP/1.1 404") == 1000:
            break
    assert client.data.count(b"HTTP/1.1 404") == 1000


@story
async def test_nothing_more_is_read_while_a_request_is_answered(world: World) -> None:
    world.gate = asyncio.Event()
    client = await world.ask(GOOD)
    (session,) = world.server.sessions
    for _ in range(20):
        client.send(b"x" * 60_000)
        await world.sleep(0.1)
    assert len(session._received) <= 120_000
    world.gate.set()
    await world.sleep(1)
    assert client.statuses == [200, 431]
    assert client.closed_at is not None


@story
async def test_a_client_that_says_goodbye_after_asking_is_answered(world: World) -> None:
    world.gate = asyncio.Event()
    client = await world.connect(GOOD)
    client.transport.write_eof()
    await world.sleep(1)
    world.gate.set()
    await world.sleep(1)
    assert client.answers() == [(200, PAGE)]
    assert client.closed_at is not None


# Bounds


@story
async def test_a_head_that_does_not_end_is_refused(world: World) -> None:
    client = await world.ask(b"GET /metrics HTTP/1.1\r\nHost: node\r\nX: " + b"x" * MAX_HEAD_BYTES)
    assert client.statuses == [431] and client.closed_at is not None
    client = await world.ask(b"x" * (MAX_HEAD_BYTES + 1))
    assert client.statuses == [431] and client.closed_at is not None
    fits = b"GET /metrics HTTP/1.1\r\nHost: node\r\nX: "
    client = await world.ask(fits + b"x" * (MAX_HEAD_BYTES - len(fits)) + b"\r\n\r\n")
    assert client.statuses == [200]


@story
async def test_a_request_has_a_time_to_arrive(world: World) -> None:
    """Counted from its first byte: one byte now and then does not help."""
    client = await world.connect()
    await world.sleep(5)
    started = world.now
    for byte in GOOD[:-1]:
        if client.closed_at is None:
            client.send(bytes([byte]))
        await world.sleep(1)
    assert client.statuses == [408]
    assert client.closed_at is not None
    assert REQUEST_TIMEOUT_S <= client.closed_at - started < REQUEST_TIMEOUT_S + 1


@story
async def test_a_client_that_asks_nothing_is_sent_away(world: World) -> None:
    started = world.now
    silent, once = await world.connect(), await world.connect(GOOD)
    await world.sleep(2 * IDLE_TIMEOUT_S)
    for client in (silent, once):
        assert client.closed_at is not None
        assert IDLE_TIMEOUT_S <= client.closed_at - started < IDLE_TIMEOUT_S + 2
    assert silent.data == b"" and once.statuses == [200]


@story
async def test_a_client_that_does_not_read_the_answer_is_sent_away(world: World) -> None:
    world.page = b"x" * 10_000_000
    client = await world.connect()
    client.transport.pause_reading()
    client.send(GOOD)
    await world.sleep(ANSWER_TIMEOUT_S - 1)
    assert len(world.server.sessions) == 1
    await world.sleep(2)
    assert not world.server.sessions


@story
async def test_a_large_answer_arrives_whole_and_the_connection_goes_on(world: World) -> None:
    world.page = b"x" * 3_000_000
    client = await world.ask(GOOD + GOOD)
    await world.sleep(5)
    assert client.answers() == [(200, world.page)] * 2
    assert client.closed_at is None


@story
async def test_when_all_places_are_taken_the_longest_waiting_one_goes(world: World) -> None:
    clients = [await world.connect() for _ in range(MAX_CONNECTIONS)]
    clients[0].send(GOOD)  # it has asked since, so the second waits longest
    await world.sleep(1)
    newcomer = await world.ask(GOOD)
    assert newcomer.statuses == [200]
    assert [client.closed_at is not None for client in clients] == [False, True] + [False] * (MAX_CONNECTIONS - 2)
    assert len(world.server.sessions) == MAX_CONNECTIONS


@story
async def test_a_client_that_is_being_answered_is_not_sent_away_for_a_newcomer(world: World) -> None:
    world.gate = asyncio.Event()
    clients = [await world.connect(GOOD) for _ in range(MAX_CONNECTIONS)]
    await world.sleep(1)
    newcomer = await world.ask(GOOD)
    assert newcomer.statuses == [503] and newcomer.closed_at is not None
    world.gate.set()
    await world.sleep(1)
    assert [client.statuses for client in clients] == [[200]] * MAX_CONNECTIONS
    assert world.made == 1, "one page for all of them"


@story
async def test_each_later_scrape_gets_a_new_page(world: World) -> None:
    for _ in range(3):
        await world.ask(GOOD)
    assert world.made == 3


# Failures


@story
async def test_a_page_that_cannot_be_made_is_told_and_the_next_one_may_succeed(world: World) -> None:
    world.error = RuntimeError("broken")
    client = await world.ask(GOOD)
    assert client.statuses == [500]
    world.error = None
    client.send(GOOD)
    await world.sleep(1)
    assert client.statuses == [500, 200]


@story
async def test_a_client_that_leaves_while_the_page_is_made_harms_no_other(world: World) -> None:
    world.gate = asyncio.Event()
    leaving, staying = await world.connect(GOOD), await world.connect(GOOD)
    await world.sleep(1)
    leaving.transport.abort()
    await world.sleep(1)
    world.gate.set()
    await world.sleep(1)
    assert staying.statuses == [200]
    assert len(world.server.sessions) == 1


@story
async def test_stopping_ends_all_connections(world: World) -> None:
    world.gate = asyncio.Event()
    clients = [await world.connect(), await world.connect(GOOD)]
    await world.sleep(1)
    world.server.stop()
    await world.sleep(1)
    assert all(client.closed_at is not None for client in clients)


_pieces = st.sampled_from(
    [
        b"GET",
        b" ",
        b"/metrics",
        b"HTTP/1.1",
        b"\r\n",
        b"\n",
        b"\r",
        b"Host: n",
        b":",
        b"\x00",
        b"\xff",
        GOOD,
        b"x" * 900,
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(_pieces, st.binary(max_size=40)), max_size=12), st.booleans())
def test_whatever_is_sent_the_server_goes_on(chunks: list[bytes], ends: bool) -> None:
    async def tell(world: World) -> None:
        client = await world.connect()
        for chunk in chunks:
            if client.closed_at is None and chunk:
                client.send(chunk)
                await world.sleep(0.01)
        if ends and client.closed_at is None:
            client.transport.write_eof()
        await world.sleep(1)
        assert set(client.statuses) <= {200, 400, 404, 405, 431, 505}
        assert (await world.ask(GOOD)).answers() == [(200, PAGE)]

    play(tell)


@given(st.binary(max_size=200))
def test_a_head_is_understood_or_refused(head: bytes) -> None:
    try:
        path = parse(head).path
    except BadRequest:
        path = ""
    assert " " not in path and "?" not in path
