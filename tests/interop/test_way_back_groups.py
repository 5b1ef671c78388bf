"""The way back with groups of KIP-848 in the folder: a version that does not know them opens it, keeps their records
and serves their offsets, and this one goes on after it. The version before comes out of the history."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.folders.group_story import ClassicMember, GroupStory, ModernMember, assignment_of
from kits.processes import commands
from kits.processes.history import install_or_skip
from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 installs the version before"),
]

WITHOUT_KIP_848 = "d17ff88"
AGAIN, NO_SUCH_MEMBER, UNSUPPORTED = 27, 25, 35
SETTINGS = {
    "node.id": "1",
    "group.initial.rebalance.delay.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}
MODERN = {"group.consumer.assignment.interval.ms": "0"}  # a setting that the version before does not know
WARNING = "group.version at level 1"


@pytest.fixture(scope="module")
def version_before(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(install_or_skip(WITHOUT_KIP_848, tmp_path_factory.mktemp("before")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path, SETTINGS | MODERN) as server:
        yield server


def story_at(server: TwofoldServer) -> GroupStory:
    return GroupStory(server.host, server.port)


def serve_with(server: TwofoldServer, python: str, how: str, settings: dict[str, str]) -> None:
    if how == "killed":
        server.kill()
    else:
        assert server.stop() == 0
    server.python, server.settings = python, dict(settings)
    server.start()


def mix(story: GroupStory) -> tuple[ModernMember, ClassicMember]:
    """Two members of both protocols in one group, each with its share."""
    new, old = ModernMember("both", "new"), ClassicMember("both")
    assert story.beat(new, joins=True)["error_code"] == 0
    story.join_again(old)
    story.beat(new)
    story.beat(new, owned=[0])
    share = story.join_again(old)
    assert len(share) > len(assignment_of()), "it has something"
    assert story.group_types()["both"] == ("consumer", "Stable")
    return new, old


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_version_before_keeps_what_it_does_not_know_and_this_one_goes_on(
    version_before: str, how: str, server: TwofoldServer
) -> None:
    this = server.python
    alone = ModernMember("alone", "a")
    with story_at(server) as story:
        (*pair, _), _ = story.fill_classic()
        assert story.beat(alone, joins=True)["error_code"] == 0
        assert story.commit_as(alone, 7, version=9) == 0
        new, old = mix(story)
        assert story.commit_as(new, 3, version=9) == 0
        waiting = story.begin("waiting", b"waiting", group="alone")

    serve_with(server, version_before, how, SETTINGS)
    assert WARNING in server.log_text(), "an operator is told"
    with story_at(server) as story:
        assert story.beat(alone)["error_code"] == UNSUPPORTED
        assert [story.classic_heartbeat(member) for member in pair] == [0, 0]
        assert story.classic_heartbeat(old) == NO_SUCH_MEMBER, "it joins again, as any client does"
        assert (story.offset("alone"), story.offset("both")) == (7, 3)
        story.end("waiting", waiting, commit=True)
        assert ("plain", 2, 3, "", 0) in story.committed("alone", require_stable=True)
        old.member_id = ""
        assert story.join(old)["error_code"] == 0
        mine = assignment_of(0, 1, 2)
        assert story.sync(old, {old.member_id: mine})["assignment"] == mine
        assert story.commit_as(old, 11) == 0

    serve_with(server, this, how, SETTINGS | MODERN)
    with story_at(server) as story:
        epoch = alone.epoch
        assert (story.beat(alone)["error_code"], alone.epoch) == (0, epoch), "nobody was in its place meanwhile"
        assert ("plain", 2, 3, "", 0) in story.committed("alone", require_stable=True)
        assert story.group_types() | {"alone": ("consumer", "Stable"), "both": ("classic", "Stable")} == (
            story.group_types()
        )
        assert (story.classic_heartbeat(old), story.offset("both")) == (0, 11)
        assert story.beat(new)["error_code"] == 69, "the group has become a classic one without it"
        assert story.beat(new, joins=True)["error_code"] == 0
        assert story.classic_heartbeat(old) == AGAIN, "and is one of both protocols again"
        assert [story.classic_heartbeat(member) for member in pair] == [0, 0]


def test_groups_that_were_made_classic_first_go_on_in_the_version_before(
    version_before: str, server: TwofoldServer
) -> None:
    """What the guide says: no member of the new protocol is left, then the level goes down."""
    alone = ModernMember("alone", "a")
    with story_at(server) as story:
        story._topics()
        new, old = mix(story)
        assert story.beat(alone, joins=True)["error_code"] == 0
        assert story.commit_as(alone, 7, version=9) == 0
        for member in (new, alone):
            member.epoch = -1
            assert story.beat(member)["error_code"] == 0
        assert story.classic_heartbeat(old) == AGAIN
        assert story.join(old)["error_code"] == 0
        mine = assignment_of(0, 1, 2)
        assert story.sync(old, {old.member_id: mine})["assignment"] == mine
    listed = commands.run("group", "list", server=server.bootstrap_servers).stdout
    assert "both" in listed
    done = commands.run(
        "cluster", "features", "set", "group.version=0", "--downgrade", "--yes", server=server.bootstrap_servers
    )
    assert done.returncode == 0, done.stderr

    before = server.log_lines()
    serve_with(server, version_before, "stopped", SETTINGS)
    assert WARNING not in "\n".join(server.log_text().splitlines()[before:])
    with story_at(server) as story:
        assert story.classic_heartbeat(old) == 0, "in the generation that it has"
        assert story.commit_as(old, 8) == 0
        assert (story.offset("alone"), story.offset("both")) == (7, 8)
