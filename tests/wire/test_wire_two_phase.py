"""The bytes of two-phase commit (KIP-939) and of transaction heartbeats (KIP-1309), for whoever writes a client.

Each vector was put together by hand from the fields of the documents, in their order; none of them comes from the code
that is tested. Spaces stand between fields.
"""

from typing import Any

import pytest

from twofold.coordinator.transaction.records import (
    NEVER_MS,
    Ended,
    NextTerms,
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode_value,
)
from twofold.coordinator.transaction.states import State
from twofold.types import Ending, ProducerEpoch, ProducerId, TopicPartition
from twofold.wire import codec
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages.describe_transactions import DescribeTransactionsResponse
from twofold.wire.messages.describe_transactions import TransactionState as DescribedRow
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from twofold.wire.messages.txn_heartbeat import TxnHeartbeatRequest, TxnHeartbeatResponse

INIT, HEARTBEAT, DESCRIBE = KEYS["InitProducerId"], KEYS["TxnHeartbeat"], KEYS["DescribeTransactions"]

# Size; then key, version, correlation id 7, client id "c", no tagged fields; then the body, whose last byte is the
# number of its tagged fields.
REQUESTS = {
    # transactional id "app-1", timeout 60000, producer id -1, epoch -1, enable2Pc, keepPreparedTxn
    "init 6, recovering": (
        "00000023  0016 0006 00000007 0001 63 00  06 6170702d31 0000ea60 ffffffffffffffff ffff 01 01  00",
        InitProducerIdRequest(
            transactional_id="app-1", transaction_timeout_ms=60_000, enable2_pc=True, keep_prepared_txn=True
        ),
        6,
    ),
    "init 6, a new two-phase producer": (
        "00000023  0016 0006 00000007 0001 63 00  06 6170702d31 7fffffff ffffffffffffffff ffff 01 00  00",
        InitProducerIdRequest(transactional_id="app-1", transaction_timeout_ms=NEVER_MS, enable2_pc=True),
        6,
    ),
    "init 6, keeping without the vow": (
        "00000023  0016 0006 00000007 0001 63 00  06 6170702d31 0000ea60 ffffffffffffffff ffff 00 01  00",
        InitProducerIdRequest(transactional_id="app-1", transaction_timeout_ms=60_000, keep_prepared_txn=True),
        6,
    ),
    "init 6, who it was": (
        "00000023  0016 0006 00000007 0001 63 00  06 6170702d31 0000ea60 000000000000002a 7ffe 00 00  00",
        InitProducerIdRequest(
            transactional_id="app-1", transaction_timeout_ms=60_000, producer_id=42, producer_epoch=32_766
        ),
        6,
    ),
    "init 6, without a transactional id": (
        "0000001e  0016 0006 00000007 0001 63 00  00 0000ea60 ffffffffffffffff ffff 00 00  00",
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
        6,
    ),
    # the interval stands between timeout and producer id
    "init 7, heartbeats every 5 s of 24 h": (
        "00000027  0016 0007 00000007 0001 63 00  06 6170702d31 05265c00 00001388 ffffffffffffffff ffff 00 00  00",
        InitProducerIdRequest(
            transactional_id="app-1", transaction_timeout_ms=86_400_000, transaction_heartbeat_interval_ms=5000
        ),
        7,
    ),
    "init 7, converting at prepare": (
        "00000027  0016 0007 00000007 0001 63 00  06 6170702d31 05265c00 00000000 ffffffffffffffff ffff 01 01  00",
        InitProducerIdRequest(
            transactional_id="app-1", transaction_timeout_ms=86_400_000, enable2_pc=True, keep_prepared_txn=True
        ),
        7,
    ),
    "heartbeat": (
        "0000001d  005f 0000 00000007 0001 63 00  06 6170702d31 000000000000002a 0003  00",
        TxnHeartbeatRequest(transactional_id="app-1", producer_id=42, producer_epoch=3),
        0,
    ),
}

# Size; then correlation id 7, no tagged fields; then the body.
RESPONSES = {
    # throttle 0, no error, the client is (73, 0), the transaction (42, 32766)
    "init 6, kept": (
        "00000020  00000007 00  00000000 0000 0000000000000049 0000 000000000000002a 7ffe  00",
        InitProducerIdResponse(
            error_code=0,
            producer_id=73,
            producer_epoch=0,
            ongoing_txn_producer_id=42,
            ongoing_txn_producer_epoch=32_766,
        ),
        INIT,
        6,
    ),
    "init 6, nothing was open": (
        "00000020  00000007 00  00000000 0000 000000000000002a 0001 ffffffffffffffff ffff  00",
        InitProducerIdResponse(error_code=0, producer_id=42, producer_epoch=1),
        INIT,
        6,
    ),
    "init 6, not allowed": (
        "00000020  00000007 00  00000000 0035 ffffffffffffffff ffff ffffffffffffffff ffff  00",
        InitProducerIdResponse(error_code=53, producer_id=-1, producer_epoch=-1),
        INIT,
        6,
    ),
    "init 7, as 6": (
        "00000020  00000007 00  00000005 0000 0000000000000049 0000 000000000000002a 7ffe  00",
        InitProducerIdResponse(
            throttle_time_ms=5,
            error_code=0,
            producer_id=73,
            producer_epoch=0,
            ongoing_txn_producer_id=42,
            ongoing_txn_producer_epoch=32_766,
        ),
        INIT,
        7,
    ),
    "init 5 says nothing of a transaction": (
        "00000016  00000007 00  00000000 0000 000000000000002a 0001  00",
        InitProducerIdResponse(error_code=0, producer_id=42, producer_epoch=1),
        INIT,
        5,
    ),
    # error 0, id "x", Empty, timeout 60000, start -1, now (42, 7), no topics; three tags: (42, 5) was aborted by force
    "describe, after a two-phase transaction": (
        "0000003e  00000007 00  00000000 02  0000 02 78 06 456d707479 0000ea60 ffffffffffffffff "
        "000000000000002a 0007 01  03 65 08 000000000000002a 66 02 0005 67 01 03  00",
        DescribeTransactionsResponse(
            transaction_states=(
                DescribedRow(
                    error_code=0,
                    transactional_id="x",
                    transaction_state="Empty",
                    transaction_timeout_ms=60_000,
                    transaction_start_time_ms=-1,
                    producer_id=42,
                    producer_epoch=7,
                    topics=(),
                    last_two_phase_producer_id=42,
                    last_two_phase_epoch=5,
                    last_two_phase_ending=Ending.TERMINATED,
                ),
            )
        ),
        DESCRIBE,
        0,
    ),
    "heartbeat, heard": (
        "0000000d  00000007 00  00000000 0000 00  00",
        TxnHeartbeatResponse(error_code=0),
        HEARTBEAT,
        0,
    ),
    # PRODUCER_FENCED and a text of 6 bytes
    "heartbeat, too late": (
        "00000013  00000007 00  00000000 005a 07 66656e636564  00",
        TxnHeartbeatResponse(error_code=90, error_message="fenced"),
        HEARTBEAT,
        0,
    ),
}

# Version 1 of the value; producer id 42, epoch 32766, timeout 2147483647, Ongoing, "t" with partition 0, updated
# 1700000000500, begun 1700000000000; then the tagged fields.
ONGOING = "0001 000000000000002a 7ffe 7fffffff 01  02 0274 02 00000000 00  0000018bcfe569f4 0000018bcfe56800"
RECORDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "two-phase": (f"{ONGOING}  02  00 08 000000000000002a  02 02 0002", (42, -1, 2, -1)),
    # previous 42, next (73, 0): tag 3 is the epoch, as Kafka's schema has it (the document says 2)
    "kept": (
        f"{ONGOING}  04  00 08 000000000000002a  01 08 0000000000000049  02 02 0002  03 02 0000",
        (42, 73, 2, 0),
    ),
    # tag 101: (42, 5) was committed; tag 102: from the next transaction on a timeout of 60 s and heartbeats every 5 s
    "kept by a producer without the vow": (
        f"{ONGOING}  06  00 08 000000000000002a  01 08 0000000000000049  02 02 0002  03 02 0000"
        "  65 0b 000000000000002a 0005 01  66 08 0000ea60 00001388",
        (42, 73, 2, 0, -1, 0, Ended(ProducerId(42), ProducerEpoch(5), Ending.COMMITTED), NextTerms(60_000, 5000)),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_these_bytes(name: str) -> None:
    text, message, version = REQUESTS[name]
    frame = bytes.fromhex(text)
    key = HEARTBEAT if isinstance(message, TxnHeartbeatRequest) else INIT
    assert bytes(codec.encode_request(message, key, version, 7, "c")).hex() == frame.hex()
    header = codec.decode_request_header(frame[4:])
    assert (header.api_key, header.version, header.correlation_id, header.client_id) == (key, version, 7, "c")
    assert codec.decode_request(key, version, frame[4:], header.body_offset) == message


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_are_these_bytes(name: str) -> None:
    text, message, key, version = RESPONSES[name]
    frame = bytes.fromhex(text)
    assert bytes(codec.encode_response(message, key, version, 7)).hex() == frame.hex()
    assert codec.decode_response(key, version, frame[4:]) == (7, message)


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_a_prepared_transaction_are_these_bytes(name: str) -> None:
    text, tags = RECORDS[name]
    value = TransactionMetadata(
        ProducerId(42),
        ProducerEpoch(32_766),
        NEVER_MS,
        State.ONGOING,
        frozenset({TopicPartition("t", 0)}),
        1_700_000_000_500,
        1_700_000_000_000,
        *tags,
    )
    assert encode_value(value, 1).hex() == bytes.fromhex(text).hex()
    assert decode(bytes.fromhex("0000 0001 78"), bytes.fromhex(text)) == TransactionRecord("x", value)


def test_a_timeout_of_minus_one_means_two_phase_too() -> None:
    """As the document has it; what Kafka writes, and what we write, is 2147483647."""
    text = RECORDS["kept"][0].replace("7fffffff", "ffffffff")
    record = decode(bytes.fromhex("0000 0001 78"), bytes.fromhex(text))
    assert record is not None and record.value is not None
    assert record.value.timeout_ms == NEVER_MS


def test_the_versions_that_are_spoken() -> None:
    assert (APIS[INIT].min_version, APIS[INIT].max_version) == (0, 7)
    assert (HEARTBEAT, APIS[HEARTBEAT].min_version, APIS[HEARTBEAT].max_version) == (95, 0, 0)
