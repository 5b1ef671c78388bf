"""Unmodified clients: create, produce with every compression, consume, seek by time, read configs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.clients.plain import CLIENTS, CODECS
from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop

# On a whole number of milliseconds before now, so that the broker's limit on future timestamps is far away.
START = (int(time.time()) - 3600) * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("stock"), {"num.partitions": "3"}) as running:
        yield running


@pytest.fixture(params=CLIENTS, ids=lambda c: c.name)
def client(request, server):
    return request.param(server.bootstrap_servers)


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_with_its_offsets(client, codec, idempotent):
    topic = f"{client.name}-{codec}-{idempotent}"
    client.create_topic(topic, 3)
    records = [(b"key-%d" % n, b"value-%d-" % n + b"x" * 50, START + n) for n in range(500)]
    client.produce(topic, 1, records, codec, idempotent)

    seen = client.consume(topic, 1, 0, 500)
    assert [r.offset for r in seen] == list(range(500))
    assert [(r.key, r.value) for r in seen] == [(key, value) for key, value, _ in records]
    assert [r.offset for r in client.consume(topic, 1, 490, 10)] == list(range(490, 500))


def test_seek_by_timestamp_finds_the_first_record_at_or_after_it(client):
    topic = f"{client.name}-times"
    client.create_topic(topic, 3)
    first = [(b"k", b"early", START + n) for n in range(100)]
    second = [(b"k", b"late", START + 10_000 + n) for n in range(100)]
    client.produce(topic, 0, first, "lz4", True)
    client.produce(topic, 0, second, "none", True)
    stamps = [r.timestamp for r in client.consume(topic, 0, 0, 200)]
    for index in (0, 37, 100, 150, 199):
        expected = next(i for i, stamp in enumerate(stamps) if stamp >= stamps[index])
        assert client.offset_for_time(topic, 0, stamps[index]) == expected


@pytest.mark.parametrize("client_class", [c for c in CLIENTS if hasattr(c, "configs")], ids=lambda c: c.name)
def test_topic_configs_are_readable(client_class, server):
    """kcat has no way to read them."""
    client = client_class(server.bootstrap_servers)
    topic = f"{client.name}-configs"
    client.create_topic(topic, 3)
    configs = client.configs(topic)
    assert configs["retention.ms"] == "604800000"
    assert configs["cleanup.policy"] == "delete"
    assert configs["max.message.bytes"] == "1048588"


def test_what_one_client_writes_all_others_read(server):
    topic = "everyone"
    CLIENTS[0](server.bootstrap_servers).create_topic(topic, 3)
    expected = []
    for client_class in CLIENTS:
        client = client_class(server.bootstrap_servers)
        for codec in CODECS:
            records = [(b"%d" % n, f"{client.name}/{codec}/{n}".encode(), START + n) for n in range(20)]
            client.produce(topic, 2, records, codec, True)
            expected += [value for _, value, _ in records]
    for client_class in CLIENTS:
        client = client_class(server.bootstrap_servers)
        seen = client.consume(topic, 2, 0, len(expected))
        assert [r.value for r in seen] == expected, client.name


def test_start_to_first_acknowledged_produce_and_idle_memory(tmp_path: Path):
    """The figures of the README, with room for a busy machine; `make bench` prints them as measured."""
    from confluent_kafka import Producer

    server = TwofoldServer(tmp_path / "start")
    started = time.monotonic()
    server.start(wait=False)
    try:
        producer = Producer(
            {"bootstrap.servers": server.bootstrap_servers, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 10}
        )
        acknowledged = []
        producer.produce("first", b"x", on_delivery=lambda error, _: acknowledged.append(error))
        while not acknowledged and time.monotonic() < started + 20:
            producer.poll(0.01)
        took = time.monotonic() - started
        assert acknowledged == [None]
        assert took < 3, f"first acknowledged produce after {took:.2f} s"
        assert server.resident_bytes < 90e6, f"{server.resident_bytes / 1e6:.0f} MB"
    finally:
        server.kill()
