"""A Spark cluster on this machine: a master and two workers that count as two hosts, which speculation needs."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from host_kit import wait_for

from oracle.processes import free_port

WORKERS = ("127.0.0.2", "127.0.0.3")
CORES = 2


class Standalone:
    def __init__(self, directory: Path, python_path: str | None = None) -> None:
        """Executors look for packages in `python_path`, where it is given."""
        if shutil.which("java") is None:
            pytest.skip("Spark needs a JDK: install openjdk-17-jdk-headless")
        import pyspark

        self.directory = directory
        self.home = Path(pyspark.__file__).parent
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._env = {} if python_path is None else {"PYTHONPATH": python_path}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        host, port = self.master.removeprefix("spark://").split(":")
        self._spawn("master", "org.apache.spark.deploy.master.Master", "--host", host, "--port", port)
        wait_for(
            lambda: "I have been elected leader" in self.log("master"), "a master", found=lambda: self.log("master")
        )
        for name in WORKERS:
            work = ["--cores", str(CORES), "--memory", "700m", "--work-dir", str(self.directory / name)]
            self._spawn(name, "org.apache.spark.deploy.worker.Worker", "--host", name, *work, self.master)
        for name in WORKERS:
            wait_for(partial(self._is_registered, name), "a worker", found=partial(self.log, name))

    def _is_registered(self, worker: str) -> bool:
        return "Successfully registered" in self.log(worker)

    def _spawn(self, name: str, main_class: str, *args: str) -> None:
        env = os.environ | {
            "SPARK_HOME": str(self.home),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        env |= self._env
        with (self.directory / f"{name}.log").open("wb") as log:
            command = [str(self.home / "bin" / "spark-class"), main_class, "--webui-port", "0", *args]
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            )

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def executor_logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.directory.rglob("stderr"))

    def stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
