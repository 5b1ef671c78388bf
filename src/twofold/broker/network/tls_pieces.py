"""Answers in pieces for TLS: each write is a record of its own at least, so that small parts are joined."""

from collections.abc import Iterator, Sequence

from twofold.broker.network.context import Buffer

TLS_PIECE_BYTES = 256 * 1024


def joined(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces that are worth a record of TLS each."""
    small: list[Buffer] = []
    size = 0
    for part in parts:
        if size + len(part) > TLS_PIECE_BYTES and small:
            yield _one(small)
            small, size = [], 0
        small.append(part)
        size += len(part)
    if small:
        yield _one(small)


def _one(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)
