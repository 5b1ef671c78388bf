"""What the clients raise, in one tree under KafkaError: the protocol's errors, and those of this side of the wire.

`twofold.wire.errors` has every error of the protocol; `twofold.client.errors` draws the tree of the others.
"""

from twofold.client.errors import (
    BufferExhausted,
    DeliveryTimeout,
    Fenced,
    IllegalTransactionCall,
    InDoubt,
    NoOffset,
    PreparedAborted,
    ProducerFailed,
    TransactionAborted,
    TransactionFailed,
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
    "ConnectionLost",
    "DeliveryTimeout",
    "FatalError",
    "Fenced",
    "GaveUp",
    "IllegalTransactionCall",
    "InDoubt",
    "KafkaError",
    "NoAnswer",
    "NoOffset",
    "PreparedAborted",
    "ProducerFailed",
    "RetriableError",
    "TransactionAborted",
    "TransactionFailed",
    "UnsupportedByBroker",
]
