"""Make a data folder to be kept under tests/fixtures: what today's software leaves, for tomorrow's to open.

    .venv/bin/python tools/make_folder_fixture.py twofold        # folder-twofold-<version>.tar.gz
    .venv/bin/python tools/make_folder_fixture.py kafka          # folder-kafka-4.3.1.tar.gz, needs a JDK

The archive holds `data`, the folder after a clean stop, and `expected.json`: what was seen in it before. Archives are
never made anew for a release that has one: a new version adds its own, and the test opens all of them.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
sys.path.insert(0, str(ROOT / "tests"))

from kits.folders.oracle import SNAPSHOTS, TWO_PHASE, FolderOracle, add_foreign  # noqa: E402
from kits.folders.story import Story, plain  # noqa: E402
from kits.processes.server import TwofoldServer  # noqa: E402
from oracle.kafka import COMMON_SETTINGS, Oracle  # noqa: E402
from twofold.version import VERSION  # noqa: E402

# One coordinator of each kind is enough, and an archive of two hundred empty directories is of no use.
SMALL = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}


def main(which: str) -> None:
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="folder-fixture-") as directory:
        server: FolderOracle | TwofoldServer
        if which == "kafka":
            name, server = "folder-kafka-4.3.1", kafka(Path(directory))
        else:
            name, server = f"folder-twofold-{VERSION}", twofold(Path(directory))
        archive = FIXTURES / f"{name}.tar.gz"
        fill(server, Path(directory), which)
        with tarfile.open(archive, "w:gz") as out:
            out.add(server.data, "data", filter=without_owner)
            out.add(Path(directory) / "expected.json", "expected.json", filter=without_owner)
    print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size} bytes")


def kafka(directory: Path) -> FolderOracle:
    return FolderOracle(directory, TWO_PHASE | SNAPSHOTS | SMALL)


def twofold(directory: Path) -> TwofoldServer:
    two_phase = {"transaction.two.phase.commit.enable": "true"}
    return TwofoldServer(directory, COMMON_SETTINGS | two_phase | SMALL)


def fill(server: Oracle | TwofoldServer, directory: Path, which: str) -> None:
    server.start()
    try:
        with Story(server.host, server.port) as story:
            identities = story.fill(kept=which == "twofold")
            if which == "kafka":
                add_foreign(story)
            expected = {"look": plain(story.look()), "identities": identities}
            (directory / "expected.json").write_text(json.dumps(expected, indent=1))
    finally:
        if isinstance(server, Oracle):
            server.stop(clean=True)
        else:
            server.stop()


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name in ("data/.reserve", "data/.lock"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o200  # snapshots of the metadata are read-only, and a copy has to go away again
    return entry


if __name__ == "__main__":
    if sys.argv[1:] not in (["twofold"], ["kafka"]):
        sys.exit(__doc__)
    main(sys.argv[1])
