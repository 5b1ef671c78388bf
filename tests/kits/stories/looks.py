"""Steps that look: what readers see, what stands in the logs, what the coordinator knows."""

from typing import Any

from kits.stories.node import StoryNode, log_lines, pair_text, state_records
from kits.stories.steps import step
from kits.stories.words import identity, name_of, place
from twofold.records.batch import iter_records
from twofold.records.filtering import visible_batches
from twofold.types import Ending, TopicPartition


class Looks:
    def __init__(self, node: StoryNode) -> None:
        self._node = node

    @step("read {subject} {partition}")
    async def read(self, subject: str, partition: str) -> str:
        assert subject in ("committed", "uncommitted"), subject
        where = place(partition)
        row = await self._fetch(where, committed=subject == "committed")
        if row["error_code"]:
            return name_of(row["error_code"])
        aborted = None
        if subject == "committed":
            aborted = [(entry["first_offset"], entry["producer_id"]) for entry in row["aborted_transactions"] or ()]
        data = bytes(row["records"] or b"")
        seen = [
            pair_text(record)
            for at, _, is_visible in visible_batches(data, aborted)
            if is_visible
            for record in iter_records(data, at)
        ]
        bound = "last_stable_offset" if subject == "committed" else "high_watermark"
        return f"{' '.join(seen) or 'nothing'} ({bound.replace('_', ' ')} {row[bound]})"

    async def _fetch(self, where: TopicPartition, *, committed: bool) -> dict[str, Any]:
        rows = [{"partition": where.partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        answer = await self._node.ask(
            "Fetch",
            11,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[{"topic": where.topic, "partitions": rows}],
        )
        row: dict[str, Any] = answer["responses"][0]["partitions"][0]
        return row

    @step("log of {partition}")
    async def log(self, partition: str) -> list[str]:
        return list(log_lines(self._node.log(place(partition)))) or ["empty"]

    @step("records of {transactional_id}")
    async def records(self, transactional_id: str) -> list[str]:
        """All of `__transaction_state` about the id, oldest first."""
        return list(state_records(self._node, transactional_id)) or ["none"]

    @step("describe {subject}")
    async def describe(self, subject: str) -> str:
        row = await self._describe(subject)
        if row["error_code"]:
            return name_of(row["error_code"])
        places = [f"{topic['topic']}-{index}" for topic in row["topics"] for index in topic["partitions"]]
        members = f" of {' '.join(sorted(places))}" if places else ""
        return f"{row['transaction_state']} {identity((row['producer_id'], row['producer_epoch']))}{members}"

    @step("outcome of {subject}")
    async def outcome(self, subject: str) -> str:
        """How the last two-phase transaction of the id ended."""
        row = await self._describe(subject)
        pair = (row["last_two_phase_producer_id"], row["last_two_phase_epoch"])
        if pair[0] == -1:
            return "none"
        return f"{identity(pair)}: {Ending(row['last_two_phase_ending']).name.lower()}"

    async def _describe(self, transactional_id: str) -> dict[str, Any]:
        answer = await self._node.ask("DescribeTransactions", 0, transactional_ids=[transactional_id])
        row: dict[str, Any] = answer["transaction_states"][0]
        return row
