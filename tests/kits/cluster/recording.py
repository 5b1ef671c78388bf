"""What a controller of Apache Kafka has answered to a member, in a file, and a server that answers so again.

`python -m kits.cluster.recording` (in `tests`) makes the file anew with Apache Kafka, in seconds. To replay it needs
nothing. A recording is a list of requests with their answers in the order in which they were answered.

1. A fetch of the metadata is answered by its epoch and offset: the same bytes lead from one offset to the next.
2. Everything else is answered in the order of its API; the last answer is given again.
3. The controller's address in the answers is replaced by that of the server that replays.
"""

import asyncio
import json
import struct
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from twofold.wire import codec
from twofold.wire.apis import APIS, KEYS

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "cluster" / "controller-4.3.1.json"
FETCH = KEYS["Fetch"]
HOST = b"127.0.0.1"
MEMBER = b"broker-9"


class Exchange(NamedTuple):
    api_key: int
    version: int
    request: bytes  # header and body
    response: bytes  # header and body


class Recording(NamedTuple):
    port: int  # where the controller was
    exchanges: list[Exchange]

    def write(self, path: Path) -> None:
        rows = [
            {
                "api": APIS[one.api_key].name,
                "version": one.version,
                "request": one.request.hex(),
                "response": one.response.hex(),
            }
            for one in self.exchanges
        ]
        path.write_text(json.dumps({"port": self.port, "exchanges": rows}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path = RECORDED) -> "Recording":
        text = json.loads(path.read_text())
        return cls(
            text["port"],
            [
                Exchange(
                    KEYS[row["api"]], row["version"], bytes.fromhex(row["request"]), bytes.fromhex(row["response"])
                )
                for row in text["exchanges"]
            ],
        )


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4))
    return await reader.readexactly(size)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4) + payload


class Recorder:
    """Between a member and a controller; a controller answers the requests of a connection in their order."""

    def __init__(self, target_port: int) -> None:
        self.exchanges: list[Exchange] = []
        self._target_port = target_port

    async def listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # it is starting
            writer.close()
            return
        asked: deque[bytes] = deque()

        async def requests() -> None:
            while True:
                frame = await read_frame(reader)
                asked.append(frame)
                there.write(framed(frame))

        async def responses() -> None:
            while True:
                frame = await read_frame(back)
                request = asked.popleft()
                key, version = struct.unpack_from(">hh", request)
                if _client_id(request) == MEMBER:  # not of the controller's own
                    self.exchanges.append(Exchange(key, version, request, frame))
                writer.write(framed(frame))

        tasks = [asyncio.ensure_future(requests()), asyncio.ensure_future(responses())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
        there.close()


class ReplayedController:
    """Answers as the recording says; `asked` has what came."""

    def __init__(self, recording: Recording) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.port = 0
        self._recording = recording
        self._fetches: dict[tuple[int, int], deque[bytes]] = {}
        self._others: dict[int, deque[bytes]] = {}
        for one in recording.exchanges:
            if one.api_key == FETCH:
                self._fetches.setdefault(_place(_decoded(one.request)[1]), deque()).append(one.response)
            else:
                self._others.setdefault(one.api_key, deque()).append(one.response)

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                name, request = _decoded(frame)
                self.asked.append((name, request))
                response = self._answer(struct.unpack_from(">h", frame)[0], request)
                if response is not None:  # a fetch at the end waits
                    writer.write(framed(self._with_port(frame[4:8] + response[4:])))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, api_key: int, request: Any) -> bytes | None:
        if api_key == FETCH:
            answers = self._fetches.get(_place(request))
            return answers.popleft() if answers else None
        known = self._others[api_key]
        return known.popleft() if len(known) > 1 else known[0]

    def _with_port(self, response: bytes) -> bytes:
        """A host and the port behind it, as answers have them; in the records of the log a port has two bytes."""
        compact = bytes([len(HOST) + 1]) + HOST
        return response.replace(compact + self._recording.port.to_bytes(4), compact + self.port.to_bytes(4))


def _client_id(request: bytes) -> bytes:
    (length,) = struct.unpack_from(">h", request, 8)
    return request[10 : 10 + max(0, length)]


def _decoded(frame: bytes) -> tuple[str, Any]:
    header = codec.decode_request_header(frame)
    return APIS[header.api_key].name, codec.decode_request(header.api_key, header.version, frame, header.body_offset)


def _place(request: Any) -> tuple[int, int]:
    row = request.topics[0].partitions[0]
    return row.current_leader_epoch, row.fetch_offset


async def record(path: Path) -> None:
    from kits.cluster.apache import ApacheCluster, low_port
    from kits.processes.server import TwofoldServer
    from oracle.kafka import jars_or_skip

    with tempfile.TemporaryDirectory() as folder:
        real = low_port()
        cluster = ApacheCluster(jars_or_skip(), Path(folder) / "apache", controllers=1, brokers=0)
        told = cluster.controllers[0].port
        cluster.settings |= {
            "listeners": f"CONTROLLER://127.0.0.1:{real}",
            "advertised.listeners": f"CONTROLLER://127.0.0.1:{told}",
        }
        recorder = Recorder(real)
        async with await recorder.listen(told):
            member = TwofoldServer(Path(folder) / "member", {"node.id": "9"})
            member.flags = ["--join", cluster.bootstrap_controllers, "--coordinators-only"]
            try:
                await asyncio.to_thread(cluster.start)
                await asyncio.to_thread(member.start)
            finally:
                member.kill()
                await asyncio.to_thread(cluster.stop)
        Recording(told, recorder.exchanges).write(path)


if __name__ == "__main__":
    asyncio.run(record(RECORDED))
    print(f"{RECORDED}: {len(Recording.read().exchanges)} exchanges", file=sys.stderr)
