"""Sending markers as the coordinator of a transaction: one test per answer that a partition leader can give."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from kits.log.partition import marker_of
from kits.node.markers import (
    acknowledge,
    begin,
    begin_offsets,
    create_offsets_topic,
    delete,
    is_open,
    lead,
    on_append_markers,
    on_sync,
    register,
    written,
)
from kits.node.running import running
from kits.node.sockets import on_loop, settle, until
from twofold.broker.coordinators.transactions import markers
from twofold.broker.coordinators.transactions.markers import FIRST_RETRY_S, LAST_RETRY_S, MarkerSender
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.log.api import MarkersResult
from twofold.types import TopicPartition
from twofold.wire import codec
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaStorageError, NotCoordinator, error_for

KEY = KEYS["WriteTxnMarkers"]
T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


def prepared(*partitions, pid=7, epoch=1, commit=True, version=2):
    state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    return TransactionMetadata(pid, epoch, 60_000, state, frozenset(partitions), client_version=version)


class Coordinator:
    """Sends, and counts who was completed."""

    def __init__(self, node, remote=None):
        self.sender = MarkerSender(node.broker.core, node.broker.groups, remote)
        self.completed = []

    def send(self, value, transactional_id="x", *, shard=0, epoch=3, label=None):
        name = label or transactional_id
        self.sender.send(shard, epoch, transactional_id, value, lambda: self.completed.append(name))


@asynccontextmanager
async def coordinating(directory, settings=None, *, manual_timers=False, remote=None, **topic):
    async with running(directory, settings, manual_timers=manual_timers) as node:
        await node.create("t", 3, **topic)
        coordinator = Coordinator(node, remote)
        try:
            yield node, coordinator, coordinator.sender
        finally:
            coordinator.sender.stop()


def queued(sender):
    """How many markers wait for a request to another broker."""
    return sum(map(len, sender._outboxes.values()))


def leader_answers(log, code, *, times=1):
    """Let the log refuse the next markers with an error that a healthy leader never has."""
    real = type(log)
    left = [times]

    def append(self, given, **options):
        if not left[0]:
            return real.append_markers(self, given, **options)
        left[0] -= 1
        return MarkersResult([error_for(code)("said the test")] * len(given), None)

    on_append_markers(log, append)


# --- the common case ---


@pytest.mark.parametrize("commit", [True, False])
def test_markers_that_are_safe_at_once_are_done_when_send_returns(tmp_path, commit):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (node, coordinator, sender):
            for index in range(3):
                begin(node, "t", index, epoch=0)
            coordinator.send(prepared(T0, T1, T2, commit=commit), epoch=5)
            assert coordinator.completed == ["x"]
            for index in range(3):
                assert written(node, "t", index) == [(7, 1, "commit" if commit else "abort", 5)]
                assert not is_open(node, "t", index)
            assert (sender.remaining("x"), sender.ending_transactions) == (None, 0)

    scenario()


def test_a_transaction_without_partitions_is_complete_at_once(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (_, coordinator, sender):
            coordinator.send(prepared(commit=False))
            assert coordinator.completed == ["x"]
            assert sender.remaining("x") is None

    scenario()


def test_offsets_are_completed_by_the_group_coordinator(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (node, coordinator, _):
            await create_offsets_topic(node)
            begin(node, "t")
            begin_offsets(node, 2)
            coordinator.send(prepared(T0, TopicPartition(CONSUMER_OFFSETS, 2)))
            await until(lambda: coordinator.completed == ["x"])
            assert written(node, CONSUMER_OFFSETS, 2) == [(7, 1, "commit", 3)]

    scenario()


def test_completion_waits_for_the_last_marker_to_be_safe(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (node, coordinator, sender):
            await node.create("synced", flush_messages=1)
            synced = TopicPartition("synced", 0)
            log = node.log("synced")
            sync, release = type(log).sync, asyncio.Event()

            async def held():
                await release.wait()
                await sync(log)

            on_sync(log, held)
            coordinator.send(prepared(T0, synced))
            await settle()
            assert coordinator.completed == []
            assert sender.remaining("x") == {synced}, "what DescribeTransactions lists"
            release.set()
            await until(lambda: coordinator.completed == ["x"])
            assert log.high_watermark == 1

    scenario()


# --- 51 ---


def test_51_markers_unknown_broker(tmp_path):
    """No leader, or a leader that is not alive: queued, and sent when one appears. A deleted partition completes."""

    @on_loop
    async def scenario():
        asked = []

        async def remote(leader, request):
            asked.append(leader)
            raise ConnectionError("there is no such broker")

        async with coordinating(tmp_path, manual_timers=True, remote=remote) as (node, coordinator, sender):
            for index in range(3):
                begin(node, "t", index)
            lead(node, "t", 1, leader=-1, isr=())
            register(node, 9, fenced=True)
            lead(node, "t", 2, leader=9)
            coordinator.send(prepared(T0, T1, T2))
            assert sender.remaining("x") == {T1, T2}
            assert (sender.unknown_destination_queue_size, queued(sender)) == (2, 0)
            assert node.timers.fire(FIRST_RETRY_S) == 1
            assert (coordinator.completed, asked) == ([], []), "a broker that is fenced is not asked"
            lead(node, "t", 1, leader=1, isr=(1,))
            sender.metadata_changed()
            await until(lambda: sender.remaining("x") == {T2})
            assert written(node, "t", 1) == [(7, 1, "commit", 3)]
            await delete(node, "t")
            sender.metadata_changed()
            await until(lambda: coordinator.completed == ["x"])
            coordinator.send(prepared(T0, TopicPartition("never", 4)), "y")
            assert coordinator.completed == ["x", "y"]
            assert sender.unknown_destination_queue_size == 0

    scenario()


def test_what_is_parked_is_looked_up_again_at_least_every_second(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            begin(node, "t")
            lead(node, "t", leader=-1, isr=())
            coordinator.send(prepared(T0))
            delays = [delay for delay in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0) if node.timers.fire(delay)]
            assert (delays[0], delays[-1], len(delays)) == (FIRST_RETRY_S, LAST_RETRY_S, 6)
            # Without a word of the metadata: the timer alone finds the leader.
            lead(node, "t", leader=1, isr=(1,))
            node.timers.fire(LAST_RETRY_S)
            assert coordinator.completed == ["x"]
            leader_answers(node.log("t"), 6)
            coordinator.send(prepared(T0, epoch=2))
            assert node.timers.fire(FIRST_RETRY_S) == 1, "after success the next failure is tried again soon"
            assert coordinator.completed == ["x", "x"]
            assert sender.ending_transactions == 0

    scenario()


def test_very_many_that_wait_do_not_hold_the_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(markers, "WRITES_PER_TURN", 10)

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            begin(node, "t", 1)
            lead(node, "t", leader=-1, isr=())
            for number in range(35):
                coordinator.send(prepared(T0, pid=number), f"id {number}")
            node.timers.fire(FIRST_RETRY_S)
            await settle(30)
            assert sender.unknown_destination_queue_size == 35
            assert node.timers.fire(0.2) == 1, "a round that found nothing is over"
            lead(node, "t", leader=1, isr=(1,))
            sender.metadata_changed()
            await until(lambda: len(coordinator.completed) == 35)
            assert sorted(pid for pid, *_ in written(node, "t")) == list(range(35))

    scenario()


# --- 52 ---

RETRIED = {3: "UNKNOWN_TOPIC_OR_PARTITION", 6: "NOT_LEADER_OR_FOLLOWER", 7: "REQUEST_TIMED_OUT",
           19: "NOT_ENOUGH_REPLICAS", 20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 56: "KAFKA_STORAGE_ERROR"}  # fmt: skip
ODD = {-1: "UNKNOWN_SERVER_ERROR", 2: "CORRUPT_MESSAGE", 10: "MESSAGE_TOO_LARGE", 18: "RECORD_LIST_TOO_LARGE",
       21: "INVALID_REQUIRED_ACKS", 87: "INVALID_RECORD", 29: "TOPIC_AUTHORIZATION_FAILED"}  # fmt: skip
NEVER_WRITTEN = {43: "UNSUPPORTED_FOR_MESSAGE_FORMAT", 35: "UNSUPPORTED_VERSION"}
FENCED = {47: "INVALID_PRODUCER_EPOCH", 52: "TRANSACTION_COORDINATOR_FENCED"}


@pytest.mark.parametrize("code", [*RETRIED, *ODD], ids=[*RETRIED.values(), *ODD.values()])
def test_52_markers_error_table_retry(tmp_path, code, caplog):
    """For ever, at the leader that there is by then; an error that should not be is also an error in the log."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            begin(node, "t", 0)
            begin(node, "t", 1)
            leader_answers(node.log("t"), code, times=3)
            caplog.clear()
            coordinator.send(prepared(T0, T1))
            for delay in (0.1, 0.2, 0.4):
                assert sender.remaining("x") == {T0}
                assert node.timers.fire(delay) == 1
            assert coordinator.completed == ["x"]
            assert written(node, "t") == written(node, "t", 1) == [(7, 1, "commit", 3)]
        complaints = [record for record in caplog.records if "tried again" in record.message]
        assert len(complaints) == (1 if code in ODD else 0), "once a transaction"
        assert all(record.levelno == logging.ERROR for record in complaints)

    caplog.set_level(logging.WARNING)
    scenario()


@pytest.mark.parametrize("code", FENCED, ids=FENCED.values())
def test_52_markers_error_table_stop(tmp_path, code, caplog):
    """Somebody newer owns the transaction in one partition: the others get their markers, and nothing is completed."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            for index in range(3):
                begin(node, "t", index)
            newer = {47: marker_of(7, 9, 3), 52: marker_of(7, 1, 4)}[code]
            node.broker.replicas.leader("t", 1).append_markers([newer])
            coordinator.send(prepared(T0, T1, T2), epoch=3)
            assert (coordinator.completed, sender.remaining("x")) == ([], {T1})
            assert written(node, "t", 0) == written(node, "t", 2) == [(7, 1, "commit", 3)]
            assert not [timer for timer in node.timers.pending if timer.delay_s in (FIRST_RETRY_S, LAST_RETRY_S)]
            assert "given up" in caplog.text

    scenario()


@pytest.mark.parametrize("code", NEVER_WRITTEN, ids=NEVER_WRITTEN.values())
def test_52_markers_error_table_nothing_was_written_there(tmp_path, code):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (node, coordinator, _):
            leader_answers(node.log("t"), code)
            coordinator.send(prepared(T0, T1))
            assert coordinator.completed == ["x"]
            assert (written(node, "t"), len(written(node, "t", 1))) == ([], 1)

    scenario()


def test_52_too_few_replicas_in_sync_are_waited_for(tmp_path):
    """NOT_ENOUGH_REPLICAS as it really comes about."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True, min_insync_replicas=2) as (node, coordinator, sender):
            begin(node, "t")
            lead(node, "t", replicas=(1, 2), isr=(1,))
            coordinator.send(prepared(T0))
            node.timers.fire(0.1)
            assert sender.remaining("x") == {T0}
            lead(node, "t", replicas=(1, 2), isr=(1, 2))
            node.timers.fire(0.2)
            assert coordinator.completed == []
            acknowledge(node, "t")
            assert coordinator.completed == ["x"]

    scenario()


def test_52_replicas_lost_after_the_append_are_waited_for(tmp_path):
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND as it really comes about: the marker is written again."""

    @on_loop
    async def scenario():
        topic = {"flush_messages": 1, "min_insync_replicas": 2}
        async with coordinating(tmp_path, manual_timers=True, **topic) as (node, coordinator, _):
            lead(node, "t", replicas=(1, 2), isr=(1, 2))
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            coordinator.send(prepared(T0))
            acknowledge(node, "t")
            partition = node.broker.replicas.leader("t", 0)
            partition.isr = (1,)
            release.set()
            await until(lambda: any(timer.delay_s == FIRST_RETRY_S for timer in node.timers.pending))
            partition.isr = (1, 2)
            node.timers.fire(FIRST_RETRY_S)
            await until(lambda: partition.log.log_end_offset == 2)
            acknowledge(node, "t")
            await until(lambda: coordinator.completed == ["x"])
            assert len(written(node, "t")) == 2

    scenario()


def test_52_a_marker_that_is_not_safe_in_time_is_written_again(tmp_path):
    """REQUEST_TIMED_OUT as it really comes about."""

    @on_loop
    async def scenario():
        settings = {"request.timeout.ms": 4321}
        async with coordinating(tmp_path, settings, manual_timers=True, flush_messages=1) as (node, coordinator, _):
            log = node.log("t")
            release = asyncio.Event()
            on_sync(log, release.wait)
            coordinator.send(prepared(T0))
            assert node.timers.fire(4.321) == 1
            assert node.timers.fire(FIRST_RETRY_S) == 1
            release.set()
            await until(lambda: coordinator.completed == ["x"])
            assert len(written(node, "t")) == 2

    scenario()


def test_52_a_failed_disk_is_tried_again(tmp_path):
    """KAFKA_STORAGE_ERROR as it really comes about; the log says so from then on, and so do we: not complete."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True, flush_messages=1) as (node, coordinator, sender):

            async def broken():
                raise KafkaStorageError("the disk is gone")

            on_sync(node.log("t"), broken)
            coordinator.send(prepared(T0))
            await until(lambda: any(timer.delay_s == FIRST_RETRY_S for timer in node.timers.pending))
            assert (coordinator.completed, sender.remaining("x")) == ([], {T0})

    scenario()


def test_52_a_group_coordinator_that_loads_is_asked_again(tmp_path):
    """14, 15 and 16 count as NOT_LEADER_OR_FOLLOWER."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            await create_offsets_topic(node)
            offsets = TopicPartition(CONSUMER_OFFSETS, 0)
            groups = node.broker.groups
            shard = groups.shards.pop(0)
            coordinator.send(prepared(offsets))
            assert sender.remaining("x") == {offsets}
            groups.shards[0] = groups.make_shard(0, shard.epoch)
            node.timers.fire(0.1)
            groups.shards[0].resign(NotCoordinator("moved"))
            node.timers.fire(0.2)
            assert coordinator.completed == []
            groups.shards[0] = shard
            node.timers.fire(0.4)
            assert coordinator.completed == ["x"]

    scenario()


def test_52_a_partition_that_moves_while_its_marker_waits_is_looked_up_again(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True, flush_messages=1) as (node, coordinator, sender):
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            coordinator.send(prepared(T0))
            lead(node, "t", leader=-1, isr=())
            assert sender.unknown_destination_queue_size == 1
            await delete(node, "t")
            node.timers.fire(FIRST_RETRY_S)
            assert coordinator.completed == ["x"]
            release.set()
            await settle()

    scenario()


# --- other brokers ---


@asynccontextmanager
async def two_brokers(tmp_path, *, version=2, **options):
    """A coordinator, and another broker that leads partition 1 and is asked over the wire, one request at a time."""
    asked = []
    async with running(tmp_path / "other", {"node.id": 9}) as other:
        client = await other.connect()

        async def remote(leader, request):
            asked.append((leader, request))
            return await client.call(request, KEY, version)

        async with coordinating(tmp_path / "here", remote=remote, **options) as (node, coordinator, sender):
            register(node, 9)
            lead(node, "t", 1, leader=9)
            yield node, other, coordinator, sender, asked


def test_all_transactions_of_a_turn_share_one_request_to_a_leader(tmp_path):
    @on_loop
    async def scenario():
        async with two_brokers(tmp_path) as (node, other, coordinator, sender, asked):
            await other.create("t", 3)
            for pid in range(5):
                begin(node, "t", 0, pid=pid)
                begin(other, "t", 1, pid=pid)
                coordinator.send(prepared(T0, T1, pid=pid, commit=pid != 2), f"id {pid}")
            assert (coordinator.completed, queued(sender)) == ([], 5)
            await until(lambda: len(coordinator.completed) == 5)
            ((leader, request),) = asked
            assert (leader, [marker.producer_id for marker in request.markers]) == (9, list(range(5)))
            assert written(other, "t", 1) == [(pid, 1, "abort" if pid == 2 else "commit", 3) for pid in range(5)]
            assert queued(sender) == 0

    scenario()


def test_one_request_is_under_way_to_a_leader_and_the_next_takes_what_came_meanwhile(tmp_path):
    @on_loop
    async def scenario():
        async with two_brokers(tmp_path) as (_, other, coordinator, sender, asked):
            await other.create("t", 3)
            coordinator.send(prepared(T1, pid=1), "first")
            await until(lambda: len(asked) == 1)
            coordinator.send(prepared(T1, pid=2), "second")
            coordinator.send(prepared(T1, pid=3), "third")
            assert len(asked) == 1
            await until(lambda: len(coordinator.completed) == 3)
            assert [len(request.markers) for _, request in asked] == [1, 2]
            assert queued(sender) == 0

    scenario()


def test_a_leader_that_does_not_know_the_partition_yet_is_asked_again(tmp_path):
    """UNKNOWN_TOPIC_OR_PARTITION as it really comes about: the other broker's metadata is older than ours."""

    @on_loop
    async def scenario():
        async with two_brokers(tmp_path, manual_timers=True) as (node, other, coordinator, sender, _):
            coordinator.send(prepared(T1))
            await until(lambda: sender.unknown_destination_queue_size == 1)
            await other.create("t", 3)
            node.timers.fire(FIRST_RETRY_S)
            await until(lambda: coordinator.completed == ["x"])

    scenario()


@pytest.mark.parametrize("failure", [ConnectionError("gone"), TimeoutError("request.timeout.ms")], ids=type)
def test_a_request_without_an_answer_is_sent_again_as_a_whole(tmp_path, failure):
    @on_loop
    async def scenario():
        failures = [failure]
        async with running(tmp_path / "other") as other:
            await other.create("t", 3)
            client = await other.connect()

            async def remote(leader, request):
                if failures:
                    raise failures.pop()
                return await client.call(request, KEY, 2)

            here = tmp_path / "here"
            async with coordinating(here, manual_timers=True, remote=remote) as (node, coordinator, sender):
                register(node, 9)
                lead(node, "t", 1, leader=9)
                lead(node, "t", 2, leader=9)
                coordinator.send(prepared(T1, T2))
                coordinator.send(prepared(T1, pid=8), "y")
                await until(lambda: sender.unknown_destination_queue_size == 3)
                assert sender.remaining("x") == {T1, T2}
                node.timers.fire(FIRST_RETRY_S)
                await until(lambda: sorted(coordinator.completed) == ["x", "y"])
                assert len(written(other, "t", 1)) == 2

    scenario()


def test_an_answer_that_leaves_a_row_out_is_no_success(tmp_path):
    @on_loop
    async def scenario():
        async def remote(leader, request):
            request.markers = ()
            return await client.call(request, KEY, 2)

        async with running(tmp_path / "other") as other:
            client = await other.connect()
            here = tmp_path / "here"
            async with coordinating(here, manual_timers=True, remote=remote) as (node, coordinator, sender):
                register(node, 9)
                lead(node, "t", 1, leader=9)
                coordinator.send(prepared(T1))
                await until(lambda: sender.unknown_destination_queue_size == 1)
                assert coordinator.completed == []

    scenario()


# --- 53 ---


def test_53_markers_coordinator_moved(tmp_path):
    """What comes back after a resignation is ignored, and never touches the newer owner's entry (KAFKA-16352)."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path, flush_messages=1) as (node, coordinator, sender):
            log = node.log("t")
            sync, release = type(log).sync, asyncio.Event()

            async def held():
                await release.wait()
                await sync(log)

            on_sync(log, held)
            coordinator.send(prepared(T0), shard=4, epoch=3, label="old")
            coordinator.send(prepared(T0, pid=8), "other", shard=5)
            sender.purge(4)
            assert (sender.remaining("x"), sender.remaining("other")) == (None, {T0})
            # The same broker leads again: it loads PREPARE_COMMIT and sends with its new epoch, while the old append
            # still waits for the disk.
            coordinator.send(prepared(T0), shard=4, epoch=4, label="new")
            release.set()
            await until(lambda: len(coordinator.completed) == 2)
            await settle()
            assert sorted(coordinator.completed) == ["new", "other"]
            assert [epoch for pid, _, _, epoch in written(node, "t") if pid == 7] == [3, 4]

    scenario()


def test_53_a_late_error_for_the_old_owner_does_not_stop_the_new_one(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True, flush_messages=1) as (node, coordinator, sender):
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            coordinator.send(prepared(T0), epoch=3, label="old")
            coordinator.send(prepared(T0, T1), epoch=4, label="new")
            lead(node, "t", leader=-1, isr=())
            assert sender.remaining("x") == {T0, T1}
            assert sender.unknown_destination_queue_size == 1, "the old one's marker is not"
            await delete(node, "t")
            node.timers.fire(FIRST_RETRY_S)
            await until(lambda: coordinator.completed == ["new"])
            release.set()
            await settle()

    scenario()


def test_53_markers_that_wait_for_another_broker_are_purged_too(tmp_path):
    @on_loop
    async def scenario():
        async with two_brokers(tmp_path) as (_, other, coordinator, sender, asked):
            await other.create("t", 3)
            coordinator.send(prepared(T1), "x", shard=4)
            coordinator.send(prepared(T1, pid=8), "y", shard=5)
            sender.purge(4)
            await until(lambda: coordinator.completed == ["y"])
            ((_, request),) = asked
            assert [marker.producer_id for marker in request.markers] == [8]

    scenario()


def test_a_stopped_sender_completes_nothing_and_leaves_no_timer(tmp_path):
    @on_loop
    async def scenario():
        async with coordinating(tmp_path, manual_timers=True) as (node, coordinator, sender):
            lead(node, "t", leader=-1, isr=())
            coordinator.send(prepared(T0))
            assert any(timer.delay_s == FIRST_RETRY_S for timer in node.timers.pending)
            sender.stop()
            assert not any(timer.delay_s == FIRST_RETRY_S for timer in node.timers.pending)
            lead(node, "t", leader=1, isr=(1,))
            sender.metadata_changed()
            await settle()
            assert (coordinator.completed, written(node, "t")) == ([], [])

    scenario()


# --- 54 ---


@pytest.mark.parametrize(("client_version", "sent"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_54_marker_version(tmp_path, client_version, sent):
    """The transaction's version goes into version 2 of the request; a broker of version 1 gets none, which means 0."""

    @on_loop
    async def scenario():
        async with two_brokers(tmp_path) as (_, other, coordinator, _, asked):
            await other.create("t", 3)
            coordinator.send(prepared(T1, version=client_version))
            await until(lambda: coordinator.completed == ["x"])
            ((_, request),) = asked
            for version, expected in ((2, sent), (1, 0)):
                frame = bytes(codec.encode_request(request, KEY, version, 1, None))[4:]
                header = codec.decode_request_header(frame)
                read = codec.decode_request(KEY, version, frame, header.body_offset)
                assert [marker.transaction_version for marker in read.markers] == [expected]

    scenario()


@pytest.mark.parametrize(("version", "refused"), [(2, True), (1, False)])
def test_54_a_broker_of_version_1_applies_the_older_rule(tmp_path, version, refused):
    """The same epoch as the open transaction: refused as TV2, accepted where the request cannot say so."""

    @on_loop
    async def scenario():
        async with two_brokers(tmp_path, version=version) as (_, other, coordinator, sender, asked):
            await other.create("t", 3)
            begin(other, "t", 1, epoch=1)
            coordinator.send(prepared(T1, epoch=1, version=2))
            await until(lambda: bool(asked) and (refused or sender.ending_transactions == 0))
            await until(lambda: queued(sender) == 0)
            assert coordinator.completed == ([] if refused else ["x"])
            assert is_open(other, "t", 1) is refused

    scenario()


@pytest.mark.parametrize(("version", "accepted"), [(0, True), (1, True), (2, False)])
def test_54_only_tv2_demands_a_higher_epoch(tmp_path, version, accepted):
    """An admin's abort, and everything of TV1, has the epoch of the transaction itself."""

    @on_loop
    async def scenario():
        async with coordinating(tmp_path) as (node, coordinator, _):
            begin(node, "t", epoch=1)
            coordinator.send(prepared(T0, epoch=1, version=version, commit=False))
            assert coordinator.completed == (["x"] if accepted else [])
            assert is_open(node, "t") is not accepted

    scenario()
