"""The parts of the client of which the Spark sink is built. The sink's protocol (`twofold.sink`) ends transactions that
other processes opened, turns an open transaction into a two-phase one, and puts whole batches into the buffer. A
Producer offers none of this.

Everything else that the sink needs is public (`twofold.client`). A test checks that the sink imports nothing besides.

    settings      ProducerConfig, ConsumerConfig, ISOLATION_LEVELS
    brokers       Cluster (connections and metadata), Coordinators (where ids have theirs)
    reading       SingleFetch, list_offsets
    writing       Sender (buffer, order, retries), ProducerBatch, ProducerIdentity
    transactions  TransactionCalls and Terms (the requests), CurrentTransaction (its partitions), Heartbeats
"""

from twofold.client.admin.transaction_model import NO_TIMEOUT_MS
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.cluster.metadata import group_by_topic
from twofold.client.config import ISOLATION_LEVELS, ConsumerConfig, ProducerConfig
from twofold.client.consumer.offsets import list_offsets
from twofold.client.consumer.single_fetch import SingleFetch
from twofold.client.producer.accumulator import ProducerBatch
from twofold.client.producer.sender import Sender
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions.calls import Terms, TransactionCalls
from twofold.client.transactions.current import CurrentTransaction
from twofold.client.transactions.heartbeats import Heartbeats

__all__ = [
    "ISOLATION_LEVELS",
    "NO_TIMEOUT_MS",
    "Cluster",
    "ConsumerConfig",
    "Coordinators",
    "CurrentTransaction",
    "Heartbeats",
    "ProducerBatch",
    "ProducerConfig",
    "ProducerIdentity",
    "Sender",
    "SingleFetch",
    "Terms",
    "TransactionCalls",
    "group_by_topic",
    "list_offsets",
]
