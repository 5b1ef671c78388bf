"""The broker of a story, on a simulated machine, and what can be looked up in its logs."""

from collections.abc import Iterator
from typing import Any

from kits.node.sim_node import NODE, SimNode
from kits.stories.words import identity
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.records import NEVER_MS, TransactionMetadata, decode
from twofold.log.api import Bound
from twofold.log.log import PartitionLog
from twofold.records.batch import Header, Record, iter_headers, iter_records
from twofold.records.control import read_end_marker
from twofold.types import TopicPartition

SETTINGS: dict[str, object] = {
    "auto_create_topics_enable": "false",
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 1000,
    "add_partitions_to_txn_retry_backoff_max_ms": 0,
}
"""One partition per internal topic, and a broker that answers CONCURRENT_TRANSACTIONS at once instead of waiting."""
SETTLE_S = 0.02
LOADING = (14, 15, 16)


class StoryNode(SimNode):
    async def start(self) -> "StoryNode":
        await super().start()
        for key, kind in (("g", 0), ("x", 1)):
            while (await self.ask("FindCoordinator", 1, key=key, key_type=kind))["error_code"]:
                await self.settle()
        while await self._is_loading():
            await self.settle()
        return self

    async def _is_loading(self) -> bool:
        answer = await self.ask("DescribeTransactions", 0, transactional_ids=["x"])
        groups = await self.ask("DescribeGroups", 0, groups=["g"])
        codes = (answer["transaction_states"][0]["error_code"], groups["groups"][0]["error_code"])
        return any(code in LOADING for code in codes)

    async def settle(self) -> None:
        """Everything that the broker does by itself after a request is done."""
        await self.sleep(SETTLE_S)

    def crash(self, *, power_cut: bool) -> None:
        self.sim.crash(NODE, power_cut=power_cut)

    def log(self, partition: TopicPartition) -> PartitionLog:
        return self.broker.replicas.leader(*partition).log

    def topic_id(self, name: str) -> Any:
        known = self.broker.image.topic(name)
        assert known is not None, f"there is no topic {name}"
        return known.topic_id


def batches(log: PartitionLog) -> Iterator[tuple[Header, list[Record], str]]:
    """Header, records, and the word of the marker where it is one."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:  # a read ends with its segment
        data = bytes(log.read(offset, 1 << 30, Bound.LOG_END).records)
        for at, header in iter_headers(data):
            marker = read_end_marker(data, at) if header.is_control else None
            word = "" if marker is None else "COMMIT" if marker.commit else "ABORT"
            yield header, list(iter_records(data, at)), word
            offset = header.next_offset


def pair_text(record: Record) -> str:
    """`a=1`"""
    return f"{(record.key or b'').decode()}={(record.value or b'').decode()}"


def log_lines(log: PartitionLog) -> Iterator[str]:
    for header, records, word in batches(log):
        author = identity((header.producer_id, header.producer_epoch))
        if word:
            yield f"{header.base_offset} {word} {author}"
            continue
        texts = " ".join(map(pair_text, records))
        if not header.has_producer_id:
            yield f"{header.base_offset} {texts}"
        else:
            kind = "" if header.is_transactional else ", not transactional"
            yield f"{header.base_offset} {texts} {author} sequence {header.base_sequence}{kind}"


def state_records(node: StoryNode, transactional_id: str) -> Iterator[str]:
    for _, records, _ in batches(node.log(TopicPartition(TRANSACTION_STATE, 0))):
        for record in records:
            found = decode(record.key or b"", record.value)
            if found is not None and found.transactional_id == transactional_id:
                yield "removed" if found.value is None else entry_text(found.value)


def entry_text(entry: TransactionMetadata) -> str:
    """A record of `__transaction_state`, without its times."""
    text = f"{entry.state.wire_name} {identity((entry.producer_id, entry.producer_epoch))}"
    if entry.partitions:
        text += " of " + " ".join(sorted(map(str, entry.partitions)))
    if entry.next_producer_id != -1:
        epoch = "" if entry.next_producer_epoch == -1 else f" epoch {entry.next_producer_epoch}"
        text += f", next producer {entry.next_producer_id}{epoch}"
    if entry.previous_producer_id not in (-1, entry.producer_id):
        text += f", previous producer {entry.previous_producer_id}"
    return text + (", never times out" if entry.timeout_ms == NEVER_MS else "")
