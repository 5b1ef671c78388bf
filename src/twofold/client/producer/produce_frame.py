"""A Produce request as pieces of one frame: the batches are handed to the socket where they are, not copied.

Only for the flexible versions, which every broker since 2.4 serves; `wire.codec` writes the others, and the same bytes
(`test_pieces_are_the_bytes_of_the_codec`). Measured, median of seven alternating runs: sending a batch of 1 MB takes
16 % less processor time than with the codec's copy (1.2 ms, not 1.4) on uvloop, where the Spark sink and the blocking
producer run. On asyncio's own loop, and with batches of 16 KiB, the two are alike.
"""

import struct
from collections.abc import Mapping, Sequence
from uuid import UUID

from twofold.records.varint import encode_uvarint

FIRST_VERSION = 9
FIRST_WITH_IDS = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_NO_TAGS = b"\0"

Batch = bytes | bytearray


def produce_body(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Mapping[str, Sequence[tuple[int, Batch]]],
    ids: Mapping[str, UUID | None],
) -> list[Batch]:
    """What follows the header; partitions and their batches by topic name."""
    head = bytearray(_NO_TAGS if transactional_id is None else _compact(transactional_id))
    head += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    head += encode_uvarint(len(topics) + 1)
    pieces: list[Batch] = []
    for name, rows in topics.items():
        if version >= FIRST_WITH_IDS:
            topic_id = ids[name]
            assert topic_id is not None, f"version {version} needs the id of {name}"
            head += topic_id.bytes
        else:
            head += _compact(name)
        head += encode_uvarint(len(rows) + 1)
        for index, batch in rows:
            head += _INDEX.pack(index)
            head += encode_uvarint(len(batch) + 1)
            pieces += (bytes(head), batch)
            head = bytearray(_NO_TAGS)  # of the partition
        head += _NO_TAGS  # of the topic
    head += _NO_TAGS  # of the request
    pieces.append(bytes(head))
    return pieces


def _compact(text: str) -> bytes:
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data
