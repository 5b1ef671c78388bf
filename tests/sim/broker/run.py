"""Run one seed from its plan to its verdict."""

from dataclasses import dataclass

from sim.broker.check import check, failures
from sim.broker.nemesis import Nemesis
from sim.broker.plan import Plan, make_plan
from sim.broker.watch import Watch
from sim.broker.world import BrokerSimulation, ErrorLog, World

MAX_VIRTUAL_S = 3600.0
TAIL = 40


@dataclass(frozen=True)
class Outcome:
    """What a run was, in numbers."""

    seed: int
    digest: str
    virtual_s: float
    starts: int
    acknowledged: int
    failed: dict[str, int]
    read: int
    lost: int


def simulate(seed: int, plan: Plan | None = None) -> Outcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_plan(seed)
    with Watch() as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        try:
            with sim:
                return _simulate(plan, watch, sim, errors)
        except BaseException as error:
            error.add_note("\n".join(["the end of the trace:", *sim.trace[-TAIL:]]))
            error.add_note(f"{plan}")
            error.add_note(f"again: TWOFOLD_SEED={seed} .venv/bin/python -m pytest tests/sim -k broker_seed")
            raise


def _simulate(plan: Plan, watch: Watch, sim: BrokerSimulation, errors: ErrorLog) -> Outcome:
    async def story() -> World:
        world = World(plan, watch, sim)
        await world.start()
        await Nemesis(world).run()
        await world.finish()
        return world

    world = sim.run(story(), timeout_s=MAX_VIRTUAL_S)
    if errors.unexpected:
        raise errors.unexpected[0]
    check(world)
    return Outcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        starts=watch.starts,
        acknowledged=sum(sent.acknowledged for sent in world.history),
        failed=dict(failures(world.history)),
        read=sum(len(app.seen) for app in world.consumers),
        lost=sum(len(model.lost) for model in watch.models.values()),
    )
