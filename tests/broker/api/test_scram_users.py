"""AlterUserScramCredentials and DescribeUserScramCredentials: the rows, what is stored, and what is never shown."""

import asyncio
import logging
from typing import Any

import pytest

from kits.node.guarded_node import GuardedNode, guarded
from kits.node.sim_node import NODE, Asked
from kits.node.txn_node import hearing
from kits.security.credentials import credential_from_password
from twofold.security.scram import ScramMechanism, salted_password

SHA_256, SHA_512 = ScramMechanism
SALT = b"salt-of-the-test"


def password(name: str, text: str = "secret-pencil", mechanism: int = 1, **more: Any) -> dict[str, Any]:
    salted = salted_password(SHA_512 if mechanism == 2 else SHA_256, text, SALT, 4096)
    row = {"name": name, "mechanism": mechanism, "iterations": 4096, "salt": SALT, "salted_password": salted}
    return {**row, **more}


def removal(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def alter(node: GuardedNode, *rows: dict[str, Any]) -> dict[str, int]:
    deletions = [row for row in rows if "salt" not in row]
    upsertions = [row for row in rows if "salt" in row]
    answer = await node.ask("AlterUserScramCredentials", 0, deletions=deletions, upsertions=upsertions)
    return {row["user"]: row["error_code"] for row in answer["results"]}


async def described(node: GuardedNode, *names: str) -> dict[str, Any]:
    users = [{"name": name} for name in names]
    answer = await node.ask("DescribeUserScramCredentials", 0, users=users or None)
    assert answer["error_code"] == 0
    return {
        row["user"]: row["error_code"] or [(info["mechanism"], info["iterations"]) for info in row["credential_infos"]]
        for row in answer["results"]
    }


@pytest.mark.parametrize(
    ("rows", "codes"),
    [
        ([password("a")], {"a": 0}),
        ([password("a", iterations=4095)], {"a": 93}),
        ([password("a", iterations=16_385)], {"a": 93}),
        ([password("a", iterations=16_384)], {"a": 0}),
        ([password("")], {"": 93}),
        ([password("a", salt=b"")], {"a": 93}),
        ([password("a", salted_password=b"")], {"a": 93}),
        ([password("a", mechanism=3)], {"a": 33}),
        ([password("a", mechanism=0)], {"a": 33}),
        ([password("a"), password("a", mechanism=2)], {"a": 92}),
        ([password("a"), password("a")], {"a": 92}),
        ([removal("a"), password("a")], {"a": 92}),
        ([removal("a")], {"a": 91}),
        ([removal("a", 9)], {"a": 33}),
        ([password("a"), password("b", iterations=1), password("c")], {"a": 0, "b": 93, "c": 0}),
    ],
)
@guarded
async def test_each_user_is_answered_and_the_good_rows_are_done(node: GuardedNode, rows: Any, codes: Any) -> None:
    assert await alter(node, *rows) == codes
    assert set(await described(node)) == {name for name, code in codes.items() if code == 0}


@guarded
async def test_missing_users_and_those_that_are_named_twice_are_told_apart(node: GuardedNode) -> None:
    await alter(node, password("a"))
    await alter(node, password("a", mechanism=2, iterations=8192))
    assert await described(node) == await described(node, "a") == {"a": [(1, 4096), (2, 8192)]}
    assert await described(node, "b") == {"b": 91}
    assert await described(node, "a", "a", "b") == {"a": 92, "b": 91}


@guarded
async def test_what_is_stored_checks_the_password_and_a_restart_keeps_it(node: GuardedNode) -> None:
    await alter(node, password("a"))
    expected = credential_from_password(SHA_256, "secret-pencil", SALT, 4096)
    for _ in range(2):
        assert node.broker.image.scram_credential("a", SHA_256) == expected
        assert node.broker.image.scram_credential("a", SHA_512) is None
        assert node.broker.image.scram_credential("A", SHA_256) is None
        await node.restart()
    assert await alter(node, removal("a")) == {"a": 0}
    assert node.broker.image.scram_credential("a", SHA_256) is None and await described(node) == {}


async def is_kept(asked: Asked[dict[str, Any]]) -> bool:
    """Whether the request has an answer, and did not end with its broker."""
    try:
        answer = await asked()
    except asyncio.CancelledError:
        return False
    return bool(answer["results"][0]["error_code"] == 0)


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill -9", "power cut"])
@guarded
async def test_a_password_is_the_old_one_or_the_new_one_wherever_the_broker_dies(
    node: GuardedNode, power_cut: bool
) -> None:
    """At every write on the way of its record, and between the record and the answer."""
    old = credential_from_password(SHA_256, "secret-pencil", SALT, 4096)
    outcomes = []
    for writes in range(100):
        await alter(node, password("a"))
        new = credential_from_password(SHA_256, f"next-{writes}", SALT, 4096)
        node.sim.crash_after(NODE, writes, power_cut=power_cut)
        row = password("a", f"next-{writes}")
        asked = node.send("AlterUserScramCredentials", 0, deletions=[], upsertions=[row])
        await asyncio.sleep(0.5)
        was_answered = asked.is_answered() and await is_kept(asked)
        node.sim.crash(NODE, power_cut=power_cut)
        await node.start()
        found = node.broker.image.scram_credential("a", SHA_256)
        assert found in (old, new)
        assert found == new or not was_answered, f"after {writes} writes: an answer that is not kept"
        outcomes.append((found == new, was_answered))
        if was_answered:
            break
    assert outcomes[0] == (False, False) and outcomes[-1] == (True, True)
    assert (True, False) in outcomes, "the record was there, and the answer was not"


@guarded
async def test_no_log_line_has_anything_of_a_password(node: GuardedNode) -> None:
    row = password("a")
    with hearing(logging.getLogger(), logging.DEBUG) as heard:
        await alter(node, row)
        await alter(node, {**row, "name": ""})
    found = node.broker.image.scram_credential("a", SHA_256)
    assert found is not None
    text = "\n".join(heard)
    for secret in (row["salt"], row["salted_password"], found.stored_key, found.server_key):
        assert repr(secret)[2:-1] not in text and secret.hex() not in text
