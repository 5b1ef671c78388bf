"""The tools beside a broker that creates topics too large for one batch: no answer ever shows a part of one."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.processes import commands
from kits.processes.server import TwofoldServer
from twofold.cli.metadata.image import load_image
from twofold.client import NewTopic
from twofold.client.admin.blocking import Admin

pytestmark = pytest.mark.interop

PARTITIONS = 11_000  # more than the 10,000 records of one append
TOPICS = [f"large-{number}" for number in range(3)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("live")) as running:
        yield running


def twofold(*arguments: object) -> list[Any]:
    done = commands.run(*map(str, arguments), "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Creation:
    """Topics that somebody else creates, one after the other."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with Admin(bootstrap_servers=self._bootstrap_servers) as admin:
                for name in TOPICS:
                    admin.create_topics([NewTopic(name=name, num_partitions=PARTITIONS)]).get()
        except BaseException as failure:
            self.failure = failure

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> "Creation":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert self.failure is None, self.failure


def sizes(data: Path) -> dict[str, int]:
    """The image that the shell shows: how many partitions each topic has."""
    loaded = load_image(data, lambda _: lambda _: None)
    assert loaded.problem is None
    return {name: len(topic.partitions) for name, topic in loaded.image.topics.items()}


@pytest.mark.timeout(120)
def test_files_and_answers_never_show_a_part_of_a_transaction(server: TwofoldServer) -> None:
    epochs, looked = [], []
    with Admin(bootstrap_servers=server.bootstrap_servers) as admin, Creation(server.bootstrap_servers) as creation:
        before = admin.describe_cluster()
        while creation.runs:
            epochs.append(admin.describe_features().epoch)
            if len(epochs) % 5 == 0:
                looked.append(sizes(server.data))
                assert admin.describe_cluster() == before
    assert sizes(server.data) == dict.fromkeys(TOPICS, PARTITIONS)
    assert looked and {size for found in looked for size in found.values()} <= {PARTITIONS}
    told = twofold("metadata", "dump", "--transactions", server.data)
    transactions = [row for row in told if row["what"] == "transaction"]
    assert [row["state"] for row in transactions] == ["committed"] * (1 + len(TOPICS))
    assert all(row["records"] > PARTITIONS for row in transactions[1:])
    inside = [epoch for epoch in epochs for row in transactions if row["begin"] <= epoch < row["end"]]
    assert epochs and not inside
    assert epochs == sorted(epochs)


def test_the_commands_tell_what_is_in_force(server: TwofoldServer) -> None:
    (image,) = twofold("metadata", "shell", server.data, "tree", "/image/features")
    features = json.loads("".join(_lines(server, "features")))
    finalized = {row["name"]: row["finalized"] for row in features["features"] if row["finalized"]}
    told = {name.removeprefix("finalized_"): level for name, level in image["tree"].items()}
    assert int(told.pop("metadataVersion").split()[0]) == finalized.pop("metadata.version")
    assert told == finalized
    (brokers,) = twofold("metadata", "shell", server.data, "ls", "/image/cluster/brokers")
    described = json.loads("".join(_lines(server, "describe")))
    assert brokers["entries"] == [str(row["broker_id"]) for row in described["brokers"]]


def _lines(server: TwofoldServer, command: str) -> list[str]:
    done = commands.run("cluster", command, "--format", "json", server=server.bootstrap_servers)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
