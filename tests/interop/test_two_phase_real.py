"""Two-phase commit with real processes: clients and brokers are killed with -9 wherever it matters, every timeout
passes, and the transaction ends as the outside decided."""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kits.processes.server import TwofoldServer
from kits.processes.two_phase_app import OFFSET, VALUES
from kits.wire.driver import NO_IDENTITY, Fenced, Identity, TxnDriver
from kits.wire.proxy import Proxy
from kits.wire.reader import TxnReader
from kits.wire.two_phase import TwoPhaseDriver, prepared_state, two_phase_driver
from oracle.driver import Connection
from oracle.processes import spawn, stop, tail
from twofold import aio
from twofold.client import Admin, NewTopic
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, UnstableOffsetCommit

pytestmark = pytest.mark.interop

APP = Path(__file__).parent.parent / "kits" / "processes" / "two_phase_app.py"
PATIENCE_S = 25.0

# Everything that a broker does by the clock, it does at once.
SHORT = {
    "transaction.two.phase.commit.enable": "true",
    "transaction.max.timeout.ms": "800",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "transactional.id.expiration.ms": "900",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    "producer.id.expiration.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("two-phase"), SHORT) as server:
        yield server


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


async def create_topics(address: str, *names: str) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        (await admin.create_topics([NewTopic(name=name, num_partitions=2) for name in names])).get()


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)


class Look:
    """What others see of a transaction."""

    def __init__(self, address: str, topic: str, group: str = "") -> None:
        self._address = address
        self.partitions = [TopicPartition(topic, index) for index in range(2)]
        self.group = group

    async def values(self, *, committed: bool = True) -> list[bytes]:
        reader = TxnReader(real_runtime(), self._address, self.partitions, committed=committed)
        rows = sorted(await reader.read_to_end(100), key=lambda row: (row.topic_partition, row.offset))
        await reader.close()
        return [row.value or b"" for row in rows]

    async def is_settled(self) -> bool:
        ends = []
        for committed in (True, False):
            reader = TxnReader(real_runtime(), self._address, self.partitions, committed=committed)
            with suppress(KafkaError):
                ends.append(await reader.ends())
            await reader.close()
        return len(ends) == 2 and ends[0] == ends[1]

    async def offset(self) -> int | None:
        """None while it is not decided."""
        reader = TxnReader(real_runtime(), self._address, self.partitions)
        try:
            return (await reader.committed(self.group, self.partitions[:1]))[self.partitions[0]]
        except UnstableOffsetCommit:
            return None
        finally:
            await reader.close()

    async def check(self, commit: bool) -> None:
        await until(self.is_settled, "the markers")
        assert await self.values() == (list(VALUES) if commit else [])
        assert await self.values(committed=False) == list(VALUES)
        if self.group:
            assert await self.offset() == (OFFSET if commit else -1)


def state_of(server: TwofoldServer, transactional_id: str) -> str | int:
    with Connection(server.host, server.port) as connection:
        (row,) = connection.ask("DescribeTransactions", 0, transactional_ids=[transactional_id])["transaction_states"]
        return row["error_code"] or str(row["transaction_state"])


class App:
    """`support.two_phase_app` as a process."""

    def __init__(self, directory: Path, client: str, *arguments: str) -> None:
        self._output = directory / f"{client}-{arguments[0]}-{arguments[2]}.log"
        self._process = spawn([sys.executable, str(APP), client, *arguments], output=self._output)

    def said(self) -> str:
        """What it says when it is done, or prepared."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = self._output.read_text(errors="replace").splitlines()
            for line in lines:
                if line.startswith("said:"):
                    return line.removeprefix("said:")
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the application said nothing:\n{tail(self._output)}")
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        stop(self._process)


# The client dies


def test_a_killed_client_leaves_what_another_process_ends_past_every_timeout(
    server: TwofoldServer, tmp_path: Path
) -> None:
    """Through single requests and with `twofold.aio.Producer`; each commits once and aborts once, and the one recovers
    what the other has prepared."""
    cases = [(client, commit) for client in ("wire", "producer") for commit in (True, False)]
    names = [f"app-{client}-{'commit' if commit else 'abort'}" for client, commit in cases]
    address = server.bootstrap_servers
    others = {"wire": "producer", "producer": "wire"}

    async def control() -> None:
        """A transaction without the vow, of the same age: the coordinator ends it, and forgets its id."""
        driver = TxnDriver(real_runtime(), address, "no-vow", timeout_ms=800)
        await driver.init()
        await driver.send({TopicPartition("no-vow", 0): [b"x"]})
        await driver.close()
        await until(lambda: _is(server, "no-vow", 105), "the expiry of an id whose transaction took too long")

    async def story() -> None:
        await create_topics(address, "no-vow", *names)
        apps = [App(tmp_path, client, "prepare", address, name, name, f"group-{name}")
                for (client, _), name in zip(cases, names, strict=True)]  # fmt: skip
        states = [app.said() for app in apps]
        for app in apps:
            app.kill()
        await control()
        assert [state_of(server, name) for name in names] == ["Ongoing"] * 4
        assert [await Look(address, name, f"group-{name}").offset() for name in names] == [None] * 4
        enders = [
            App(tmp_path, others[client], "complete", address, name, state if commit else "4711:0")
            for (client, commit), name, state in zip(cases, names, states, strict=True)
        ]
        assert [app.said() for app in enders] == states, "the pair of the transaction is found as it was stored"
        for app in enders:
            app.kill()
        for (_, commit), name in zip(cases, names, strict=True):
            await Look(address, name, f"group-{name}").check(commit)

    run(story)


async def _is(server: TwofoldServer, transactional_id: str, state: str | int) -> bool:
    return state_of(server, transactional_id) == state


# The broker dies


def test_a_broker_that_is_killed_at_each_step_decides_nothing(tmp_path: Path) -> None:
    """Three applications at once: one commits, one aborts, and one with the producer of this package commits."""
    # An id without a transaction would be forgotten while the broker is away.
    with TwofoldServer(tmp_path / "killed", SHORT | {"transactional.id.expiration.ms": "60000"}) as server:

        async def story() -> None:
            address = server.bootstrap_servers
            await create_topics(address, "c", "a", "p")
            drivers = {name: two_phase_driver(real_runtime(), address, name) for name in ("c", "a")}
            producer = aio.Producer(
                bootstrap_servers=address, transactional_id="p", transaction_two_phase_commit_enable=True
            )

            async def kill() -> None:
                server.kill()
                server.start(wait=False)

            for driver in drivers.values():
                await driver.init()
            await producer.init_transactions()
            await kill()
            for name, driver in drivers.items():
                await driver.send({TopicPartition(name, index): [value] for index, value in enumerate(VALUES)})
            await producer.begin_transaction()
            for index, value in enumerate(VALUES):
                await producer.send("p", value, partition=index)
            await producer.flush()
            await kill()
            for name, driver in drivers.items():
                await driver.send_offsets(f"group-{name}", {TopicPartition(name, 0): OFFSET})
            await producer.send_offsets_to_transaction({TopicPartition("p", 0): OFFSET}, "group-p")
            states = {name: await driver.prepare() for name, driver in drivers.items()}
            states["p"] = str(await producer.prepare_transaction())
            await kill()
            enders: dict[str, TwoPhaseDriver] = {}
            for name in states:
                enders[name] = two_phase_driver(real_runtime(), address, name)
                assert prepared_state(await enders[name].recover()) == states[name]
            await kill()
            for name, driver in enders.items():
                await driver.finish(name != "a")
            await kill()
            for name in enders:
                await Look(address, name, f"group-{name}").check(name != "a")
            for driver in (*drivers.values(), *enders.values()):
                await driver.close()
            with suppress(Exception):
                await producer.close(flush=False)

        run(story)


# Others who have, or had, the same id


def test_two_producers_that_recover_at_once_and_a_late_end_of_the_first(server: TwofoldServer) -> None:
    address = server.bootstrap_servers

    async def story() -> None:
        await create_topics(address, "split")
        old, one, two = (two_phase_driver(real_runtime(), address, "split") for _ in range(3))
        await old.init()
        await old.send({TopicPartition("split", index): [value] for index, value in enumerate(VALUES)})
        found = await asyncio.gather(one.recover(), two.recover())
        assert list(found) == [old.identity, old.identity], "both see the same transaction"
        assert len({old.identity, one.identity, two.identity}) == 3, "under identities of their own"
        loser, winner = sorted((one, two), key=lambda driver: driver.identity)
        for driver in (old, loser):
            with pytest.raises(Fenced):
                await driver.finish(True)
        await winner.finish(False)
        after = winner.identity
        for driver in (old, loser):
            with pytest.raises(Fenced):
                await driver.finish(True)
        await winner.send({TopicPartition("split", 0): [b"next"]})
        for driver in (old, loser):
            with pytest.raises(Fenced):
                await driver.finish(False)
        assert winner.identity == after
        await winner.finish(True)
        look = Look(address, "split")
        await until(look.is_settled, "the markers")
        assert await look.values() == [b"next"]
        for driver in (old, one, two):
            await driver.close()

    run(story)


def test_an_end_that_was_under_way_when_its_instance_was_replaced_is_refused(tmp_path: Path) -> None:
    """It is held in the network, and arrives after the next instance has made up its mind, and again in the middle of
    the next transaction."""
    with Proxy() as proxy:
        server = TwofoldServer(tmp_path / "late", SHORT | {"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        with server:
            proxy.forward_to(server.host, server.port)

            async def story() -> None:
                await create_topics(proxy.address, "late")
                old = two_phase_driver(real_runtime(), proxy.address, "late", client_id="old")
                new = two_phase_driver(real_runtime(), proxy.address, "late", client_id="new")
                await old.init()
                await old.send({TopicPartition("late", index): [value] for index, value in enumerate(VALUES)})
                held = proxy.hold("EndTxn", "old")
                ending = asyncio.ensure_future(old.end_txn(True))
                await asyncio.to_thread(held.wait)
                assert await new.recover() == old.identity
                await new.finish(False)
                await asyncio.to_thread(held.release)
                assert (await ending).error_code == 90
                await new.send({TopicPartition("late", 0): [b"next"]})
                answer = await asyncio.to_thread(proxy.repeat, held)
                assert struct.unpack_from(">h", answer, 9) == (90,)
                await new.finish(True)
                look = Look(proxy.address, "late")
                await until(look.is_settled, "the markers")
                assert await look.values() == [b"next"]
                await old.close()
                await new.close()

            run(story)


# The protocol itself


def exchange(server: TwofoldServer, text: str) -> str:
    """One frame out, the next one in, as they are on the wire."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(bytes.fromhex(text))
        with connection.makefile("rb") as stream:
            size = stream.read(4)
            return (size + stream.read(int.from_bytes(size))).hex()


def test_a_client_that_knows_only_the_bytes_can_recover(server: TwofoldServer) -> None:
    """Vectors by hand, as in `test_wire_two_phase`; "raw" is 726177."""
    with Connection(server.host, server.port) as connection:
        row = {"name": "raw", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        assert connection.ask("CreateTopics", 7, topics=[row], timeout=5000)["topics"][0]["error_code"] == 0
        while connection.ask("FindCoordinator", 1, key="raw", key_type=1)["error_code"]:
            time.sleep(0.02)
    head = "0001 63 00  04 726177"
    vow = f"00000021  0016 0006 00000007 {head} 0000ea60 ffffffffffffffff ffff 01 00  00"
    answer = exchange(server, vow)
    while answer[26:30] in ("000e", "0010"):
        time.sleep(0.02)
        answer = exchange(server, vow)
    begin, end = "00000020 00000007 00 00000000 0000 ".replace(" ", ""), "ffffffffffffffff ffff 00".replace(" ", "")
    assert answer.startswith(begin) and answer.endswith(end) and len(answer) == 72
    pair = answer[len(begin) : len(begin) + 20]
    producer_id, epoch = pair[:16], pair[16:]
    assert epoch == "0000"
    # A fenced heartbeat, which a two-phase producer must not send: INVALID_REQUEST, with a text.
    heartbeat = exchange(server, f"0000001b  005f 0000 00000007 {head} {producer_id} 0000  00")
    assert heartbeat[8:30] == "00000007" + "00" + "00000000" + "002a"
    # Nothing is open: version 7 keeps nothing, and gives the next epoch.
    again = exchange(server, f"00000025  0016 0007 00000007 {head} 0000ea60 00000000 ffffffffffffffff ffff 01 01  00")
    assert again == begin + producer_id + "0001" + end

    async def open_a_transaction() -> None:
        driver = two_phase_driver(real_runtime(), server.bootstrap_servers, "raw")
        driver.identity = Identity(int(producer_id, 16), 1)
        await driver.send({TopicPartition("raw", 0): [b"x"]})
        await driver.close()

    run(open_a_transaction)
    kept = exchange(server, f"00000021  0016 0006 00000007 {head} 0000ea60 ffffffffffffffff ffff 01 01  00")
    assert kept == begin + producer_id + "0002" + producer_id + "0001" + "00"
    # EndTxn 5, commit: the pair to go on with.
    ended = exchange(server, f"0000001c  001a 0005 00000007 {head} {producer_id} 0002 01  00")
    assert ended == "00000016" + begin[8:] + producer_id + "0003" + "00"


def test_nothing_to_recover_is_no_error(server: TwofoldServer) -> None:
    async def story() -> None:
        driver = two_phase_driver(real_runtime(), server.bootstrap_servers, "nothing")
        assert await driver.recover() == NO_IDENTITY
        await driver.close()
        async with aio.Producer(
            bootstrap_servers=server.bootstrap_servers,
            transactional_id="nothing",
            transaction_two_phase_commit_enable=True,
        ) as producer:
            assert not await producer.init_transactions(keep_prepared_txn=True)
            await producer.complete_transaction("17:3")

    run(story)
