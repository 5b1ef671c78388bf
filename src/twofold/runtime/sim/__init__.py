"""The simulated world: one seed decides time, network, disk and scheduling."""

from twofold.runtime.sim.disk import CutMode, PowerCut, SimDisk
from twofold.runtime.sim.loop import DeadlockError, VirtualTimeout
from twofold.runtime.sim.network import Link, NetworkPartition, SimNetwork
from twofold.runtime.sim.simulation import Simulation

__all__ = [
    "CutMode",
    "DeadlockError",
    "Link",
    "NetworkPartition",
    "PowerCut",
    "SimDisk",
    "SimNetwork",
    "Simulation",
    "VirtualTimeout",
]
