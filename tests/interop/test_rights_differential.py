"""The table of rights, the ACL APIs and random entries, asked of Apache Kafka with its authorizer and of Twofold."""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kits.security import rights
from kits.security.guarded import ALICE, Asked, Binding, bindings, guarded_pair
from kits.security.rights import AUTHORIZATION, NEW_ACL, ROWS, Right, Row, codes
from oracle.compare import at_once
from twofold.broker.network.dispatch import served_apis
from twofold.security.acl_codes import CLUSTER_NAME, AclResourceType, Operation, Permission

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
OURS = {"TxnHeartbeat"}  # a draft that Apache Kafka does not have
SERVED = {api.name for api in served_apis()} - OURS
ASKED = [row for row in ROWS if row.api in SERVED]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Asked, Asked]]:
    with guarded_pair() as servers:
        yield servers


def situations(row: Row) -> Iterator[tuple[str, list[Right]]]:
    yield "no right", []
    if row.alone:
        yield from ((f"only {right}", [right]) for right in row.rights)
        return
    yield "every right", list(row.rights)
    if len(row.rights) > 1:
        for missing in row.rights:
            yield f"all but {missing}", [right for right in row.rights if right != missing]


RIGHTS = [
    pytest.param(row, granted, id=f"{row}: {label}".replace(" ", "_"))
    for row in ASKED
    for label, granted in situations(row)
]  # fmt: skip


@pytest.mark.parametrize(("row", "granted"), RIGHTS)
def test_rights(both: tuple[Asked, Asked], row: Row, granted: list[Right]) -> None:
    def answer_of(server: Asked) -> tuple[Any, ...]:
        server.fresh_transaction()
        server.grant(bindings(granted))
        answer = server.ask(row)
        return sorted(codes(answer) & AUTHORIZATION), None if row.seen is None else bool(row.seen(answer))

    theirs, ours = at_once(answer_of, *both)
    assert ours == theirs


def test_a_topic_that_a_group_only_wants_is_not_told_without_its_right(both: tuple[Asked, Asked]) -> None:
    """docs/known-gaps.md: Apache Kafka looks at the topics that are assigned, and shows the names of all others."""
    group, seen = Right(Operation.DESCRIBE, rights.GROUP, "wants"), Right(Operation.DESCRIBE, rights.TOPIC, rights.T)
    found = []
    for server in both:
        server.join("wants", (rights.T, "missing"), found=1)
        server.grant(bindings([group, seen]))
        answer = server.alice.ask("ConsumerGroupDescribe", 1, **rights.describe_group("wants")(server))
        found.append((codes(answer), rights.members_shown(answer)))
    assert found == [({0}, 1), ({29}, 0)]


def test_a_pattern_stands_for_what_the_client_that_brought_it_may_see(both: tuple[Asked, Asked]) -> None:
    """For another member of the same pattern as well, whatever that one may see."""
    group, seen = Right(Operation.READ, rights.GROUP, "matches"), Right(Operation.DESCRIBE, rights.TOPIC, rights.T)
    pattern = {"subscribed_topic_regex": f"{rights.T}|{rights.OTHER}"}
    body = rights.reader("matches", ()) | pattern
    found = []
    for server in both:
        server.grant(bindings([group, seen]))
        server.until_assigned(server.alice, body)
        answer = server.admin.ask("ConsumerGroupHeartbeat", 1, **(body | {"member_id": "another"}))
        assert answer["error_code"] == 0, answer
        described = server.admin.ask("ConsumerGroupDescribe", 1, **rights.describe_group("matches")(server))
        found.append(sorted(targets(member) for member in described["groups"][0]["members"]))
    assert found[1] == found[0] == [[rights.T], [rights.T]]


def targets(member: dict[str, Any]) -> list[str]:
    return [row["topic_name"] for row in member["target_assignment"]["topic_partitions"]]


def test_there_are_enough_cases() -> None:
    assert len(RIGHTS) + len(CREATIONS) + len(FILTERS) + RANDOM_CASES >= 150


# --- the rows of CreateAcls, and filters

CREATIONS: list[dict[str, Any]] = [
    {},
    {"resource_type": 8},
    {"resource_type": 16},
    {"resource_type": 7},
    {"operation": 16},
    {"operation": 99},
    {"operation": 15},
    {"permission_type": 9},
    {"resource_pattern_type": 9},
    {"resource_name": ""},
    {"resource_type": 4, "resource_name": "t"},
    {"resource_type": 4, "resource_name": "*"},
    {"resource_type": 4, "resource_name": "kafka-cluster"},
    {"principal": "alice"},
    {"principal": ":"},
    {"host": "no address"},
    {"resource_name": "no/topic at all"},
]


# Codes that only filters have: Apache Kafka fails the whole request with UNKNOWN_SERVER_ERROR (docs/known-gaps.md).
OF_FILTERS: list[dict[str, Any]] = [
    {"operation": 1},
    {"resource_type": 1},
    {"permission_type": 1},
    {"resource_pattern_type": 1},
    {"resource_pattern_type": 2},
]


@pytest.mark.parametrize("row", CREATIONS, ids=lambda row: "_".join(f"{k}={v!r}" for k, v in row.items()) or "plain")
def test_a_row_of_create_acls(both: tuple[Asked, Asked], row: dict[str, Any]) -> None:
    theirs, ours = created(both, row)
    assert ours == theirs


@pytest.mark.parametrize("row", OF_FILTERS, ids=lambda row: "_".join(f"{k}={v!r}" for k, v in row.items()))
def test_a_row_with_a_code_of_filters_is_refused_and_the_others_are_done(
    both: tuple[Asked, Asked], row: dict[str, Any]
) -> None:
    theirs, ours = created(both, row)
    assert (theirs, ours) == ([-1, -1, -1], [42, 0, 42])


def created(both: tuple[Asked, Asked], row: dict[str, Any]) -> tuple[list[int], list[int]]:
    def codes_of(server: Asked) -> list[int]:
        server.grant([])
        asked = {**NEW_ACL, "resource_name": "t", **row}
        answer = server.admin.ask("CreateAcls", 3, creations=[asked, {**NEW_ACL, "resource_name": "last"}, asked])
        return [result["error_code"] for result in answer["results"]]

    return at_once(codes_of, *both)


STORED: list[Binding] = [
    (2, name, pattern, who, host, operation, 3)
    for name, pattern, who, host, operation in (
        ("topic", 3, ALICE, "*", 3), ("topic", 4, ALICE, "10.0.0.1", 3), ("to", 4, "User:*", "*", 4),
        ("*", 3, "User:bob", "*", 8), ("*", 4, "User:bob", "*", 2),
    )
]  # fmt: skip
FILTERS: list[dict[str, Any]] = [
    {},
    {"resource_type_filter": 3},
    {"resource_name_filter": "topic"},
    {"resource_name_filter": "topic", "pattern_type_filter": 2},
    {"resource_name_filter": "topic", "pattern_type_filter": 3},
    {"resource_name_filter": "topic", "pattern_type_filter": 4},
    {"resource_name_filter": "*", "pattern_type_filter": 2},
    {"resource_name_filter": "*"},
    {"pattern_type_filter": 4},
    {"pattern_type_filter": 2},
    {"principal_filter": "User:*"},
    {"principal_filter": ALICE},
    {"host_filter": "10.0.0.1"},
    {"host_filter": "*"},
    {"operation": 2},
    {"operation": 8},
    {"permission_type": 2},
]


@pytest.mark.parametrize("wanted", FILTERS, ids=lambda row: "_".join(f"{k}={v}" for k, v in row.items()) or "all")
def test_a_filter(both: tuple[Asked, Asked], wanted: dict[str, Any]) -> None:
    def found_by(server: Asked) -> tuple[Any, ...]:
        server.grant(STORED)
        described = server.described(**wanted)
        asked = {**rights.ACL_FILTER, "principal_filter": None, **wanted}
        answer = server.admin.ask("DeleteAcls", 3, filters=[asked])
        gone = {row["resource_name"] + str(row["pattern_type"]) for row in answer["filter_results"][0]["matching_acls"]}
        return described, gone

    theirs, ours = at_once(found_by, *both)
    assert ours == theirs


# --- random entries

RANDOM_CASES = 120 if LONG else 12
NAMES = ["a", "ab", "abc", "b", "*"]
KINDS = [AclResourceType.TOPIC, AclResourceType.TRANSACTIONAL_ID]
SOME = [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE, Operation.ALTER]


def random_entries(random: Random) -> list[Binding]:
    return sorted({
        (
            int(random.choice(KINDS)), random.choice(NAMES), random.choice([3, 4]),
            random.choice([ALICE, ALICE, "User:*", "User:bob"]), random.choice(["*", "127.0.0.1", "10.0.0.1"]),
            int(random.choice(SOME)), int(random.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY])),
        )
        for _ in range(random.randrange(1, 9))
    })  # fmt: skip


@pytest.mark.parametrize("seed", range(RANDOM_CASES))
def test_random_entries(both: tuple[Asked, Asked], seed: int) -> None:
    """What may be described and written, and whether a producer without an id may write anywhere."""
    entries = random_entries(Random(seed))

    def allowed_by(server: Asked) -> tuple[Any, ...]:
        server.grant([*entries, (int(AclResourceType.CLUSTER), CLUSTER_NAME, 3, ALICE, "*", int(Operation.ALTER), 2)])
        topics = [{"name": name} for name in ("a", "ab", "abc", "abcd", "b", "c")]
        body = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
        metadata = server.alice.ask("Metadata", 9, **body)
        null = server.alice.ask("InitProducerId", 4, transactional_id=None, transaction_timeout=1000)
        ids = {
            name: server.alice.ask("FindCoordinator", 3, key=name, key_type=1)["error_code"] in AUTHORIZATION
            for name in ("a", "abc", "c")
        }
        rows = sorted((row["name"], row["error_code"] in AUTHORIZATION) for row in metadata["topics"])
        return rows, null["error_code"] in AUTHORIZATION, ids

    theirs, ours = at_once(allowed_by, *both)
    assert ours == theirs, entries
