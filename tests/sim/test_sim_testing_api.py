"""The simulator as docs/simulator.md offers it to the tests of an application."""

import re
from pathlib import Path
from typing import Any

import twofold.runtime.sim as sim

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_the_story_of_the_page_runs_and_its_seed_decides_everything() -> None:
    (story,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    known: dict[str, Any] = {}
    exec(compile(story, str(PAGE), "exec"), known)
    found, digest = known["run"](1)
    assert found == [b"one", b"two"]
    assert known["run"](1) == (found, digest)
    assert known["run"](2)[1] != digest


def test_what_the_simulator_offers_is_pinned() -> None:
    assert sorted(sim.__all__) == [
        "CutMode",
        "DeadlockError",
        "Link",
        "NetworkPartition",
        "PowerCut",
        "SimDisk",
        "SimNetwork",
        "Simulation",
        "VirtualTimeout",
    ]
