"""How many connections there may be, and how fast they may come."""

import pytest

from kits.node.sockets import connected, on_loop, until
from twofold.broker.network.admission import (
    BURST_S,
    ConnectionAdmission,
    ConnectionPace,
    ListenerLimits,
    ServerLimits,
)
from twofold.broker.network.context import Peer
from twofold.broker.network.options import ServerOptions
from twofold.broker.network.server import Server
from twofold.runtime.real import real_runtime


def peer(host: str = "10.0.0.1", listener: str = "A") -> Peer:
    return Peer(host, 1, listener)


def admission(**limits: object) -> ConnectionAdmission:
    made = ConnectionAdmission()
    made.limits = ServerLimits(**limits)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("limits", "inside", "refused", "admitted"),
    [
        ({"max_connections": 1}, [peer()], peer("10.0.0.2", "B"), None),
        ({"max_open_sockets": 1}, [peer()], peer("10.0.0.2", "B"), None),
        ({"max_per_ip": 1}, [peer()], peer(listener="B"), peer("10.0.0.2")),
        ({"max_per_ip": 0, "per_ip_overrides": {"10.0.0.1": 2}}, [peer(), peer()], peer(), None),
        ({"per_ip_overrides": {"10.0.0.1": 0}}, [], peer(), peer("10.0.0.2")),
        ({"listeners": {"A": ListenerLimits(max_connections=1)}}, [peer()], peer("10.0.0.2"), peer("10.0.0.2", "B")),
    ],
)
def test_each_limit_refuses_what_it_counts_and_nothing_else(limits, inside, refused, admitted):
    made = admission(**limits)
    for one in inside:
        assert made.refusal(one) is None
        made.enter(one)
    assert made.refusal(refused) is not None
    if admitted is not None:
        assert made.refusal(admitted) is None
    for one in inside:
        made.leave(one)
    if inside:
        assert made.refusal(inside[0]) is None


def test_a_burst_passes_and_what_follows_waits_for_its_turn():
    pace = ConnectionPace()
    assert [pace.take(2, 0.0) for _ in range(int(2 * BURST_S))] == [0.0] * 20
    assert [pace.take(2, 0.0) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert pace.take(2, 2.0) == 0.0
    assert pace.take(4, 2.0) == 0.0, "a changed rate begins anew"


def test_the_rates_of_broker_and_listener_count_together():
    made = admission(max_creation_rate=1, listeners={"A": ListenerLimits(max_creation_rate=100)})
    assert [made.wait_s(peer(), 0.0) for _ in range(11)] == [0.0] * 10 + [1.0]
    assert made.wait_s(peer(listener="B"), 0.0) == 2.0
    free = admission()
    assert [free.wait_s(peer(), 0.0) for _ in range(100)] == [0.0] * 100


def test_the_line_has_an_end_and_a_flood_is_over_for_others_when_it_is_over():
    made = admission(max_creation_rate=2, listeners={"A": ListenerLimits(max_creation_rate=100)})
    waits = [made.wait_s(peer(), 0.0) for _ in range(100_000)]
    assert waits[20:40] == [0.5 * turn for turn in range(1, 21)] and set(waits[40:]) == {None}
    assert made.wait_s(peer(), 5.0) == 5.5, "what was closed has taken no turn"
    assert made.wait_s(peer(), 60.0) == 0.0


def test_an_address_beyond_its_rate_comes_too_fast_and_others_do_not():
    made = ConnectionAdmission(lambda host: 1.0 if host == "10.0.0.1" else None)
    assert [made.comes_too_fast(peer(), 0.0) for _ in range(12)] == [False] * 10 + [True] * 2
    assert not made.comes_too_fast(peer("10.0.0.2"), 0.0)
    assert not made.comes_too_fast(peer(), 1.0), "what was closed does not count"


class Echo:
    def dispatch(self, peer, frame):
        from twofold.broker.network.context import Frame

        return Frame([len(frame).to_bytes(4, "big") + bytes(frame)])


@on_loop
async def test_a_connection_that_comes_too_soon_is_answered_when_it_is_its_turn():
    server = Server(real_runtime(), Echo(), ServerOptions(limits=ServerLimits(max_creation_rate=5)))  # type: ignore[arg-type]
    listener = await server.listen("127.0.0.1", 0)
    server.open()
    for _ in range(50):
        async with connected("127.0.0.1", listener.port) as wire:
            wire.send(b"burst")
            assert await wire.receive() == b"burst"
    loop_began = server.now()
    async with connected("127.0.0.1", listener.port) as wire:
        wire.send(b"later")
        assert await wire.receive() == b"later"
    assert server.now() - loop_began < 5
    await server.stop(0.0, lambda: None)


@on_loop
async def test_a_connection_of_an_address_that_comes_too_fast_is_held_unread_and_closed():
    server = Server(real_runtime(), Echo())  # type: ignore[arg-type]
    server.admission.rate_of = lambda host: 0.1
    listener = await server.listen("127.0.0.1", 0)
    server.open()
    async with connected("127.0.0.1", listener.port) as first, connected("127.0.0.1", listener.port) as second:
        first.send(b"one")
        assert await first.receive() == b"one"
        second.send(b"two")
        assert await second.closed_by_peer()
        first.send(b"three")
        assert await first.receive() == b"three"
        await until(lambda: len(server.connections) == 1)
    await server.stop(0.0, lambda: None)
