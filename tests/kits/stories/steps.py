"""Sentences that a stage understands.

    class Machine:
        @step("clock +{duration}")
        async def clock(self, duration: str) -> None: ...

`{word}` is one word, `{words...}` is the rest of the line; everything else is a regular expression. A step returns the
lines that it has to say: a text, several texts, or None. Where a sentence has a word `{client}` or `{subject}`, that
word stands before each of its lines.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

Said: TypeAlias = str | Sequence[str] | None
F = TypeVar("F", bound=Callable[..., Awaitable[Said]])


class UnknownStep(Exception):
    """A command that no part of the stage understands."""


class Step(NamedTuple):
    sentence: str
    pattern: re.Pattern[str]
    do: Callable[..., Awaitable[Said]]


def step(sentence: str) -> Callable[[F], F]:
    """Make a method the meaning of a sentence."""

    def mark(method: F) -> F:
        method.__dict__["sentence"] = sentence
        return method

    return mark


def _pattern(sentence: str) -> re.Pattern[str]:
    words = re.sub(r"\{(\w+)\.\.\.\}", r"(?P<\1>.+)", sentence)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^\\s,]+)", words))


def steps_of(part: object) -> Iterator[Step]:
    for kind in type(part).__mro__:
        for name, method in vars(kind).items():
            sentence: str | None = getattr(method, "sentence", None)
            if sentence is not None:
                yield Step(sentence, _pattern(sentence), getattr(part, name))


class Stage:
    """What a story is played on: parts, each with steps of its own."""

    def __init__(self, *parts: object) -> None:
        self._steps = [found for part in (self, *parts) for found in steps_of(part)]

    async def do(self, command: str) -> list[str]:
        for found in self._steps:
            match = found.pattern.fullmatch(command)
            if match is not None:
                arguments: dict[str, Any] = {name: word for name, word in match.groupdict().items() if word is not None}
                subject = arguments.get("client") or arguments.get("subject")
                return [f"{subject}: {line}" if subject else line for line in lines_of(await found.do(**arguments))]
        known = "\n  ".join(found.sentence for found in self._steps)
        raise UnknownStep(f"{command!r} is none of\n  {known}")


def lines_of(said: Said) -> list[str]:
    if said is None:
        return []
    return said.splitlines() if isinstance(said, str) else list(said)
