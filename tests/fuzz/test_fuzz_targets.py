"""Every reader of foreign bytes takes sound and damaged input, and raises nothing but its own errors."""

import os
from random import Random

import pytest

from fuzz.mutate import mutated
from fuzz.targets import TARGETS

LONG = bool(os.environ.get("TWOFOLD_LONG"))
MUTATIONS = 100_000 if LONG else 800


@pytest.mark.parametrize("name", TARGETS)
def test_sound_and_damaged_input_raises_nothing_unexpected(name):
    target = TARGETS[name]
    sound = target.seeds()
    source = Random(f"{name}/1")
    for data in sound:
        target.run(data)
    for number in range(MUTATIONS):
        data = mutated(source.choice(sound), source, sound)
        try:
            target.run(data)
        except Exception as error:
            error.add_note(f"mutation {number}: ({name!r}, bytes.fromhex({data.hex()!r}))")
            raise
