"""Tagged fields that a schema does not know are taken out of a message before it is read.

KIP-482 lets a newer peer add tagged fields to a version that exists, and the older one must ignore them; kio's reader
refuses them. This walk is slow, and it is only taken after that refusal.
"""

import struct
from functools import cache
from typing import Any

from .compile import FIXED, FieldInfo, schema_fields, uvarint

SIZES = {kind: struct.calcsize(code) for kind, code in FIXED.items()} | {"uuid": 16}


class CutOff(ValueError):
    """A length in the message reaches beyond its end."""


def without_unknown_tags(schema: type, message: Any, offset: int) -> bytes:
    """The entity of a flexible version at `offset`, written anew with the tagged fields of its schema only."""
    walk = _Walk(bytes(memoryview(message)[offset:]))
    walk.entity(schema)
    return bytes(walk.out)


@cache
def _fields(schema: type) -> tuple[tuple[FieldInfo, ...], dict[int, FieldInfo]]:
    found = schema_fields(schema)
    plain = tuple(field for field in found if field.tag is None)
    return plain, {field.tag: field for field in found if field.tag is not None}


class _Walk:
    """Copies a message field by field."""

    __slots__ = ("data", "out", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.out = bytearray()

    def entity(self, schema: type) -> None:
        plain, tagged = _fields(schema)
        for field in plain:
            self.field(field, nullable=field.nullable)
        self.tags(tagged)

    def field(self, field: FieldInfo, *, nullable: bool) -> None:
        if not field.array:
            self.value(field, nullable=nullable)
            return
        for _ in range(self.varint() - 1):
            self.value(field, nullable=False)

    def value(self, field: FieldInfo, *, nullable: bool) -> None:
        if field.entity is not None:
            if not nullable or self.copy(1)[0] != 0xFF:  # a nullable entity follows a byte: 1, or -1 for null
                self.entity(field.entity)
        elif field.kind in SIZES:
            self.copy(SIZES[field.kind])
        else:
            self.copy(max(self.varint() - 1, 0))

    def tags(self, known: dict[int, FieldInfo]) -> None:
        kept: list[tuple[int, bytes]] = []
        for _ in range(self.read_varint()):
            tag, size = self.read_varint(), self.read_varint()
            end = self.position + size
            if end > len(self.data):
                raise CutOff(f"tagged field {tag} of {size} bytes at {self.position} of {len(self.data)}")
            if tag in known:
                inner = _Walk(self.data[self.position : end])
                inner.field(known[tag], nullable=False)  # a tagged field that is null is left out
                kept.append((tag, bytes(inner.out)))
            self.position = end
        self.out += uvarint(len(kept))
        for tag, value in kept:
            self.out += uvarint(tag) + uvarint(len(value)) + value

    def copy(self, size: int) -> bytes:
        piece = self.data[self.position : self.position + size]
        if len(piece) < size:
            raise CutOff(f"{size} bytes wanted at {self.position} of {len(self.data)}")
        self.position += size
        self.out += piece
        return piece

    def varint(self) -> int:
        start = self.position
        value = self.read_varint()
        self.out += self.data[start : self.position]
        return value

    def read_varint(self) -> int:
        value = shift = 0
        while self.position < len(self.data) and shift <= 28:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise CutOff(f"a varint at {self.position} of {len(self.data)} does not end")
