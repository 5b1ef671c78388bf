"""What a follower makes of each answer of its leader: one test for each row of the rules."""

from dataclasses import dataclass, replace

import pytest

from kits.log.partition import data_batch
from twofold.log.recovery.epochs import EpochCache
from twofold.replication.follower import (
    EARLIEST,
    LATEST,
    Append,
    CutEnd,
    FetchAnswer,
    FetchQuestion,
    FollowerDecision,
    Following,
    OffsetQuestion,
    Phase,
    StartAnew,
    TakeBounds,
    begin,
    bounds_of,
    fetched,
    held_back,
    offset_found,
    question,
)

EPOCH = 7
LEADER = 3
RETRY_AT_S = 42.0


@dataclass(frozen=True)
class Log:
    """A log as far as decisions look at it."""

    log_end_offset: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    high_watermark: int = 0
    log_start_offset: int = 0

    @property
    def leader_epoch(self) -> int:
        return EpochCache(list(self.epochs)).latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return EpochCache(list(self.epochs)).end_offset_for(epoch, self.log_end_offset)


FOLLOWING = Following(LEADER, EPOCH, Phase.FETCH)
LOG = Log(20, ((2, 0), (5, 12)), high_watermark=15)


def asked_of(log: Log, following: Following = FOLLOWING) -> FetchQuestion:
    asked = question(replace(following, phase=Phase.FETCH), log)
    assert isinstance(asked, FetchQuestion)
    return asked


def answered(log: Log, answer: FetchAnswer, following: Following = FOLLOWING) -> FollowerDecision:
    return fetched(following, asked_of(log, following), answer, log, RETRY_AT_S)


def refused(error_code: int, log: Log = LOG) -> Following:
    decision = answered(log, FetchAnswer(error_code))
    assert not decision.steps, "an error changes nothing in the log"
    return decision.following


# --- beginning (3.1) ---


def test_a_follower_asks_at_its_end_with_the_epoch_of_its_last_record():
    decision = begin(LEADER, EPOCH, LOG)
    assert decision == FollowerDecision(Following(LEADER, EPOCH, Phase.FETCH), [])
    assert question(decision.following, LOG) == FetchQuestion(EPOCH, 20, 5, 0)


def test_a_follower_with_epochs_is_never_cut_by_the_high_watermark():
    assert not begin(LEADER, EPOCH, LOG).steps


def test_a_follower_without_epochs_is_cut_to_its_high_watermark():
    log = Log(20, (), high_watermark=15)
    assert begin(LEADER, EPOCH, log).steps == [CutEnd(15)]
    assert asked_of(replace(log, log_end_offset=15)) == FetchQuestion(EPOCH, 15, -1, 0)


def test_without_a_leader_a_follower_waits():
    decision = begin(-1, EPOCH, Log(20, (), high_watermark=15))
    assert decision.following.phase is Phase.WAIT
    assert not decision.steps
    assert question(decision.following, LOG) is None
    assert not decision.following.is_due(1e9)


# --- answers that came too late ---


def test_an_answer_of_an_earlier_leader_epoch_is_ignored():
    answer = FetchAnswer(0, 20, 0, data_batch(base_offset=20, leader_epoch=6))
    newer = replace(FOLLOWING, leader_epoch=EPOCH + 1)
    assert fetched(newer, asked_of(LOG), answer, LOG, RETRY_AT_S) == FollowerDecision(newer)


def test_an_answer_for_another_offset_is_ignored():
    answer = FetchAnswer(0, 20, 0, data_batch(base_offset=20, leader_epoch=6))
    shorter = replace(LOG, log_end_offset=18)
    assert fetched(FOLLOWING, asked_of(LOG), answer, shorter, RETRY_AT_S) == FollowerDecision(FOLLOWING)


@pytest.mark.parametrize("phase", [Phase.WAIT, Phase.FIND_END, Phase.FIND_START])
def test_an_answer_to_a_fetch_is_ignored_in_every_other_phase(phase):
    following = replace(FOLLOWING, phase=phase)
    late = fetched(following, asked_of(LOG), FetchAnswer(0, 20, 0, b"", (2, 3)), LOG, RETRY_AT_S)
    assert late == FollowerDecision(following)


# --- diverging epochs ---


def test_divergence_in_an_epoch_known_here_cuts_to_where_the_leader_ended_it():
    assert answered(LOG, FetchAnswer(0, diverging=(5, 17))).steps == (CutEnd(17),)


def test_divergence_never_cuts_less_than_where_our_own_epoch_ended():
    assert answered(LOG, FetchAnswer(0, diverging=(2, 16))).steps == (CutEnd(12),)


def test_divergence_in_an_epoch_that_only_the_leader_knows_cuts_to_our_largest_epoch_below_it():
    """The next answer tells where that one ended on the leader."""
    assert answered(LOG, FetchAnswer(0, diverging=(4, 3))).steps == (CutEnd(12),)


def test_divergence_below_all_our_epochs_cuts_to_the_first_of_them():
    log = Log(20, ((5, 8),))
    assert answered(log, FetchAnswer(0, diverging=(1, 30))).steps == (CutEnd(8),)


def test_divergence_in_an_epoch_beyond_all_that_we_know_cuts_to_the_leaders_end():
    assert answered(LOG, FetchAnswer(0, diverging=(6, 9))).steps == (CutEnd(9),)


def test_an_epoch_that_got_no_record_is_dropped_by_a_cut_at_the_log_end():
    """We led in epoch 6 and wrote nothing: the leader answers that epoch 5 ended where ours did."""
    log = Log(20, ((2, 0), (5, 12), (6, 20)))
    decision = answered(log, FetchAnswer(0, diverging=(5, 20)))
    assert decision.steps == (CutEnd(20),)
    assert decision.following.is_due(0.0), "nothing was lost, so nothing has to wait"


@pytest.mark.parametrize("diverging", [(6, 30), (5, 20), (5, 30)])
def test_divergence_that_cuts_nothing_makes_the_follower_wait(diverging):
    decision = answered(LOG, FetchAnswer(0, diverging=diverging))
    assert not decision.steps
    assert not decision.following.is_due(RETRY_AT_S - 1)
    assert decision.following.is_due(RETRY_AT_S)


def test_a_divergence_brings_no_records():
    records = data_batch(base_offset=20, leader_epoch=6)
    assert answered(LOG, FetchAnswer(0, 20, 0, records, (5, 17))).steps == (CutEnd(17),)


# --- records ---


def test_records_are_appended_up_to_our_leader_epoch_and_then_the_bounds_are_taken():
    records = data_batch(base_offset=20, leader_epoch=EPOCH)
    decision = answered(LOG, FetchAnswer(0, 25, 3, records))
    assert decision == FollowerDecision(FOLLOWING, (Append(records, EPOCH), TakeBounds(25, 3)))


def test_a_gap_that_compaction_left_is_normal():
    records = data_batch(base_offset=27, leader_epoch=6)
    assert answered(LOG, FetchAnswer(0, 25, 3, records)).steps[0] == Append(records, EPOCH)


def test_records_that_begin_in_a_later_epoch_are_dropped_until_the_metadata_brings_it():
    records = data_batch(base_offset=20, leader_epoch=EPOCH + 1)
    decision = answered(LOG, FetchAnswer(0, 25, 3, records))
    assert not decision.steps
    assert not decision.following.is_due(RETRY_AT_S - 1)


@pytest.mark.parametrize("size", [1, 60, 70])
def test_an_answer_that_holds_no_whole_batch_makes_the_follower_wait(size):
    decision = answered(LOG, FetchAnswer(0, 25, 3, data_batch(base_offset=20, leader_epoch=6)[:size]))
    assert not decision.steps
    assert not decision.following.is_due(RETRY_AT_S - 1)


def test_without_records_the_bounds_are_taken():
    assert answered(LOG, FetchAnswer(0, 18, 3)).steps == (TakeBounds(18, 3),)


def test_an_empty_log_begins_with_the_batch_that_holds_the_leaders_log_start():
    empty = Log(20, (), high_watermark=20, log_start_offset=20)
    records = data_batch(5, base_offset=18, leader_epoch=6)
    steps = answered(empty, FetchAnswer(0, 25, 20, records)).steps
    assert steps == (StartAnew(18), Append(records, EPOCH), TakeBounds(25, 20))


def test_a_log_with_records_does_not_begin_anew_for_a_batch_below_its_end():
    """The append refuses it: this is damage, and nothing is lost by asking again."""
    records = data_batch(5, base_offset=18, leader_epoch=6)
    assert answered(LOG, FetchAnswer(0, 25, 0, records)).steps[0] == Append(records, EPOCH)


@pytest.mark.parametrize(
    ("leader_hw", "leader_start", "log", "expected"),
    [
        (15, 0, LOG, (15, 0)),
        (25, 0, LOG, (20, 0)),  # not beyond our end
        (11, 0, LOG, (11, 0)),  # down, after an election
        (25, 4, LOG, (20, 4)),  # the log start follows at once
        (3, 0, replace(LOG, log_start_offset=6), (6, 6)),  # the watermark is at least the log start
        (25, 4, replace(LOG, log_start_offset=6), (20, 6)),  # the log start never goes back
        (25, 23, LOG, (20, 20)),
        (-1, -1, LOG, (15, 0)),  # not said
    ],
)
def test_the_bounds_follow_the_leaders_as_far_as_the_log_reaches(leader_hw, leader_start, log, expected):
    assert bounds_of(TakeBounds(leader_hw, leader_start), log) == expected


# --- errors ---


def test_an_offset_out_of_range_makes_the_follower_ask_where_the_leaders_log_ends():
    following = refused(1)
    assert question(following, LOG) == OffsetQuestion(EPOCH, LATEST)


def find(phase: Phase, offset: int, error_code: int = 0) -> FollowerDecision:
    following = replace(FOLLOWING, phase=phase)
    asked = question(following, LOG)
    assert isinstance(asked, OffsetQuestion)
    return offset_found(following, asked, error_code, offset, LOG, RETRY_AT_S)


def test_a_leader_that_ends_before_us_makes_us_cut_there():
    decision = find(Phase.FIND_END, 11)
    assert decision.steps == (CutEnd(11),)
    assert decision.following == FOLLOWING


@pytest.mark.parametrize("end", [20, 30])
def test_a_leader_that_does_not_end_before_us_is_asked_where_it_begins(end):
    decision = find(Phase.FIND_END, end)
    assert not decision.steps
    assert question(decision.following, LOG) == OffsetQuestion(EPOCH, EARLIEST)


def test_a_leader_that_begins_beyond_our_end_makes_us_drop_everything():
    decision = find(Phase.FIND_START, 21)
    assert decision.steps == (StartAnew(21),)
    assert decision.following == FOLLOWING


def test_a_leader_that_begins_before_our_end_is_fetched_from_again_after_a_while():
    decision = find(Phase.FIND_START, 20)
    assert not decision.steps
    assert decision.following == replace(FOLLOWING, not_before_s=RETRY_AT_S)


@pytest.mark.parametrize(("error_code", "offset"), [(6, -1), (75, -1), (0, -1), (-1, 3)])
def test_an_offset_that_cannot_be_told_changes_nothing(error_code, offset):
    for phase in (Phase.FIND_END, Phase.FIND_START):
        decision = find(phase, offset, error_code)
        assert not decision.steps
        assert decision.following == replace(FOLLOWING, not_before_s=RETRY_AT_S)


def test_a_fenced_epoch_ends_the_search_for_offsets():
    assert find(Phase.FIND_END, -1, 74).following.phase is Phase.WAIT


def test_an_offset_of_an_earlier_epoch_or_of_an_earlier_question_is_ignored():
    following = replace(FOLLOWING, phase=Phase.FIND_END)
    for asked in (OffsetQuestion(EPOCH - 1, LATEST), OffsetQuestion(EPOCH, EARLIEST)):
        assert offset_found(following, asked, 0, 1, LOG, RETRY_AT_S) == FollowerDecision(following)
    assert offset_found(FOLLOWING, OffsetQuestion(EPOCH, LATEST), 0, 1, LOG, RETRY_AT_S) == FollowerDecision(FOLLOWING)


def test_a_fenced_epoch_that_is_still_ours_stops_the_follower_until_the_metadata_brings_a_newer_one():
    assert refused(74).phase is Phase.WAIT


def test_a_fenced_epoch_that_is_not_ours_any_more_changes_nothing():
    newer = replace(FOLLOWING, leader_epoch=EPOCH + 1)
    assert fetched(newer, asked_of(LOG), FetchAnswer(74), LOG, RETRY_AT_S) == FollowerDecision(newer)


@pytest.mark.parametrize("error_code", [75, 6, 3, 100, 103, 56, 2, 29, -1])
def test_all_other_errors_make_the_follower_ask_again_later(error_code):
    assert refused(error_code) == replace(FOLLOWING, not_before_s=RETRY_AT_S)


def test_a_topic_in_tiered_storage_is_not_followed():
    assert refused(109).phase is Phase.WAIT


def test_what_could_not_be_done_is_tried_again_later():
    decision = held_back(FOLLOWING, RETRY_AT_S, "a batch with a wrong CRC")
    assert decision.following == replace(FOLLOWING, not_before_s=RETRY_AT_S)
    assert question(decision.following, LOG) == asked_of(LOG)
