"""A pytest plugin: real brokers for tests.

`twofold_broker` is a broker for one test, `twofold_session_broker` one for all tests of the run (with pytest-xdist: of
the worker). Both have the settings of `twofold_settings` in pytest's configuration, one `key=value` per line. The
marker `twofold_settings` changes them for the tests that it marks:

    @pytest.mark.twofold_settings({"num.partitions": 3})
    def test_orders(twofold_broker): ...
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from twofold.embedded import Broker

SETTINGS = "twofold_settings"
_session_broker = pytest.StashKey["Broker"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SETTINGS, "settings of the brokers for tests, one key=value per line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{SETTINGS}(settings): settings of the broker of this test (twofold_broker)")


@pytest.fixture(scope="session")
def twofold_settings(pytestconfig: pytest.Config) -> dict[str, object]:
    """The settings of all brokers, from pytest's configuration. A conftest.py may define a fixture of this name."""
    settings: dict[str, object] = {}
    for line in pytestconfig.getini(SETTINGS):
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise pytest.UsageError(f"{SETTINGS}: {line!r} is not of the form key=value")
        settings[key.strip()] = value.strip()
    return settings


@pytest.fixture
def twofold_broker(request: pytest.FixtureRequest, twofold_settings: dict[str, object]) -> Iterator["Broker"]:
    """A running broker; `twofold_broker.bootstrap_servers` is its address. Its data goes when the test ends."""
    from twofold.embedded import Broker

    marked = [_marked(marker) for marker in request.node.iter_markers(SETTINGS)]  # the nearest first
    settings = dict(twofold_settings)
    for more in reversed(marked):
        settings |= more
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def twofold_session_broker(pytestconfig: pytest.Config, twofold_settings: dict[str, object]) -> Iterator["Broker"]:
    """One running broker for all tests, which share its topics. The faults that a test leaves are taken back."""
    from twofold.embedded import Broker

    with Broker(settings=twofold_settings) as broker:
        pytestconfig.stash[_session_broker] = broker
        try:
            yield broker
        finally:
            del pytestconfig.stash[_session_broker]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", ())
    if item.get_closest_marker(SETTINGS) and "twofold_session_broker" in names and "twofold_broker" not in names:
        pytest.fail(
            f"the marker {SETTINGS} has no effect on twofold_session_broker, which all tests share: use "
            f"twofold_broker, or the option {SETTINGS} in pytest's configuration",
            pytrace=False,
        )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    broker = item.config.stash.get(_session_broker, None)
    if broker is not None:
        broker.faults.clear()


def _marked(marker: pytest.Mark) -> dict[str, object]:
    if len(marker.args) != 1 or not isinstance(marker.args[0], dict) or marker.kwargs:
        raise pytest.UsageError(f"@pytest.mark.{SETTINGS} takes one dictionary of settings")
    return marker.args[0]
