"""Every script in this folder is told again, and must come out as it is written (docs/stories.md)."""

import os
from pathlib import Path

import pytest

from kits.stories.run import REWRITE, check
from kits.stories.script import BadScript, heading, parse
from kits.stories.steps import UnknownStep

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
PAGE = Path(__file__).parents[2] / "docs" / "stories.md"
TABLE = "| story | what it shows |\n|---|---|\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    check(path)


def test_both_overflow_stories_of_the_kip_are_told() -> None:
    assert {path.stem for path in STORIES} >= {"kip890_epoch_overflow", "kip939_two_epoch_overflows"}


def test_the_page_of_the_stories_names_each_with_its_heading() -> None:
    rows = [f"| [{path.stem}](../tests/stories/{path.name}) | {heading(parse(path.read_text()))} |" for path in STORIES]
    page = PAGE.read_text()
    before = page[: page.index(TABLE) + len(TABLE)]
    if os.environ.get(REWRITE):
        PAGE.write_text("\n".join([before.rstrip("\n"), *rows]) + "\n")
        return
    assert page == "\n".join([before.rstrip("\n"), *rows]) + "\n", f"{REWRITE}=1 writes the table"


def test_a_story_that_comes_out_otherwise_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REWRITE, raising=False)
    told = tmp_path / "story.txt"
    told.write_text("# One.\na coordinator\ngiven Empty 42 3, new ids 85\n\ninit\n----\nreply 42 3\n")
    with pytest.raises(AssertionError, match="reply 42 4"):
        check(told)


def test_rewriting_keeps_comments_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REWRITE, "1")
    told = tmp_path / "story.txt"
    told.write_text("# One.\na coordinator\ngiven Empty 42 3, new ids 85\n\n\n# Two.\ninit\n----\nwrong\n")
    check(told)
    state = "state Empty 42 4 prev=42 next=-1 -1"
    given = "# One.\na coordinator\ngiven Empty 42 3, new ids 85\n\n"
    assert told.read_text() == f"{given}# Two.\ninit\n----\nreply 42 4\n{state}\n"


def test_a_command_that_no_stage_understands_is_told_with_its_line_and_the_known_ones(tmp_path: Path) -> None:
    told = tmp_path / "story.txt"
    told.write_text("# One.\na coordinator\n\nsing\n")
    with pytest.raises(UnknownStep, match="add a partition as") as found:
        check(told)
    assert found.value.__notes__ == ["in line 4 of the story: sing"]


@pytest.mark.parametrize("text", ["a broker\n", "# One.\na theatre\n", "# One.\na broker\n\n----\nx\n"])
def test_what_is_no_story_is_refused(text: str, tmp_path: Path) -> None:
    told = tmp_path / "story.txt"
    told.write_text(text)
    with pytest.raises(BadScript):
        check(told)
