"""How a partition changes, beside Apache Kafka's controller: elections, the ISR, eligible leaders, moves, directories.

Three differences are meant. A partition with one replica leads whatever is known of it, and has nothing to recover
from. Eligible leaders that are left from a time when the cluster kept them are kept until one leads. And Apache Kafka
notes -1 as the last known leader where a move ends in a partition that had no leader before it.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oracle.kafka import Oracle, jars_or_skip
from twofold.controller.image import PartitionState
from twofold.controller.records import PartitionChange
from twofold.controller.replay import changed_partition
from twofold.controller.replicas.change import Election, Goal, change_partition
from twofold.controller.replicas.rules import TopicRules

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

PROGRAM = Path(__file__).parent / "java" / "PartitionChanges.java"
CASES = 20_000
BROKERS = range(1, 7)
TOPIC_ID = UUID(int=(7 << 64) + 7)
Ids = tuple[int, ...]


class Case(NamedTuple):
    old: PartitionState
    goal: Goal
    rules: TopicRules
    alive: frozenset[int]


def directory(number: int) -> UUID:
    """Small ones are names for something."""
    return UUID(int=((1 if number > 2 else 0) << 64) + number)


def some(chance: random.Random, of: Ids, least: int = 0) -> Ids:
    return tuple(chance.sample(of, chance.randint(min(least, len(of)), len(of))))


def a_partition(chance: random.Random) -> PartitionState:
    replicas = tuple(chance.sample(BROKERS, chance.randint(2, 5)))
    isr = some(chance, replicas)
    outside = tuple(replica for replica in replicas if replica not in isr)
    elr = tuple(sorted(some(chance, outside))) if chance.random() < 0.5 else ()
    leader = chance.choice(isr) if isr and chance.random() < 0.8 else -1
    known = (chance.choice(replicas),) if leader < 0 and chance.random() < 0.5 else ()
    adding: Ids = ()
    removing: Ids = ()
    if chance.random() < 0.4:
        adding = some(chance, replicas[1:])
        removing = some(chance, tuple(replica for replica in replicas[1:] if replica not in adding))
    directories = tuple(directory(chance.choice((0, 1, 10 * replica))) for replica in replicas)
    state = chance.choice((0, 0, 0, 1))
    return PartitionState(replicas, isr, leader, 4, 9, directories, removing, adding, state, elr, known)


def a_goal(chance: random.Random, old: PartitionState) -> Goal:
    fields: dict[str, Any] = {"election": chance.choice(list(Election))}
    if chance.random() < 0.6:
        fields["isr"] = some(chance, old.replicas)
    if chance.random() < 0.3:
        wanted = tuple(chance.sample(BROKERS, chance.randint(2, 4)))
        removing = tuple(sorted(set(old.replicas) - set(wanted)))
        adding = tuple(sorted(set(wanted) - set(old.replicas)))
        fields |= {"replicas": wanted + removing, "adding": adding, "removing": removing}
    if chance.random() < 0.2:
        fields["recovery_state"] = chance.choice((0, 1))
    if chance.random() < 0.2:
        fields["lost"] = chance.choice(old.replicas)
    if chance.random() < 0.2:
        fields["directories"] = {chance.choice(old.replicas): directory(99)}
    return Goal(**fields)


def a_case(chance: random.Random) -> Case:
    level = chance.choice((7, 11, 12, 16, 17, 23, 30, 30, 30))
    eligible = level >= 23 and chance.random() < 0.7
    old = a_partition(chance)
    if not eligible:
        old = old._replace(eligible_leader_replicas=())
    alive = frozenset(broker for broker in BROKERS if chance.random() < 0.7)
    rules = TopicRules(level, eligible, chance.randint(1, 3), True, lambda broker: directory(100 * broker))
    return Case(old, a_goal(chance, old), rules, alive)


def as_json(case: Case) -> dict[str, Any]:
    old, goal = case.old, case.goal
    wanted: dict[str, Any] = {"election": goal.election.name}
    for name in ("isr", "replicas", "adding", "removing", "recovery_state", "lost"):
        if (value := getattr(goal, name)) is not None:
            wanted[name] = value
    if goal.directories:
        wanted["moved"] = next(iter(goal.directories))
    return {
        "level": case.rules.level,
        "min_isr": case.rules.min_isr,
        "eligible": case.rules.eligible_leaders,
        "alive": sorted(case.alive),
        "goal": wanted,
        "old": {
            "replicas": old.replicas,
            "isr": old.isr,
            "leader": old.leader,
            "directories": [number.int & 0xFFFF for number in old.directories],
            "adding": old.adding_replicas,
            "removing": old.removing_replicas,
            "elr": old.eligible_leader_replicas,
            "last_known": old.last_known_elr,
            "recovery_state": old.leader_recovery_state,
        },
    }


def ours(case: Case) -> PartitionChange | None:
    return change_partition(0, TOPIC_ID, case.old, case.goal, case.rules, case.alive.__contains__)


def shown(change: PartitionChange | None) -> dict[str, Any]:
    if change is None:
        return {}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in change._asdict().items()}
    del fields["partition_id"], fields["topic_id"]
    if change.directories is not None:
        fields["directories"] = [number.int & 0xFFFF for number in change.directories]
    return fields


def test_partitions_change_as_in_apache_kafka(tmp_path: Path) -> None:
    chance = random.Random("partitions")
    cases = [a_case(chance) for _ in range(CASES)]
    oracle = Oracle(jars_or_skip(), tmp_path)
    asked = json.dumps([as_json(case) for case in cases])
    done = oracle.java_program(PROGRAM, input=asked, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == CASES
    compared = elected = 0
    different = []
    for case, line in zip(cases, lines, strict=True):
        change, theirs = ours(case), json.loads(line)
        if change is not None and len(changed_partition(case.old, change).replicas) == 1:
            continue
        if theirs.get("last_known_elr") == [-1]:
            theirs["last_known_elr"] = None
        if shown(change) != theirs:
            different.append((case, shown(change), theirs))
        compared += 1
        elected += change is not None and change.leader >= 0
    assert not different, f"{len(different)} of {compared}: {different[:3]}"
    assert compared > 0.9 * CASES and elected > 0.1 * CASES
