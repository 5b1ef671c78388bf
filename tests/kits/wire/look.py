"""What a server shows of transactions to anybody who asks: ends by isolation level, offsets of groups."""

import time
from typing import Any, Protocol

from oracle.driver import Connection

PATIENCE_S = 15.0
UNSTABLE_OFFSET_COMMIT = 88


class Server(Protocol):
    host: str
    port: int


def ends(server: Server, topic: str, partitions: int, *, committed: bool) -> list[int]:
    """The last stable offsets, or the high watermarks."""
    rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    topics = [{"name": topic, "partitions": rows}]
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("ListOffsets", 2, replica_id=-1, isolation_level=int(committed), topics=topics)
    found = sorted(answer["topics"][0]["partitions"], key=lambda row: row["partition_index"])
    assert all(row["error_code"] == 0 for row in found), found
    return [row["offset"] for row in found]


def await_nothing_open(server: Server, topic: str, partitions: int, patience_s: float = PATIENCE_S) -> None:
    """Until readers of what is committed get to the end of every partition."""
    deadline = time.monotonic() + patience_s
    while (stable := ends(server, topic, partitions, committed=True)) != (
        all_of_it := ends(server, topic, partitions, committed=False)
    ):
        assert time.monotonic() < deadline, f"{topic}: readers are held at {stable}, the ends are {all_of_it}"
        time.sleep(0.02)


def group_offset(server: Server, group: str, topic: str, partition: int = 0, *, stable: bool = True) -> tuple[int, int]:
    """The error code and the committed offset (-1: none)."""
    rows = [{"name": topic, "partition_indexes": [partition]}]
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("OffsetFetch", 7, group_id=group, topics=rows, require_stable=stable)
    row: dict[str, Any] = answer["topics"][0]["partitions"][0] if answer["topics"] else {"committed_offset": -1}
    return answer["error_code"] or row.get("error_code", 0), row["committed_offset"]


def await_group_offset(server: Server, group: str, topic: str, partition: int = 0) -> int:
    """Committed, and nothing open that could change it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, offset = group_offset(server, group, topic, partition)
        if code == 0:
            return offset
        assert time.monotonic() < deadline, f"{group}: OffsetFetch is answered with {code}"
        time.sleep(0.02)
