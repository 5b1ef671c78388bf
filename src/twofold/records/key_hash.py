"""Which partition a key belongs to: the choice of Apache Kafka's clients, which all of them have to make alike."""

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        value = (value * _M & _MASK) ^ ((word ^ (word >> 24)) * _M & _MASK)
    if length != whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ (value >> 13)) * _M & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
