"""Fixtures that every suite may use."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from oracle.kafka import Oracle

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
LAST_LONG = 0.8  # of the way through the other files
ASKING = pytest.StashKey[set[Path]]()


def pytest_collectstart() -> None:
    """Modules and tests stay to the end: to look at them again and again costs a fifth of the time to collect them."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In which order files are shared out among the workers of `make test`. Those that ask Apache Kafka come first, so
    that it can end. After them what waits for processes is mixed with what keeps a core busy, and the last files are
    short, so that no core waits for the other."""
    suites: dict[str, dict[Path, None]] = {}
    asking = config.stash[ASKING] = {item.path for item in items if asks_oracle(item)}
    for item in items:
        suite = item.path.relative_to(HERE).parts[0]
        suites.setdefault(suite if suite in LONG_SUITES else "other", {})[item.path] = None
    order = dict.fromkeys(asking, -1.0)
    for suite, files in suites.items():
        others = [path for path in files if path not in asking]
        share = LAST_LONG if suite in LONG_SUITES else 1.0
        order |= {path: share * position / len(others) for position, path in enumerate(others)}
    items.sort(key=lambda item: order[item.path])


def asks_oracle(item: pytest.Item) -> bool:
    """By the name of the fixture, or because it is one of the servers of a case."""
    given = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    names = item.fixturenames if isinstance(item, pytest.Function) else ()
    return "oracle" in names or any(isinstance(value, str) and value == "oracle" for value in given)


def pytest_collection_finish() -> None:
    """No garbage collection of the tests looks at them either, which saves a sixth of the time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A command that a test calls in its own process sets the log up there: the next test finds it as before."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises


class SharedOracle:
    """One node of Apache Kafka for the files of this process that ask for it (see `oracle.kafka.Oracle`)."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._node: Oracle | None = None

    def node(self) -> "Oracle":
        from oracle.kafka import EXACT_SETTINGS, running_oracle

        if self._node is None:
            self._node = self._running.enter_context(running_oracle(EXACT_SETTINGS))
        return self._node

    def stop(self) -> None:
        self._node = None
        self._running.close()


@pytest.fixture(scope="session")
def shared_oracle() -> Iterator[SharedOracle]:
    shared = SharedOracle()
    yield shared
    shared.stop()


@pytest.fixture(scope="module", autouse=True)
def oracle_ends_with_its_files(request: pytest.FixtureRequest, shared_oracle: SharedOracle) -> None:
    """A node takes a part of a core even when it is asked nothing."""
    if request.path not in request.config.stash[ASKING]:
        shared_oracle.stop()


@pytest.fixture(scope="module")
def oracle(shared_oracle: SharedOracle) -> "Oracle":
    return shared_oracle.node()
