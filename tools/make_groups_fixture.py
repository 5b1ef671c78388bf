"""Make a data folder with groups in flight, as a version without KIP-848 has left it, to be kept under tests/fixtures.

    .venv/bin/python tools/make_groups_fixture.py PYTHON NAME

PYTHON is the interpreter of an environment that has the earlier version installed, NAME its commit. The archive
groups-NAME.tar.gz holds `data`, as a broker that was killed left it, and `members.json`: what the clients remember.
Archives are never made anew: a version that changes what is stored adds its own.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from kits.folders.group_story import GroupStory
from kits.processes.server import TwofoldServer
from make_folder_fixture import FIXTURES, SMALL, without_owner

SETTINGS = {"node.id": "1", "group.initial.rebalance.delay.ms": "1000"} | SMALL


def main(python: str, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="groups-fixture-") as directory:
        server = TwofoldServer(Path(directory), SETTINGS)
        server.python = python
        with server, GroupStory(server.host, server.port) as story:
            members, identity = story.fill_classic()
        remembered = {"members": [member.plain() for member in members], "open": identity}
        (Path(directory) / "members.json").write_text(json.dumps(remembered, indent=1))
        archive = FIXTURES / f"groups-{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as out:
            out.add(server.data, "data", filter=without_owner)
            out.add(Path(directory) / "members.json", "members.json", filter=without_owner)
    print(f"{archive.name}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
