"""What an application hears of rebalances."""

from collections.abc import Awaitable

from twofold.types import TopicPartition

Partitions = tuple[TopicPartition, ...]


class RebalanceListener:
    """Extend it and pass it to `subscribe`. Each method may be plain or `async`; `poll`, `close` and `unsubscribe` call
    it on the consumer's loop and go on when it is done. It may commit, seek, pause and ask for positions; it must not
    poll. What it raises comes out of the call after the rebalance is done.

    The order is revoked (or lost), then assigned. With a cooperative strategy each of them names only what changes.
    """

    def on_partitions_revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """These are still owned, so that their offsets can be committed, and go to other members afterwards."""
        return None

    def on_partitions_assigned(self, partitions: Partitions) -> Awaitable[None] | None:
        """These are new; called after every rebalance, with none where nothing came. Nothing was read of them yet."""
        return None

    def on_partitions_lost(self, partitions: Partitions) -> Awaitable[None] | None:
        """These belong to other members already: the session was over, or the member was removed. A commit of their
        offsets fails. Does what `on_partitions_revoked` does unless it is overridden."""
        return self.on_partitions_revoked(partitions)
