"""The table of rights over SASL_SSL: a broker as a process, real sockets, a user that logs in."""

import os
from collections.abc import Iterator

import pytest

from kits.security.certificates import Certificates
from kits.security.guarded import Asked, GuardedTwofold, bindings
from kits.security.rights import AUTHORIZATION, NEEDS_NOTHING, ROWS, Right, Row, codes
from oracle.kafka import EXACT_SETTINGS
from twofold.broker.network.dispatch import served_apis

pytestmark = pytest.mark.interop

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVED = {api.name for api in served_apis()}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("guarded")
    server = GuardedTwofold(folder, EXACT_SETTINGS)
    server.certificates = Certificates.make(folder)
    server.start()
    try:
        found = Asked(server.name, server.host, server.port, server.tls)
        found.set_scene()
        yield found
    finally:
        server.kill()


def test_every_api_that_the_broker_names_has_a_row(asked: Asked) -> None:
    named = {row["api_key"] for row in asked.alice.ask("ApiVersions", 0)["api_keys"]}
    rows = {row.api for row in ROWS} | NEEDS_NOTHING.keys()
    assert {api.name for api in served_apis() if api.key in named} <= rows


def test_each_api_is_refused_without_its_rights_and_answered_with_them(asked: Asked) -> None:
    """In `make test` the rows share their entries; that each needs its own and no others, test_rights.py shows."""
    rows = [row for row in ROWS if row.api in SERVED]
    wrong = {}
    for group in [[row] for row in rows] if LONG else [rows]:
        asked.grant([])
        refused = [asked.ask(row) for row in group]
        asked.fresh_transaction()
        asked.grant(list(dict.fromkeys(entry for row in group for entry in bindings(needed(row)))))
        for row, before in zip(group, refused, strict=True):
            asked.fresh_transaction()
            after = asked.ask(row)
            expected = set() if row.denied is None else {row.denied}
            if codes(before) & AUTHORIZATION != expected or codes(after) & AUTHORIZATION:
                wrong[str(row)] = before, after
            if row.seen is not None and (row.seen(before) or not row.seen(after)):
                wrong[str(row)] = before, after
    assert not wrong


def needed(row: Row) -> list[Right]:
    """One of them, where one is enough."""
    return list(row.rights)[:1] if row.alone else list(row.rights)
