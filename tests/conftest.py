"""Fixtures that every suite may use."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
# Helpers live in packages beside the suites (`oracle`), whatever directory pytest is started from.
sys.path.insert(0, str(HERE))


# A shell that starts the tests in the background makes them, and all processes that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, however slow the machine is: a run fails because of what was changed, not by chance.
# `make sim` searches at random (TWOFOLD_RANDOM=1), each time elsewhere.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("TWOFOLD_RANDOM") == "1" else "same")

LONG_SUITES = ("interop", "soak", "spark")  # what waits for processes, and what keeps a core busy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long suites first, in turns, so that `make test` ends with short files and no core waits for the other."""
    suites: dict[str, dict[Path, None]] = {}
    for item in items:
        suites.setdefault(item.path.relative_to(HERE).parts[0], {})[item.path] = None
    order: dict[Path, float] = {}
    for suite, files in suites.items():
        for position, path in enumerate(files):
            order[path] = position / len(files) if suite in LONG_SUITES else 1.0
    items.sort(key=lambda item: order[item.path])


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the collector need not look at them, which costs a sixth of the time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A command that a test calls in its own process sets the log up there: the next test finds it as before."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises


@pytest.fixture(scope="session")
def oracle() -> Iterator[object]:
    """One node of Apache Kafka for the whole session (see `oracle.kafka.Oracle`)."""
    from oracle.kafka import EXACT_SETTINGS, running_oracle

    with running_oracle(EXACT_SETTINGS) as node:
        yield node
