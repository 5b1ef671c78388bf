"""What others import: a name that is here stays, wherever in the package its class moves."""

import importlib
from importlib.metadata import entry_points

import pytest

PUBLIC = {
    "twofold": {
        "Admin", "Consumer", "ConsumerGroupMetadata", "ConsumerRecord", "NewTopic", "OffsetAndMetadata",
        "PreparedTxnState", "Producer", "RebalanceListener", "TopicPartition", "TransactionOutcome",
    },
    "twofold.aio": {"Admin", "Consumer", "Producer"},
    "twofold.dualwrite": {
        "ApplyOnce", "AsyncDualWrite", "AsyncDualWritePool", "DatabaseBehind", "DecidedNotVisible", "Disagreement",
        "Done", "DualWrite", "DualWriteError", "DualWritePool", "LogAborted", "NoFreeSlot", "NotDone", "OtherCluster",
        "OtherTopic", "OutcomeUnknown", "Settled", "TakenOver", "Unsuitable",
    },
    "twofold.embedded": {"Broker", "Faults", "RemoteFaults"},
    "twofold.errors": {
        "AbortableError", "BrokerUnreachable", "BufferExhausted", "ClientClosed", "CommitFailed", "ConnectionLost",
        "DeliveryTimeout", "DeserializationFailed", "EndedMeanwhile", "FatalError", "Fenced", "GaveUp",
        "IllegalConsumerCall", "IllegalTransactionCall", "InDoubt", "InstanceFenced", "KafkaError", "LogTruncated",
        "NoAnswer", "NoOffset", "PreparedAborted", "ProducerFailed", "RetriableError", "TransactionAborted",
        "TransactionFailed", "UnsupportedByBroker", "WokenUp",
    },
    "pyspark_twofold": {"DefaultSource"},
    "twofold.pytest_plugin": {"twofold_broker", "twofold_session_broker", "twofold_settings"},
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_can_be_imported(module: str) -> None:
    found = importlib.import_module(module)
    assert {name for name in PUBLIC[module] if not hasattr(found, name)} == set()
    declared = getattr(found, "__all__", None)
    assert declared is None or set(declared) == PUBLIC[module], "a new name is a promise: write it down here"


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    found = [entry.value for entry in entry_points(group="pytest11") if entry.name == "twofold"]
    assert found == ["twofold.pytest_plugin"]
