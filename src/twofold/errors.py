"""What the clients raise, in one tree under KafkaError: the protocol's errors, and those of this side of the wire.

`twofold.wire.errors` has every error of the protocol; `twofold.client.errors` draws the tree of the others.
"""

from twofold.client.errors import (
    BufferExhausted,
    CommitFailed,
    DeliveryTimeout,
    DeserializationFailed,
    Fenced,
    IllegalConsumerCall,
    IllegalTransactionCall,
    InDoubt,
    InstanceFenced,
    LogTruncated,
    NoOffset,
    PreparedAborted,
    ProducerFailed,
    TransactionAborted,
    TransactionFailed,
    WokenUp,
)
from twofold.connections.errors import (
    BrokerUnreachable,
    ClientClosed,
    ConnectionLost,
    GaveUp,
    NoAnswer,
    UnsupportedByBroker,
)
from twofold.wire.errors import AbortableError, FatalError, KafkaError, RetriableError

__all__ = [
    "AbortableError",
    "BrokerUnreachable",
    "BufferExhausted",
    "ClientClosed",
    "CommitFailed",
    "ConnectionLost",
    "DeliveryTimeout",
    "DeserializationFailed",
    "FatalError",
    "Fenced",
    "GaveUp",
    "IllegalConsumerCall",
    "IllegalTransactionCall",
    "InDoubt",
    "InstanceFenced",
    "KafkaError",
    "LogTruncated",
    "NoAnswer",
    "NoOffset",
    "PreparedAborted",
    "ProducerFailed",
    "RetriableError",
    "TransactionAborted",
    "TransactionFailed",
    "UnsupportedByBroker",
    "WokenUp",
]
