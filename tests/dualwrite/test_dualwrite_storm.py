"""Three workers with random kills and pauses: every sale is in the table and in the topic, or in neither."""

import os
from collections.abc import Iterator

import pytest

from kits.databases.mariadb import MariadbServer
from kits.databases.postgresql import PostgresServer
from kits.databases.sqlite import SqliteFiles
from kits.dualwrite.store import Store
from kits.dualwrite.storm import Storm
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
LONG = bool(os.environ.get("TWOFOLD_LONG"))
SECONDS = 120.0 if LONG else 20.0
SEED = 20
SETTINGS = {"transaction.two.phase.commit.enable": "true"}
DATABASES = (SqliteFiles, PostgresServer, MariadbServer)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with TwofoldServer(tmp_path_factory.mktemp("storm"), SETTINGS) as server, request.param() as database:
        made = Store(database, server.bootstrap_servers)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("store", DATABASES if LONG else DATABASES[:1], indirect=True, ids=lambda kit: kit.name)
def test_no_sale_differs_after_random_kills_and_pauses(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    storm = Storm(store, SEED)
    storm.rage(SECONDS)
    storm.calm()
    store.finish(0)  # takes over, and writes nothing
    table, topic = store.in_table(), store.in_topic()
    differ = sorted(set(table) ^ set(topic))
    with capsys.disabled():
        print(f"\n{store.engine.dialect.name}: {len(table)} sales, {len(differ)} differ; {dict(storm.ends)}")
    assert table == topic
    assert len(table) > 0 and storm.ends["killed"] > 0 and storm.ends["paused"] > 0
