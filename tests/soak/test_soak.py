"""The soak in short, and that what it is there for fails it. `make interop` has a minute of it, `make soak` more."""

import os
from array import array
from pathlib import Path

import pytest

from soak.loads import NONE, Read, check_at_least_once, check_last_words, check_once_and_in_order, check_suffix
from soak.report import plot, write_json
from soak.run import Plan, Soak
from soak.watch import Sample, at_age, growth, slope

LONG = bool(os.environ.get("TWOFOLD_LONG"))
PLAN = Plan(60.0, kill_every_s=10.0) if LONG else Plan(10.0, kill_every_s=3.0, scale=0.5)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_leaked_under_kill_nine(tmp_path: Path) -> None:
    result = Soak(tmp_path / "soak", PLAN).run()
    assert not result.failures, "\n".join(result.failures)
    assert len(result.kills) >= 2
    assert all(row["records"] > 100 for name, row in result.checks.items() if name != "admin"), result.checks
    assert set(result.idle) == {"after the load", "fresh"}
    write_json(result, tmp_path / "soak.json")
    plot(result, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def rows(*found: tuple[int, int, int]) -> list[Read]:
    """Of partition, offset and number."""
    return [Read(partition, offset, b"%d" % number, b"%d x" % number) for partition, offset, number in found]


GOOD = [(0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 3)]
OFFSETS = array("q", [0, 0, 1, 1])


def test_every_number_once_and_in_order() -> None:
    check_once_and_in_order(rows(*GOOD), OFFSETS, 2)


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (GOOD[:-1], "1 lost"),
        (GOOD[1:], "1 lost"),
        ([*GOOD, (0, 2, 0)], "acknowledged"),
        ([(0, 0, 2), (0, 1, 0), *GOOD[2:]], "acknowledged"),
    ],
)
def test_a_number_that_is_lost_doubled_or_moved(found: list[tuple[int, int, int]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_once_and_in_order(rows(*found), OFFSETS, 2)


def test_doubles_of_a_plain_producer_are_counted_and_losses_are_not_forgiven() -> None:
    assert check_at_least_once(rows(*GOOD, (0, 2, 0)), OFFSETS, 2) == 1
    with pytest.raises(AssertionError, match="lost"):
        check_at_least_once(rows(*GOOD[1:]), OFFSETS, 2)
    with pytest.raises(AssertionError, match="out of order"):
        check_at_least_once(rows((0, 0, 2), (0, 1, 0), *GOOD[2:]), OFFSETS, 2)


def test_the_last_word_of_a_key_stays() -> None:
    last = {(b"7", 0): (7, False), (b"8", 0): (8, True)}
    check_last_words([Read(0, 0, b"7", b"7 x")], last)
    check_last_words([Read(0, 0, b"7", b"3 x"), Read(0, 1, b"7", b"7 x"), Read(0, 2, b"8", None)], last)
    for found, complaint in (
        ([], "nothing is left"),
        ([Read(0, 0, b"7", b"3 x")], "3 is left"),
        ([Read(0, 0, b"7", b"7 x"), Read(0, 1, b"7", b"3 x")], "3 comes after 7"),
        ([Read(0, 0, b"7", b"7 x"), Read(0, 1, b"7", None)], "it is deleted"),
        ([Read(0, 0, b"7", b"7 x"), Read(0, 1, b"8", b"1 x")], "deleted by 8"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            check_last_words(found, last)


def test_what_is_left_after_retention_has_no_gaps() -> None:
    offsets = array("q", [0, 1, 2, 3])
    check_suffix(rows((0, 2, 2), (0, 3, 3)), offsets)
    check_suffix([], offsets)
    for found in ([(0, 1, 1), (0, 3, 3)], [(0, 1, 1), (0, 2, 2)]):
        with pytest.raises(AssertionError, match="gaps"):
            check_suffix(rows(*found), offsets)
    with pytest.raises(AssertionError, match="is at 5"):
        check_suffix(rows((0, 5, 3)), offsets)
    assert NONE not in offsets


def sample(life: int, age_s: float, rss: int) -> Sample:
    return Sample(life * 20 + age_s, life, age_s, rss, 0, 0, 0, 0, 0)


def test_lives_are_compared_at_the_same_age() -> None:
    samples = [sample(life, age, 100 * life + age) for life in (1, 2, 3) for age in (1, 13, 14, 15)]
    assert [found.age_s for found in at_age(samples, 14.2)] == [14, 14, 14]
    assert at_age([sample(1, 3, 5)], 14) == []
    assert growth([1, 2, 3, 9, 9, 9]) == (1.5, 9)
    assert slope([(0, 0), (1, 2), (2, 4)]) == pytest.approx(2)
