"""Data folders of earlier days, kept under tests/fixtures, open and hold what was put into them.

`tools/make_folder_fixture.py` makes one for each version of Twofold and for each Apache Kafka; none is ever made anew.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kits.folders.story import Identity, Story, end_what_is_open, plain
from twofold.embedded import Broker
from twofold.version import VERSION

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDERS = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("folder-*.tar.gz"))

# The folders grow older than what would be taken away by age.
SETTINGS = {
    "node.id": "1",
    "log.retention.ms": "-1",
    "log.cleaner.enable": "false",
    "offsets.retention.check.interval.ms": "86400000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000",
    "transaction.two.phase.commit.enable": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_kept_folder_opens_with_everything_in_it(name: str, tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected: dict[str, Any] = json.loads((tmp_path / "expected.json").read_text())
    identities = {key: Identity(*pair) for key, pair in expected["identities"].items()}
    with Broker(data=str(tmp_path / "data"), settings=SETTINGS) as broker, story_at(broker) as story:
        assert plain(story.look()) == expected["look"]
    with Broker(data=str(tmp_path / "data"), settings=SETTINGS) as broker, story_at(broker) as story:
        assert plain(story.look()) == expected["look"], "the first opening has changed something"
        story.retry("open", b"open", identities["open"])
        end_what_is_open(story, identities)


def story_at(broker: Broker) -> Story:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return Story(host, int(port))


def test_this_version_has_its_folder() -> None:
    assert f"folder-twofold-{VERSION}" in FOLDERS, "run tools/make_folder_fixture.py twofold, and keep what it makes"
    assert any("kafka" in name for name in FOLDERS)
