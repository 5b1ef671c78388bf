"""What must hold in a cluster at every step, learnt by watching leaders, followers and controller.

1. What a leader's high watermark has passed is in the log of every later leader, at the same offsets and byte for byte,
   unless the controller has recorded an unclean election. So nothing that was acknowledged is lost.
2. Two replicas that agree on (offset, epoch) agree on everything below. Below its high watermark every replica agrees
   with what was committed.
3. One broker appends in a leader epoch. Epochs in a log never fall. The high watermark of a leader never falls in its
   epoch, moves not at all while fewer replicas are in sync than the topic asks for, and is not beyond what any in-sync
   replica has.
4. A replica that the controller takes into an ISR has all below the leader's high watermark, and keeps it while it is
   in there.
5. It is neither fenced nor shutting down then.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from unittest.mock import patch
from uuid import UUID

from sim.broker.watch import Violation, require, stored_batches
from twofold.broker.partitions.partition import Partition
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage, PartitionState
from twofold.log.api import Bound
from twofold.log.log import PartitionLog
from twofold.records.batch import iter_headers, iter_records, read_header
from twofold.runtime.sim.loop import current_life
from twofold.types import TopicPartition

RECOVERING = 1


class Key(NamedTuple):
    topic_id: UUID | None
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return str(self.topic_partition)


@dataclass(eq=False)
class Model:
    """One partition of the cluster, as it has to be."""

    key: Key
    batches: list[bytes] = field(default_factory=list)
    """What is committed: a leader's high watermark has passed it."""
    values: dict[int, bytes] = field(default_factory=dict)
    lost: set[tuple[int, bytes]] = field(default_factory=set)
    """What unclean elections took."""
    leaders: dict[int, str] = field(default_factory=dict)
    """Which broker appended in an epoch."""
    watermarks: dict[int, int] = field(default_factory=dict)
    """The leader's, by epoch."""
    ends: dict[int, int] = field(default_factory=dict)
    """Of each replica's log, as it was when the broker was last alive."""
    unclean: set[int] = field(default_factory=set)
    """Epochs that began with an unclean election."""
    state: PartitionState | None = None
    """As the controller has it."""

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def commit(self, log: PartitionLog, high_watermark: int, who: str) -> None:
        """The log is a leader's; all below its high watermark is committed."""
        for batch in batches_of(log, self.end):
            header = read_header(batch)
            if header.next_offset > high_watermark:
                break
            require(
                header.base_offset == self.end,
                f"{self.key}: {who} commits {described(batch)} after what was committed to {self.end}",
            )
            self.batches.append(batch)
            if not header.is_control:
                self.values.update((record.offset, record.value or b"") for record in iter_records(batch))

    def begin_epoch(self, epoch: int, found: list[bytes], who: str) -> None:
        same = common_prefix(found, self.batches)
        if same == len(self.batches):
            return
        end = read_header(found[-1]).next_offset if found else 0
        require(
            epoch in self.unclean,
            f"{self.key}: {who} leads epoch {epoch} with a log to {end}, and lacks what was committed from "
            f"{read_header(self.batches[same]).base_offset} on: {differing(found, self.batches)}",
        )
        self.batches = self.batches[:same]
        for offset in [offset for offset in self.values if offset >= self.end]:
            self.lost.add((offset, self.values.pop(offset)))


def common_prefix(one: list[bytes], other: list[bytes]) -> int:
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return min(len(one), len(other))


def differing(one: list[bytes], other: list[bytes]) -> str:
    at = common_prefix(one, other)
    return " and ".join(described(batches[at]) if at < len(batches) else "nothing" for batches in (one, other))


def described(batch: bytes) -> str:
    header = read_header(batch)
    return f"[{header.base_offset}..{header.last_offset} of epoch {header.leader_epoch}]"


def batches_of(log: PartitionLog, offset: int = 0) -> list[bytes]:
    """An open log from an offset on, as a reader finds it."""
    found: list[bytes] = []
    offset = max(offset, log.log_start_offset)
    while offset < log.log_end_offset:
        data = bytes(log.read(offset, 1 << 20, Bound.LOG_END).records)
        for position, header in iter_headers(data):
            found.append(data[position : position + header.size])
            offset = header.next_offset
    return found


def node_here() -> str:
    life = current_life()
    return "?" if life is None else life.node


class ClusterWatch:
    """`with ClusterWatch() as watch:` around a simulation of a cluster."""

    def __init__(self) -> None:
        self.models: dict[Key, Model] = {}
        self.violations: list[Violation] = []
        self.commits = 0
        """Changes of ISRs that the controller has made."""
        self.unclean = 0
        self._brokers: Mapping[int, Any] = {}
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for owner, name, replacement in (
            (Partition, "become_leader", self._become_leader),
            (Partition, "_move_high_watermark", self._move_high_watermark),
            (Partition, "append", self._append),
            (PartitionLog, "append_replicated", self._follow),
            (PartitionLog, "truncate_to", self._cut),
            (PartitionLog, "truncate_fully_and_start_at", self._cut),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement(getattr(owner, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A broker answers an error of its own with an error code: remember what was wrong."""
        try:
            yield
        except Violation as violation:
            self.violations.append(violation)
            raise

    def model(self, log: PartitionLog) -> Model:
        key = Key(log.topic_id, log.topic_partition)
        return self.models.setdefault(key, Model(key))

    def of(self, topic_partition: TopicPartition) -> Model | None:
        return next((model for key, model in self.models.items() if key.topic_partition == topic_partition), None)

    def note_end(self, log: PartitionLog) -> Model:
        model = self.model(log)
        node = node_here()
        if node.startswith("b") and node[1:].isdigit():
            model.ends[int(node[1:])] = log.log_end_offset
        return model

    # Leaders

    def _become_leader(self, original: Any) -> Any:
        def become_leader(partition: Partition, state: PartitionState, now_ms: int) -> Any:
            before = partition.leader_epoch
            result = original(partition, state, now_ms)
            if partition.is_leader and partition.leader_epoch > before and len(state.replicas) > 1:
                with self.noting():
                    model = self.note_end(partition.log)
                    model.begin_epoch(partition.leader_epoch, batches_of(partition.log), node_here())
            return result

        return become_leader

    def _move_high_watermark(self, original: Any) -> Any:
        def move(partition: Partition, offset: int) -> Any:
            before = partition.log.high_watermark
            result = original(partition, offset)
            after = partition.log.high_watermark
            if partition.leading is not None and partition.leading.followers and after != before:
                with self.noting():
                    self._moved(partition, before, after)
            return result

        return move

    def _moved(self, partition: Partition, before: int, after: int) -> None:
        model, epoch = self.note_end(partition.log), partition.leader_epoch
        who = f"{partition} on {node_here()} in epoch {epoch}"
        require(after > before, f"{who}: the high watermark falls from {before} to {after}")
        known = model.watermarks.get(epoch, 0)
        require(after >= known, f"{who}: the high watermark was {known} in this epoch, and is {after}")
        model.watermarks[epoch] = after
        require(
            len(partition.isr) >= partition.min_in_sync_replicas,
            f"{who}: the high watermark moves to {after} with {partition.isr} in sync, "
            f"{partition.min_in_sync_replicas} are asked for",
        )
        state = model.state
        if state is not None and state.leader_epoch == epoch:
            ends = {member: model.ends.get(member, 0) for member in state.isr}
            require(min(ends.values()) >= after, f"{who}: the high watermark is {after}, the ISR has {ends}")
        model.commit(partition.log, after, node_here())

    def _append(self, original: Any) -> Any:
        def append(partition: Partition, *args: Any, **options: Any) -> Any:
            result = original(partition, *args, **options)
            with self.noting():
                model, epoch = self.note_end(partition.log), partition.leader_epoch
                leader = model.leaders.setdefault(epoch, node_here())
                require(leader == node_here(), f"{partition}: {leader} and {node_here()} append in epoch {epoch}")
            return result

        return append

    # Followers

    def _follow(self, original: Any) -> Any:
        def append_replicated(log: PartitionLog, records: Any, *args: Any, **options: Any) -> Any:
            result = original(log, records, *args, **options)
            with self.noting():
                self.note_end(log)
            return result

        return append_replicated

    def _cut(self, original: Any) -> Any:
        def cut(log: PartitionLog, offset: int, *args: Any, **options: Any) -> Any:
            with self.noting():
                self._check_cut(log, offset)
            result = original(log, offset, *args, **options)
            with self.noting():
                self.note_end(log)
            return result

        return cut

    def _check_cut(self, log: PartitionLog, offset: int) -> None:
        """A replica that is in sync, and so may lead at any moment, keeps what is committed."""
        model, node = self.model(log), node_here()
        members = () if model.state is None else model.state.isr
        if node.removeprefix("b") in map(str, members) and offset < min(model.end, log.log_end_offset):
            taken = {lost for lost, _ in model.lost}
            require(
                any(at in taken for at in range(offset, log.log_end_offset)),
                f"{log}: {node} is in the ISR {members} and cuts its log at {offset}, {model.end} is committed",
            )

    # The controller

    def metadata_changed(self, delta: ImageDelta, image: MetadataImage) -> None:
        for change in delta.changed_topics:
            for index, state in change.changed():
                key = Key(change.topic.topic_id, TopicPartition(change.topic.name, index))
                model = self.models.setdefault(key, Model(key))
                before, model.state = model.state, state
                with self.noting():
                    self._partition_changed(model, before, state, image)

    def _partition_changed(
        self, model: Model, before: PartitionState | None, state: PartitionState, image: MetadataImage
    ) -> None:
        if before is None or before == state:
            return
        if state.leader_recovery_state == RECOVERING and state.leader_epoch > before.leader_epoch:
            model.unclean.add(state.leader_epoch)
            self.unclean += 1
            return
        joined = [member for member in state.isr if member not in before.isr]
        for member in joined:
            broker = image.broker(member)
            require(
                broker is not None and broker.is_active,
                f"{model.key}: broker {member} joins the ISR {state.isr} and is {broker}",
            )
        require(
            state.leader < 0 or state.leader in state.isr, f"{model.key}: {state.leader} leads outside of {state.isr}"
        )
        if joined and state.leader_epoch == before.leader_epoch:
            self.commits += 1
            watermark = model.watermarks.get(state.leader_epoch, 0)
            ends = {member: model.ends.get(member, 0) for member in joined}
            require(
                min(ends.values()) >= watermark,
                f"{model.key}: {joined} join the ISR with logs to {ends}, the high watermark is {watermark}",
            )

    # All replicas beside each other

    def compare(self, disks: Mapping[int, Any], logs: Mapping[int, Mapping[TopicPartition, PartitionLog]]) -> None:
        """The logs of all brokers that run, as they are on their disks."""
        for key, model in self.models.items():
            found: dict[int, list[bytes]] = {}
            for broker, held in logs.items():
                log = held.get(key.topic_partition)
                if log is not None and log.topic_id == key.topic_id and log.is_open:
                    found[broker] = stored_batches(disks[broker], log.directory)
                    self._check_replica(model, broker, log, found[broker])
            for one in found:
                for other in found:
                    if one < other:
                        check_matching(f"{key}: brokers {one} and {other}", found[one], found[other])

    def _check_replica(self, model: Model, broker: int, log: PartitionLog, batches: list[bytes]) -> None:
        epochs = [read_header(batch).leader_epoch for batch in batches]
        require(epochs == sorted(epochs), f"{model.key}: on broker {broker} epochs fall: {epochs}")
        bounds = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset)
        require(list(bounds) == sorted(bounds), f"{model.key}: on broker {broker} start, LSO, HW, end are {bounds}")
        below = [batch for batch in batches if read_header(batch).next_offset <= log.high_watermark]
        known = min(len(below), len(model.batches))
        require(
            below[:known] == model.batches[:known] or self._may_differ(model, below),
            f"{model.key}: below its high watermark {log.high_watermark} broker {broker} has something else than what "
            f"was committed: {differing(below, model.batches)}",
        )

    def _may_differ(self, model: Model, below: list[bytes]) -> bool:
        """What an unclean election took may be on a replica until it follows the new leader."""
        taken = {offset for offset, _ in model.lost}
        at = common_prefix(below, model.batches)
        return any(offset in taken for batch in below[at:] for offset in offsets_of(batch))


def offsets_of(batch: bytes) -> range:
    header = read_header(batch)
    return range(header.base_offset, header.next_offset)


def check_matching(who: str, one: list[bytes], other: list[bytes]) -> None:
    """Log matching: where both have a batch at the same offset in the same epoch, all below is the same."""
    places = {(read_header(batch).base_offset, read_header(batch).leader_epoch): at for at, batch in enumerate(one)}
    for at in range(len(other) - 1, -1, -1):
        header = read_header(other[at])
        same = places.get((header.base_offset, header.leader_epoch))
        if same is not None:
            require(
                one[: same + 1] == other[: at + 1],
                f"{who} agree on {described(other[at])} and not below: {differing(one, other)}",
            )
            return
