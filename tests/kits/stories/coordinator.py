"""The stage `a coordinator`: decisions about one transactional id, without a broker.

Every record is encoded, decoded and applied by another coordinator before the next command.
"""

import asyncio
from collections.abc import Awaitable, Callable

from kits.coordinator.transactions import NEVER, OK, Told, World, a_transaction
from kits.stories.steps import Stage, step
from kits.stories.words import name_of
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch, ProducerId


class CoordinatorStage(Stage):
    def __init__(self) -> None:
        super().__init__()
        self._world = World()

    @step(r"given {state} {producer_id} {epoch}(?P<two_phase> 2pc)?( next={next_id} {next_epoch})?, new ids {ids...}")
    async def given(
        self,
        state: str,
        producer_id: str,
        epoch: str,
        ids: str,
        two_phase: str = "",
        next_id: str = "",
        next_epoch: str = "",
    ) -> None:
        """The record of the id, and the producer ids that the coordinator will give out."""
        known = next(found for found in State if found.wire_name == state)
        entry = a_transaction(known, int(epoch), int(producer_id))._replace(client_version=2)
        if two_phase:
            entry = entry._replace(timeout_ms=NEVER)
        if next_id:
            entry = entry._replace(
                next_producer_id=ProducerId(int(next_id)),
                next_producer_epoch=ProducerEpoch(int(next_epoch)),
                previous_producer_id=ProducerId(int(next_id)),
            )
        self._world = World(start=entry)
        self._world.coordinator._new_producer_id = iter([ProducerId(int(text)) for text in ids.split()]).__next__

    @step("init")
    async def init(self) -> list[str]:
        return self._told(self._world.init(enable_2pc=self._world.now.timeout_ms == NEVER))

    @step(r"init, keep prepared(, {times} times)?")
    async def keep(self, times: str = "1") -> list[str]:
        for _ in range(int(times)):
            found = self._world.keep()
        return self._told(found)

    @step("add a partition as {producer_id} {epoch}")
    async def add(self, producer_id: str, epoch: str) -> list[str]:
        return self._told(self._world.add(int(producer_id), int(epoch)))

    @step("(?P<ending>commit|abort) as {producer_id} {epoch}")
    async def end(self, ending: str, producer_id: str, epoch: str) -> list[str]:
        return self._told(self._world.end(ending == "commit", int(producer_id), int(epoch)))

    @step("the markers are written")
    async def markers(self) -> str:
        self._world.complete()
        return self._state()

    def _told(self, found: Told) -> list[str]:
        if isinstance(found, int):
            text = "NONE" if found == OK else name_of(found)
        else:
            text = " ".join(map(str, found[:2])) + (f" ongoing {found[2]} {found[3]}" if len(found) == 4 else "")
        return [f"reply {text}", self._state()]

    def _state(self) -> str:
        now = self._world.now
        return (
            f"state {now.state.wire_name} {now.producer_id} {now.producer_epoch} prev={now.previous_producer_id} "
            f"next={now.next_producer_id} {now.next_producer_epoch}"
        )


def play_on_a_coordinator(_: str, tell: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        await tell(CoordinatorStage())

    asyncio.run(main())
