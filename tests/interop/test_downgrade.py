"""KIP-939's promise: a broker that does not know two-phase commit can end a transaction that was kept.

Apache Kafka opens the data folder of a Twofold that had one, and the outside decision is carried out there.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.kafka import Oracle, jars_or_skip
from twofold import PreparedTxnState, Producer

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

ID = "orders"


def prepare_and_keep(server: TwofoldServer) -> PreparedTxnState:
    """With all fields that only Twofold writes: how the one before ended, and what the producer that keeps asks for."""
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap_servers, "transactional_id": ID}
    with Producer(transaction_two_phase_commit_enable=True, **settings) as first:
        first.init_transactions()
        with first.transaction() as transaction:
            transaction.send("t", b"first order")
        first.begin_transaction()
        first.send("t", b"second order")
        state = first.prepare_transaction()
    with Producer(transaction_timeout_ms=5_000, **settings) as second:
        second.init_transactions(keep_prepared_txn=True)
    return state


@pytest.mark.parametrize("commit", [True, False])
def test_apache_kafka_ends_a_transaction_that_twofold_kept(tmp_path: Path, commit: bool) -> None:
    jars = jars_or_skip()
    server = TwofoldServer(tmp_path / "node", {"transaction.two.phase.commit.enable": "true", "node.id": "1"})
    server.start()
    try:
        state = prepare_and_keep(server)
        assert server.stop() == 0
    finally:
        server.kill()
    oracle = Oracle(jars, tmp_path / "node")
    oracle.start_on_existing_data()
    try:
        with Connection(oracle.host, oracle.port) as wire:
            row = described(wire)
            assert (row["transaction_state"], row["transaction_timeout"]) == ("Ongoing", 2**31 - 1)
            assert (row["producer_id"], row["producer_epoch"]) == (state.producer_id, state.epoch)
            answer = wire.ask(
                "EndTxn", 5, transactional_id=ID, producer_id=state.producer_id, producer_epoch=state.epoch,
                committed=commit,
            )  # fmt: skip
            assert answer["error_code"] == 0
            deadline = time.monotonic() + 15
            while described(wire)["transaction_state"] != ("CompleteCommit" if commit else "CompleteAbort"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
            offsets = wire.ask("ListOffsets", 2, replica_id=-1, isolation_level=1, topics=asked)
            assert offsets["topics"][0]["partitions"][0]["offset"] == 4, "the records and their markers: readers go on"
    finally:
        oracle.stop()


def described(wire: Connection) -> dict[str, object]:
    deadline = time.monotonic() + 30
    while True:
        row: dict[str, object] = wire.ask("DescribeTransactions", 0, transactional_ids=[ID])["transaction_states"][0]
        if not row["error_code"]:
            return row
        assert time.monotonic() < deadline, row
        time.sleep(0.1)
