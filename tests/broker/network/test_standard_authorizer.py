"""What the entries of the metadata allow: the rules one by one, beside a naive form of them, and what a check costs."""

import logging
import os
import time
from collections.abc import Iterable
from functools import cache
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.node.admin_world import ManualTime
from twofold.broker.network.audit import DenialAudit
from twofold.broker.network.authorizer import AclResourceType, Operation, authorized_operations
from twofold.broker.network.context import Peer, RequestContext
from twofold.broker.network.standard_authorizer import StandardAuthorizer
from twofold.controller.security.acls import AclSet
from twofold.controller.security.records import AccessControlEntry
from twofold.security.acl_codes import PatternType, Permission

TOPIC, GROUP, CLUSTER, TXN = (
    AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER, AclResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
)  # fmt: skip
DESCRIBE, ALL = Operation.DESCRIBE, Operation.ALL
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALICE = "User:alice"
FIRST_CONTEXT = RequestContext(3, 12, 1, "client", Peer("10.0.0.1", 1, "L", ALICE))


def acl_set(entries: Iterable[AccessControlEntry]) -> AclSet:
    draft = AclSet().mutate()
    for entry in entries:
        draft.add(entry)
    return draft.finish()


def entry(
    operation=READ, name="t", *, permission=ALLOW, who=ALICE, host="*", kind=TOPIC, pattern=LITERAL
) -> AccessControlEntry:
    fields = (int(kind), name, int(pattern), who, host, int(operation), int(permission))
    return AccessControlEntry(UUID(int=hash(fields) & (1 << 64) - 1), *fields)


def authorizer(*entries: AccessControlEntry, everyone: bool = False, super_users=(), told=None) -> StandardAuthorizer:
    acls = acl_set(entries)
    return StandardAuthorizer(
        lambda: acls,
        super_users=frozenset(super_users),
        without_entries=everyone,
        audit=lambda *refused: None if told is None else told.append(refused),
    )


def may(operation, *entries, name="t", who=ALICE, host="10.0.0.1", kind=TOPIC, **more) -> bool:
    context = FIRST_CONTEXT._replace(peer=Peer(host, 1, "L", who))
    return authorizer(*entries, **more).authorize(context, operation, kind, name)


def may_any(operation, *entries, who=ALICE, host="10.0.0.1", **more) -> bool:
    context = FIRST_CONTEXT._replace(peer=Peer(host, 1, "L", who))
    return authorizer(*entries, **more).authorize_any(context, operation, TOPIC)


# --- the rules, each of which was tried on Apache Kafka


@pytest.mark.parametrize(
    ("operation", "mask"),
    [(READ, 264), (WRITE, 272), (DELETE, 320), (ALTER, 384), (DESCRIBE, 256), (CREATE, 32), (ALL, 3576)],
)
def test_read_write_delete_and_alter_imply_describe_and_create_implies_nothing(operation, mask):
    assert authorized_operations(authorizer(entry(operation)), FIRST_CONTEXT, TOPIC, "t") == mask


def test_alter_configs_implies_describe_configs_and_not_the_reverse():
    assert may(Operation.DESCRIBE_CONFIGS, entry(Operation.ALTER_CONFIGS))
    assert not may(Operation.ALTER_CONFIGS, entry(Operation.DESCRIBE_CONFIGS))


def test_a_denial_wins_over_every_allow():
    both = entry(ALL), entry(READ, permission=DENY)
    assert not may(READ, *both) and may(WRITE, *both)


def test_a_denial_implies_nothing():
    assert may(DESCRIBE, entry(DESCRIBE), entry(READ, permission=DENY))
    denied = entry(READ), entry(DESCRIBE, permission=DENY)
    assert may(READ, *denied) and not may(DESCRIBE, *denied)


def test_a_denial_of_all_denies_every_operation():
    assert not any(may(one, entry(ALL), entry(ALL, permission=DENY)) for one in (READ, WRITE, DESCRIBE))


def test_a_denial_on_the_wildcard_closes_a_literal_topic():
    assert not may(READ, entry(), entry(name="*", permission=DENY))


def test_a_denial_of_every_principal_closes_a_topic_to_each():
    assert not may(READ, entry(), entry(who="User:*", permission=DENY))


@pytest.mark.parametrize(("prefix", "allowed"), [("t", True), ("topic", True), ("topics", False)])
def test_a_prefix_may_be_shorter_or_equal_and_not_longer(prefix, allowed):
    assert may(READ, entry(name=prefix, pattern=PREFIXED), name="topic") is allowed


def test_a_star_is_a_wildcard_only_where_the_pattern_is_literal():
    assert may(READ, entry(name="*"))
    assert not may(READ, entry(name="*", pattern=PREFIXED))
    assert may(READ, entry(name="*", pattern=PREFIXED), name="*x")


@pytest.mark.parametrize(
    ("host", "client", "allowed"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("localhost", "127.0.0.1", False),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_host_is_an_address_in_any_spelling_and_never_a_name(host, client, allowed):
    assert may(READ, entry(host=host), host=client) is allowed


@pytest.mark.parametrize("who", ["User:Alice", "alice", "Group:alice", "User:alic"])
def test_a_principal_is_compared_with_its_type_and_its_case(who):
    assert not may(READ, entry(who=who))


def test_a_principal_without_an_entry_has_no_right():
    assert not may(READ) and not may(READ, entry(name="other"))


def test_without_any_entry_about_a_resource_the_setting_decides():
    assert may(READ, everyone=True) and may(READ, entry(name="other"), everyone=True)
    assert not may(READ, entry(who="User:bob"), everyone=True), "an entry of another closes it to all"
    assert not may(READ, entry(who="User:bob", name="*"), everyone=True)
    assert not may(READ, entry(who="User:bob", name="t", pattern=PREFIXED), name="topic", everyone=True)


def test_a_super_user_may_do_everything():
    denied = entry(ALL, permission=DENY), entry(ALL, name="*", who="User:*", permission=DENY)
    assert may(READ, *denied, super_users=[ALICE]) and may_any(READ, *denied, super_users=[ALICE])


def test_two_phase_commit_is_a_right_of_its_own_and_part_of_all():
    two_phase = Operation.TWO_PHASE_COMMIT
    assert not may(two_phase, entry(WRITE, kind=TXN), kind=TXN)
    assert not may(WRITE, entry(two_phase, kind=TXN), kind=TXN)
    assert may(two_phase, entry(ALL, kind=TXN), kind=TXN)
    denied = entry(ALL, kind=TXN), entry(two_phase, kind=TXN, permission=DENY)
    assert may(WRITE, *denied, kind=TXN) and not may(two_phase, *denied, kind=TXN)


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([entry(WRITE)], True),
        ([entry(ALL)], True),
        ([entry(READ)], False),
        ([entry(WRITE, host="10.0.0.2")], False),
        ([entry(WRITE, who="User:*")], True),
        ([entry(WRITE), entry(WRITE, "*", permission=DENY)], False),
        ([entry(WRITE, "*"), entry(WRITE, permission=DENY)], True),
        ([entry(WRITE), entry(WRITE, permission=DENY)], False),
        ([entry(WRITE), entry(WRITE, "t", permission=DENY, pattern=PREFIXED)], False),
        ([entry(WRITE, "ab", pattern=PREFIXED), entry(WRITE, "a", permission=DENY, pattern=PREFIXED)], False),
        ([entry(WRITE, "a", pattern=PREFIXED), entry(WRITE, "ab", permission=DENY, pattern=PREFIXED)], True),
        ([entry(WRITE, "a", pattern=PREFIXED), entry(WRITE, "a", permission=DENY)], True),
        ([entry(WRITE), entry(ALL, permission=DENY)], False),
        ([entry(WRITE), entry(READ, permission=DENY)], True),
    ],
)
def test_on_any_topic_is_an_allow_that_no_denial_takes_away(entries, allowed):
    assert may_any(WRITE, *entries) is allowed


def test_on_any_topic_where_the_setting_allows_what_no_entry_is_about():
    assert may_any(WRITE, everyone=True) and not may_any(WRITE, entry(READ, "*"), everyone=True)


# --- decisions are kept until an entry changes


def test_a_decision_changes_with_the_entries():
    current = acl_set([entry()])
    asked = StandardAuthorizer(
        lambda: current, super_users=frozenset(), without_entries=False, audit=lambda *refused: None
    )
    assert asked.authorize(FIRST_CONTEXT, READ, TOPIC, "t") and asked.authorize_any(FIRST_CONTEXT, READ, TOPIC)
    draft = current.mutate()
    draft.discard(entry().id)
    current = draft.finish()
    assert not asked.authorize(FIRST_CONTEXT, READ, TOPIC, "t") and not asked.authorize_any(FIRST_CONTEXT, READ, TOPIC)
    assert current == AclSet() and current.prefix_lengths == AclSet().prefix_lengths


def test_the_decisions_that_are_kept_have_a_bound(monkeypatch):
    monkeypatch.setattr("twofold.broker.network.standard_authorizer.MOST_DECISIONS", 10)
    asked = authorizer(entry(name="topic", pattern=PREFIXED))
    for number in range(35):
        assert asked.authorize(FIRST_CONTEXT, READ, TOPIC, f"topic-{number}")
        assert len(asked._decided) <= 10


# --- a naive form of the rules

NAMES = ["a", "ab", "abc", "b", "*"]
WHO = ["User:alice", "User:bob", "User:*"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2"]
SOME = [ALL, READ, WRITE, DESCRIBE, ALTER, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, CREATE]
ENTRIES = st.builds(
    entry,
    st.sampled_from(SOME),
    st.sampled_from(NAMES),
    permission=st.sampled_from([ALLOW, ALLOW, DENY]),
    who=st.sampled_from(WHO),
    host=st.sampled_from(HOSTS),
    kind=st.sampled_from([TOPIC, GROUP]),
    pattern=st.sampled_from([LITERAL, PREFIXED]),
)
IMPLIES = {DESCRIBE: {READ, WRITE, DELETE, ALTER}, Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS}}


def naive(entries, operation, kind, name, who, host, everyone) -> bool:
    about = [
        one
        for one in entries
        if one.resource_type == kind
        and (
            (one.pattern_type == LITERAL and one.resource_name in (name, "*"))
            or (one.pattern_type == PREFIXED and name.startswith(one.resource_name))
        )
    ]
    if not about:
        return everyone
    mine = [one for one in about if one.principal in (who, "User:*") and one.host in ("*", host)]
    if any(one.permission_type == DENY and one.operation in (operation, ALL) for one in mine):
        return False
    enough = {operation, ALL} | IMPLIES.get(operation, set())
    return any(one.permission_type == ALLOW and one.operation in enough for one in mine)


@settings(max_examples=3000 if os.environ.get("TWOFOLD_LONG") else 100, deadline=None)
@given(st.lists(ENTRIES, max_size=12), st.lists(ENTRIES, max_size=4), st.booleans())
def test_random_entries_decide_as_the_naive_rules(first, more, everyone):
    """Also where entries come and go: the indexes are those of a set that was made at once."""
    draft = acl_set(first).mutate()
    for one in more:
        draft.add(one)
    for one in first[::3]:
        draft.discard(one.id)
    left = {one.id: one for one in [*first, *more]}
    for one in first[::3]:
        left.pop(one.id, None)
    acls = draft.finish()
    assert acls == acl_set(left.values())
    assert (acls.by_principal, acls.patterns, acls.prefix_lengths) == (
        (made := acl_set(left.values())).by_principal, made.patterns, made.prefix_lengths,
    )  # fmt: skip
    asked = StandardAuthorizer(
        lambda: acls, super_users=frozenset(), without_entries=everyone, audit=lambda *refused: None
    )
    for who in ("User:alice", "User:carol"):
        for host in ("10.0.0.1", "10.0.0.3"):
            context = FIRST_CONTEXT._replace(peer=Peer(host, 1, "L", who))
            for kind in (TOPIC, GROUP):
                for name in ("a", "abc", "b", "c"):
                    for operation in (READ, DESCRIBE, Operation.DESCRIBE_CONFIGS, CREATE):
                        expected = naive(left.values(), operation, kind, name, who, host, everyone)
                        assert asked.authorize(context, operation, kind, name) is expected


# --- the audit


def test_what_is_refused_is_told_and_what_only_filters_is_not():
    told: list[tuple] = []
    asked = authorizer(told=told)
    assert not asked.authorize(FIRST_CONTEXT, READ, TOPIC, "t", quiet=True) and told == []
    assert not asked.authorize(FIRST_CONTEXT, READ, TOPIC, "t")
    assert authorized_operations(asked, FIRST_CONTEXT, TOPIC, "t") == 0
    assert not asked.authorize(FIRST_CONTEXT, WRITE, TOPIC, "t")
    assert [row[1] for row in told] == [READ, WRITE]


def test_the_audit_names_principal_address_operation_resource_and_api(caplog):
    audit = DenialAudit(ManualTime())
    with caplog.at_level(logging.INFO, "twofold.audit"):
        audit(FIRST_CONTEXT, READ, TOPIC, "a\nb")
    assert caplog.messages == [
        "refused: 'User:alice' from 10.0.0.1 may not READ the TOPIC 'a\\nb' (Metadata, client id 'client')"
    ]


def test_a_flood_of_refusals_writes_few_lines_and_hides_no_other_api(caplog):
    clock = ManualTime()
    audit = DenialAudit(clock)
    with caplog.at_level(logging.INFO, "twofold.audit"):
        for _ in range(1000):
            audit(FIRST_CONTEXT, READ, TOPIC, "t")
        audit(FIRST_CONTEXT._replace(api_key=20), DELETE, TOPIC, "t")
        clock.advance(2)
        audit(FIRST_CONTEXT, READ, TOPIC, "t")
    assert len(caplog.messages) == 7 and "(DeleteTopics, " in caplog.messages[5]
    assert caplog.messages[6].endswith("(995 lines like this one were left out)")


# --- what it costs


@cache
def many(count: int) -> AclSet:
    random = Random(1)
    rows = [
        entry(
            random.choice(SOME), f"topic-{number}",
            who=f"User:{number % 1000}", pattern=random.choice([LITERAL, PREFIXED]),
        )
        for number in range(count - 1)
    ]  # fmt: skip
    return acl_set([*rows, entry()])


def lookups(acls: AclSet, monkeypatch) -> int:
    """How many places of the indexes a decision that is not kept looks at."""
    seen = 0
    found = type(acls.by_subject).get

    def counted(self, *arguments):
        nonlocal seen
        seen += 1
        return found(self, *arguments)

    monkeypatch.setattr(type(acls.by_subject), "get", counted)
    asked = StandardAuthorizer(lambda: acls, super_users=frozenset(), without_entries=False, audit=lambda *_: None)
    assert asked.authorize(FIRST_CONTEXT, READ, TOPIC, "t")
    monkeypatch.undo()
    return seen


def test_a_check_looks_at_as_many_places_with_100_000_entries_as_with_10(monkeypatch):
    assert lookups(many(100_000), monkeypatch) == lookups(many(10), monkeypatch)


def test_one_entry_more_does_not_make_the_indexes_anew():
    acls = many(100_000)
    began = time.process_time()
    for number in range(100):
        draft = acls.mutate()
        draft.add(entry(name=f"new-{number}"))
        acls = draft.finish()
    assert time.process_time() - began < 5, "100 changes of a set of 100,000: copies of buckets, and not of everything"
