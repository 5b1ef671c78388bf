"""The planted bugs: all of them fit the sources, and some are looked for here. `make mutants` looks for all."""

import re
from pathlib import Path

import pytest
from planted import ROOT, Hunk, Mutant, StalePatch, find, load, mutants, passes_without

# Found by the first seeds of a world that runs fast.
QUICK = ("keep_what_was_aborted", "lose_an_abort_marker", "reuse_a_producer_id", "write_inside_a_transaction")
WORLDS = {"mixed", "broker", "transactions", "lost-markers", "groups", "two-phase", "metadata", "cluster", "sink"}


def test_there_are_at_least_sixteen_planted_bugs() -> None:
    assert len(mutants()) >= 16


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits_the_sources(mutant: Mutant, tmp_path: Path) -> None:
    for hunk in mutant.hunks:
        target = tmp_path / hunk.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / hunk.path).read_text())
    mutant.apply(tmp_path)
    for path in {hunk.path for hunk in mutant.hunks}:
        compile((tmp_path / path).read_text(), path, "exec")
        assert (tmp_path / path).read_text() != (ROOT / path).read_text()
    assert set(mutant.worlds) <= WORLDS
    assert mutant.seeds > 0 and mutant.what.endswith(".")
    assert re.compile(mutant.invariant)


def test_a_patch_that_fits_nowhere_or_twice_is_stale(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a\nb\na\n")
    for old in ("c\n", "a\n"):
        with pytest.raises(StalePatch, match=r"file\.py"):
            Mutant("name", "What.", ("broker",), 1, "", (Hunk("file.py", old, "x\n"),)).apply(tmp_path)
    assert (tmp_path / "file.py").read_text() == "a\nb\na\n"


def test_a_patch_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "some_bug.patch"
    path.write_text(
        "What: A bug.\nWorlds: broker groups\nSeeds: 7\nInvariant: a: b\n\n"
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n@@ -9 +9 @@\n-gone\n"
    )
    assert load(path) == Mutant(
        "some_bug", "A bug.", ("broker", "groups"), 7, "a: b",
        (Hunk("x.py", "same\nold\n", "same\nnew\n"), Hunk("x.py", "gone\n", "")),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found_and_the_same_seeds_pass_without_it(name: str, tmp_path: Path) -> None:
    mutant = next(mutant for mutant in mutants() if mutant.name == name)
    found, failures = find(mutant, tmp_path / "mutated")
    assert found is not None, failures
    assert passes_without(found, tmp_path / "plain") == []


def test_the_page_about_the_simulator_names_every_planted_bug() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text()
    missing = [mutant.name for mutant in mutants() if f"| `{mutant.name}` |" not in page]
    assert not missing
