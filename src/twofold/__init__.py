"""Twofold: an event log that speaks the Kafka protocol and is built around transactions.

`twofold.Producer` and `twofold.Admin` are for code without asyncio, `twofold.aio` has the clients for asyncio,
`twofold.embedded.Broker` is a broker inside this process.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.client.admin.blocking import Admin
    from twofold.client.producer.blocking import Producer
    from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome

__all__ = ["Admin", "PreparedTxnState", "Producer", "TransactionOutcome"]

_PLACES = {
    "Admin": "twofold.client.admin.blocking",
    "PreparedTxnState": "twofold.client.transactions.prepared",
    "Producer": "twofold.client.producer.blocking",
    "TransactionOutcome": "twofold.client.transactions.prepared",
}


def __getattr__(name: str) -> object:
    # On demand: a broker that starts has no use for the client.
    if name not in _PLACES:
        raise AttributeError(f"module 'twofold' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
