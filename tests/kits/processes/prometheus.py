"""Prometheus and its promtool, from Debian's package: `tools/install-test-tools.sh` puts them into .cache."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oracle.processes import free_port, spawn, stop, wait_until

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """Where prometheus or promtool is; skips the test where it is not."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not installed: bash tools/install-test-tools.sh (Debian: apt-get install prometheus)")
    return found


def promtool(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program("promtool"), *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        """The series of an expression at this moment."""
        found: list[Mapping[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def is_up(self) -> bool:
        try:
            self.ask("status/buildinfo")
        except OSError:
            return False
        return True


@contextmanager
def running_prometheus(config: Path, directory: Path) -> Iterator[Prometheus]:
    port = free_port()
    listen = ["--web.listen-address", f"127.0.0.1:{port}", "--storage.tsdb.path", str(directory / "tsdb")]
    output = directory / "prometheus.log"
    process = spawn([program("prometheus"), "--config.file", str(config), *listen], output=output)
    try:
        prometheus = Prometheus(port)
        wait_until(prometheus.is_up, process, patience_s=30, output=output)
        yield prometheus
    finally:
        stop(process)
