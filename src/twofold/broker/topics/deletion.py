"""A topic that holds records of an open two-phase transaction is not deleted: what is prepared must be there when it is
committed.

1. The controller asks when it decides about a topic, in the turn of the event loop in which it writes; a request that
   stood in line is asked again.
2. From then on until all parts have seen that the topic is gone, or that it stays, no partition of it becomes part of a
   transaction, and no transaction with records in it becomes a two-phase one.
3. While a part of the transaction log is not loaded, its two-phase transactions are unknown: then a topic stays where
   any transaction is open in its logs.
4. The transaction log itself stays while it holds an open two-phase transaction.
"""

from typing import TYPE_CHECKING

from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.core import BrokerCore
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.controller.topics import DeletionGuard
from twofold.coordinator.transaction.transitions import is_two_phase
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, PolicyViolation

if TYPE_CHECKING:
    from twofold.coordinator.transaction.state import TransactionsState


class TopicDeletion(DeletionGuard):
    """What one request deletes. `hold` is asked about each topic; `release` ends it."""

    def __init__(self, core: BrokerCore, transactions: TransactionService) -> None:
        self._core = core
        self._transactions = transactions
        self._held: list[str] = []
        self._states: list[TransactionsState] = []  # from which `_keepers` was made
        self._keepers: dict[str, str] = {}  # topic -> a transactional id whose records it holds
        self._is_complete = True

    def hold(self, topic: str) -> None:
        """Raise why a topic must stay; else no transaction gets a hold on it until `release`."""
        self._look()
        keeper = self._keepers.get(topic)
        if keeper is not None:
            raise PolicyViolation(
                f"topic {topic!r} holds records of the open two-phase transaction of {keeper!r}: commit or abort it "
                f"first (`twofold txn describe {keeper}` shows it)"
            )
        if not self._is_complete and self._has_open_transaction(topic):
            raise PolicyViolation(
                f"topic {topic!r} holds records of an open transaction, and a part of {TRANSACTION_STATE} is not "
                "loaded: whether it is a two-phase one is not known. Ask again, or see the broker's log"
            )
        self._transactions.being_deleted[topic] += 1
        self._held.append(topic)

    def release(self) -> None:
        """It is decided and seen, or will not happen."""
        being_deleted = self._transactions.being_deleted
        for topic in self._held:
            being_deleted[topic] -= 1
            if not being_deleted[topic]:
                del being_deleted[topic]
        self._held.clear()

    def _look(self) -> None:
        """Which topics are held now; states are values, so the same ones say the same."""
        shards = self._transactions.led()
        states = [state for shard in shards for state in (shard.state, shard.committed)]
        self._is_complete = all(shard.is_active for shard in shards)
        if len(states) == len(self._states) and all(map(lambda a, b: a is b, states, self._states)):
            return
        self._states = states
        self._keepers = {}
        for state in states:
            for transactional_id in state.ongoing:
                entry = state.entries[transactional_id]
                if is_two_phase(entry):
                    self._keepers[TRANSACTION_STATE] = transactional_id
                    self._keepers.update((topic, transactional_id) for topic, _ in entry.partitions)

    def _has_open_transaction(self, name: str) -> bool:
        topic = self._core.image.topic(name)
        if topic is None:
            return False
        try:
            for index in topic.partitions:
                known = self._core.logs.get(TopicPartition(name, index))
                if known is not None and known.oldest_open_transaction() is not None:
                    return True
        except (KafkaError, OSError):
            return True  # it cannot be read
        return False
