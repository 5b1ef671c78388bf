"""A server that only acknowledges, for the reference client: the client of a measurement, with no broker beside it.

It reads frames, answers the hand-shake with canned metadata, acknowledges every Produce without looking at the
records, and answers every Fetch from one block of batches in memory with the offsets patched in. Every step of a
transaction succeeds. A broker is measured as a ratio of what the client reaches against it. That is no upper limit:
how a server cuts its answers changes what the client does with them, so a broker may come out ahead of it.
"""

import argparse
import asyncio
import struct
import sys
from typing import Any

import uvloop

from twofold.records.batch import BatchBuilder
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from twofold.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from twofold.wire.messages.end_txn import EndTxnResponse
from twofold.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from twofold.wire.messages.find_coordinator import FindCoordinatorResponse
from twofold.wire.messages.init_producer_id import InitProducerIdResponse
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from twofold.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twofold.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from twofold.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

SERVED = {0: 9, 1: 11, 2: 5, 3: 9, 10: 3, 18: 3, 22: 4, 24: 3, 25: 3, 26: 3, 28: 3}
END = 1 << 40


class Reference(asyncio.Protocol):
    def __init__(self, port: int, partitions: int, block: bytes, starts: list[int], records: int) -> None:
        self.port, self.partitions = port, partitions
        self.block, self.starts, self.records = bytearray(block), starts, records
        self.buffer = bytearray()
        self.offset = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 4:
            size = int.from_bytes(self.buffer[:4], "big")
            if len(self.buffer) < size + 4:
                return
            frame = bytes(memoryview(self.buffer)[4 : size + 4])
            del self.buffer[: size + 4]
            self.answer(frame)

    def answer(self, frame: bytes) -> None:
        header = codec.decode_request_header(frame)
        key = header.api_key
        version = header.version
        request = codec.decode_request(key, version, frame, header.body_offset)
        response = getattr(self, f"api_{key}")(request)
        self.transport.write(codec.encode_response(response, key, version, header.correlation_id))

    def api_18(self, request: object) -> ApiVersionsResponse:
        keys = [ApiVersion(api_key=k, min_version=APIS[k].min_version, max_version=v) for k, v in SERVED.items()]
        keys[0] = ApiVersion(api_key=0, min_version=0, max_version=SERVED[0])
        return ApiVersionsResponse(error_code=0, api_keys=keys)

    def api_3(self, request: Any) -> MetadataResponse:
        names = [topic.name for topic in request.topics or ()]
        rows = [
            MetadataResponsePartition(
                error_code=0, partition_index=i, leader_id=1, replica_nodes=[1], isr_nodes=[1], leader_epoch=0
            )
            for i in range(self.partitions)
        ]
        broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        topics = [MetadataResponseTopic(error_code=0, name=name, partitions=rows) for name in names]
        return MetadataResponse(brokers=[broker], topics=topics, controller_id=1, cluster_id="reference")

    def api_22(self, request: object) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=0)

    def api_10(self, request: object) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(error_code=0, node_id=1, host="127.0.0.1", port=self.port)

    def api_24(self, request: Any) -> AddPartitionsToTxnResponse:
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=0)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def api_25(self, request: object) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=0)

    def api_26(self, request: object) -> EndTxnResponse:
        return EndTxnResponse(error_code=0)

    def api_28(self, request: Any) -> TxnOffsetCommitResponse:
        topics = [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=0)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return TxnOffsetCommitResponse(topics=topics)

    def api_2(self, request: Any) -> ListOffsetsResponse:
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=p.partition_index, error_code=0, timestamp=-1, offset=0, leader_epoch=0
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def api_0(self, request: Any) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            rows = []
            for partition in topic.partition_data:
                self.offset += 1
                rows.append(PartitionProduceResponse(index=partition.index, error_code=0, base_offset=self.offset))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=rows))
        return ProduceResponse(responses=topics)

    def api_1(self, request: Any) -> FetchResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for partition in topic.partitions:
                base = partition.fetch_offset
                for start in self.starts:
                    struct.pack_into(">q", self.block, start, base)
                    base += self.records
                rows.append(
                    PartitionData(
                        partition_index=partition.partition, error_code=0, high_watermark=END, last_stable_offset=END,
                        log_start_offset=0, aborted_transactions=None, records=self.block,
                    )
                )  # fmt: skip
            topics.append(FetchableTopicResponse(topic=topic.topic, partitions=rows))
        return FetchResponse(responses=topics)


def make_block(record_bytes: int) -> tuple[bytes, list[int], int]:
    """About one megabyte of batches of about 64 KB (librdkafka's own batches are larger; the client does not mind)."""
    records = max(1, 65536 // (record_bytes + 10))
    builder = BatchBuilder()
    for _ in range(records):
        builder.add(None, bytes(record_bytes), 1_700_000_000_000)
    batch = builder.build()
    count = max(1, (1 << 20) // len(batch))
    return batch * count, [i * len(batch) for i in range(count)], records


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--record-bytes", type=int, default=1024)
    options = parser.parse_args()
    block, starts, records = make_block(options.record_bytes)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Reference(options.port, options.partitions, block, starts, records), "127.0.0.1", options.port
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        uvloop.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
