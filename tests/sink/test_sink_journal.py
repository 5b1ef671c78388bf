"""The journal on a real broker: one writer, nothing half written, nothing unknown, and a tail that is cheap to read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from unittest import mock

import pytest

from kits.processes.server import TwofoldServer
from twofold.client.admin.admin import Admin
from twofold.client.admin.model import ConfigResource, ResourceType
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.client.producer.producer import Producer
from twofold.client.producer.sequences import ProducerIdentity
from twofold.connections.errors import GaveUp, NoAnswer
from twofold.connections.waiting import Deadline
from twofold.runtime.real import real_runtime, run
from twofold.sink import register as registers
from twofold.sink.decided import DecidedEntry
from twofold.sink.journal import Journal
from twofold.sink.register import BatchDecision, JournalDamaged, Mode, Participant, Register, encode
from twofold.wire.errors import KafkaError
from twofold.wire.messages.fetch import PartitionData

SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "1"}
Story = Callable[["Desk"], Awaitable[None]]
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("journal"), SETTINGS) as running:
        yield running


class Desk:
    """Where journals of one prefix are kept, by as many as the story needs."""

    def __init__(self, server: TwofoldServer, *, two_phase: bool = True) -> None:
        self.config = ProducerConfig(bootstrap_servers=server.bootstrap_servers, linger_ms=0)
        self.prefix = f"p{next(_numbers)}"
        self.runtime = real_runtime()
        self.two_phase = two_phase
        self.fetches = 0
        self._clusters: list[Cluster] = []
        self._journals: list[Journal] = []

    def deadline(self, seconds: float = 20) -> Deadline:
        return self._clusters[0].deadline(seconds * 1000, "the story")

    def journal(self, *, allow_auto_create: bool = False) -> Journal:
        cluster = Cluster(self.runtime, self.config, allow_auto_create=allow_auto_create)
        journal = Journal(self.runtime, cluster, self.config, self.prefix)
        fetch = journal._fetch

        async def counted(position: int, deadline: Deadline) -> PartitionData:
            self.fetches += 1
            return await fetch(position, deadline)

        journal._fetch = counted
        self._clusters.append(cluster)
        self._journals.append(journal)
        return journal

    async def opened(self) -> Journal:
        journal = self.journal()
        await journal.create()
        await journal.open(self.deadline(), two_phase=self.two_phase, timeout_ms=60_000)
        return journal

    @property
    def admin(self) -> Admin:
        return Admin.on(self._clusters[0])

    async def close(self) -> None:
        for journal in self._journals:
            await journal.close()
        for cluster in self._clusters:
            await cluster.close()


@pytest.fixture(params=[True, False], ids=["two-phase", "one-phase"])
def tell(request: pytest.FixtureRequest, server: TwofoldServer) -> Callable[[Story], None]:
    def told(story: Story) -> None:
        async def main() -> None:
            desk = Desk(server, two_phase=request.param)
            try:
                await story(desk)
            finally:
                await desk.close()

        run(main())

    return told


def decision(count: int, batch_id: int = 0) -> BatchDecision:
    participants = tuple(
        Participant(f"p|0000000a|{n}", ProducerIdentity(n, 1), ProducerIdentity(n, 2), n) for n in range(count)
    )
    return BatchDecision("q", "run", batch_id, Mode.TWO_PHASE, participants)


def test_what_one_has_written_the_next_one_reads(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        writer = await desk.opened()
        assert writer.register == Register()
        for state in (
            Register("me"),
            Register("me").deciding(decision(3), 1),
            Register("me", decided=(DecidedEntry("q", 0),)),
        ):
            await writer.append(state)
            assert writer.register == state
            assert await desk.journal().read(desk.deadline()) == state

    tell(story)


def test_it_is_compacted_also_where_the_connections_of_the_query_let_brokers_make_topics(
    tell: Callable[[Story], None],
) -> None:
    """The look whether it is there must not make it, with the settings of any topic."""

    async def story(desk: Desk) -> None:
        journal = desk.journal(allow_auto_create=True)
        await journal.create()
        resource = ConfigResource(ResourceType.TOPIC, journal.topic)
        found = await desk.admin.describe_configs([resource], names=["cleanup.policy"])
        assert [entry.value for entry in found.values[resource]] == ["compact"]

    tell(story)


def test_opening_it_fences_the_writer_before(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        first = await desk.opened()
        await first.append(Register("first"))
        second = await desk.opened()
        assert second.register == Register("first")
        with pytest.raises(KafkaError):
            await first.append(Register("too late"))
        assert not first.is_open
        await second.append(Register("second"))
        assert await first.read(desk.deadline()) == Register("second")

    tell(story)


def test_a_fenced_writer_has_written_nothing(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        first = await desk.opened()
        await desk.opened()
        with pytest.raises(KafkaError, match="FENCED"):
            await first.append(Register("too late"))
        assert await desk.journal().read(desk.deadline()) == Register()

    tell(story)


async def half_written(journal: Journal, state: Register) -> Producer:
    producer = journal._producer
    assert producer is not None
    await producer.begin_transaction()
    for key, value in encode(journal.prefix, state):
        await producer.send(journal.topic, value, key=key, partition=0)
    await producer.flush()
    return producer


def test_what_is_half_written_is_ended_by_the_next_one_and_never_counts(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        first = await desk.opened()
        await first.append(Register("first"))
        producer = await half_written(first, Register("half"))
        second = await desk.opened()
        assert second.register == Register("first")
        assert second.is_read
        with pytest.raises(KafkaError):
            await producer.commit_transaction()
        assert await desk.journal().read(desk.deadline()) == Register("first")

    tell(story)


def test_read_waits_for_what_is_half_written_and_glance_does_not(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        first = await desk.opened()
        await first.append(Register("first"))
        producer = await half_written(first, Register("second"))
        reader = desk.journal()
        with mock.patch("twofold.sink.journal.ENDING_MS", 50):
            assert await reader.glance(desk.deadline()) == Register("first")
        assert not reader.is_read
        with pytest.raises(GaveUp, match="to its end"):
            await reader.read(desk.deadline(0.2))
        waiting = asyncio.ensure_future(reader.read(desk.deadline()))
        await producer.commit_transaction()
        assert await waiting == Register("second")
        assert reader.is_read

    tell(story)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_write_of_unknown_outcome_closes_the_journal_and_opening_it_tells(
    tell: Callable[[Story], None], is_written: bool
) -> None:
    async def story(desk: Desk) -> None:
        journal = await desk.opened()
        await journal.append(Register("me"))
        producer = journal._producer
        assert producer is not None
        commit = producer.commit_transaction

        async def unsure() -> None:
            if is_written:
                await commit()
            raise NoAnswer("nobody knows")

        decided = Register("me").deciding(decision(2), 1)
        with mock.patch.object(type(producer), "commit_transaction", side_effect=unsure), pytest.raises(NoAnswer):
            await journal.append(decided)
        assert not journal.is_open
        await journal.open(desk.deadline(), two_phase=desk.two_phase, timeout_ms=60_000)
        assert journal.register == (decided if is_written else Register("me"))

    tell(story)


def test_the_end_of_a_long_journal_costs_a_few_requests(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        writer = await desk.opened()
        for number in range(150):
            await writer.append(Register("me", round=number))
        desk.fetches = 0
        reader = desk.journal()
        assert await reader.read(desk.deadline()) == writer.register
        assert desk.fetches <= 2
        await writer.append(Register("me", round=1000))
        desk.fetches = 0
        assert await reader.read(desk.deadline()) == Register("me", round=1000)
        assert desk.fetches <= 2, "and only what is new"

    tell(story)


def test_a_decision_of_many_records_is_found_from_the_tail(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        writer = await desk.opened()
        for number in range(100):
            await writer.append(Register("me", round=number))
        with mock.patch.object(registers, "PARTICIPANTS_PER_RECORD", 1):
            await writer.append(Register("me").deciding(decision(120), 1))
        desk.fetches = 0
        assert await desk.journal().read(desk.deadline()) == writer.register
        assert desk.fetches <= 4

    tell(story)


def test_a_journal_that_was_made_anew_is_read_from_its_start(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        journal = await desk.opened()
        for number in range(5):
            await journal.append(Register("me", round=number))
        reader = desk.journal()
        await reader.read(desk.deadline())
        (await desk.admin.delete_topics([journal.topic])).get()
        await journal.create()
        assert await reader.read(desk.deadline()) == Register()
        other = await desk.opened()
        await other.append(Register("other"))
        assert await reader.read(desk.deadline()) == Register("other")

    tell(story)


def test_a_foreign_record_under_our_key_is_told_with_its_offset(tell: Callable[[Story], None]) -> None:
    async def story(desk: Desk) -> None:
        journal = await desk.opened()
        await journal.append(Register("me"))
        async with Producer.of(desk.config, runtime=desk.runtime) as producer:
            await (await producer.send(journal.topic, b"not ours", key=desk.prefix.encode(), partition=0))
        with pytest.raises(JournalDamaged, match="offset 2 "):
            await desk.journal().read(desk.deadline())

    tell(story)


def test_the_topic_is_compacted_has_one_partition_and_is_synced_with_every_record(server: TwofoldServer) -> None:
    async def main() -> None:
        desk = Desk(server)
        journal = await desk.opened()
        await journal.create()  # once more: it is there
        topic = await desk._clusters[0].topic(journal.topic, desk.deadline())
        assert len(topic.partitions) == 1
        resource = ConfigResource(ResourceType.TOPIC, journal.topic)
        found = {entry.name: entry.value for entry in (await desk.admin.describe_configs([resource])).values[resource]}
        assert (found["cleanup.policy"], found["flush.messages"]) == ("compact", "1")
        await desk.close()

    run(main())
