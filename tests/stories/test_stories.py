"""Every script in this folder is told again, and must come out as it is written (docs/stories.md)."""

from pathlib import Path

import pytest

from kits.stories.run import check

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    check(path)


def test_both_overflow_stories_of_the_kip_are_told() -> None:
    assert {path.stem for path in STORIES} >= {"kip890_epoch_overflow", "kip939_two_epoch_overflows"}
