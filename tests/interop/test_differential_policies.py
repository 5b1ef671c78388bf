"""Groups that change their kind under other policies than the usual one, and groups that a restart interrupts.

Both servers begin with `group.consumer.migration.policy=upgrade`. They are stopped and go on with the policy that is
asked for next, with all groups of before; the stories of `consumer_policies` are told on both sides of the first stop.
"""

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from interop.cases import consumer_policies
from oracle.compare import Case, Probe, compare, differences
from oracle.kafka import EXACT_SETTINGS, Oracle, running_oracle
from oracle.twofold import Twofold, running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
POLICY = "group.consumer.migration.policy"
SETTINGS = EXACT_SETTINGS | {POLICY: "upgrade"}


class Interrupted:
    """The stories as far as they were told to one server."""

    def __init__(self, server: Oracle | Twofold) -> None:
        self.server = server
        self.told: dict[str, tuple[Probe, Generator[None]]] = {}

    def begin(self) -> None:
        for case in consumer_policies.STORIES:
            probe = Probe(self.server, case)
            telling: Any = case.run(probe)
            next(telling)
            probe.close_all()
            self.told[case.name] = probe, telling

    def go_on(self, case: Case) -> dict[str, Any]:
        probe, telling = self.told[case.name]
        try:
            for _ in telling:
                raise AssertionError(f"{case} is interrupted twice")
        finally:
            probe.close_all()
        return probe.answers()

    def serve_with(self, policy: str) -> None:
        if self.server.settings[POLICY] == policy:
            return
        # Apache Kafka waits nine seconds after a kill, until its former self is taken for dead.
        self.server.stop(clean=True) if isinstance(self.server, Oracle) else self.server.kill()
        self.server.set(POLICY, policy)
        self.server.start()


Pair = tuple[Interrupted, Interrupted]


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with running_oracle(SETTINGS) as oracle, running_twofold(SETTINGS) as twofold:
        both = Interrupted(oracle), Interrupted(twofold)
        for one in both:
            one.begin()
        yield both


def agree_under(policy: str, case: Case, servers: Pair) -> None:
    for one in servers:
        one.serve_with(policy)
    oracle, twofold = (one.server for one in servers)
    wrong = compare(case, oracle, twofold)
    assert not wrong, f"{case}: {len(wrong)} differences\n" + "\n".join(wrong)


@pytest.mark.parametrize("case", consumer_policies.UPGRADE.all, ids=str)
def test_answers_agree_where_groups_only_turn_new(case: Case, servers: Pair) -> None:
    agree_under("upgrade", case, servers)


@pytest.mark.parametrize("case", consumer_policies.STORIES, ids=str)
def test_groups_go_on_after_a_restart_as_in_apache_kafka(case: Case, servers: Pair) -> None:
    for one in servers:
        one.serve_with("disabled")
    theirs, ours = (one.go_on(case) for one in servers)
    wrong = differences(case, theirs, ours)
    assert not wrong, f"{case}: {len(wrong)} differences\n" + "\n".join(wrong)


@pytest.mark.parametrize("case", consumer_policies.DISABLED.all, ids=str)
def test_answers_agree_where_groups_keep_their_kind(case: Case, servers: Pair) -> None:
    agree_under("disabled", case, servers)


@pytest.mark.skipif(not LONG, reason="starts both servers once more: TWOFOLD_LONG=1")
@pytest.mark.parametrize("case", consumer_policies.DOWNGRADE.all, ids=str)
def test_answers_agree_where_groups_only_turn_classic(case: Case, servers: Pair) -> None:
    agree_under("downgrade", case, servers)
