"""Consume, transform, produce, exactly once: every number of the input is in the output once, whatever happens.

All clients copy the same input at the same time, each to a topic of its own with 3 partitions, in transactions that
also commit what was read. Some transactions are aborted on purpose, some last longer than they may, an instance is
replaced by a second one with the same transactional id, and the broker is killed with -9 every few seconds. confluent,
kafka-python and aiokafka speak the older protocol of transactions (TV1), our own clients, the Java client, franz-go and
single requests the newer (TV2). A client whose name ends with "-new" reads as a member of a group of KIP-848.

`make interop` copies 100,000 numbers, with franz-go too and with instances that crash. There Apache Kafka goes through
it as well, which shows that the tests demand nothing else than Kafka gives; but it is not killed: one node of 4.3.1 may
come back with readers held for ever at a transaction that it knows as complete, and with numbers that are there twice.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from kits.clients.remote import go_command, java_command
from kits.copying.copies import NEW, SETTINGS, Server, check_acknowledged, check_attempts, check_exactly_once
from kits.copying.run import Plan, Verdict, run_copies
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle, jars_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SHORT_PLAN = Plan(count=3000, seconds=14, kill_every_s=4, take_overs=1, stalls=(9,))
PLANS = {"twofold": SHORT_PLAN}
if LONG:
    PLANS = {
        "twofold": Plan(
            count=100_000, seconds=100, kill_every_s=5, take_overs=3, crashes=3, stalls=(9, 100, 300), patience_s=400
        ),
        "oracle": Plan(count=20_000, seconds=40, kill_every_s=None, take_overs=2, crashes=2, stalls=(9,)),
    }

COMMANDS: dict[str, Callable[[], Sequence[str]] | None] = {
    "confluent-kafka": None,
    "kafka-python": None,
    "aiokafka": None,
    "java": java_command,
    "twofold": None,
    "single-requests": None,
    # Members of groups of the new protocol (KIP-848).
    "confluent-kafka-new": None,
    "java-new": java_command,
    "twofold-new": None,
}
if LONG:
    COMMANDS |= {"franz-go": go_command, "franz-go-new": go_command}

FENCED = {
    "confluent-kafka": {"_FENCED"},
    "kafka-python": {"ProducerFencedError", "KafkaError"},
    "aiokafka": {"ProducerFenced", "AssertionError"},
}
"""What a client with the older protocol says; one with the newer may also be told that its transaction is not there."""


class KafkaServer(Oracle):
    def kill(self) -> None:
        self.stop()


class Copied(NamedTuple):
    plan: Plan
    verdicts: dict[str, Verdict]
    missing: dict[str, str]
    kills: int


@pytest.fixture(scope="module", params=PLANS)
def copied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copied]:
    directory = tmp_path_factory.mktemp("copies")
    server: Server
    if request.param == "oracle":
        (directory / "server").mkdir()
        server = KafkaServer(jars_or_skip(), directory / "server", SETTINGS)
    else:
        server = TwofoldServer(directory / "server", SETTINGS)
    clients: dict[str, Sequence[str]] = {}
    missing: dict[str, str] = {}
    for client, command in COMMANDS.items():
        try:
            clients[client] = command() if command is not None else ()
        except pytest.skip.Exception as why:
            missing[client] = str(why)
    server.start()
    try:
        plan = PLANS[request.param]
        verdicts, kills = run_copies(server, directory, clients, plan)
        yield Copied(plan, verdicts, missing, kills)
    finally:
        server.kill()


@pytest.mark.parametrize("client", COMMANDS)
def test_every_input_is_in_the_output_exactly_once(copied: Copied, client: str) -> None:
    if client in copied.missing:
        pytest.skip(copied.missing[client])
    verdict = copied.verdicts[client]
    if verdict.failure is not None:
        raise verdict.failure
    happened = verdict.happened
    assert copied.kills >= 2 or copied.plan.kill_every_s is None
    # Of transactions of up to 100 numbers; of some the broker died before it could say that they are committed.
    assert happened["committed"] >= 0.9 * copied.plan.count / 100
    assert happened["aborting"] >= 1
    assert happened["fenced"] >= 1
    assert verdict.errors <= FENCED.get(client.removesuffix(NEW), verdict.errors) | {"Timeout"}


class TestTheCheckItself:
    """What it is there for fails it."""

    ROWS = [(0, 0), (1, 4), (0, 1), (1, 5), (2, 2), (2, 3)]

    def sent(self, attempt: str, numbers: list[int], *told: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = [{"event": "sent", "attempt": attempt, "numbers": numbers}]
        return events + [{"event": event, "attempt": attempt} for event in told]

    def test_each_number_once_and_in_order(self) -> None:
        check_exactly_once(self.ROWS, 6)

    def test_a_number_that_is_missing(self) -> None:
        with pytest.raises(AssertionError, match=r"1 numbers are missing: \[3\]"):
            check_exactly_once(self.ROWS[:-1], 6)

    def test_a_number_that_is_there_twice(self) -> None:
        with pytest.raises(AssertionError, match="more than once"):
            check_exactly_once([*self.ROWS, (0, 4)], 6)

    def test_numbers_of_a_source_out_of_order(self) -> None:
        with pytest.raises(AssertionError, match="0 comes after 4"):
            check_exactly_once([(0, 4), (0, 0), (0, 1), (0, 2), (0, 3)], 5)

    def test_what_was_committed_is_read(self) -> None:
        events = self.sent("a", [1, 2], "committing", "committed")
        check_attempts(events, {"a": {1, 2}})
        with pytest.raises(AssertionError, match="was committed"):
            check_attempts(events, {"a": {1}})

    @pytest.mark.parametrize("told", [(), ("aborting",), ("committing", "aborting")])
    def test_what_was_not_committed_is_not_read(self, told: tuple[str, ...]) -> None:
        check_attempts(self.sent("a", [1, 2], *told), {})
        with pytest.raises(AssertionError, match="was not committed"):
            check_attempts(self.sent("a", [1, 2], *told), {"a": {1, 2}})

    def test_what_may_be_committed_is_read_as_a_whole_or_not_at_all(self) -> None:
        events = self.sent("a", [1, 2], "committing")
        check_attempts(events, {})
        check_attempts(events, {"a": {1, 2}})
        with pytest.raises(AssertionError, match="torn"):
            check_attempts(events, {"a": {1}})

    def test_what_was_acknowledged_is_in_the_log(self) -> None:
        events = self.sent("a", [1, 2], "aborting")
        check_acknowledged(events, {(1, "a"), (2, "a")})
        with pytest.raises(AssertionError, match="not in the log"):
            check_acknowledged(events, {(1, "a")})
