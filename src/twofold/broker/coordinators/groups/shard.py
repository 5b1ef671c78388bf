"""One partition of `__consumer_offsets` that this broker leads: groups and offsets on a coordinator's shard.

1. Deadlines of members are not in the log: a shard that has loaded gives every member a whole session. They are moments
   of the attention clock: while the broker cannot listen, no session and no rebalance runs out.
2. One timer for all deadlines of the shard.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from twofold.broker.coordinators.shard import CoordinatorShard, ShardPort, batches_of
from twofold.broker.network.attention import AttentionClock
from twofold.broker.partitions.partition import ALL_REPLICAS, Partition
from twofold.broker.partitions.purgatory import Purgatory
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.group.classic import Token
from twofold.coordinator.group.consumer.groups import ConsumerGroups, GroupDecision, new_member_id
from twofold.coordinator.group.consumer.subscriptions import Resolution
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig, GroupSurroundings
from twofold.coordinator.group.context import Client, GroupConfig, Instant, Outcome
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.offsets import Offsets
from twofold.coordinator.group.records import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    TransactionEnd,
    UnknownRecordType,
    decode,
    encode_key,
    encode_value,
)
from twofold.coordinator.group.state import GroupMachine, GroupsState, as_coordinator_error
from twofold.log.api import AppendResult, Origin
from twofold.machine.runtime import Result
from twofold.records.batch import BatchBuilder, Header, iter_records
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker, read_end_marker
from twofold.runtime.api import Runtime, TimerHandle
from twofold.types import NO_PRODUCER_ID
from twofold.wire.errors import KafkaError
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

TICKS_PER_TURN = 100

T = TypeVar("T")

log = logging.getLogger(__name__)


class GroupPort(ShardPort[LogRecord]):
    def __init__(self, find: Callable[[], Partition], runtime: Runtime, codec: Codec) -> None:
        super().__init__(find)
        self._runtime = runtime
        self._codec = codec
        # Of the transaction that the next append belongs to.
        self.guard: int | None = None
        self.durable = False

    def write(self, partition: Partition, records: Sequence[LogRecord]) -> AppendResult:
        first = records[0]
        by_hand = type(first) is TransactionEnd and first.by_hand
        return partition.append(
            self._encode(partition, records),
            ALL_REPLICAS,
            origin=Origin.ADMINISTRATOR if by_hand else Origin.COORDINATOR,
            guard=self.guard,
            durable=self.durable,
            transaction_version=first.transaction_version if type(first) is TransactionEnd else 2,
        )

    def _encode(self, partition: Partition, records: Sequence[LogRecord]) -> bytes:
        now_ms = self._runtime.clock.wall_ms()
        first = records[0]
        if type(first) is TransactionEnd:
            return end_transaction_marker(
                commit=first.committed,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                coordinator_epoch=first.coordinator_epoch,
                timestamp_ms=now_ms,
            )
        rows = ((encode_key(record), encode_value(record)) for record in records)  # type: ignore[arg-type]
        return batches_of(rows, lambda: self._builder(first), now_ms, partition.log.config.max_message_bytes)

    def _builder(self, first: LogRecord) -> BatchBuilder:
        if type(first) is OffsetRecord and first.producer_id != NO_PRODUCER_ID:
            return BatchBuilder(
                self._codec,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        return BatchBuilder(self._codec, base_sequence=0)


class GroupShard(CoordinatorShard[GroupsState, LogRecord]):
    topic = CONSUMER_OFFSETS
    _port: GroupPort

    def __init__(
        self,
        index: int,
        epoch: int,
        find: Callable[[], Partition],
        runtime: Runtime,
        attention: AttentionClock,
        purgatory: Purgatory,
        config: GroupConfig,
        cluster: GroupSurroundings,
        *,
        commit_timeout_ms: int,
        codec: Codec = Codec.NONE,
        consumer_config: ConsumerGroupConfig | None = None,
    ) -> None:
        """`find` gives the partition of `__consumer_offsets`, which is created by that."""
        port = GroupPort(find, runtime, codec)
        super().__init__(index, epoch, GroupMachine(), port, runtime, purgatory, commit_timeout_ms=commit_timeout_ms)
        self.membership = Membership(config, lambda: str(UUID(int=runtime.random.getrandbits(128), version=4)))
        self.consumers = ConsumerGroups(
            consumer_config or ConsumerGroupConfig(), cluster, lambda: new_member_id(runtime.random.getrandbits(128))
        )
        self.offsets = Offsets(config, self.membership)
        self._attention = attention
        self._timer: TimerHandle | None = None
        self._timer_at = 0

    def now(self) -> Instant:
        return Instant(self._runtime.clock.wall_ms(), self._attention.now_ms)

    def as_coordinator_error(self, error: KafkaError) -> KafkaError:
        return as_coordinator_error(error)

    # --- loading and resigning ---

    def activated(self) -> None:
        self.consumers.load(self.state, self.now())
        self.run(self.membership.load(self.state, self.now()))

    def decode_batch(self, data: bytes, at: int, header: Header) -> Iterator[tuple[int, LogRecord]]:
        if header.is_control:
            marker = read_end_marker(data, at) if header.count else None
            if marker is not None:
                yield (
                    header.last_offset,
                    TransactionEnd(header.producer_id, header.producer_epoch, marker.coordinator_epoch, marker.commit),
                )
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in iter_records(data, at):
            try:
                decoded = decode(record.key, record.value, producer_id, header.producer_epoch)
            except UnknownRecordType as error:
                log.warning("%s: the record at offset %d is passed over: %s", self, record.offset, error)
                continue
            if decoded is not None:
                yield record.offset, decoded

    def stop_waiting(self, error: KafkaError) -> None:
        """Answer all requests that wait for other members. What is being written is still answered when it is safe."""
        self.is_active = False
        self._inactive = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.consumers.resign()
        self._reply(self.membership.resign(error))

    def resign(self, error: KafkaError) -> None:
        self.stop_waiting(error)
        super().resign(error)

    # --- working ---

    def remove(
        self, handler: Callable[[GroupsState, int], Result[LogRecord, None]], group_id: str
    ) -> "asyncio.Future[None]":
        """Write what may end a group, which then needs no place in memory beside the log's state either."""
        future = self.write(handler)
        self.membership.forget(self.state, group_id)
        return future

    def write_in_transaction(
        self,
        handler: Callable[[GroupsState, int], Result[LogRecord, T]],
        guard: int | None = None,
        *,
        durable: bool = False,
    ) -> "asyncio.Future[T]":
        self._port.guard, self._port.durable = guard, durable
        try:
            return self.write(handler)
        finally:
            self._port.guard, self._port.durable = None, False

    def call(self, step: Callable[[GroupsState, Token, Instant], Outcome]) -> "asyncio.Future[Any]":
        """Take a step of the membership; the future is its answer."""
        self.check_active()
        token: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.run(step(self.state, token, self.now()))
        return token

    def run(self, outcome: Outcome) -> None:
        """Give the answers, write the records and go on from there."""
        self._reply(outcome)
        if outcome.records:
            records = outcome.records
            try:
                future = self.write(lambda state, now: Result(records, None))
            except KafkaError as error:
                log.warning("%s: %d records were not written: %s", self, len(records), error)
                self._continue(outcome, error)
            else:
                if future.done():
                    self._written(outcome, future)
                else:
                    future.add_done_callback(partial(self._written, outcome))
        self._arm()

    def _reply(self, outcome: Outcome) -> None:
        for token, response in outcome.replies:
            if not token.done():
                token.set_result(response)

    def _written(self, outcome: Outcome, future: "asyncio.Future[None]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None and not isinstance(error, KafkaError):
            raise error
        self._continue(outcome, error)
        if error is None:
            for record in outcome.records:
                if type(record) is GroupRecord:
                    self.membership.forget(self.state, record.group_id)

    def _continue(self, outcome: Outcome, error: KafkaError | None) -> None:
        if outcome.then is not None and self.is_active:
            self.run(outcome.then(error, self.now()))

    # --- consumer groups ---

    def decide(self, decision: GroupDecision[T], now: Instant) -> "asyncio.Future[T]":
        """Write what was decided on a consumer group; the future is the answer."""
        future = self.write(lambda state, _: Result(decision.records, decision.answer, wait=True))
        self.consumers.accept(self.state, decision, now)
        if decision.replaces_classic:
            self.run(self.membership.release(decision.group_id))
        if decision.turned_classic:
            self.run(self.membership.adopt(self.state, decision.group_id, now, rebalance=decision.must_rebalance))
        self._arm()
        return future

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, resolve: Callable[[Resolution], None]
    ) -> "asyncio.Future[ConsumerGroupHeartbeatResponse]":
        """`resolve` finds the topics of patterns aside, and brings them with `resolved`."""
        self.check_active()
        now, group_id = self.now(), request.group_id
        classic = None if group_id in self.state.consumers else self.membership.find(self.state, group_id)
        decision = self.consumers.heartbeat(self.state, classic, request, client, now)
        future = self.decide(decision, now)
        if decision.resolution is not None:
            resolve(decision.resolution)
        return future

    def resolved(self, resolution: Resolution, found: Mapping[str, frozenset[str]], version: int) -> None:
        now = self.now()
        decision = self.consumers.resolved(self.state, resolution.group_id, found, version, now)
        if decision is not None and self.is_active:
            self.decide(decision, now)

    # --- requests of the classic protocol, to groups of either type ---

    def join(self, request: JoinGroupRequest, client: Client) -> "asyncio.Future[JoinGroupResponse]":
        self.check_active()
        group = self.state.consumers.get(request.group_id)
        if group is not None and group.members:
            now = self.now()
            return self.decide(self.consumers.join(group, request, client, now), now)
        emptied = self.consumers.make_room_for_classic(self.state, request.group_id)

        def step(state: GroupsState, token: Token, now: Instant) -> Outcome:
            outcome = self.membership.join(state, request, client, token, now)
            if outcome.records:
                outcome.records[:0] = emptied
            return outcome

        return self.call(step)

    def sync(self, request: SyncGroupRequest) -> "asyncio.Future[SyncGroupResponse]":
        group = self.state.consumers.get(request.group_id)
        if group is None or not self.is_active:
            return self.call(lambda state, token, now: self.membership.sync(request, token, now))
        now = self.now()
        return self.decide(self.consumers.sync(group, request, now), now)

    def heartbeat(self, request: HeartbeatRequest) -> int:
        now = self.now()
        group = self.state.consumers.get(request.group_id)
        if group is None:
            return self.membership.heartbeat(request, now)
        decision = self.consumers.classic_heartbeat(group, request, now)
        self.consumers.accept(self.state, decision, now)
        self._arm()
        return decision.answer

    def leave(self, request: LeaveGroupRequest) -> "asyncio.Future[LeaveGroupResponse]":
        group = self.state.consumers.get(request.group_id)
        if group is None or not self.is_active:
            return self.call(lambda state, token, now: self.membership.leave(state, request, token, now))
        now = self.now()
        return self.decide(self.consumers.leave(group, request, now), now)

    # --- time ---

    def _arm(self) -> None:
        moments = (self.membership.deadlines.next_at, self.consumers.deadlines.next_at)
        at = min((moment for moment in moments if moment is not None), default=None)
        if at is None or not self.is_active or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        # Not less than a step of our clock: a timer that fires a rounding error too early would find nothing due, again
        # and again.
        delay_s = max(0.001, at / 1000 - self._attention.monotonic())
        self._timer_at = at
        self._timer = self._runtime.timers.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        for _ in range(TICKS_PER_TURN):
            outcome = self.membership.tick(self.state, self.now())
            if outcome is None:
                break
            self.run(outcome)
        for _ in range(TICKS_PER_TURN):
            now = self.now()
            decision = self.consumers.tick(self.state, now)
            if decision is None:
                break
            self._write_due(decision, now)
        self._arm()

    def _write_due(self, decision: GroupDecision[None], now: Instant) -> None:
        try:
            self.decide(decision, now).add_done_callback(lambda done: done.cancelled() or done.exception())
        except KafkaError as error:
            log.warning("%s: a member of group %s stays for now: %s", self, decision.group_id, error)
            self.consumers.try_again(decision, now)
