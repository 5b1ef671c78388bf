"""What the sender must know of the producer's transaction, and tells about it."""

from collections.abc import Callable

from twofold.connections.connection import Connection
from twofold.connections.errors import UnsupportedByBroker
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaError

PRODUCE = KEYS["Produce"]
LAST_PRODUCE_V1 = 11
"""The last version whose records must belong to partitions that were added before."""


class CurrentTransaction:
    """One object for the life of a producer; `begin` makes it that of the next transaction."""

    __slots__ = (
        "_added",
        "_groups",
        "_missing",
        "_on_failure",
        "_on_missing",
        "lost_numbers",
        "started",
        "transactional_id",
        "v2",
    )

    def __init__(
        self, transactional_id: str, on_missing: Callable[[], None], on_failure: Callable[[KafkaError], None]
    ) -> None:
        self.transactional_id = transactional_id
        self._on_missing = on_missing
        self._on_failure = on_failure
        self.begin(v2=True)

    def begin(self, *, v2: bool) -> None:
        self.v2 = v2
        # Whether the coordinator may know of the transaction: something that adds to it was sent.
        self.started = False
        self.lost_numbers = False
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._missing: dict[TopicPartition, None] = {}

    def admits(self, tp: TopicPartition) -> bool:
        """Whether records may go to the partition now. With version 2 its leader adds it; before that we do."""
        if self.v2 or tp in self._added:
            self.started = True
            return True
        if tp not in self._missing:
            self._missing[tp] = None
            self._on_missing()
        return False

    @property
    def confirmed(self) -> bool:
        """Whether the coordinator is known to know of the transaction: it has answered something that adds to it."""
        return bool(self._added or self._groups)

    def missing(self) -> list[TopicPartition]:
        return list(self._missing)

    def add(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._missing.pop(tp, None)
            self._added.add(tp)

    def knows_group(self, group: str) -> bool:
        """Whether the group's offsets need not be announced. With version 2 the group's coordinator does that."""
        return self.v2 or group in self._groups

    def add_group(self, group: str) -> None:
        self._groups.add(group)

    def produce_version(self, connection: Connection, at_most: int | None) -> int:
        if not self.v2:
            return connection.version(PRODUCE, at_most=LAST_PRODUCE_V1)
        version = connection.version(PRODUCE, at_most=at_most)
        if version <= LAST_PRODUCE_V1:
            raise UnsupportedByBroker(
                f"{connection.label} serves Produce up to {version}: transaction.version 2, which the cluster has "
                f"finalized, needs {LAST_PRODUCE_V1 + 1}"
            )
        return version

    def on_failure(self, error: KafkaError) -> None:
        """Records of the transaction were given up."""
        self._on_failure(error)
