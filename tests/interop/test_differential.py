"""The same questions to Apache Kafka and to Twofold; the answers must agree, or differ as decided.

Each case is one test; what it asks is in `interop/cases`. A decided difference carries its reason and the exact answer
that Twofold gives instead. Each server is asked once, and what differs fails the case.
`pytest tests/interop/test_differential.py -k Fetch` runs the cases of one theme.
"""

from collections.abc import Iterator

import pytest

from interop.cases import ALL, group_version_0, txn_version_1
from oracle.compare import Case, attempts, compare
from oracle.driver import Connection
from oracle.kafka import EXACT_SETTINGS, Oracle
from oracle.twofold import Twofold, running_twofold
from oracle.wire import KEYS

pytestmark = [pytest.mark.oracle, pytest.mark.interop]


@pytest.fixture(scope="module")
def twofold() -> Iterator[Twofold]:
    with running_twofold(EXACT_SETTINGS) as server:
        yield server


NAMES = {key: name for name, key in KEYS.items()}
RAN: set[str] = set()
DRAFT = "a draft that Apache Kafka does not have"
REFUSED = "advertised for old clients and refused; the cases of `protocol` send it byte by byte"
NOT_COMPARED = {
    ("TxnHeartbeat", 0): DRAFT,
    ("InitProducerId", 7): DRAFT,
    ("InitProducerId", 6): "Apache Kafka has it switched off",
    **{("Produce", version): REFUSED for version in range(3)},
}


@pytest.mark.parametrize("case", ALL, ids=str)
def test_answers_agree(case: Case, oracle: Oracle, twofold: Twofold) -> None:
    RAN.add(str(case))
    must_agree(case, oracle, twofold)


@pytest.fixture
def without_consumer_groups(oracle: Oracle, twofold: Twofold) -> Iterator[None]:
    """Both servers at group.version 0, where folders of before are."""
    for server in (oracle, twofold):
        set_level(server, "group.version", 0)
    yield
    for server in (oracle, twofold):
        set_level(server, "group.version", 1)


@pytest.mark.usefixtures("without_consumer_groups")
@pytest.mark.parametrize("case", group_version_0.ALL, ids=str)
def test_answers_agree_at_group_version_0(case: Case, oracle: Oracle, twofold: Twofold) -> None:
    must_agree(case, oracle, twofold)


def test_every_api_in_every_advertised_version_was_asked(twofold: Twofold) -> None:
    if len(RAN) < len(ALL):
        pytest.skip(f"{len(RAN)} of {len(ALL)} cases were chosen")
    with Connection(twofold.host, twofold.port) as connection:
        rows = connection.ask("ApiVersions", 0)["api_keys"]
    advertised = {
        (NAMES[row["api_key"]], version)
        for row in rows
        for version in range(row["min_version"], row["max_version"] + 1)
    }
    missing = advertised - Connection.asked.keys()
    assert missing == NOT_COMPARED.keys()
    assert Connection.asked.total() >= 300


def must_agree(case: Case, oracle: Oracle, twofold: Twofold) -> None:
    wrong = compare(case, oracle, twofold)
    assert twofold.running, f"the server did not survive the case:\n{twofold.output.read_text()[-2000:]}"
    assert not wrong, f"{case}: {len(wrong)} differences\n" + "\n".join(wrong)


@pytest.fixture(scope="module")
def set_back(oracle: Oracle, twofold: Twofold) -> Iterator[None]:
    """Both servers at transaction.version 1, whatever their clients speak."""
    servers = (oracle, twofold)
    for server in servers:
        set_level(server, "transaction.version", 1)
    yield
    for server in servers:
        set_level(server, "transaction.version", 2)


def set_level(server: Oracle | Twofold, feature: str, level: int) -> None:
    with Connection(server.host, server.port) as connection:
        now = finalized_level(connection, feature)
        update = {"feature": feature, "max_version_level": level, "upgrade_type": 1 if level > now else 2}
        answer = connection.ask("UpdateFeatures", 1, timeout=5000, feature_updates=[update])
        assert answer["error_code"] == 0, answer
        for _ in attempts():
            if finalized_level(connection, feature) == level:
                return
    raise AssertionError(f"{server.name} still has not {feature} {level}")


def finalized_level(connection: Connection, feature: str) -> int:
    answer = connection.ask("ApiVersions", 3, client_software_name="t", client_software_version="1")
    return {row["name"]: int(row["max_version_level"]) for row in answer["finalized_features"]}.get(feature, 0)


@pytest.mark.usefixtures("set_back")
@pytest.mark.parametrize("case", txn_version_1.ALL, ids=str)
def test_answers_agree_at_transaction_version_1(case: Case, oracle: Oracle, twofold: Twofold) -> None:
    must_agree(case, oracle, twofold)


def test_suite_is_wide_enough() -> None:
    """At least one case a theme and names that tell them apart: they name the topics too."""
    names = [str(case) for case in ALL]
    assert len(set(names)) == len(names)
    assert len(names) >= 800
