"""Run one seed from its plan to its verdict."""

from dataclasses import dataclass

from sim.broker.check import check, failures
from sim.broker.nemesis import Nemesis
from sim.broker.plan import Plan, make_plan
from sim.broker.watch import Watch
from sim.broker.world import BrokerSimulation, ErrorLog, World
from sim.frame import play, repeatable


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
        with repeatable(sim, seed, plan, "broker_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(plan: Plan, watch: Watch, sim: BrokerSimulation, errors: ErrorLog) -> Outcome:
    world = play(sim, errors, lambda: World(plan, watch, sim), Nemesis)
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
