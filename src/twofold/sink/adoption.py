"""Journals that a query goes on from, which has none of its own yet.

1. The version before named journals after the path of the checkpoint, as it was spelled. The query is the same.
2. A checkpoint that was deleted and made anew is another query at the same place. What the one before had decided is
   carried out, and what it had open is ended: nothing else would come back for it.
3. A journal that was taken over says so, and names the query that took it. What it knew can be read from it again.
"""

from twofold.client.parts import Cluster
from twofold.connections.waiting import Deadline
from twofold.sink import names
from twofold.sink.inspection import SUFFIX, FoundJournal, Inspector


async def former_journals(
    cluster: Cluster, prefix: str, topic: str | None, former: tuple[str, ...], where: str, deadline: Deadline
) -> list[FoundJournal]:
    """Of the prefixes `former`, and of queries without a prefix of their own whose checkpoint was at `where`."""
    inspector = Inspector(cluster)
    try:
        if topic is not None:
            rows = await inspector.find(topic, None, deadline, thorough=True)
        else:
            rows = []
            for journal in await inspector.journals():
                name = journal.removesuffix(SUFFIX)
                if name in former or (name.startswith(names.OF_QUERY) and journal != names.ONCE_TOPIC):
                    rows += await inspector.find(journal, name, deadline)
    finally:
        inspector.close()
    return [row for row in rows if row.prefix != prefix and _is_ours(row, former, where)]


def _is_ours(row: FoundJournal, former: tuple[str, ...], where: str) -> bool:
    if row.prefix in former:
        if row.problem is not None:
            raise row.problem  # what it decided would be unknown
        return True
    register = row.register
    is_of_query = row.prefix.startswith(names.OF_QUERY)
    return register is not None and is_of_query and register.where == where and not register.moved_to
