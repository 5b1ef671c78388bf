"""Groups through a kill -9 of their broker: what is left of them and what is in their log, as with Apache Kafka.

The same story on both, a kill, a start, the same questions. Then Apache Kafka's own decoder reads the
`__consumer_offsets` of both, and must find the same records in the same order.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from interop.cases.groups_admin import describe, listed
from interop.cases.groups_kit import Group, Member, alone, commit, commit_rows, committed, coordinated, fetch
from oracle.compare import Case, Probe, Topic, differences
from oracle.kafka import Oracle, running_oracle
from oracle.twofold import Twofold, running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

CASE = Case("groups", "restart", lambda probe: None)
GROUPS = ("pair", "offsets", "empty", "deleted", "given", "unsynced", "replaced", "rejoining")


class Story:
    """The same on every server; `probe` keeps what was answered before and after the restart."""

    def __init__(self, server: Oracle | Twofold) -> None:
        self.server = server
        self.probe = Probe(server, CASE)
        self.members: dict[str, Member] = {}
        self.topic: Topic = self.probe.topic(partitions=4)

    def before(self) -> None:
        probe, topic = self.probe, self.topic
        leader, follower = self.pair("pair", "pair")
        leader.commit("commits", topic, 7)
        follower.commit("commits", topic, 8)
        offsets = coordinated(probe, probe.name("offsets"))
        for version, rows in (
            (8, commit_rows(topic, {0: 5, 1: 6}, "text", 3)),
            (10, commit_rows(topic, {2: 7}, None)),
            (2, commit_rows(topic, {3: 8}, "with a time of its own")),
        ):
            more = {"retention_time": 86_400_000} if version == 2 else {}
            commit(probe, f"offsets v{version}", version, offsets, rows, **more)
        rows = [{"name": topic.name, "partitions": [{"partition_index": 1}]}]
        probe.ask("one offset deleted", "OffsetDelete", 0, {"group_id": offsets, "topics": rows})
        alone(Group(probe, "empty"), "empty").leave("leaves")
        committed(probe, coordinated(probe, probe.name("deleted")), topic, {0: 5})
        probe.ask("group deleted", "DeleteGroups", 2, {"groups_names": [probe.name("deleted")]})
        self.members["given"] = Group(probe, "given").member("given").ask_for_id()
        self.members["unsynced"] = Group(probe, "unsynced").member("unsynced")
        self.members["unsynced"].enter("joins")
        self.members["replaced"] = alone(Group(probe, "replaced"), "replaced", instance="instance")
        self.members["replacing"] = Group(probe, "replaced").member("replacing", instance="instance")
        self.members["replacing"].join("joins")
        leader, follower = self.pair("rejoining", "rejoining")
        leader.send_join()
        leader.group.await_state("PreparingRebalance")

    def pair(self, suffix: str, name: str) -> tuple[Member, Member]:
        group = Group(self.probe, suffix)
        leader = alone(group, f"{name} leader", instance="instance")
        follower = group.member(f"{name} follower")
        follower.send_enter()
        group.await_state("PreparingRebalance", 2)
        leader.join("rejoins")
        follower.joined("joins")
        follower.send_sync()
        leader.lead("assigns", leader, follower)
        follower.synced("is assigned")
        self.members |= {leader.name: leader, follower.name: follower}
        return leader, follower

    def restart(self) -> None:
        self.probe.close_all()
        self.server.stop()
        self.server.start()
        for suffix in GROUPS:
            coordinated(self.probe, self.probe.name(suffix))
        for member in self.members.values():
            member.connection = self.probe.connect()

    def after(self) -> None:
        probe = self.probe
        listed(probe, "all", 5)
        for suffix in GROUPS:
            describe(probe, f"{suffix}, described", 5, probe.name(suffix))
            fetch(probe, f"{suffix}, fetched", 7, probe.name(suffix))
        for name in ("pair leader", "pair follower", "unsynced", "given", "replaced", "replacing"):
            self.members[name].heartbeat("beats after the restart")
        pair = self.members["pair follower"]
        pair.sync("has its assignment after the restart")
        pair.commit("commits after the restart", self.topic, 9)
        pair.commit("commits with another generation after the restart", self.topic, generation_id_or_member_epoch=1)
        pair.join("joins unchanged after the restart")
        self.members["given"].join("joins after the restart")
        self.members["unsynced"].join("joins after the restart")
        again = Group(probe, "empty").member("again")
        again.enter("joins after the restart")
        again.lead("syncs after the restart")
        leader, follower = self.members["rejoining leader"], self.members["rejoining follower"]
        leader.send_join()
        follower.heartbeat("is told after the restart", until=27)
        follower.join("rejoins after the restart")
        leader.joined("leads after the restart")

    def records(self, oracle: Oracle) -> dict[str, list[str]]:
        """What Apache Kafka's decoder finds, by group."""
        files = [path for path in sorted(self.server.data.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
        done = oracle.tool(
            "org.apache.kafka.tools.DumpLogSegments", ["--offsets-decoder", "--files", ",".join(map(str, files))]
        )
        assert done.returncode == 0, done.stderr
        assert "isvalid: false" not in done.stdout
        found: dict[str, list[str]] = {suffix: [] for suffix in GROUPS}
        for line in re.findall(r"key: .* payload: .*", done.stdout):
            for suffix, lines in found.items():
                if f'"group":"{self.probe.name(suffix)}"' in line:
                    lines.append(self.comparable(line))
        return found

    def comparable(self, line: str) -> str:
        for member in self.members.values():
            line = line.replace(member.id, f"<{member.name}>")
        line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", line)
        line = re.sub(r'"topicId":"[^"]*"', '"topicId":"<id>"', line)
        line = re.sub(r'(?<=Timestamp":)\d{13}', '"<now>"', line)
        key, _, payload = line.removeprefix("key: ").partition(" payload: ")
        value = None if payload in ("null", "<DELETE>") else json.loads(payload)
        if value is not None and "members" in value["data"]:
            value["data"]["members"].sort(key=lambda row: row["memberId"])
        return f"{key} {json.dumps(value)}"


@pytest.fixture(scope="module")
def stories() -> Iterator[dict[str, Story]]:
    with running_oracle() as oracle, running_twofold() as twofold:
        told = {server.name: Story(server) for server in (oracle, twofold)}
        for story in told.values():
            story.before()
            story.restart()
            story.after()
            story.probe.close_all()
        yield told


def test_groups_are_the_same_after_a_kill(stories: dict[str, Story]) -> None:
    answers = {name: story.probe.answers() for name, story in stories.items()}
    lines = differences(CASE, answers["oracle"], answers["twofold"])
    assert not lines, "\n".join(lines)


def test_the_log_of_a_group_has_the_same_records(stories: dict[str, Story]) -> None:
    oracle: Any = stories["oracle"].server
    theirs, ours = stories["oracle"].records(oracle), stories["twofold"].records(oracle)
    for suffix in GROUPS:
        assert ours[suffix] == theirs[suffix], suffix
    assert all(theirs.values()), "a group without records proves nothing"
