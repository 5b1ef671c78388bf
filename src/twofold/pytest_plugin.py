"""A pytest plugin: the fixture `twofold_broker`, a real broker on a port of its own for each test that asks for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from twofold.embedded import Broker


@pytest.fixture
def twofold_broker() -> Iterator["Broker"]:
    """A running broker; `twofold_broker.bootstrap_servers` is its address. Its data goes when the test ends."""
    from twofold.embedded import Broker

    with Broker() as broker:
        yield broker
