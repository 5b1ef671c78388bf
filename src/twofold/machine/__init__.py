"""The state-machine runtime under the controller and the coordinators."""

from twofold.machine.runtime import LogPort, Machine, MachineRuntime, Result

__all__ = ["LogPort", "Machine", "MachineRuntime", "Result"]
