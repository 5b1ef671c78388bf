"""What a follower does to a partition's log: the steps that were decided (`replication/follower.py`), in their order.

1. A step that fails stops those behind it, and leaves the log as the steps before it made it.
2. A follower acknowledges by asking for what comes next. Where the topic wants records on disk (flush.messages), the
   caller syncs before it asks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twofold.replication.follower import Append, CutEnd, StartAnew, Step, TakeBounds, bounds_of

if TYPE_CHECKING:
    from twofold.broker.partitions.partition import Partition


def carry_out(partition: "Partition", steps: Sequence[Step]) -> bool:
    """Returns whether a flush is due before the leader is asked again."""
    partition_log = partition.log
    is_flush_due = False
    for step in steps:
        if type(step) is Append:
            is_flush_due |= partition_log.append_replicated(step.records, last_epoch=step.last_epoch, defer_flush=True)
        elif type(step) is TakeBounds:
            high_watermark, log_start_offset = bounds_of(step, partition_log)
            partition_log.take_high_watermark(high_watermark)
            if log_start_offset > partition_log.log_start_offset:
                partition_log.advance_log_start(log_start_offset)
        elif type(step) is CutEnd:
            partition_log.truncate_to(step.offset)
        elif type(step) is StartAnew:
            partition_log.truncate_fully_and_start_at(step.offset)
    if steps:
        partition.changes += 1
    return is_flush_due
