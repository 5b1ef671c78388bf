"""The table of rights over SASL_SSL: a broker as a process, real sockets, a user that logs in."""

from collections.abc import Iterator

import pytest

from kits.security.certificates import Certificates
from kits.security.guarded import Asked, GuardedTwofold, bindings
from kits.security.rights import AUTHORIZATION, NEEDS_NOTHING, ROWS, codes
from oracle.kafka import EXACT_SETTINGS
from twofold.broker.network.dispatch import served_apis

pytestmark = pytest.mark.interop

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
    wrong = {}
    for row in ROWS:
        if row.api not in SERVED:
            continue
        asked.grant([])
        refused = asked.ask(row)
        asked.fresh_transaction()
        asked.grant(bindings(list(row.rights)[:1] if row.alone else list(row.rights)))
        answered = asked.ask(row)
        expected = set() if row.denied is None else {row.denied}
        if codes(refused) & AUTHORIZATION != expected or codes(answered) & AUTHORIZATION:
            wrong[str(row)] = refused, answered
        if row.seen is not None and (row.seen(refused) or not row.seen(answered)):
            wrong[str(row)] = refused, answered
    assert not wrong
