"""Twofold: an event log that speaks the Kafka protocol and is built around transactions.

`twofold.Producer`, `twofold.Consumer` and `twofold.Admin` are for code without asyncio, `twofold.aio` has the clients
for asyncio, `twofold.errors` what they raise, `twofold.embedded.Broker` is a broker inside this process.
"""

import importlib
from typing import TYPE_CHECKING

from twofold import version

if TYPE_CHECKING:
    from twofold.client.admin.blocking import Admin
    from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
    from twofold.client.admin.model import NewTopic
    from twofold.client.consumer.blocking import Consumer
    from twofold.client.consumer.consumer import ConsumerRecord
    from twofold.client.consumer.group.listener import RebalanceListener
    from twofold.client.producer.blocking import Producer
    from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
    from twofold.types import TopicPartition

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "NewTopic",
    "OffsetAndMetadata",
    "PreparedTxnState",
    "Producer",
    "RebalanceListener",
    "TopicPartition",
    "TransactionOutcome",
]

__version__ = version.VERSION

_PLACES = {
    "Admin": "twofold.client.admin.blocking",
    "Consumer": "twofold.client.consumer.blocking",
    "ConsumerGroupMetadata": "twofold.client.admin.group_model",
    "ConsumerRecord": "twofold.client.consumer.consumer",
    "NewTopic": "twofold.client.admin.model",
    "OffsetAndMetadata": "twofold.client.admin.group_model",
    "PreparedTxnState": "twofold.client.transactions.prepared",
    "Producer": "twofold.client.producer.blocking",
    "RebalanceListener": "twofold.client.consumer.group.listener",
    "TopicPartition": "twofold.types",
    "TransactionOutcome": "twofold.client.transactions.prepared",
}
_MODULES = ("aio", "embedded", "errors")


def __getattr__(name: str) -> object:
    # On demand: a broker that starts has no use for the client.
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"twofold.{name}")
    raise AttributeError(f"module 'twofold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__", "__doc__", "__file__", "__name__", "__path__"})
