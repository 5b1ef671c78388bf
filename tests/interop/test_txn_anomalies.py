"""Requests that come late, twice or not at all, against a real server: the rows of the list of known anomalies that
one node can show. Each test is named after its row.

Sessions send single requests through a proxy that holds, loses and repeats them; `old` and `tv1` are the protocols in
which a transaction keeps its epoch, in `tv2` every transaction has an epoch of its own.
"""

import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kits.clients.single_requests import SingleRequests
from kits.groups.groups import create_topic
from kits.processes.server import TwofoldServer
from kits.wire.look import UNSTABLE_OFFSET_COMMIT, await_group_offset, await_nothing_open, ends, group_offset
from kits.wire.proxy import Held, Proxy
from kits.wire.session import GROUP_KEY, OLD, TV1, TV2, Session, Versions, produce_code
from oracle.kafka import Oracle, jars_or_skip
from oracle.wire import decode_response

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
}
PARTITIONS = 2
SHORT_TIMEOUT_MS = 500
RESTARTS = 5 if LONG else 1
NUMBERS = count()

INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120


class KafkaServer(Oracle):
    def kill(self) -> None:
        self.stop()


class Stage:
    """A server behind a proxy, and a topic and a transactional id of the test's own."""

    def __init__(self, server: TwofoldServer | KafkaServer, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy
        self.number = next(NUMBERS)
        self.topic, self.id, self.group = f"topic-{self.number}", f"id-{self.number}", f"group-{self.number}"
        self._sessions: list[Session] = []
        self._reader = SingleRequests(server.bootstrap_servers)
        create_topic(server, self.topic, PARTITIONS)

    @property
    def is_oracle(self) -> bool:
        return self.server.name == "oracle"

    def session(self, name: str, versions: Versions, *, timeout_ms: int = 60_000) -> Session:
        """A new instance of the transactional id; whoever had it before is fenced."""
        made = Session(self.proxy.address, self.id, versions, name=f"{name}-{self.number}", timeout_ms=timeout_ms)
        self._sessions.append(made)
        return made.open()

    def send_and_hold(self, session: Session, api: str, version: int, body: dict[str, object]) -> Held:
        """A request that is under way and does not arrive; the session gives up waiting and connects again."""
        held = self.proxy.hold(api, session.name)
        session.send(api, version, body)
        held.wait()
        session.reconnect()
        return held

    def read(self, *, committed: bool = True) -> list[str]:
        return sorted(row.value for row in self._reader.read(self.topic, PARTITIONS, committed=committed))

    def await_nothing_open(self) -> None:
        await_nothing_open(self.server, self.topic, PARTITIONS)

    @property
    def has_open_transactions(self) -> bool:
        return self.ends(committed=True) != self.ends(committed=False)

    def ends(self, *, committed: bool) -> list[int]:
        return ends(self.server, self.topic, PARTITIONS, committed=committed)

    def restart(self) -> None:
        """kill -9, and again on the same data."""
        if self.is_oracle:
            pytest.skip(
                "Apache Kafka remembers one batch of a producer after kill -9, and may hold readers back for ever"
            )
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._reader.close()


@pytest.fixture(scope="module", params=SERVERS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TwofoldServer | KafkaServer, Proxy]]:
    directory: Path = tmp_path_factory.mktemp("anomalies")
    server: TwofoldServer | KafkaServer
    if request.param == "oracle":
        server = KafkaServer(jars_or_skip(), directory, SETTINGS)
    else:
        server = TwofoldServer(directory, SETTINGS)
    with Proxy() as proxy:
        server.start()
        proxy.forward_to(server.host, server.port)
        try:
            yield server, proxy
        finally:
            server.kill()


@pytest.fixture
def stage(world: tuple[TwofoldServer | KafkaServer, Proxy]) -> Iterator[Stage]:
    made = Stage(*world)
    yield made
    made.close()


old_and_new = pytest.mark.parametrize("versions", [OLD, TV1, TV2], ids=lambda versions: versions.name)
tv1_and_tv2 = pytest.mark.parametrize("versions", [TV1, TV2], ids=lambda versions: versions.name)


def code_of(api: str, version: int, payload: bytes) -> int:
    answer = decode_response(api, version, payload)[1]
    return produce_code(answer) if api == "Produce" else int(answer["error_code"])


class TestZombieProduceAfterAbort:
    """Hanging transaction: a batch that arrives after the end of its transaction would never be ended by anybody."""

    @old_and_new
    @pytest.mark.parametrize("partition", [0, 1], ids=["known-partition", "other-partition"])
    @pytest.mark.parametrize("how", ["aborted", "timed-out", "fenced"])
    def test_is_refused_and_the_lso_moves_on(self, stage: Stage, versions: Versions, how: str, partition: int) -> None:
        timeout_ms = SHORT_TIMEOUT_MS if how == "timed-out" else 60_000
        writer = stage.session("writer", versions, timeout_ms=timeout_ms)
        writer.write(stage.topic, 0, "first")
        if partition != 0 and not versions.adds_implicitly:
            assert writer.add(stage.topic, partition) == [0]
        zombie = stage.send_and_hold(
            writer, "Produce", versions.produce, writer.produce_body(stage.topic, partition, ["zombie"])
        )
        if how == "aborted":
            assert writer.until_ready(lambda: writer.end(False)) == 0
        elif how == "fenced":
            stage.session("second", versions)
        stage.await_nothing_open()
        code = code_of("Produce", versions.produce, zombie.release())
        assert code == self.expected(versions, how)
        assert not stage.has_open_transactions
        after = stage.session("after", versions)
        after.write(stage.topic, partition, "after")
        assert after.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["after"]
        assert stage.read(committed=False) == ["after", "first"]

    def expected(self, versions: Versions, how: str) -> int:
        """Where the epoch has not changed, only the coordinator knows that the transaction is over."""
        if how == "aborted" and versions is not TV2:
            return INVALID_TXN_STATE if versions is OLD else TRANSACTION_ABORTABLE
        return INVALID_PRODUCER_EPOCH


class TestZombieCommitOfTheNextTransaction:
    def test_is_fenced(self, stage: Stage) -> None:
        writer = stage.session("writer", TV2)
        writer.write(stage.topic, 0, "one")
        zombie = stage.send_and_hold(writer, "EndTxn", TV2.end, writer.end_body(True))
        assert writer.until_ready(lambda: writer.end(True)) == 0
        writer.write(stage.topic, 0, "two")
        assert code_of("EndTxn", TV2.end, zombie.release()) == PRODUCER_FENCED
        assert stage.has_open_transactions
        assert stage.read() == ["one"]
        assert writer.end(False) == 0
        stage.await_nothing_open()
        assert stage.read() == ["one"]

    @old_and_new
    def test_of_another_instance_is_fenced(self, stage: Stage, versions: Versions) -> None:
        first = stage.session("first", versions)
        first.write(stage.topic, 0, "one")
        zombie = stage.send_and_hold(first, "EndTxn", versions.end, first.end_body(True))
        second = stage.session("second", versions)
        second.write(stage.topic, 0, "two")
        assert code_of("EndTxn", versions.end, zombie.release()) == PRODUCER_FENCED
        assert stage.has_open_transactions
        assert second.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["two"]

    @pytest.mark.parametrize("versions", [OLD, TV1], ids=lambda versions: versions.name)
    def test_of_the_same_epoch_cannot_be_told_by_the_older_protocol(self, stage: Stage, versions: Versions) -> None:
        """Pinned: this is what KIP-890 gave every transaction an epoch for."""
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "one")
        zombie = stage.send_and_hold(writer, "EndTxn", versions.end, writer.end_body(True))
        assert writer.until_ready(lambda: writer.end(True)) == 0
        writer.write(stage.topic, 0, "two")
        assert code_of("EndTxn", versions.end, zombie.release()) == 0
        stage.await_nothing_open()
        assert stage.read() == ["one", "two"]


class TestAbortedRead:
    """G1a: no reader of what is committed ever gets a value whose writer was told that it is aborted."""

    @old_and_new
    def test_of_a_commit_that_was_delayed_past_the_abort_of_the_coordinator(
        self, stage: Stage, versions: Versions
    ) -> None:
        writer = stage.session("writer", versions, timeout_ms=SHORT_TIMEOUT_MS)
        writer.write(stage.topic, 0, "late")
        writer.write(stage.topic, 1, "late")
        commit = stage.send_and_hold(writer, "EndTxn", versions.end, writer.end_body(True))
        stage.await_nothing_open()
        code = code_of("EndTxn", versions.end, commit.release())
        assert code == (INVALID_TXN_STATE if versions is TV2 and stage.is_oracle else PRODUCER_FENCED)
        assert stage.read() == []
        assert stage.read(committed=False) == ["late", "late"]

    @tv1_and_tv2
    def test_across_a_restart_between_the_decision_and_its_markers(self, stage: Stage, versions: Versions) -> None:
        writer = stage.session("writer", versions)
        kept: list[str] = []
        for number in range(RESTARTS):
            for commit in (False, True):
                value = f"{number}-{'kept' if commit else 'gone'}"
                writer.write(stage.topic, 0, value)
                writer.write(stage.topic, 1, value)
                kept += [value] * (2 * commit)
                lost = stage.proxy.lose_answer("EndTxn", writer.name)
                with pytest.raises(ConnectionError):
                    writer.end(commit)
                lost.wait_answer()
                stage.restart()
                assert writer.until_ready(partial(writer.end, commit)) == 0
                stage.await_nothing_open()
                assert stage.read() == sorted(kept)


class TestLostWrite:
    """Every commit that was acknowledged is read, although an abort of the transaction before is still under way."""

    def test_does_not_happen(self, stage: Stage) -> None:
        writer = stage.session("writer", TV2)
        writer.write(stage.topic, 0, "gone")
        abort = stage.send_and_hold(writer, "EndTxn", TV2.end, writer.end_body(False))
        assert writer.until_ready(lambda: writer.end(False)) == 0
        writer.write(stage.topic, 0, "kept")
        assert code_of("EndTxn", TV2.end, abort.release()) == PRODUCER_FENCED
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["kept"]

    @pytest.mark.parametrize("versions", [OLD, TV1], ids=lambda versions: versions.name)
    def test_in_the_older_protocol_is_no_acknowledged_one(self, stage: Stage, versions: Versions) -> None:
        """Pinned: the late abort ends the next transaction of the same epoch, and its commit says so."""
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "gone")
        abort = stage.send_and_hold(writer, "EndTxn", versions.end, writer.end_body(False))
        assert writer.until_ready(lambda: writer.end(False)) == 0
        writer.write(stage.topic, 0, "gone too")
        assert code_of("EndTxn", versions.end, abort.release()) == 0
        assert writer.until_ready(lambda: writer.end(True)) == INVALID_TXN_STATE
        stage.await_nothing_open()
        assert stage.read() == []


class TestTornTransaction:
    """All or nothing over all partitions, when an answer was lost and the client tries again."""

    def test_when_the_answer_to_added_partitions_is_lost(self, stage: Stage) -> None:
        writer = stage.session("writer", TV1)
        writer.write(stage.topic, 0, "a")
        lost = stage.proxy.lose_answer("AddPartitionsToTxn", writer.name)
        with pytest.raises(ConnectionError):
            writer.add(stage.topic, 1)
        lost.wait_answer()
        writer.write(stage.topic, 1, "b")
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["a", "b"]

    @tv1_and_tv2
    def test_when_the_client_goes_on_with_a_new_epoch(self, stage: Stage, versions: Versions) -> None:
        """What was lost is repeated with the old epoch when the new one is at work already."""
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "torn")
        if versions.adds_implicitly:
            lost = stage.proxy.lose_answer("Produce", writer.name)
            with pytest.raises(ConnectionError):
                writer.produce(stage.topic, 1, "torn")
        else:
            lost = stage.proxy.lose_answer("AddPartitionsToTxn", writer.name)
            with pytest.raises(ConnectionError):
                writer.add(stage.topic, 1)
        lost.wait_answer()
        before = writer.producer_id, writer.epoch
        assert writer.until_ready(lambda: writer.init(*before)) == 0
        assert (writer.producer_id, writer.epoch) > before
        writer.write(stage.topic, 0, "whole")
        repeated = decode_response(lost.api, lost.wait().version, stage.proxy.repeat(lost))[1]
        if versions.adds_implicitly:
            assert produce_code(repeated) == INVALID_PRODUCER_EPOCH
        else:
            rows = repeated["results_by_topic_v3_and_below"][0]["results_by_partition"]
            assert [row["partition_error_code"] for row in rows] == [PRODUCER_FENCED]
        writer.write(stage.topic, 1, "whole")
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["whole", "whole"]


class TestLostAnswers:
    @old_and_new
    @pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
    @pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
    def test_of_an_end_that_is_tried_again(self, stage: Stage, versions: Versions, commit: bool, restart: bool) -> None:
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "a")
        before = writer.producer_id, writer.epoch
        lost = stage.proxy.lose_answer("EndTxn", writer.name)
        with pytest.raises(ConnectionError):
            writer.end(commit)
        first = decode_response("EndTxn", versions.end, lost.wait_answer())[1]
        assert first["error_code"] == 0
        if restart:
            stage.restart()
        assert writer.until_ready(lambda: writer.end(commit)) == 0
        if versions is TV2:
            assert (writer.producer_id, writer.epoch) == (first["producer_id"], first["producer_epoch"])
            assert (writer.producer_id, writer.epoch) == (before[0], before[1] + 1)
        stage.await_nothing_open()
        assert stage.read() == (["a"] if commit else [])
        writer.write(stage.topic, 0, "b")
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == (["a", "b"] if commit else ["b"])

    @pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
    def test_of_a_new_epoch_that_is_asked_for_again(self, stage: Stage, restart: bool) -> None:
        """The same answer: the coordinator knows the epoch before the last, after a restart too."""
        writer = stage.session("writer", TV2)
        before = writer.producer_id, writer.epoch
        lost = stage.proxy.lose_answer("InitProducerId", writer.name)
        with pytest.raises(ConnectionError):
            writer.init(*before)
        first = decode_response("InitProducerId", TV2.init, lost.wait_answer())[1]
        if restart:
            stage.restart()
        assert writer.until_ready(lambda: writer.init(*before)) == 0
        assert (writer.producer_id, writer.epoch) == (first["producer_id"], first["producer_epoch"])
        writer.write(stage.topic, 0, "a")
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["a"]


class TestDuplicate:
    @tv1_and_tv2
    def test_of_a_kill_between_append_and_acknowledgement(self, stage: Stage, versions: Versions) -> None:
        """The five-batch window survives a restart."""
        writer = stage.session("writer", versions)
        bodies = []
        for number in range(4):
            bodies.append(writer.produce_body(stage.topic, 0, [f"{number}"]))
            if number == 0 and not versions.adds_implicitly:
                assert writer.until_ready(lambda: writer.add(stage.topic, 0)[0]) == 0
            assert writer.until_ready(lambda: produce_code(writer.ask("Produce", versions.produce, bodies[-1]))) == 0
        bodies.append(writer.produce_body(stage.topic, 0, ["4"]))
        lost = stage.proxy.lose_answer("Produce", writer.name)
        with pytest.raises(ConnectionError):
            writer.ask("Produce", versions.produce, bodies[-1])
        lost.wait_answer()
        stage.restart()
        for offset, body in enumerate(bodies):
            answers: list[dict[str, Any]] = []

            def again(body: dict[str, object] = body, answers: list[dict[str, Any]] = answers) -> int:
                answers.append(writer.ask("Produce", versions.produce, body))
                return produce_code(answers[-1])

            assert writer.until_ready(again) == 0
            assert answers[-1]["responses"][0]["partition_responses"][0]["base_offset"] == offset
        assert writer.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["0", "1", "2", "3", "4"]

    @tv1_and_tv2
    def test_of_a_request_that_arrives_twice(self, stage: Stage, versions: Versions) -> None:
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "a")
        lost = stage.proxy.lose_answer("Produce", writer.name)
        with pytest.raises(ConnectionError):
            writer.produce(stage.topic, 0, "b")
        lost.wait_answer()
        for _ in range(2):
            assert code_of("Produce", versions.produce, stage.proxy.repeat(lost)) == 0
        assert writer.until_ready(lambda: writer.end(True)) == 0
        stage.await_nothing_open()
        assert stage.read() == ["a", "b"]


class TestTwoInstancesOneTransactionalId:
    @old_and_new
    def test_never_share_a_transaction(self, stage: Stage, versions: Versions) -> None:
        first = stage.session("first", versions)
        first.write(stage.topic, 0, "first")
        second = stage.session("second", versions)
        second.write(stage.topic, 0, "second")
        if versions.adds_implicitly:
            assert first.produce(stage.topic, 1, "first") == INVALID_PRODUCER_EPOCH
        else:
            assert first.add(stage.topic, 1) == [PRODUCER_FENCED]
        assert first.produce(stage.topic, 0, "first") == INVALID_PRODUCER_EPOCH
        assert first.end(True) == PRODUCER_FENCED
        assert second.end(True) == 0
        stage.await_nothing_open()
        assert stage.read() == ["second"]


class TestOffsetCommitsInsideATransaction:
    @tv1_and_tv2
    @pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
    def test_are_visible_if_and_only_if_committed(self, stage: Stage, versions: Versions, commit: bool) -> None:
        """The group's coordinator is killed between the offsets and their marker."""
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "a")
        writer.write_offsets(stage.group, stage.topic, {0: 5})
        assert group_offset(stage.server, stage.group, stage.topic) == (UNSTABLE_OFFSET_COMMIT, -1)
        stage.restart()
        code = writer.until_ready(lambda: group_offset(stage.server, stage.group, stage.topic)[0])
        assert code == UNSTABLE_OFFSET_COMMIT
        assert group_offset(stage.server, stage.group, stage.topic, stable=False) == (0, -1)
        assert writer.until_ready(lambda: writer.end(commit)) == 0
        assert await_group_offset(stage.server, stage.group, stage.topic) == (5 if commit else -1)

    @old_and_new
    def test_of_a_zombie_are_refused_and_block_no_reader(self, stage: Stage, versions: Versions) -> None:
        writer = stage.session("writer", versions)
        writer.write(stage.topic, 0, "a")
        writer.find(stage.group, GROUP_KEY)
        if not versions.adds_implicitly:
            assert writer.until_ready(lambda: writer.add_offsets(stage.group)) == 0
        body = writer.offsets_body(stage.group, stage.topic, {0: 5})
        zombie = stage.send_and_hold(writer, "TxnOffsetCommit", versions.txn_offset_commit, body)
        assert writer.until_ready(lambda: writer.end(False)) == 0
        stage.await_nothing_open()
        answer = decode_response("TxnOffsetCommit", versions.txn_offset_commit, zombie.release())[1]
        (code,) = [row["error_code"] for topic in answer["topics"] for row in topic["partitions"]]
        if versions is TV2:
            assert code == INVALID_PRODUCER_EPOCH
        else:
            assert code == (INVALID_TXN_STATE if versions is OLD else TRANSACTION_ABORTABLE)
        assert await_group_offset(stage.server, stage.group, stage.topic) == -1
