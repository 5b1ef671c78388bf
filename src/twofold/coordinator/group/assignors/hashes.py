"""The hash by which a group notices that the topics it subscribes to have changed: Apache Kafka's, so that a change of
brokers moves nothing.

It is compared for equality only. All numbers are little-endian; a text is UTF-16 with its number of code units behind
it.
"""

import struct
from collections.abc import Iterable, Sequence

from twofold.types import TopicId

_FORM = b"\0"  # grows when the function changes
_HALF = (1 << 64) - 1


def topic_hash(topic_id: TopicId, name: str, partitions: int, racks_by_partition: Sequence[Sequence[str]] = ()) -> int:
    """`racks_by_partition` has the racks of each partition's replicas; empty where no broker has a rack."""
    number = topic_id.int
    parts = [_FORM, struct.pack("<QQ", number >> 64, number & _HALF), _text(name), struct.pack("<i", partitions)]
    if any(racks_by_partition):
        for partition in range(partitions):
            parts.append(struct.pack("<i", partition))
            parts += (_rack(rack) for rack in sorted(racks_by_partition[partition], key=_in_javas_order))
    else:
        parts.append(struct.pack(f"<{partitions}i", *range(partitions)))
    return _xxh3(b"".join(parts))


def group_hash(hashes_in_order_of_names: Iterable[int]) -> int:
    """Of the hashes of the topics that exist; 0 if there is none."""
    hashes = tuple(hashes_in_order_of_names)
    return _xxh3(struct.pack(f"<{len(hashes)}q", *hashes)) if hashes else 0


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le", "surrogatepass")
    return units + struct.pack("<i", len(units) // 2)


def _rack(rack: str) -> bytes:
    text = _text(rack)
    return text[-4:] + text


def _in_javas_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _xxh3(data: bytes) -> int:
    import xxhash  # here, so that a start without the extra [server] can say what is missing

    value: int = xxhash.xxh3_64_intdigest(data)
    return value - (1 << 64) if value >> 63 else value
