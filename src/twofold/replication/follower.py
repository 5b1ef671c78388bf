"""One partition that follows its leader: a value, and the decisions over it. No file, clock or connection is touched.

1. A follower asks where its own log ends, with the epoch of its last record. An answer counts only if it was asked for
   in the leader epoch that is current, at the offset where the log still ends.
2. With epochs in its log a follower never cuts it by the high watermark. It cuts where the leader's history differs.
3. What a leader of a later epoch wrote is not taken, before the metadata has named that leader.
4. The high watermark is the leader's, never beyond the follower's own end. It may go down after an election.
5. Every answer either moves the log on, or asks another question, or makes the partition wait: nothing spins.

What is to be done to the log comes back as data (`Step`). `broker/partitions/following.py` does it, in order. Where a
step fails, the later ones do not happen and `held_back` says how to go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from twofold.records.batch import HEADER_SIZE, LOG_OVERHEAD, Buffer
from twofold.wire.errors import (
    NONE,
    FencedLeaderEpoch,
    OffsetMovedToTieredStorage,
    OffsetOutOfRange,
)

NO_LEADER = -1
NO_EPOCH = -1
NO_OFFSET = -1
LATEST = -1  # of ListOffsets
EARLIEST = -2


class LogView(Protocol):
    """What a decision looks at."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The latest one in the log, -1 before the first."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end) of the last epoch up to this one, (-1, -1) where this one is beyond all that are known."""


class Phase(Enum):
    """What a follower does next."""

    WAIT = "wait"  # until the metadata names a leader in a later epoch
    FETCH = "fetch"
    FIND_END = "find end"  # of the leader's log, because the leader refused our offset
    FIND_START = "find start"


@dataclass(frozen=True, slots=True)
class Following:
    leader_id: int
    leader_epoch: int
    phase: Phase = Phase.WAIT
    not_before_s: float = 0.0

    def is_due(self, now_s: float) -> bool:
        return self.phase is not Phase.WAIT and self.not_before_s <= now_s


# What is asked


class FetchQuestion(NamedTuple):
    leader_epoch: int
    offset: int
    last_epoch: int  # of the record before it
    log_start_offset: int


class OffsetQuestion(NamedTuple):
    leader_epoch: int
    timestamp: int  # LATEST or EARLIEST


class FetchAnswer(NamedTuple):
    error_code: int
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: Buffer = b""
    diverging: tuple[int, int] | None = None  # the leader's largest epoch up to ours, and where it ended


# What is done


class CutEnd(NamedTuple):
    """Remove what lies at the offset and beyond, and the epochs that begin there."""

    offset: int


class StartAnew(NamedTuple):
    """Remove everything; the next batch has this offset."""

    offset: int


class Append(NamedTuple):
    """Append the whole batches up to the first one of a later epoch."""

    records: Buffer
    last_epoch: int


class TakeBounds(NamedTuple):
    """Take the leader's high watermark and log start over, as far as the log reaches: `bounds_of`."""

    high_watermark: int
    log_start_offset: int


Step: TypeAlias = CutEnd | StartAnew | Append | TakeBounds


class FollowerDecision(NamedTuple):
    following: Following
    steps: Sequence[Step] = ()
    reason: str = ""  # for the log of the broker, where the follower is not simply going on


# Decisions


def begin(leader_id: int, leader_epoch: int, log: LogView) -> FollowerDecision:
    """A new leader epoch, of another leader or of none."""
    if leader_id == NO_LEADER:
        return FollowerDecision(Following(NO_LEADER, leader_epoch))
    steps = [] if log.leader_epoch != NO_EPOCH else [CutEnd(log.high_watermark)]
    return FollowerDecision(Following(leader_id, leader_epoch, Phase.FETCH), steps)


def question(following: Following, log: LogView) -> FetchQuestion | OffsetQuestion | None:
    """What to ask the leader; None while there is nothing to ask."""
    epoch = following.leader_epoch
    if following.phase is Phase.FETCH:
        return FetchQuestion(epoch, log.log_end_offset, log.leader_epoch, log.log_start_offset)
    if following.phase is Phase.WAIT:
        return None
    return OffsetQuestion(epoch, LATEST if following.phase is Phase.FIND_END else EARLIEST)


def fetched(
    following: Following, asked: FetchQuestion, answer: FetchAnswer, log: LogView, retry_at_s: float
) -> FollowerDecision:
    """What the leader's answer means for the log."""
    if (
        following.phase is not Phase.FETCH
        or asked.leader_epoch != following.leader_epoch
        or asked.offset != log.log_end_offset
    ):
        return FollowerDecision(following)
    if answer.error_code != NONE:
        return _refused(following, answer.error_code, retry_at_s)
    if answer.diverging is not None:
        return _diverged(following, answer.diverging, log, retry_at_s)
    bounds = TakeBounds(answer.high_watermark, answer.log_start_offset)
    if not len(answer.records):
        return FollowerDecision(following, (bounds,))
    base_offset, size, epoch = _first_batch(answer.records)
    if epoch > following.leader_epoch:
        later = f"epoch {epoch} of the leader's records is later than {following.leader_epoch}"
        return held_back(following, retry_at_s, f"{later}: waiting for the metadata")
    if size > len(answer.records):
        return held_back(following, retry_at_s, f"the leader sent {len(answer.records)} bytes of a batch of {size}")
    append = Append(answer.records, following.leader_epoch)
    if base_offset < log.log_end_offset and log.log_start_offset == log.log_end_offset:
        # The leader's log start lies inside of a batch. An empty log can begin with that batch.
        return FollowerDecision(following, (StartAnew(base_offset), append, bounds))
    return FollowerDecision(following, (append, bounds))


def offset_found(
    following: Following, asked: OffsetQuestion, error_code: int, offset: int, log: LogView, retry_at_s: float
) -> FollowerDecision:
    """The leader said where its log ends, or where it begins."""
    if asked.leader_epoch != following.leader_epoch or asked != question(following, log):
        return FollowerDecision(following)
    fetching = replace(following, phase=Phase.FETCH)
    if error_code == FencedLeaderEpoch.code:
        return _refused(following, error_code, retry_at_s)
    if error_code != NONE or offset < 0:
        return held_back(fetching, retry_at_s, f"error {error_code} from the leader when it was asked for its offsets")
    end = log.log_end_offset
    if asked.timestamp == LATEST:
        if offset < end:
            return FollowerDecision(fetching, (CutEnd(offset),), f"the leader's log ends at {offset}, ours at {end}")
        return FollowerDecision(replace(following, phase=Phase.FIND_START))
    if offset > end:
        return FollowerDecision(
            fetching, (StartAnew(offset),), f"the leader's log begins at {offset}, ours ends at {end}"
        )
    return held_back(fetching, retry_at_s, f"the leader has [{offset}, ...) and refuses offset {end}")


def held_back(following: Following, retry_at_s: float, reason: str) -> FollowerDecision:
    """Not now: no connection, a step that failed, an answer that only time can mend."""
    return FollowerDecision(replace(following, not_before_s=retry_at_s), (), reason)


def bounds_of(taken: TakeBounds, log: LogView) -> tuple[int, int]:
    """The high watermark and the log start that follow from the leader's, for the log as it is now."""
    end = log.log_end_offset
    start = max(log.log_start_offset, min(taken.log_start_offset, end))
    if taken.high_watermark < 0:
        return max(log.high_watermark, start), start
    return max(min(taken.high_watermark, end), start), start


def _refused(following: Following, error_code: int, retry_at_s: float) -> FollowerDecision:
    if error_code == OffsetOutOfRange.code:
        return FollowerDecision(replace(following, phase=Phase.FIND_END))
    if error_code == FencedLeaderEpoch.code:
        reason = f"leader epoch {following.leader_epoch} is over: waiting for the metadata"
        return FollowerDecision(replace(following, phase=Phase.WAIT), (), reason)
    if error_code == OffsetMovedToTieredStorage.code:
        return FollowerDecision(replace(following, phase=Phase.WAIT), (), "its leader keeps records in tiered storage")
    return held_back(following, retry_at_s, f"error {error_code} from the leader")


def _diverged(following: Following, diverging: tuple[int, int], log: LogView, retry_at_s: float) -> FollowerDecision:
    """Cut what the leader does not have. Where only the leader knows the epoch, the next answer tells more."""
    epoch, leader_end = diverging[0], max(0, diverging[1])
    end = log.log_end_offset
    known, own_end = log.end_offset_for_epoch(epoch)
    if known < 0:
        offset = min(leader_end, end)
    elif known == epoch:
        offset = min(leader_end, own_end, end)
    else:
        offset = min(own_end, end)
    if offset == end and known in (NO_EPOCH, log.leader_epoch):  # not even an epoch without records goes
        return held_back(following, retry_at_s, f"the leader's epoch {epoch} ended at {leader_end}, ours at {end}")
    text = f"the leader's epoch {epoch} ended at {leader_end}: cutting from {end} to {offset}"
    return FollowerDecision(following, (CutEnd(offset),), text if offset < end else "")


def _first_batch(records: Buffer) -> tuple[int, int, int]:
    """Base offset, size and leader epoch of the first batch. Of one that is cut off before it tells: size unbounded."""
    if len(records) < HEADER_SIZE:
        return NO_OFFSET, len(records) + HEADER_SIZE, NO_EPOCH
    with memoryview(records) as view:
        length = int.from_bytes(view[8:12], "big", signed=True)
        epoch = int.from_bytes(view[12:16], "big", signed=True)
        return int.from_bytes(view[:8], "big", signed=True), length + LOG_OVERHEAD, epoch
