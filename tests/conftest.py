"""Fixtures that every suite may use."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Helpers live in packages beside the suites (`oracle`), whatever directory pytest is started from.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def oracle() -> Iterator[object]:
    """One node of Apache Kafka for the whole session (see `oracle.kafka.Oracle`)."""
    from oracle.kafka import EXACT_SETTINGS, running_oracle

    with running_oracle(EXACT_SETTINGS) as node:
        yield node
