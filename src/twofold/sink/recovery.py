"""Ending what a query left behind, from outside the query: what is decided is done, the rest is aborted.

1. It is what a query does when it starts: take the sink over, carry out the decision, abort everything else. So it can
   be repeated, and be ended at any point.
2. Nothing is aborted where no journal says what was decided: without it a decided transaction looks like any other.
3. It is done when nothing of the sink is open, markers included.
"""

from dataclasses import dataclass

from twofold.client.parts import Cluster, ProducerConfig
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.sink.completion import COMMITTED, data_lost, outcome_forgotten
from twofold.sink.driver import Driver, SinkSettings
from twofold.sink.errors import SinkError
from twofold.sink.inspection import Inspector, SinkState
from twofold.sink.register import Mode

SWEEPS = 5
PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.2


class StillWriting(SinkError):
    """Transactions are opened as fast as they are aborted."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Ids of the transactions that were open, by what became of them."""

    before: SinkState
    after: SinkState
    mode: Mode
    owner: str
    committed: tuple[str, ...]
    aborted: tuple[str, ...]

    @property
    def decision(self) -> tuple[str, int] | None:
        """The query and the batch whose decision was carried out, or taken back; None where none was to do. It may have
        been made after this had looked, and before it took over."""
        pending, decided = self.before.register.pending, self.after.register.decided
        if pending is not None:
            return pending.query_id, pending.batch_id
        return (decided[-1].name, decided[-1].batch_id) if decided != self.before.register.decided else None

    @property
    def taken_back(self) -> bool:
        """The decision was, and the query writes the batch again."""
        if self.decision is None:
            return False
        query_id, batch_id = self.decision
        return self.after.register.decided_batch(query_id) < batch_id

    @property
    def lost(self) -> tuple[str, ...]:
        """Ids of the decision whose rows are missing for ever, or may be."""
        tally = self.before.tally
        if tally is None or self.taken_back:
            return ()
        return tuple(participant.transactional_id for participant in (*tally.lost, *tally.forgotten))


async def recover(
    runtime: Runtime,
    cluster: Cluster,
    config: ProducerConfig,
    state: SinkState,
    owner: str,
    deadline: Deadline,
    *,
    accept_loss: bool = False,
) -> Recovered:
    """Take the sink over from the driver that has it, and end what it has open. `state` is what was found to do."""
    tally = state.tally
    if tally is not None and tally.is_lost_in_part and not accept_loss:
        if tally.forgotten:
            raise outcome_forgotten(tally.decision, tally.forgotten)
        raise data_lost(tally.decision, tally.lost)
    inspector = Inspector(cluster)
    driver = Driver(runtime, cluster, config, SinkSettings(state.prefix, decision_topic=state.topic))
    try:
        conditions = await driver.take_over(owner, deadline, accept_loss=accept_loss)
        after = await _until_quiet(runtime, inspector, driver, state, owner, deadline)
        ids = [row.transactional_id for row in state.transactions if row.is_undecided]
        ids += [] if tally is None else [participant.transactional_id for participant in tally.left]
        found = await inspector.outcomes(ids, deadline)
    finally:
        await driver.close()
        inspector.close()
    outcomes: dict[bool, list[str]] = {True: [], False: []}
    for name in ids:
        row = found[name]
        outcomes[row is not None and row.state in COMMITTED].append(name)
    return Recovered(state, after, conditions.mode, owner, tuple(outcomes[True]), tuple(outcomes[False]))


async def _until_quiet(
    runtime: Runtime, inspector: Inspector, driver: Driver, state: SinkState, owner: str, deadline: Deadline
) -> SinkState:
    """What was ended has its markers, and what tasks opened that did not know it yet is aborted too."""
    sweeps, pause_s = 0, PAUSE_S
    while True:
        after = await inspector.state(state.prefix, state.topic, driver.journal.register, deadline)
        if not after.transactions:
            return after
        if after.undecided:
            if sweeps == SWEEPS:
                raise StillWriting(
                    f"{len(after.undecided)} transactions of {state.prefix!r} were opened while others were aborted: "
                    "a query still runs under this prefix. Stop it, and run this again"
                )
            sweeps += 1
            await driver.sweep(owner, deadline)
        if deadline.expired:
            raise deadline.gave_up(f"waiting for the end of {len(after.transactions)} transactions of {state.prefix!r}")
        await runtime.timers.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
