"""The simulated world: one seed decides time, network, disk and scheduling."""

from twofold.runtime.sim.disk import CutMode, PowerCut, SimDisk

__all__ = ["CutMode", "PowerCut", "SimDisk"]
