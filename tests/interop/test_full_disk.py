"""A real small filesystem that is full: clients cannot write, and every transaction can still be ended."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from twofold.records.batch import BatchBuilder

pytestmark = pytest.mark.interop

SIZE_MB = 48
STORAGE_ERROR = 56


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, so that filling it hurts nobody."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a filesystem can only be mounted by root: {made.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


class Client:
    def __init__(self, server: TwofoldServer) -> None:
        self._server = server
        self.wire = Connection(server.host, server.port)
        self.sequences: dict[tuple[int, int], int] = {}

    def create_topic(self) -> None:
        row = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = self.wire.ask("CreateTopics", 7, topics=[row], timeout=5000)
        assert answer["topics"][0]["error_code"] == 0

    def init(self, name: str, *, keep: bool = False) -> dict[str, int]:
        self.wire.ask("FindCoordinator", 1, key=name, key_type=1)
        answer = self.wire.ask(
            "InitProducerId",
            6,
            transactional_id=name,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=True,
            keep_prepared_txn=keep,
        )
        assert answer["error_code"] == 0, answer
        return answer

    def produce(self, name: str, pair: tuple[int, int], size: int) -> int:
        sequence = self.sequences.get(pair, 0)
        builder = BatchBuilder(producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=True)
        builder.add(None, os.urandom(size), 1)
        data = [{"name": "t", "partition_data": [{"index": 0, "records": builder.build()}]}]
        answer = self.wire.ask("Produce", 12, transactional_id=name, acks=-1, timeout=5000, topic_data=data)
        code = int(answer["responses"][0]["partition_responses"][0]["error_code"])
        if not code:
            self.sequences[pair] = sequence + 1
        return code

    def end(self, name: str, pair: tuple[int, int], commit: bool) -> int:
        answer = self.wire.ask(
            "EndTxn", 5, transactional_id=name, producer_id=pair[0], producer_epoch=pair[1], committed=commit
        )
        return int(answer["error_code"])

    def state(self, name: str) -> str:
        answer = self.wire.ask("DescribeTransactions", 0, transactional_ids=[name])
        return str(answer["transaction_states"][0]["transaction_state"])

    def stable_offset(self) -> int:
        row = {"partition_index": 0, "timestamp": -1}
        answer = self.wire.ask(
            "ListOffsets", 2, replica_id=-1, isolation_level=1, topics=[{"name": "t", "partitions": [row]}]
        )
        return int(answer["topics"][0]["partitions"][0]["offset"])


async def wait_for(condition: object, seconds: float = 15.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not condition():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.05)


def take_all(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, b"\0" * 4096):
            pass
    except OSError:
        return
    finally:
        os.close(fd)


def pair_of(answer: dict[str, int]) -> tuple[int, int]:
    return answer["producer_id"], answer["producer_epoch"]


@pytest.mark.parametrize("commit", [True, False])
def test_produce_fails_first_and_prepared_transactions_can_be_ended(
    small_disk: Path, tmp_path: Path, commit: bool
) -> None:
    settings = {"transaction.two.phase.commit.enable": "true", "log.reserve.bytes": str(4 << 20)}
    server = TwofoldServer(small_disk / "broker", {**settings, "log.segment.bytes": str(8 << 20)})
    server.output = tmp_path / "output.log"  # what the broker says must not be lost with the room on the small disk
    (small_disk / "ballast").write_bytes(b"\0" * (16 << 20))
    server.start()
    try:
        client = Client(server)
        client.create_topic()
        names = [f"prepared-{number}" for number in range(20)]
        pairs = {name: pair_of(client.init(name)) for name in names}
        for name in names:
            assert client.produce(name, pairs[name], 100) == 0
        filler = pair_of(client.init("filler"))
        codes = [client.produce("filler", filler, 900_000) for _ in range(80)]
        assert codes[0] == 0 and codes[-1] == STORAGE_ERROR
        assert set(codes) == {0, STORAGE_ERROR}
        refused_at = codes.index(STORAGE_ERROR)
        assert set(codes[refused_at:]) == {STORAGE_ERROR}, "nothing gets through any more"
        # Another process takes the little that is left; it cannot have the reserve.
        take_all(small_disk / "glutton")
        server.kill()  # and the outside coordinator recovers: what it decided must be possible on the full disk
        server.start()
        client = Client(server)
        for name in names[:10]:
            recovered = client.init(name, keep=True)
            assert (recovered["ongoing_txn_producer_id"], recovered["ongoing_txn_producer_epoch"]) == pairs[name]
            assert client.end(name, pair_of(recovered), commit) == 0
        for name in names[10:]:
            assert client.end(name, pairs[name], commit) == 0
        assert client.produce("filler", filler, 100) == STORAGE_ERROR

        async def complete() -> None:
            wanted = "CompleteCommit" if commit else "CompleteAbort"
            await wait_for(lambda: all(client.state(name) == wanted for name in names))

        asyncio.run(complete())
        assert client.end("filler", filler, False) == 0
        os.remove(small_disk / "ballast")  # an operator makes room

        async def recovers() -> None:
            fresh = pair_of(client.init("fresh"))
            await wait_for(lambda: client.produce("fresh", fresh, 100) == 0)
            assert client.end("fresh", fresh, True) == 0

        asyncio.run(recovers())
        assert client.stable_offset() > refused_at
        text = server.output.read_text()
        assert "is full" in text or "no room" in text
        assert "Traceback" not in text
    finally:
        server.kill()
