"""Run one seed of the cluster world from its plan to its verdict."""

from dataclasses import dataclass

from sim.broker.world import ErrorLog
from sim.cluster.nemesis import ClusterNemesis
from sim.cluster.plan import ClusterPlan, make_cluster_plan
from sim.cluster.watch import ClusterWatch
from sim.cluster.world import ClusterSimulation, World
from sim.frame import play, repeatable


@dataclass(frozen=True)
class ClusterOutcome:
    """What a run was, in numbers."""

    seed: int
    digest: str
    virtual_s: float
    acknowledged: int
    read: int
    elections: int
    isr_changes: int
    unclean: int
    lost: int


def simulate_cluster(seed: int, plan: ClusterPlan | None = None) -> ClusterOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_cluster_plan(seed)
    with ClusterWatch() as watch, ErrorLog(plan) as errors:
        sim = ClusterSimulation(plan)
        with repeatable(sim, seed, plan, "cluster_seed"):
            world = play(sim, errors, lambda: World(plan, watch, sim), ClusterNemesis)
            return ClusterOutcome(
                seed=seed,
                digest=sim.digest(),
                virtual_s=sim.now_s,
                acknowledged=sum(sent.acknowledged for sent in world.history),
                read=sum(reader.seen for reader in world.readers),
                elections=sum(0 if m.state is None else m.state.leader_epoch for m in watch.models.values()),
                isr_changes=watch.commits,
                unclean=watch.unclean,
                lost=sum(len(model.lost) for model in watch.models.values()),
            )
