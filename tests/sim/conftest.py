"""How many seeds, and how fast they go."""

import os
import time

import pytest

DEFAULT_SEEDS = 30
QUICK_SEEDS = 10
"""What `make check` runs of them."""
REPORT_EVERY_S = 10.0
SEEDED = "test_broker_seed["


def seeds() -> list[int]:
    """One with TWOFOLD_SEED, otherwise the first TWOFOLD_SEEDS."""
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_seed" in metafunc.fixturenames:
        slow = [pytest.mark.slow]
        metafunc.parametrize(
            "broker_seed", [pytest.param(seed, marks=slow * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())]
        )


class Progress:
    """Seeds a second, now and then and at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count = 0
        self._spent_s = 0.0
        self._reported_at = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or SEEDED not in report.nodeid:
            return
        self._count += 1
        self._spent_s += report.duration
        now = time.monotonic()
        if len(seeds()) > DEFAULT_SEEDS and now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._config.get_terminal_writer().line(f" {self._summary()} of {len(seeds())}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._count > 1:
            terminalreporter.write_line(f"simulated brokers: {self._summary()}")

    def _summary(self) -> str:
        return f"{self._count} seeds in {self._spent_s:.1f} s, {self._count / max(self._spent_s, 1e-9):.1f} seeds/s"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Progress(config), "twofold-simulator-progress")
