"""Any request of any API and version, well typed or damaged, is answered or ends its connection, and harms nobody."""

import os
import struct
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz import seeds
from fuzz.mutate import mutated
from fuzz.node import FuzzedNode, story
from fuzz.strategies import client_ids, requests
from twofold.wire.apis import APIS

LONG = bool(os.environ.get("TWOFOLD_LONG"))
PROFILE = settings(
    max_examples=2_000 if LONG else 20,
    deadline=None,
    derandomize=not LONG,
    database=None,
    # To explain takes a tracer, and to shrink some minutes: of use only where somebody looks for the cause.
    phases=[Phase.generate, Phase.shrink] if os.environ.get("TWOFOLD_SHRINK") else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BY_API = sorted({key for key, _ in seeds.every_version()})


@PROFILE
@given(st.lists(st.tuples(requests(), client_ids), min_size=1, max_size=30))
def test_any_sequence_of_well_typed_requests_is_answered_and_harms_no_other_client(sent):
    async def steps(node: FuzzedNode) -> None:
        for (key, version, message), client_id in sent:
            await node.send_message(key, version, message, client_id)

    story(steps)


@pytest.mark.parametrize("key", BY_API, ids=lambda key: APIS[key].name)
@settings(PROFILE, max_examples=100 if LONG else 2)
@given(data=st.data())
def test_every_version_of_an_api_takes_any_values(key, data):
    versions = [version for found, version in seeds.every_version() if found == key]
    sent = [data.draw(requests(((key, version),))) for version in versions for _ in range(2)]

    async def steps(node: FuzzedNode) -> None:
        for found, version, message in sent:
            await node.send_message(found, version, message)

    story(steps, check=False)


@pytest.mark.parametrize("seed", range(40 if LONG else 2))
def test_sound_requests_with_changed_bytes_are_answered_or_refused(seed):
    sound = seeds.requests(rounds=2)
    source = Random(f"changed/{seed}")

    async def steps(node: FuzzedNode) -> None:
        for _ in range(2_000):
            await node.put(mutated(source.choice(sound), source, sound))

    story(steps)


HEADER = struct.Struct(">hhih")


@pytest.mark.parametrize("key", [-32768, -1, 4, 7, 94, 95, 96, 1000, 32767])
@pytest.mark.parametrize("version", [-32768, -1, 0, 99, 32767])
def test_unknown_keys_and_versions_are_refused(key, version):
    async def steps(node: FuzzedNode) -> None:
        assert isinstance(await node.put(HEADER.pack(key, version, 1, -1) + b"\0" * 8), str)

    if key != 95 or version != 0:  # TxnHeartbeat
        story(steps, check=False)
