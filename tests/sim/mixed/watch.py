"""What must hold at every moment where everything runs at once: what holds for transactions, two-phase ones and groups,
and two more.

1. The files of a topic that is trimmed or compacted hold nothing that was not appended there.
2. No segment goes before what is in it is decided: log start <= LSO, also where retention and the cleaner are at work
   (that is part of the bounds which are looked at with every append).
"""

from typing import Self

from sim.groups.check import GroupWatch
from sim.transactions.watch import batches_on_disk
from sim.two_phase.watch import TwoPhaseWatch
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.log.log import PartitionLog
from twofold.records.batch import read_header
from twofold.types import TopicPartition


class MixedWatch(TwoPhaseWatch):
    def __init__(self, *, outside_ids: set[str], trimmed: set[str], has_disk_errors: bool) -> None:
        super().__init__(compacted=True)
        self.groups = GroupWatch()
        self.appended: dict[TopicPartition, list[bytes]] = {}
        """Of the topics that are trimmed: every batch that ever was in the log and was not lost with the power."""
        self._outside_ids = outside_ids
        self._trimmed = trimmed
        self._has_disk_errors = has_disk_errors

    def __enter__(self) -> Self:
        super().__enter__()
        self._patches.enter_context(self.groups)
        return self

    def crash(self, power_cut: bool) -> None:
        super().crash(power_cut)
        # After an error of the disk it is open what of the last writes is there.
        self.groups.crash(power_cut or self._has_disk_errors)

    def stopped_cleanly(self) -> None:
        super().stopped_cleanly()
        self.groups.stopped_cleanly()

    def follows(self, topic: str) -> bool:
        return topic not in self._trimmed and super().follows(topic)

    def _check_decision(self, old: TransactionMetadata, commit: bool, text: tuple[object, ...]) -> None:
        if self.ids.get(old.producer_id) in self._outside_ids:
            super()._check_decision(old, commit, text)

    def _follow(self, log: PartitionLog) -> None:
        tp = log.topic_partition
        if tp.topic in self._trimmed and self._owners.get(tp) is not log:
            self._look_again(log)
        super()._follow(log)

    def _look_again(self, log: PartitionLog) -> None:
        """A log that was opened: the power may have taken the end, and what was under way may be there."""
        known = self.appended.setdefault(log.topic_partition, [])
        while known and read_header(known[-1]).base_offset >= log.log_end_offset:
            known.pop()
        end = read_header(known[-1]).next_offset if known else 0
        for batch in batches_on_disk(log._context.environment.disk, log.directory):
            if read_header(batch).base_offset >= end:
                known.append(batch)

    def _appended(self, log: PartitionLog, data: bytes) -> None:
        super()._appended(log, data)
        if log.topic_partition.topic in self._trimmed:
            self.appended[log.topic_partition].append(data)
