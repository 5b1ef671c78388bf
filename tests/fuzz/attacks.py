"""Clients that mean harm or are broken, many at a time: `python -m fuzz.attacks NAME HOST PORT SECONDS`.

A process of its own, so that its processor time is not taken for the broker's. It says "ready" when the attack has
begun and ends after its time. Topics `large` (some megabytes) and `compacted` must be there.
"""

import resource
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from fuzz.strategies import bomb
from oracle.batches import batch
from oracle.compare import produce_body
from oracle.wire import encode_request, frame

MB = 1024 * 1024
Step = Callable[[], None]


def open_socket(host: str, port: int, *, receive_bytes: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(20)
    client.connect((host, port))
    return client


def _send(client: socket.socket, data: bytes) -> int:
    """As much as goes without waiting; 0 where the other side has hung up."""
    with suppress(BlockingIOError):
        try:
            return client.send(data, socket.MSG_DONTWAIT)
        except ConnectionError:
            return 0
    return 0


def slow_writers(host: str, port: int) -> Step:
    """500 clients, each with a request of which a byte comes every second."""
    request = encode_request("Metadata", 1, {"topics": [{"name": "x" * 200}]})
    clients = [open_socket(host, port) for _ in range(500)]
    at = 0

    def step() -> None:
        nonlocal at
        for client in clients:
            _send(client, request[at : at + 1])
        at += 1
        time.sleep(1.0)

    return step


def slow_readers(host: str, port: int) -> Step:
    """100 clients that ask for megabytes again and again, and read a byte a second."""
    request = fetch_request("large")
    clients = [open_socket(host, port, receive_bytes=4096) for _ in range(100)]
    for client in clients:
        _send(client, request * 20)

    def step() -> None:
        for client in clients:
            with suppress(OSError):
                client.recv(1, socket.MSG_DONTWAIT)
        time.sleep(1.0)

    return step


def pipelines(host: str, port: int) -> Step:
    """20 clients that send requests by the ten thousand and read no answer."""
    data = encode_request("Metadata", 1, {"topics": [{"name": "large"}]}) * 10_000
    clients = [open_socket(host, port) for _ in range(20)]

    def step() -> None:
        for client in clients:
            _send(client, data)
        time.sleep(0.1)

    return step


def unfinished(host: str, port: int) -> Step:
    """100 clients that announce 100 MB, send 20 and then nothing more."""
    clients = [open_socket(host, port) for _ in range(100)]
    for client in clients:
        _send(client, struct.pack(">i", 100 * MB))
    left = dict.fromkeys(clients, 20 * MB)
    piece = bytes(256 * 1024)

    def step() -> None:
        for client in clients:
            if left[client] > 0:
                left[client] -= _send(client, piece)
        time.sleep(0.01)

    return step


def connections(host: str, port: int) -> Step:
    """10,000 clients that connect and say hardly anything."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    request = encode_request("ApiVersions", 0, {})
    clients = []
    for _ in range(10_000):
        clients.append(open_socket(host, port))
    source = Random(1)

    def step() -> None:
        for client in source.sample(clients, 200):
            _send(client, request)
            with suppress(OSError):
                client.recv(65536, socket.MSG_DONTWAIT)
        time.sleep(0.1)

    return step


def comers_and_goers(host: str, port: int) -> Step:
    """Connections that are opened and reset, some after a piece of a request."""
    request = encode_request("Metadata", 1, {"topics": None})
    source = Random(2)

    def step() -> None:
        client = open_socket(host, port)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _send(client, request[: source.randrange(len(request) + 1)])
        client.close()

    return step


def garbage(host: str, port: int) -> Step:
    """Frames of noise, and counts that lie."""
    source = Random(3)

    def step() -> None:
        body = source.randbytes(source.choice((0, 7, 40, 3000)))
        lie = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1) + body
        noise = struct.pack(">hhih", source.randrange(70), source.randrange(12), 1, -1) + body
        with open_socket(host, port) as client:
            _send(client, frame(source.choice((lie, noise))))
            client.settimeout(5)
            with suppress(OSError):
                client.recv(65536)

    return step


def many_entries(host: str, port: int) -> Step:
    """One client after the other asks about 110,000 topics that do not exist."""
    rows = [{"name": f"n{number}"} for number in range(110_000)]
    request = encode_request("Metadata", 4, {"topics": rows, "allow_auto_topic_creation": False})
    return _ask_again(host, port, request)


def too_many_entries(host: str, port: int) -> Step:
    """The same with 20 million entries: 40 MB that would become some gigabytes."""
    body = struct.pack(">hhihi", 3, 1, 1, -1, 20_000_000) + bytes(40_000_000)
    return _ask_again(host, port, frame(body))


def bombs(host: str, port: int) -> Step:
    """Small batches that unpack to very much, sent to a topic that has to look into them."""
    data = [
        encode_request(
            "Produce",
            7,
            produce_body(
                "compacted", batch(1, attributes=codec, payload=bomb(codec), count=1_000_000, last_offset_delta=999_999)
            ),
        )
        for codec in (1, 2, 3, 4)
    ]
    source = Random(4)
    return lambda: _ask_again(host, port, source.choice(data))()


def many_records(host: str, port: int) -> Step:
    """A few kilobytes that hold a million records, for a topic that looks at each."""
    plain = bytearray()
    for number in range(300_000):
        delta = _zigzag(number)
        body = b"\0\0" + delta + b"\x02k\x01\0"
        plain += bytes([len(body) * 2]) + body
    import cramjam

    payload = bytes(cramjam.zstd.compress(bytes(plain)))
    good = batch(1, attributes=4, payload=payload, count=300_000, last_offset_delta=299_999)
    return _ask_again(host, port, encode_request("Produce", 7, produce_body("compacted", good)))


def _zigzag(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _ask_again(host: str, port: int, request: bytes) -> Step:
    def step() -> None:
        with suppress(OSError), open_socket(host, port) as client:
            client.sendall(request)
            client.recv(65536)

    return step


def nothing(host: str, port: int) -> Step:
    return lambda: time.sleep(0.1)


def fetch_request(topic: str) -> bytes:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10 * MB}
    topics = [{"topic": topic, "partitions": [part]}]
    return encode_request("Fetch", 4, {"replica_id": -1, "min_bytes": 1, "max_bytes": 50 * MB, "topics": topics})


ATTACKS: dict[str, Callable[[str, int], Step]] = {
    "nothing": nothing,
    "slow writers": slow_writers,
    "slow readers": slow_readers,
    "pipelines": pipelines,
    "unfinished": unfinished,
    "connections": connections,
    "comers and goers": comers_and_goers,
    "garbage": garbage,
    "many entries": many_entries,
    "too many entries": too_many_entries,
    "bombs": bombs,
    "many records": many_records,
}


def main() -> None:
    name, host, port, seconds = sys.argv[1:]
    step = ATTACKS[name](host, int(port))
    print("ready", flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        step()


if __name__ == "__main__":
    main()
