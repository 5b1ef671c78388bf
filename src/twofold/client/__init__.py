"""The clients: Producer, Consumer and Admin for asyncio, against Twofold and Apache Kafka alike.

For code without asyncio, `twofold.client.loop_thread` runs them on a loop thread. Errors are those of the protocol
(`twofold.wire.errors`) and the few of `twofold.client.errors`, which extend them.
"""

from twofold.client.admin.admin import Admin
from twofold.client.admin.group_model import (
    ConsumerGroupMetadata,
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetAndMetadata,
)
from twofold.client.admin.model import (
    AlterOperation,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    Feature,
    FeaturesDescription,
    FeatureUpdate,
    NewTopic,
    ProducerDescription,
    ResourceType,
    Results,
    UpgradeType,
)
from twofold.client.admin.quorum import QuorumDescription, QuorumReplica
from twofold.client.admin.quotas import QuotaTarget
from twofold.client.admin.replicas import ElectionType, Reassignment
from twofold.client.admin.storage import ALL_RECORDS, LogDirDescription, ReplicaInfo
from twofold.client.admin.transaction_model import (
    AbortTransactionSpec,
    EndedTwoPhase,
    FencedProducer,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from twofold.client.cluster.metadata import Node, PartitionMetadata, TopicMetadata
from twofold.client.consumer.consumer import Consumer
from twofold.client.consumer.fetcher import ConsumerRecord
from twofold.client.consumer.group.listener import RebalanceListener
from twofold.client.consumer.offsets import ListedOffset, OffsetSpec
from twofold.client.loop_thread import LoopThread
from twofold.client.producer.accumulator import ColumnDelivery, Delivery, OffsetRange, RecordMetadata
from twofold.client.producer.producer import Producer
from twofold.client.transactions.block import Transaction
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.types import TopicPartition

__all__ = [
    "ALL_RECORDS",
    "Admin",
    "AlterOperation",
    "ClusterDescription",
    "ColumnDelivery",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CreatedTopic",
    "Delivery",
    "ElectionType",
    "Feature",
    "FeatureUpdate",
    "FeaturesDescription",
    "GroupDescription",
    "GroupListing",
    "ListedOffset",
    "LogDirDescription",
    "LoopThread",
    "MemberDescription",
    "NewTopic",
    "Node",
    "OffsetAndMetadata",
    "OffsetRange",
    "OffsetSpec",
    "PartitionMetadata",
    "PreparedTxnState",
    "Producer",
    "ProducerDescription",
    "QuorumDescription",
    "QuorumReplica",
    "QuotaTarget",
    "RebalanceListener",
    "RecordMetadata",
    "Reassignment",
    "ReplicaInfo",
    "ResourceType",
    "Results",
    "TopicMetadata",
    "TopicPartition",
    "Transaction",
    "UpgradeType",
    "AbortTransactionSpec",
    "EndedTwoPhase",
    "FencedProducer",
    "TransactionDescription",
    "TransactionListing",
    "TransactionOutcome",
    "TransactionState",
]
