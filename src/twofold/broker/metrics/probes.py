"""What `/healthz` and `/readyz` say of a broker, read from its parts at the moment of the question.

1. `/healthz`: the event loop runs and answers. It asks nothing else, because an orchestrator that kills what is not
   healthy must not kill a broker that recovers its logs.
2. `/readyz`: clients are served as they expect. Each line is one condition: logs recovered, coordinators loaded,
   listener bound and open, disk without a failure. All have to hold.
3. What others need not suffer from leaves the broker ready and is named in its line: a partition of a coordinator that
   is disabled, and a full disk, because readers are served.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from twofold.broker.coordinators.groups.service import GroupService
from twofold.broker.coordinators.shard import CoordinatorShard
from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.network.server import Server
from twofold.config.listeners import ListenerAddress
from twofold.log.durability.health import CLOSED
from twofold.log.manager import LogManager

HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
NAMED_LOGS = 3


class Condition(NamedTuple):
    name: str
    holds: bool
    text: str


class Readiness:
    def __init__(
        self,
        server: Server,
        listeners: Sequence[ListenerAddress],
        logs: LogManager,
        groups: GroupService,
        transactions: TransactionService,
    ) -> None:
        self._server = server
        self._listeners = listeners
        self._logs = logs
        self._groups = groups
        self._transactions = transactions

    def conditions(self) -> Iterator[Condition]:
        yield self._of_listener()
        yield self._of_logs()
        yield self._of_coordinators()
        yield self._of_disk()

    def probe(self) -> tuple[bool, str]:
        """Whether the broker is ready, and the text that says why or why not."""
        found = list(self.conditions())
        is_ready = all(condition.holds for condition in found)
        lines = [f"{'ok' if condition.holds else 'no'}  {condition.name}: {condition.text}" for condition in found]
        return is_ready, "\n".join(["ready" if is_ready else "not ready", *lines, ""])

    def _of_listener(self) -> Condition:
        server = self._server
        where = ", ".join(f"{at.name}://{at.host}:{at.port}" for at in self._listeners)
        if server.draining:
            return Condition("listener", False, "the broker is stopping and answers what was asked before")
        if not server.is_open:
            return Condition("listener", False, f"{where or 'not bound yet'}; clients wait until it has started")
        return Condition("listener", True, where)

    def _of_logs(self) -> Condition:
        count, left = len(self._logs.logs()), self._logs.unrecovered
        if left is None:
            return Condition("logs", False, "not read yet")
        if left:
            return Condition("logs", False, f"{_partitions(left)} of {count} still to be recovered")
        return Condition("logs", True, f"{_partitions(count)} recovered")

    def _of_coordinators(self) -> Condition:
        shards: list[CoordinatorShard[Any, Any]] = [*self._groups.led(), *self._transactions.led()]
        disabled = sum(shard.is_corrupt for shard in shards)
        loading = sum(not shard.is_active and not shard.is_corrupt for shard in shards)
        if loading:
            return Condition("coordinators", False, f"{_partitions(loading)} of {len(shards)} still to be loaded")
        but = f", {disabled} disabled because of content that cannot be true" if disabled else ""
        return Condition("coordinators", True, f"{_partitions(len(shards) - disabled)} loaded{but}")

    def _of_disk(self) -> Condition:
        failed = [str(known.topic_partition) for known in self._logs.logs() if known.failure not in (None, CLOSED)]
        if failed:
            names = ", ".join(failed[:NAMED_LOGS]) + (", ..." if len(failed) > NAMED_LOGS else "")
            return Condition("disk", False, f"{_partitions(len(failed))} failed and will be repaired: {names}")
        if self._logs.reserve.is_short:
            return Condition("disk", True, f"{self._logs.directory} is full: clients read and cannot write")
        return Condition("disk", True, self._logs.directory)


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def health() -> tuple[bool, str]:
    return True, "ok\n"
