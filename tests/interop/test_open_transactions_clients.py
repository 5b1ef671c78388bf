"""quota.open.transactions.max: a stock client at the bound asks again until it may begin, and loses nothing."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.clients.remote import Remote, RemoteClient, go_command, java_command
from kits.clients.transactional import STOCK, TransactionalClient
from kits.copying.copies import SETTINGS
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
COMMANDS = {"java": java_command, "franz-go": go_command}
CLIENTS = (*STOCK, "java", *(("franz-go",) if LONG else ()))
PATIENCE_S = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    settings = {**SETTINGS, "quota.open.transactions.max": "1"}
    with TwofoldServer(tmp_path_factory.mktemp("bounded"), settings) as running:
        yield running


def await_refusal(output: Path, transactional_id: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while f"'{transactional_id}' cannot begin a transaction" not in output.read_text():
        assert time.monotonic() < deadline, "the second transaction was never refused"
        time.sleep(0.05)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_second_transaction_waits_for_the_end_of_the_first_and_both_are_read(
    server: TwofoldServer, client: str
) -> None:
    topic, second_id = f"bounded-{client}", f"second-{client}"
    create_topic(server, topic, 1)

    def instance(transactional_id: str) -> TransactionalClient:
        made: TransactionalClient
        if client in STOCK:
            made = STOCK[client](server.bootstrap_servers)
        else:  # a program for each: it answers one question after the other
            made = RemoteClient(Remote(COMMANDS[client](), server.bootstrap_servers), owned=True)
        made.open(transactional_id, 30_000)
        return made

    first, second = instance(f"first-{client}"), instance(second_id)
    first.begin()
    first.send(topic, [(0, "first")])
    first.flush()
    committed: list[bool] = []

    def write() -> None:
        second.begin()
        second.send(topic, [(0, "second")])
        second.flush()
        committed.append(second.commit())

    waiting = threading.Thread(target=write, daemon=True)
    waiting.start()
    await_refusal(server.output, second_id)
    assert not committed
    first.commit()
    waiting.join(PATIENCE_S)
    assert committed == [True]
    deadline = time.monotonic() + PATIENCE_S
    while (found := [row.value for row in first.read(topic, 1, committed=True)]) != ["first", "second"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    for made in (first, second):
        made.close()
