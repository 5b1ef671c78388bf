"""A cluster of Twofold alone: a controller and brokers as processes, to be killed, paused and started again.

with TwofoldCluster(directory, brokers=2) as cluster:
    cluster.brokers[0].kill()
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from kits.processes.server import TwofoldServer
from oracle.processes import free_port, spawn, stop, wait_until

CONTROLLER = Path(__file__).parent / "controller_process.py"
HEARTBEAT_MS, SESSION_MS = 500, 3000


class Member(TwofoldServer):
    def __init__(self, directory: Path, node_id: int, join: str, settings: dict[str, str]) -> None:
        super().__init__(
            directory / f"broker-{node_id}",
            {"node.id": str(node_id), "broker.heartbeat.interval.ms": str(HEARTBEAT_MS), **settings},
        )
        self.node_id = node_id
        self.flags = ["--join", join]

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_bytes(self, name: str) -> bytes:
        """All that is in the log of a partition, whatever its segments are."""
        return b"".join(path.read_bytes() for path in sorted((self.data / name).glob("*.log")))


class TwofoldCluster:
    def __init__(self, directory: Path, *, brokers: int, controller: dict[str, str] | None = None, **settings: object):
        self.directory = directory
        self.port = free_port()
        self.output = directory / "controller.log"
        self.controller_settings = {"broker.session.timeout.ms": str(SESSION_MS), **(controller or {})}
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.brokers = [Member(directory, node_id, self.join, texts) for node_id in range(1, brokers + 1)]
        self._controller: subprocess.Popen[bytes] | None = None

    @property
    def join(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def broker(self, node_id: int) -> Member:
        return self.brokers[node_id - 1]

    def start_controller(self) -> None:
        options = [f"{name.replace('.', '_')}={value}" for name, value in self.controller_settings.items()]
        command = [sys.executable, str(CONTROLLER), str(self.directory / "controller"), "127.0.0.1", str(self.port)]
        self._controller = spawn([*command, *options], output=self.output)
        wait_until(lambda: "ready" in self.output.read_text(), self._controller, patience_s=30, output=self.output)

    def stop_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._controller is not None:
            stop(self._controller, how=how)
            self._controller = None

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.start_controller()
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.kill()
        self.stop_controller(signal.SIGKILL)
