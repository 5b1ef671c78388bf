"""The error codes of a response, wherever they stand in it."""

import importlib
from collections.abc import Sequence

import pytest

from twofold.wire.apis import APIS, Api
from twofold.wire.error_codes import compile_look
from twofold.wire.message import Message
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from twofold.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from twofold.wire.messages.heartbeat import HeartbeatResponse
from twofold.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


def error_codes(message: Message) -> Sequence[int]:
    return compile_look(type(message))(message)


def test_an_answer_without_an_error_has_no_codes() -> None:
    assert not error_codes(HeartbeatResponse(error_code=0))
    partition = MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=1,
        replica_nodes=(),
        isr_nodes=(),
        leader_epoch=0,
        offline_replicas=(),
    )
    topic = MetadataResponseTopic(error_code=0, name="t", partitions=(partition,))
    assert not error_codes(MetadataResponse(brokers=(), topics=(topic,)))


def test_the_codes_of_all_rows_are_found_each_time_they_occur() -> None:
    rows = [
        AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=code)
        for n, code in enumerate((0, 3, 3))
    ]
    result = AddPartitionsToTxnResult(
        transactional_id="x", topic_results=(AddPartitionsToTxnTopicResult(name="t", results_by_partition=rows),)
    )
    answer = AddPartitionsToTxnResponse(
        error_code=48, results_by_transaction=(result,), results_by_topic_v3_and_below=()
    )
    assert sorted(error_codes(answer)) == [3, 3, 48]


def test_a_code_beside_a_topic_that_was_created_is_no_failure() -> None:
    topic = CreatableTopicResult(name="t", topic_id=None, error_code=0, error_message=None, topic_config_error_code=29)
    assert not error_codes(CreateTopicsResponse(topics=(topic,)))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_errors_of_every_response_can_be_read(api: Api) -> None:
    module = importlib.import_module(f"twofold.wire.messages.{api.module}")
    shape = getattr(module, f"{api.name}Response", None)
    if shape is None:
        shape = next(value for name, value in vars(module).items() if name.lower() == f"{api.name}response".lower())
    assert compile_look(shape).__name__ == "look", f"{api.name} has answers without an error code"
