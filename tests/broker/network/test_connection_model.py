"""A connection under every interleaving: pieces of frames, answers in any order, a peer that reads and does not."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kits.node.sockets import framed
from twofold.broker.network.context import NO_RESPONSE, Frame, Later
from twofold.broker.network.dispatch import Dispatcher
from twofold.broker.network.options import ServerOptions
from twofold.broker.network.server import Server, ServerConnection
from twofold.broker.partitions.purgatory import MAX_CHUNKS, Unseen
from twofold.runtime.real import real_runtime

PRODUCE, OTHER = b"\x00\x00", b"\x00\x03"
NOW, LATER, NONE = b"now", b"later", b"none"

requests = st.lists(
    st.tuples(st.sampled_from([PRODUCE, OTHER]), st.sampled_from([NOW, LATER, NONE])), min_size=1, max_size=12
)


class Transport(asyncio.Transport):
    """Keeps what is written, and when nobody reads, what was asked of it."""

    def __init__(self):
        self.written = []
        self.reading = True
        self.closed = False

    def get_extra_info(self, name, default=None):
        return ("peer", 1)

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        assert not self.closed
        self.written.append(bytes(data))

    def writelines(self, parts):
        self.write(b"".join(parts))

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def close(self):
        self.closed = True

    abort = close


class Handler(Dispatcher):
    """Checks the rules of order at the moment a request is handled."""

    def __init__(self):
        self.seen = []
        self.open = {}
        self.paused = False

    def dispatch(self, peer, frame):
        assert not self.paused, "handled although the peer does not read"
        body = bytes(frame)
        self.seen.append(body)
        kind, number, how = body[:2], body[2], body[3:]
        if self.open:
            assert kind == PRODUCE, "only a Produce may be handled while others wait"
            assert all(other == PRODUCE for other, _ in self.open.values()), "and only behind other Produces"
        if how == LATER:
            future = asyncio.get_running_loop().create_future()
            self.open[number] = (kind, future)
            return Later(future, overlaps=kind == PRODUCE)
        return NO_RESPONSE if how == NONE else Frame([framed(body)])

    def answer(self, number, body):
        _, future = self.open.pop(number)
        future.set_result(Frame([framed(body)]))


@given(requests, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_answers_leave_in_the_order_of_their_requests_whatever_happens_when(sent, plan):
    """`plan`: which of the possible moves comes next, and how much of it; then everything goes on to its end."""
    bodies = [kind + bytes([number]) + how for number, (kind, how) in enumerate(sent)]
    stream = b"".join(map(framed, bodies))

    async def scenario():
        handler = Handler()
        server = Server(real_runtime(), handler, ServerOptions(max_queued_requests=3))
        server.open()
        connection = ServerConnection(server, "PLAINTEXT")
        transport = Transport()
        connection.connection_made(transport)
        left = stream
        choices = iter(plan)
        while left or handler.open or handler.paused or len(handler.seen) < len(bodies):
            moves = ["resume"] if handler.paused else []
            if left and transport.reading:
                moves.append("receive")
            if handler.open:
                moves.append("answer")
            choice, amount = next(choices, (0, 1000))
            if not moves or (choice == 2 and not handler.paused):
                moves = ["pause"]
            move = moves[choice % len(moves)]
            if move == "receive":
                buffer = connection.get_buffer(-1)
                taken = min(len(buffer), len(left), amount + 1)
                buffer[:taken], left = left[:taken], left[taken:]
                connection.buffer_updated(taken)
            elif move == "answer":
                number = sorted(handler.open)[amount % len(handler.open)]
                handler.answer(number, bodies[number])
            elif move == "pause":
                handler.paused = True
                connection.pause_writing()
            else:
                handler.paused = False
                connection.resume_writing()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert handler.seen == bodies
        assert transport.written == [framed(body) for body in bodies if not body.endswith(NONE)]
        assert not transport.closed

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 1000), st.integers(0, 8)), max_size=60))
def test_bytes_come_to_light_when_their_last_offset_is_passed_and_once_only(moves):
    unseen = Unseen()
    end = bound = 0
    chunks = []
    for count, size, advance in moves:
        end += count
        chunks.append((end, size))
        unseen.appended(end, size)
        bound = min(end, bound + advance)
        expected = sum(size for at, size in chunks if at <= bound)
        chunks = [(at, size) for at, size in chunks if at > bound]
        assert unseen.reached(bound) == expected
        assert unseen.reached(bound) == 0


def test_what_lies_beyond_a_bound_is_kept_in_bounded_memory_and_no_byte_is_lost():
    unseen = Unseen()
    for end in range(1, 10 * MAX_CHUNKS):
        unseen.appended(end, 7)
    assert len(unseen.chunks) <= MAX_CHUNKS
    assert unseen.reached(10) == 70
    assert unseen.reached(10 * MAX_CHUNKS) == 7 * (10 * MAX_CHUNKS - 1) - 70
