"""The text of a story: paragraphs of commands, each with the output that is expected of it.

    # What the story shows, in one sentence.
    a broker

    # A comment belongs to the paragraph below it.
    p1: init as pay
    ----
    producer 0 epoch 0

1. A paragraph ends at an empty line. Lines that begin with `#` are comments.
2. The commands of a paragraph stand before `----`, their output stands behind it. A paragraph whose commands say
   nothing has no `----`.
3. The first command names the stage (docs/stories.md).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

OUTPUT = "----"


class BadScript(Exception):
    """The text is not a story."""


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    """Counted from 1."""
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    source: tuple[str, ...]
    """Comments and commands, as they are written."""
    commands: tuple[Command, ...]
    output: tuple[str, ...]

    def saying(self, output: Iterable[str]) -> "Paragraph":
        return replace(self, output=tuple(output))

    def lines(self) -> Iterator[str]:
        yield from self.source
        if self.output:
            yield OUTPUT
            yield from self.output


def parse(text: str) -> list[Paragraph]:
    paragraphs = []
    block: list[Command] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            block.append(Command(number, line.rstrip()))
        elif block:
            paragraphs.append(_paragraph(block))
            block = []
    if not paragraphs or not paragraphs[0].source[0].startswith("# "):
        raise BadScript("a story begins with a comment that says what it shows")
    return paragraphs


def _paragraph(block: list[Command]) -> Paragraph:
    texts = [line.text for line in block]
    end = texts.index(OUTPUT) if OUTPUT in texts else len(texts)
    commands = tuple(line for line in block[:end] if not line.text.startswith("#"))
    if end < len(texts) and not commands:
        raise BadScript(f"line {block[end].line}: output without a command")
    return Paragraph(tuple(texts[:end]), commands, tuple(texts[end + 1 :]))


def render(paragraphs: Iterable[Paragraph]) -> str:
    return "\n\n".join("\n".join(paragraph.lines()) for paragraph in paragraphs) + "\n"


def heading(paragraphs: list[Paragraph]) -> str:
    """The sentence that says what a story shows."""
    comments = []
    for line in paragraphs[0].source:
        if not line.startswith("#"):
            break
        comments.append(line.removeprefix("#").strip())
    sentence, _, _ = " ".join(comments).partition(". ")
    return sentence.rstrip(".") + "."
