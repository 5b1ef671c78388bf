"""A member of a group as a process, for kill -9 and SIGSTOP: one line of JSON per thing that happens to it.

python group_reader.py '{"bootstrap_servers": ..., "group_id": ...}'
"""

import asyncio
import json
import sys
import time
from typing import Any

from twofold.client import Consumer, RebalanceListener
from twofold.errors import KafkaError

PACE_S = 0.02


def say(event: str, *what: Any) -> None:
    print(json.dumps([event, *what]), flush=True)


class Listener(RebalanceListener):
    def on_partitions_assigned(self, partitions: Any) -> None:
        say("assigned", *partitions)

    def on_partitions_revoked(self, partitions: Any) -> None:
        say("revoked", *partitions)

    def on_partitions_lost(self, partitions: Any) -> None:
        say("lost", *partitions)


async def main(options: dict[str, Any], commits: bool) -> None:
    async with Consumer(max_poll_records=1, enable_auto_commit=False, **options) as consumer:
        consumer.subscribe(["t"], listener=Listener())
        while True:
            records = await consumer.poll(1_000)
            now = time.monotonic()  # which all processes of the machine share
            for record in records:
                say("record", record.partition, record.offset, now)
                await asyncio.sleep(PACE_S)
                if not commits:
                    continue
                try:
                    await consumer.commit()
                except KafkaError as error:
                    say("refused", type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), commits=sys.argv[2:] == ["commits"]))
