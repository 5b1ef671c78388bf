"""Steps of producers: one request each, in the versions of the producer's transaction.version."""

from dataclasses import dataclass, field
from typing import Any

from kits.stories.members import Members
from kits.stories.node import StoryNode
from kits.stories.steps import step
from kits.stories.words import NO_PAIR, Pair, identity, milliseconds, name_of, place
from twofold.records.batch import BatchBuilder
from twofold.types import TopicPartition

PLAIN = ""
"""The transactional id of a producer that has none."""


@dataclass
class StoryProducer:
    """What a client remembers."""

    transactional_id: str = PLAIN
    pair: Pair = NO_PAIR
    version: int = 2
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    last_batch: tuple[TopicPartition, bytes] | None = None
    last_end: tuple[Pair, bool] = (NO_PAIR, False)

    def is_now(self, pair: Pair) -> None:
        if pair != self.pair:
            self.sequences.clear()
        self.pair = pair


@dataclass
class InitOptions:
    timeout_ms: int = 60_000
    heartbeat_ms: int = 0
    two_phase: bool = False
    keeps: bool = False
    again: bool = False
    version: int = 2


def init_options(text: str) -> InitOptions:
    """`timeout 10s, two-phase, keep prepared, heartbeat 1s, again, TV1`"""
    found = InitOptions()
    for option in filter(None, text.split(", ")):
        match option.split():
            case ["timeout", duration]:
                found.timeout_ms = milliseconds(duration)
            case ["heartbeat", duration]:
                found.heartbeat_ms = milliseconds(duration)
            case ["two-phase"]:
                found.two_phase = True
            case ["keep", "prepared"]:
                found.keeps = True
            case ["again"]:
                found.again = True
            case ["TV1"]:
                found.version = 1
            case _:
                raise AssertionError(f"{option!r} is no option of init")
    return found


class Producers:
    def __init__(self, node: StoryNode, members: Members) -> None:
        self._node = node
        self._members = members
        self._known: dict[str, StoryProducer] = {}

    def __getitem__(self, name: str) -> StoryProducer:
        return self._known.setdefault(name, StoryProducer())

    # --- InitProducerId ---

    @step(r"{client}: init as {transactional_id}(, {options...})?")
    async def init(self, client: str, transactional_id: str, options: str = "") -> str:
        return await self._init(self[client], transactional_id, init_options(options))

    @step("{client}: init without a transactional id")
    async def init_plain(self, client: str) -> str:
        return await self._init(self[client], PLAIN, InitOptions())

    async def _init(self, producer: StoryProducer, transactional_id: str, options: InitOptions) -> str:
        producer.transactional_id, producer.version = transactional_id, options.version
        pair = producer.pair if options.again else NO_PAIR
        answer = await self._node.ask(
            "InitProducerId",
            4 if options.version < 2 else 7,
            transactional_id=transactional_id or None,
            transaction_timeout=options.timeout_ms,
            transaction_heartbeat_interval_ms=options.heartbeat_ms,
            producer_id=pair[0],
            producer_epoch=pair[1],
            enable2_pc=options.two_phase,
            keep_prepared_txn=options.keeps,
        )
        if answer["error_code"]:
            return name_of(answer["error_code"])
        producer.is_now((answer["producer_id"], answer["producer_epoch"]))
        ongoing = (answer.get("ongoing_txn_producer_id", -1), answer.get("ongoing_txn_producer_epoch", -1))
        kept = "" if ongoing == NO_PAIR else f", ongoing {identity(ongoing)}"
        return identity(producer.pair) + kept

    # --- Produce ---

    @step(r"{client}: produce (?P<records>\S+=\S*(?: \S+=\S*)*) to {partition}( with sequence {sequence})?")
    async def produce(self, client: str, records: str, partition: str, sequence: str = "") -> str:
        producer, where = self[client], place(partition)
        first = int(sequence) if sequence else producer.sequences.get(where, 0)
        has_identity = producer.pair != NO_PAIR
        builder = BatchBuilder(
            producer_id=producer.pair[0],
            producer_epoch=producer.pair[1],
            base_sequence=first if has_identity else -1,
            transactional=bool(producer.transactional_id),
        )
        for text in records.split():
            key, _, value = text.partition("=")
            builder.add(key.encode(), value.encode(), self._node.broker.runtime.clock.wall_ms())
        producer.last_batch = (where, builder.build())
        code, said = await self._send(producer)
        if code == 0:
            producer.sequences[where] = first + len(records.split())
        return said

    @step("{client}: repeat the last produce")
    async def repeat_produce(self, client: str) -> str:
        return (await self._send(self[client]))[1]

    async def _send(self, producer: StoryProducer) -> tuple[int, str]:
        assert producer.last_batch is not None, "nothing was produced before"
        where, batch = producer.last_batch
        answer = await self._node.ask(
            "Produce",
            12 if producer.version >= 2 else 9,
            transactional_id=producer.transactional_id or None,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": where.topic, "partition_data": [{"index": where.partition, "records": batch}]}],
        )
        row = answer["responses"][0]["partition_responses"][0]
        code = int(row["error_code"])
        return code, name_of(code) if code else f"{where} offset {row['base_offset']}"

    # --- AddPartitionsToTxn, EndTxn, TxnHeartbeat ---

    @step("{client}: add {partition} to the transaction")
    async def add(self, client: str, partition: str) -> str:
        producer, where = self[client], place(partition)
        answer = await self._node.ask(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.pair[0],
            v3_and_below_producer_epoch=producer.pair[1],
            v3_and_below_topics=[{"name": where.topic, "partitions": [where.partition]}],
        )
        row = answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0]
        return name_of(row["partition_error_code"])

    @step("{client}: (?P<ending>commit|abort)")
    async def end(self, client: str, ending: str) -> str:
        producer = self[client]
        producer.last_end = (producer.pair, ending == "commit")
        return await self._end(producer)

    @step("{client}: repeat the last EndTxn( as (?P<ending>commit|abort))?")
    async def repeat_end(self, client: str, ending: str = "") -> str:
        producer = self[client]
        pair, commit = producer.last_end
        producer.last_end = (pair, ending == "commit" if ending else commit)
        return await self._end(producer)

    async def _end(self, producer: StoryProducer) -> str:
        pair, commit = producer.last_end
        answer = await self._node.ask(
            "EndTxn",
            5 if producer.version >= 2 else 3,
            transactional_id=producer.transactional_id,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=commit,
        )
        if answer["error_code"] or producer.version < 2:
            return name_of(answer["error_code"])
        producer.is_now((answer["producer_id"], answer["producer_epoch"]))
        return identity(producer.pair)

    @step("{client}: heartbeat")
    async def heartbeat(self, client: str) -> str:
        producer = self[client]
        answer = await self._node.ask(
            "TxnHeartbeat",
            0,
            transactional_id=producer.transactional_id,
            producer_id=producer.pair[0],
            producer_epoch=producer.pair[1],
        )
        return name_of(answer["error_code"])

    # --- offsets ---

    @step("{client}: send offset {offset} of {partition} to group {group}( as {member}( in generation {generation})?)?")
    async def send_offset(
        self, client: str, offset: str, partition: str, group: str, member: str = "", generation: str = ""
    ) -> str:
        producer, where = self[client], place(partition)
        row: dict[str, Any] = {
            "partition_index": where.partition,
            "committed_offset": int(offset),
            "committed_metadata": "",
        }
        answer = await self._node.ask(
            "TxnOffsetCommit",
            5,
            transactional_id=producer.transactional_id,
            group_id=group,
            producer_id=producer.pair[0],
            producer_epoch=producer.pair[1],
            topics=[{"name": where.topic, "partitions": [row]}],
            **(self._members[member].body(generation) if member else {}),
        )
        return name_of(answer["topics"][0]["partitions"][0]["error_code"])
