"""Plain words: the worst patterns stay out of docs, comments, docstrings and messages (docs/vocabulary.md)."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PEOPLE = r"(?:person|people|user|users|operator|operators|administrator|administrators|engineer|reader of this page)"
THING = (
    r"(?:second|minute|hour|transaction|partition|record|request|batch|row|key|group|topic|scrape|figure|connection"
    r"|line|pass|seed|commit|task|query|core|id|process|segment|broker|producer)"
)
COUNTED = (
    r"(?:records|rows|transactions|requests|bytes|messages|batches|commits|times|markers|one decision|one object|keys"
    r"|one record|one line|\d ?(?:us|ms|s|MB|KB|KiB|MiB|B|%)|processor time)"
)
# What is wrong, how it is written, and what to write instead.
PATTERNS = {
    "a program is not a person: name it (the client, the leader, the broker)": re.compile(
        r"\b(?:who|whom|whoever|somebody|someone|anybody|anyone|nobody|everybody|everyone)\b(?!['.-]\w)", re.I
    ),
    "write because": re.compile(
        r", for (?:it|they|he|we|you|who|there|then|this is|that is|these|those|its|their|nothing|only|no|both"
        r"|otherwise|here|now|most|many|not)\b"
        r"|, for (?:(?:the|an?) )?(?!which)\w+ (?:is|was|are|were|has|have|had)\b"
    ),
    "write per": re.compile(rf"\b{COUNTED} an? {THING}(?![\w-])|\b\d[\d,.]* an? (?:second|minute|hour)\b"),
    "a riddle": re.compile(
        r"in this very turn|rather yes than no|usual pace|no silence may|has said so|when it comes to the append"
        r"|\bvow(?:s|ed)?\b|\bEARNEST|\bLIVELY",
        re.I,
    ),
}
_OF_PEOPLE = re.compile(rf"\b{PEOPLE}(?: \w+)? who\b", re.I)
_SHOWN = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.M | re.S)
# The page says what not to write, and a metric, a test or a command has the name that it has.
PAGES = [
    page
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*/README.md"))]
    if page.name != "vocabulary.md"
]
SOURCES = [path for name in ("src", "tools", "bench", "examples") for path in sorted((ROOT / name).rglob("*.py"))]
# What is neither a page nor Python, and is read all the same: comments, descriptions of panels and alerts.
TEXTS = [
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *(path for ending in ("yml", "json", "service") for path in sorted((ROOT / "deploy").rglob(f"*.{ending}"))),
]
# A value of `duration_told_by` in JSON, which scripts read.
ALLOWED = {"src/twofold/client/admin/hanging.py": '"nobody"'}


def faults(text: str) -> Iterator[str]:
    text = _OF_PEOPLE.sub("", text)
    for advice, pattern in PATTERNS.items():
        for match in pattern.finditer(text):
            around = " ".join(text[max(0, match.start() - 50) : match.end() + 40].split())
            yield f"{advice}: ... {around} ..."


def words_of(path: Path) -> str:
    """Comments and strings, without the code."""
    with path.open("rb") as file:
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        found = [token.string for token in tokenize.tokenize(file.readline) if token.type in kinds]
    return "\n".join(found)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_in_plain_words(page: Path) -> None:
    shown = list(faults(_SHOWN.sub("", page.read_text())))
    assert not shown, "\n".join(shown)


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_other_texts_are_in_plain_words(path: Path) -> None:
    shown = list(faults(path.read_text()))
    assert not shown, "\n".join(shown)


def test_sources_are_in_plain_words() -> None:
    shown = [
        f"{name_of(path)}: {fault}"
        for path in SOURCES
        for fault in faults(_SHOWN.sub("", words_of(path).replace(ALLOWED.get(name_of(path), "\0"), "")))
    ]
    assert not shown, "\n".join(shown)


def test_names_of_tests_name_the_program_they_are_about() -> None:
    person = r"(?:who|whom|whoever|somebody|anybody|nobody|nobodys|everybody)"
    pattern = re.compile(rf"def (test_(?:\w*_)?{person}(?:_\w*)?)\(")
    shown = [
        f"{name_of(path)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in pattern.findall(path.read_text())
    ]
    assert not shown, "\n".join(shown)
