"""The docs' own rules: what they refer to is in the repository, and the README says the essence on its first screen."""

import ast
import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
FOLDERS = ("src", "tests", "docs", "bench", "tools", "examples", "deploy")
SUFFIXES = {".py", ".md", ".sh", ".toml", ".yml", ".yaml", ".patch"}
FIRST_SCREEN_LINES = 40
# A page by its name, as comments and docs write it: `docs/known-gaps.md`, `known-gaps.md`, [text](../settings.md#part).
_PAGE = re.compile(r"[\w./-]*\w\.md\b")
# A numbered chapter of something that is not a KIP and not in the repository.
_CHAPTER = re.compile(
    r"\bsemantics \d|\bthe reference\b(?! (implementation|vectors|client|server))|\bour reference\b", re.I
)
_NOT_PAGES = {"kafka-transactions.md", "reporting.md"}  # a tool of Kafka, and the page that SECURITY.md is on the site


def texts() -> Iterator[tuple[Path, str]]:
    yield from ((page, page.read_text()) for page in sorted(ROOT.glob("*.md")))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path != Path(__file__):
                yield path, path.read_text()


def names_of_pages() -> set[str]:
    """Also those that the site makes of pages outside of docs/."""
    found = {page.name for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]}
    return found | {f"{name}.md" for name in ("index", "contributing", "changelog", "security", "examples")}


def test_every_page_that_is_named_is_in_the_repository() -> None:
    known = names_of_pages() | _NOT_PAGES
    for path, text in texts():
        for name in _PAGE.findall(text):
            if "*" not in name and "nnn" not in name.lower():
                assert name.rsplit("/", 1)[-1] in known, f"{path.relative_to(ROOT)} refers to {name}, which is not here"


def test_no_chapter_of_a_document_that_is_not_here_is_cited() -> None:
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            assert not _CHAPTER.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_the_readme_says_what_why_and_how_on_its_first_screen() -> None:
    first, _, _ = (ROOT / "README.md").read_text().partition("\n---\n")
    assert len(first.splitlines()) <= FIRST_SCREEN_LINES
    assert "![" in first, "a picture"
    assert "make demo" in first
    assert "make test" in first


def test_one_page_has_the_figures() -> None:
    """Two pages with figures of the same thing contradict each other after the next measurement."""
    assert not (ROOT / "docs" / "benchmarks.md").exists()
    page = (ROOT / "docs" / "performance.md").read_text()
    runs = set(re.findall(r"^\| ([A-Z]) \| [0-9a-f]{7} \|", page, re.M))
    named = set(re.findall(r"\b[Rr]un ([A-Z])\b", page))
    assert named == runs, "every run that a section names is in the table of runs, and every run is used"


def imports_in_blocks() -> Iterator[tuple[Path, str, str]]:
    """What the blocks of Python in the docs import of Twofold."""
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "twofold":
                    yield from ((page, node.module or "", alias.name) for alias in node.names)


def test_what_the_blocks_of_python_import_is_there() -> None:
    """The blocks themselves are run by `test_docs.py`, which takes minutes; a name that was changed is found here."""
    found = list(imports_in_blocks())
    assert found
    for page, module, name in found:
        assert hasattr(importlib.import_module(module), name), f"{page.relative_to(ROOT)}: no {name} in {module}"


def test_every_module_that_the_docs_name_is_there() -> None:
    """By its path in the repository, in the package, or in the simulator's folder."""
    places = (ROOT, ROOT / "src" / "twofold", ROOT / "tests" / "sim", ROOT / "tests")
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for name in re.findall(r"`([\w-]+(?:/[\w*-]+)+\.(?:py|sh|patch|yml|json))`", page.read_text()):
            if name.split("/")[0] not in ("shop", "build"):
                assert any([*place.glob(name)] for place in places), f"{page.relative_to(ROOT)} names {name}"
        for name in re.findall(r"`(test_\w+\.py)`", page.read_text()):
            assert [*(ROOT / "tests").rglob(name)], f"{page.relative_to(ROOT)} names {name}"


def test_a_list_or_a_table_follows_an_empty_line_or_a_heading() -> None:
    """Otherwise the site takes it for a part of the paragraph before it, although a forge shows it as meant."""
    begins, may_precede = re.compile(r"\||- |\d+\. "), re.compile(r"$|#|<!--|\s*(?:[-*] |\d+\. )|\s|\||```")
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*/README.md")]:
        shown = re.sub(r"^```.*?^```$", "```", page.read_text(), flags=re.M | re.S).split("\n")
        for before, line in pairwise(shown):
            assert not begins.match(line) or may_precede.match(before), f"{page.relative_to(ROOT)}: {line[:60]}"
