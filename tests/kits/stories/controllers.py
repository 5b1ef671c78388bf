"""The stage `two controllers`: they share one replicated log, and the story says what is committed and which one leads.

`with batches of N records` makes an operation of more than N records a metadata transaction (KIP-868).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from kits.stories.steps import Stage, step
from sim.metadata.log import Batch, Member
from sim.metadata.requests import Ask
from sim.metadata.stage import Settled, play, turns
from sim.metadata.stage import Stage as Quorum
from sim.metadata.truth import flat
from twofold.controller.image import MetadataImage

TURNS = 30


class ControllersStage(Stage):
    def __init__(self, quorum: Quorum) -> None:
        super().__init__()
        self._quorum = quorum
        self._asked: dict[str, asyncio.Task[Settled]] = {}
        self._told_from = 0

    async def prepare(self) -> None:
        """c1 leads, and broker 1 is there; the story begins after that."""
        first = self._member("1")
        self._quorum.lead(first)
        self._quorum.commit()
        await self._quorum.register(1, 1, first)
        self._told_from = self._quorum.quorum.end

    def _member(self, number: str) -> Member:
        return self._quorum.members[int(number) - 1]

    async def do(self, command: str) -> list[str]:
        said = await super().do(command)
        await turns(TURNS)
        answered = {name: task for name, task in self._asked.items() if task.done()}
        for name in answered:
            del self._asked[name]
        return said + [f"{name}: {answer_text(task.result())}" for name, task in answered.items()]

    # --- requests ---

    def _ask(self, number: str, ask: Ask) -> None:
        self._asked[f"c{number}"] = self._quorum.start(ask, self._member(number))

    @step("c{number}: CreateTopics with {sizes...} partitions")
    async def create(self, number: str, sizes: str) -> None:
        """One topic per number, named after the request: `2 1` makes r1-0 and r1-1."""
        self._ask(number, self._quorum.shelf.create([int(size) for size in sizes.split()]))

    @step("c{number}: DeleteTopics {names...}")
    async def delete(self, number: str, names: str) -> None:
        self._ask(number, self._quorum.shelf.delete(names.split()))

    # --- the log ---

    @step("{count} batch(es)? (is|are) committed")
    async def commit(self, count: str) -> None:
        self._quorum.commit(int(count))

    @step("everything is committed")
    async def commit_all(self) -> None:
        while any(member.leads and member.replica.tail for member in self._quorum.members):
            self._quorum.commit()
            await turns(TURNS)

    @step("c{number} is elected(, and {kept} batch(es)? that were not committed survives?)?")
    async def elect(self, number: str, kept: str = "0") -> None:
        self._quorum.lead(self._member(number), int(kept))

    @step("log")
    async def log(self) -> list[str]:
        quorum = self._quorum.quorum
        tail = [] if quorum.leader is None else quorum.leader.tail
        return [*self._lines(quorum.batches, ""), *self._lines(tail, ", not committed")] or ["empty"]

    def _lines(self, batches: Iterable[Batch], suffix: str) -> list[str]:
        return [
            f"{batch.base_offset} epoch {batch.epoch} {' '.join(flat(batch.entries())) or 'LeaderChange'}{suffix}"
            for batch in batches
            if batch.base_offset >= self._told_from
        ]

    @step("topics at {subject}")
    async def topics(self, subject: str) -> str:
        """Of a controller, or of `a broker` that follows the log."""
        return topics_text(self._member(subject.removeprefix("c")).controller.image)

    @step("topics at a broker")
    async def topics_of_follower(self) -> str:
        return "broker: " + topics_text(self._quorum.follower.loader.image)


def topics_text(image: MetadataImage) -> str:
    names = sorted(f"{name} ({len(topic.partitions)})" for name, topic in image.topics.items())
    return " ".join(names) or "none"


def answer_text(settled: Settled) -> str:
    if settled.error is not None:
        return settled.error.name
    rows: list[Any] = list(getattr(settled.response, "topics", None) or settled.response.responses)
    return " ".join(f"{row.name} {'ok' if row.error_code == 0 else row.error_code}" for row in rows)


def play_on_two_controllers(description: str, tell: Callable[[Stage], Awaitable[None]]) -> None:
    words = description.split()
    assert words[:3] == ["with", "batches", "of"] and words[4:] == ["records"], description

    async def story(quorum: Quorum) -> None:
        stage = ControllersStage(quorum)
        await stage.prepare()
        await tell(stage)
        await stage.do("everything is committed")
        quorum.finish()

    play(story, records=int(words[3]))
