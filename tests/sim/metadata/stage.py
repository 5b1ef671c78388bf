"""Controllers on one replicated log, moved by a test step by step."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from sim.broker.watch import Violation, require
from sim.broker.world import ErrorLog
from sim.metadata.log import Follower, Member, Quorum, check_pure
from sim.metadata.requests import Ask, Moment, Shelf, check_error
from sim.metadata.truth import Truth, difference
from twofold.config.settings import Settings
from twofold.quorum import writer
from twofold.quorum.quorum_controller import QuorumController
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.wire.errors import KafkaError

T = TypeVar("T")

MAX_TURNS = 2000
SETTINGS = Settings.from_mapping({"broker.session.timeout.ms": "100"})


class Settled(NamedTuple):
    """What became of a request: a response, or an error."""

    response: Any = None
    error: KafkaError | None = None

    @property
    def is_refused(self) -> bool:
        """As a whole; brokers are told so in the response."""
        return self.error is not None or getattr(self.response, "error_code", 0) != 0


async def serve(ask: Ask, controller: QuorumController) -> Settled:
    """As a node serves a request: errors are answers, and anything else is a bug."""
    try:
        return Settled(await ask.call(controller))
    except KafkaError as error:
        return Settled(error=error)


def start(ask: Ask, controller: QuorumController, runtime: Runtime) -> "asyncio.Task[Settled]":
    return runtime.spawn(serve(ask, controller), name=ask.text)


@contextmanager
def small_appends(records: int) -> Iterator[None]:
    """Operations of more than so many records are transactions of batches of so many."""
    with patch.object(writer, "APPEND_RECORDS", records):
        yield


class NoFaults:
    has_disk_errors = False


class Stage:
    def __init__(self, sim: Simulation, members: int = 2) -> None:
        self.sim = sim
        self.truth = Truth()
        self.shelf = Shelf(self.truth)
        self.violations: list[Violation] = []
        self.quorum = Quorum(self.truth, sim.note)
        self.members = [self.new_member(number) for number in range(members)]
        self.follower = Follower(self.quorum, "follower", self.violations)

    def new_member(self, number: int) -> Member:
        return Member(self.sim, self.quorum, number, self.violations, SETTINGS)

    # -- leading

    def lead(self, member: Member, keep: int = 0, *, told: bool = True) -> None:
        """It leads now; it has loaded all that is committed, and what it wrote first is not committed."""
        member.elect(keep, [other for other in self.members if other is not member], told=told)
        for other in self.members:
            if not other.is_deposed:
                other.catch_up()
        require(member.lead_if_ready(), f"{member.name} cannot lead")
        self.check()

    def commit(self, count: int | None = None) -> None:
        """The leader's first batches, or all of them, are committed, and everybody knows."""
        leader = next(member for member in self.members if member.leads)
        self.quorum.commit(len(leader.replica.tail) if count is None else count)
        for member in self.members:
            if member is leader:
                member.tell()
            elif not member.is_deposed:
                member.catch_up()
        self.follower.load(len(self.quorum.batches))
        self.check()

    def check(self) -> None:
        for member in self.members:
            member.check()
        if self.violations:
            raise self.violations[0]

    # -- requests

    def start(self, ask: Ask, member: Member) -> "asyncio.Task[Settled]":
        return start(ask, member.controller, member.runtime)

    async def done(self, ask: Ask, member: Member) -> Any:
        """The response of a leader that nobody disturbs."""
        moment = self.moment(member)
        task = self.start(ask, member)
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if task.done():
                break
            self.commit()
        settled = task.result()
        require(not settled.is_refused, f"{ask.text}: {settled}")
        ask.judge(settled.response, moment)
        return settled.response

    async def outcome(self, ask: Ask, task: "asyncio.Task[Settled]", moment: Moment) -> Settled:
        """What a request was told, whose leader may be gone."""
        await turns(10)
        require(task.done(), f"{ask.text} was never answered")
        settled = task.result()
        if settled.error is None:
            ask.judge(settled.response, moment)
        else:
            check_error(ask, settled.error)
        return settled

    def moment(self, member: Member) -> Moment:
        return Moment(self.truth, self.truth.index_at(member.controller.image.offset))

    async def register(self, broker_id: int, incarnation: int, member: Member) -> int:
        """A broker that is there; its epoch."""
        response = await self.done(self.shelf.register(broker_id, incarnation), member)
        epoch: int = response.broker_epoch
        beat = await self.done(self.shelf.beat(broker_id, epoch, member.controller.image.offset), member)
        require(beat.error_code == 0 and not beat.is_fenced, f"broker {broker_id} is fenced: {beat}")
        return epoch

    def finish(self) -> None:
        """Everybody has loaded everything, and has the same."""
        for member in self.members:
            if member.is_deposed:
                member.resign()
        self.commit()
        images = [member.controller.image for member in self.members] + [self.follower.loader.image]
        for image in images:
            require(not difference(self.truth.image, image), f"at the end {difference(self.truth.image, image)}")
        self.shelf.check_last(self.truth.image)
        check_pure(self.quorum)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def play(story: Callable[[Stage], Awaitable[T]], *, records: int = 1, seed: int = 0, members: int = 2) -> T:
    """A story on a quorum whose leader writes batches of so many records."""
    with ErrorLog(NoFaults()) as errors, small_appends(records), Simulation(seed) as sim:

        async def main() -> T:
            return await story(Stage(sim, members))

        result = sim.run(main(), timeout_s=600)
    if errors.unexpected:
        raise errors.unexpected[0]
    return result
