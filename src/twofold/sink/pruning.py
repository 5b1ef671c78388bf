"""Making room for writeIds: those that were written long ago are kept as eight bytes each, and refused from then on.

1. A pruned writeId is never taken for a new one: it is known by its number, and a job that brings it is told.
2. What was shown is what is pruned: the names are given, and one that is gone meanwhile is left alone.
3. The journal is written by its only writer, so a job that runs loses it. Nothing is pruned while one is at work.
"""

from collections.abc import Collection
from dataclasses import dataclass

from twofold.client.parts import Cluster, ProducerConfig
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.sink.decided import DecidedEntry
from twofold.sink.driver import Driver, SinkSettings
from twofold.sink.errors import SinkError
from twofold.sink.journal import Journal
from twofold.sink.remembered import encode_pruned


class AtWork(SinkError):
    """A job has something open."""


@dataclass(frozen=True, slots=True)
class Pruned:
    names: tuple[str, ...]
    left: int
    """How many are remembered by their names."""


async def written(journal: Journal, deadline: Deadline) -> list[DecidedEntry]:
    """The writeIds that are remembered by their names, oldest first. Nothing is fenced for that."""
    register = await journal.read(deadline)
    remembered = await journal.remembered(deadline)
    names = remembered.names | {entry.name: entry for entry in register.decided}
    return sorted((entry for entry in names.values() if entry.is_write), key=lambda entry: (entry.at_ms, entry.name))


async def prune(
    runtime: Runtime,
    cluster: Cluster,
    config: ProducerConfig,
    settings: SinkSettings,
    names: Collection[str],
    deadline: Deadline,
) -> Pruned:
    driver = Driver(runtime, cluster, config, settings)
    try:
        await driver.open_journal(deadline)
        register = driver.journal.register
        if register.pending is not None or await driver.open_ids(deadline):
            raise AtWork(
                f"a job is at work under transactionalIdPrefix={settings.prefix!r}, or died there: let it end, or run "
                f"`twofold pipeline recover --prefix {settings.prefix}`; nothing was pruned"
            )
        found = await written(driver.journal, deadline)
        chosen = tuple(entry.name for entry in found if entry.name in names)
        if chosen:
            now_ms = runtime.clock.wall_ms()
            records = encode_pruned(settings.prefix, chosen, now_ms)
            await driver.journal.append(register.without(frozenset(chosen), now_ms), beside=records)
        return Pruned(chosen, len(found) - len(chosen))
    finally:
        await driver.close()
