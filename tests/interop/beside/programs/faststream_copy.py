"""Copies the topic `in` to `out` with FastStream, which promises each record at least once: address, session in ms."""

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker

address, session_ms = sys.argv[1:]
broker = KafkaBroker(address)
app = FastStream(broker)


@broker.subscriber(
    "in",
    group_id="faststream",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.ACK,
    session_timeout_ms=int(session_ms),
    heartbeat_interval_ms=1000,
)
@broker.publisher("out")
async def copy(number: int) -> int:
    return number


asyncio.run(app.run())
