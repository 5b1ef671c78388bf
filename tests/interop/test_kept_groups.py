"""A folder that a version without KIP-848 has left, with groups in flight: it stays at its level until that is raised,
and its groups go on before and after."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.test_kept_folders import FIXTURES, SETTINGS
from kits.folders.group_story import ClassicMember, GroupStory, ModernMember
from kits.folders.story import Identity
from kits.processes import commands
from twofold.embedded import Broker

FOLDERS = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("groups-*.tar.gz"))
LEVEL = "group.version"
AGAIN, NO_SUCH_MEMBER, UNSUPPORTED = 27, 25, 35
SOON = SETTINGS | {"group.consumer.assignment.interval.ms": "0"}


class Kept:
    def __init__(self, name: str, folder: Path) -> None:
        with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        remembered = json.loads((folder / "members.json").read_text())
        self.data = str(folder / "data")
        self.pair = [ClassicMember(**row) for row in remembered["members"] if row["group"] == "pair"]
        (self.half,) = (ClassicMember(**row) for row in remembered["members"] if row["group"] == "half")
        self.open = Identity(*remembered["open"])

    def opened(self, look: Callable[[GroupStory], None]) -> None:
        with Broker(data=self.data, settings=SOON) as broker:
            host, _, port = broker.bootstrap_servers.rpartition(":")
            with GroupStory(host, int(port)) as story:
                look(story)


@pytest.fixture(params=FOLDERS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(request.param, tmp_path)


def goes_on_as_it_was(kept: Kept, story: GroupStory) -> None:
    assert LEVEL not in story.levels()
    assert [story.classic_heartbeat(member) for member in kept.pair] == [0, 0]
    assert story.beat(ModernMember("pair", "new"), joins=True)["error_code"] == UNSUPPORTED
    assert story.classic_heartbeat(kept.half) == NO_SUCH_MEMBER, "it had no assignment, so nothing was in the log"
    assert story.offset("given") == 1
    assert story.committed("pending", require_stable=True)[-1][-1] == 88, "its transaction is open"


@pytest.mark.slow
def test_classic_groups_go_on_and_the_level_stays_until_it_is_raised(kept: Kept) -> None:
    def first(story: GroupStory) -> None:
        goes_on_as_it_was(kept, story)
        assert story.offset("pair") == 5
        assert story.commit_as(kept.pair[0], 6) == 0

    def again(story: GroupStory) -> None:
        goes_on_as_it_was(kept, story)
        assert story.offset("pair") == 6

    kept.opened(first)
    kept.opened(again)


@pytest.mark.slow
def test_once_the_level_is_raised_a_classic_group_takes_members_of_the_new_protocol(kept: Kept) -> None:
    new = ModernMember("pair", "new")

    def raised(story: GroupStory) -> None:
        done = commands.run("cluster", "features", "set", f"{LEVEL}=1", "--yes", server=story.address)
        assert done.returncode == 0, done.stderr
        assert story.levels()[LEVEL] == 1
        assert [story.classic_heartbeat(member) for member in kept.pair] == [0, 0], "nothing else has changed"
        story.end("open", kept.open, commit=True)
        assert ("plain", 2, 3, "", 0) in story.committed("pending", require_stable=True)
        upgraded(story)

    def upgraded(story: GroupStory) -> None:
        assert story.beat(new, joins=True)["error_code"] == 0
        assert new.epoch == kept.pair[0].generation + 1
        assert story.group_types()["pair"][0] == "consumer"
        shares = []
        for member in kept.pair:
            assert story.classic_heartbeat(member) == AGAIN
            shares.append(story.join_again(member))
        given = story.beat(new)["assignment"]["topic_partitions"]
        assert [len(row["partitions"]) for row in given] == [1]
        assert sorted(len(share) for share in shares) == [len(shares[0])] * 2, "one partition each"
        assert story.commit_as(new, 9, version=9) == 0

    def later(story: GroupStory) -> None:
        assert story.levels()[LEVEL] == 1
        assert story.beat(new)["error_code"] == 0
        assert [story.classic_heartbeat(member) for member in kept.pair] == [0, 0]
        assert (story.group_types()["pair"], story.offset("pair")) == (("consumer", "Stable"), 9)

    kept.opened(raised)
    kept.opened(later)


def test_there_is_a_folder_of_before() -> None:
    assert FOLDERS
