"""A process under every attack of `fuzz.attacks`: a healthy client is served, memory stays below its bound."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from bench.hostile import MB, measure, prepare
from fuzz.attacks import ATTACKS
from kits.processes.server import TwofoldServer

LONG = bool(os.environ.get("TWOFOLD_LONG"))
pytestmark = [pytest.mark.interop, pytest.mark.slow]

REQUESTS_MB = 512  # queued.max.request.bytes
ANSWERS_MB = 512
OWN_MB = 150  # the broker itself, its connections
UNPACKED_MB = 512  # two batches at a time


@pytest.mark.parametrize("name", list(ATTACKS) if LONG else ["garbage"])
def test_a_healthy_client_is_served_and_memory_is_bounded_during_an_attack(tmp_path, name):
    with TwofoldServer(tmp_path) as server:
        prepare(server)
        found = measure(server, name, 6.0 if LONG else 1.5)
        assert server.running
        assert found["requests"] > 10
        assert found["max_ms"] < 10_000
        assert found["rss_peak_mb"] < REQUESTS_MB + ANSWERS_MB + OWN_MB + UNPACKED_MB
        assert "Traceback" not in server.log_text()
        assert server.resident_bytes < 2_000 * MB
