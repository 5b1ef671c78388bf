"""What the arrays of a message claim to hold, checked before anything is made of them.

A message comes from a stranger. kio's reader makes room for as many items as an array claims to have, and ends the
whole process where there is none: four bytes would stop a broker. And a message is small bytes and large objects: an
empty topic name takes two bytes of a frame and some hundred of memory. So a walk that makes no object goes first,
compiled per message and version like the writers.

1. No array has more items than there are bytes left.
2. All arrays of a request together have at most MAX_ENTRIES items; eight plain numbers count as one.
3. Bytes that end too early are refused here as well: where this walk cannot go, the reader must not.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from .apis import APIS
from .compile import FIXED, FieldInfo, schema_fields
from .schema import schema_of

# More than the partitions of the largest cluster that one client could ask about at once.
MAX_ENTRIES = 120_000
WITHOUT_END = 1 << 62

_SIZES = {kind: struct.calcsize(code) for kind, code in FIXED.items()} | {"uuid": 16}

Walk = Callable[[Any, int, list[int]], int]
"""`walk(message, position, left)` gives the position after the structure; `left` holds how many entries may come."""


class LyingCount(ValueError):
    """An array claims more than its message holds, or more than is taken at once."""


def check_entries(walk: Walk, message: Any, offset: int, most: int = MAX_ENTRIES) -> None:
    """Raise LyingCount for a message whose arrays are not to be made."""
    try:
        walk(message, offset, [most])
    except (IndexError, struct.error):
        raise LyingCount(f"a message of {len(message)} bytes ends before its fields do") from None


@cache
def request_walk(api_key: int, version: int) -> Walk:
    return compile_walk(schema_of(APIS[api_key].module, version, "request"))


def has_arrays(schema: type) -> bool:
    return any(
        field.array or (field.entity is not None and has_arrays(field.entity)) for field in schema_fields(schema)
    )


def compile_walk(schema: type) -> Walk:
    compiler = _Compiler()
    name = compiler.entity(schema)
    exec(compile("\n".join(compiler.lines), f"<entries of {schema.__module__}>", "exec"), compiler.scope)
    walk: Walk = compiler.scope[name]
    return walk


class _Compiler:
    """Writes a function per structure."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {
            "int16": struct.Struct(">h").unpack_from,
            "int32": struct.Struct(">i").unpack_from,
            "varint": _varint,
            "tags": _tags,
            "spend": _spend,
        }
        self.lines: list[str] = []
        self.count = 0

    def function(self, body: list[str]) -> str:
        self.count += 1
        name = f"walk{self.count}"
        self.lines += [f"def {name}(d, at, left):", *("    " + line for line in body), "    return at"]
        return name

    def entity(self, schema: type) -> str:
        flexible: bool = schema.__flexible__  # type: ignore[attr-defined]
        fields = schema_fields(schema)
        body: list[str] = []
        for field in fields:
            if field.tag is None:
                body += self.field(field, flexible, nullable=field.nullable)
        if flexible:
            known = [field for field in fields if field.tag is not None]
            pairs = [f"{field.tag}: {self.function(self.field(field, True, nullable=False))}" for field in known]
            body.append(f"at = at + 1 if d[at] == 0 else tags(d, at, left, {{{', '.join(pairs)}}})")
        return self.function(body)

    def field(self, field: FieldInfo, flexible: bool, *, nullable: bool) -> list[str]:
        return self.array(field, flexible) if field.array else self.value(field, flexible, nullable=nullable)

    def value(self, field: FieldInfo, flexible: bool, *, nullable: bool) -> list[str]:
        if field.entity is not None:
            inner = f"at = {self.entity(field.entity)}(d, at, left)"
            return ["at += 1", f"if d[at - 1] != 255: {inner}"] if nullable else [inner]
        if field.kind in _SIZES:
            return [f"at += {_SIZES[field.kind]}"]
        if flexible:
            return ["n, at = (d[at], at + 1) if d[at] < 128 else varint(d, at)", "if n: at += n - 1"]
        length, size = ("int16", 2) if field.kind == "string" else ("int32", 4)
        return [f"n = {length}(d, at)[0]", f"at += {size} + n if n > 0 else {size}"]

    def array(self, field: FieldInfo, flexible: bool) -> list[str]:
        if flexible:
            head = ["c, at = (d[at] - 1, at + 1) if d[at] < 128 else varint(d, at, 1)"]
        else:
            head = ["c = int32(d, at)[0]", "at += 4"]
        if field.entity is None and field.kind in _SIZES:
            size = _SIZES[field.kind]
            return [*head, f"if c > 0: spend(d, at, left, c, c >> 3); at += c * {size}"]
        head.append("if c > 0: spend(d, at, left, c, c)")
        if field.entity is not None:
            return [*head, f"for _ in range(c): at = {self.entity(field.entity)}(d, at, left)"]
        return [*head, "for _ in range(c):", *("    " + line for line in self.value(field, flexible, nullable=False))]


def _spend(d: Any, at: int, left: list[int], count: int, cost: int) -> None:
    if count > len(d) - at:
        raise LyingCount(f"an array claims {count} items where {max(0, len(d) - at)} bytes are left")
    left[0] -= cost
    if left[0] < 0:
        raise LyingCount(f"the arrays have more than {MAX_ENTRIES} entries: ask in several requests")


def _varint(d: Any, at: int, less: int = 0) -> tuple[int, int]:
    value = shift = 0
    while shift <= 28:
        byte = d[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - less, at
        shift += 7
    raise LyingCount(f"the varint before byte {at} does not end")


def _tags(d: Any, at: int, left: list[int], known: dict[int, Walk]) -> int:
    count, at = _varint(d, at)
    _spend(d, at, left, count, count)
    for _ in range(count):
        tag, at = _varint(d, at)
        size, at = _varint(d, at)
        if size > len(d) - at:
            raise LyingCount(f"tagged field {tag} claims {size} bytes where {max(0, len(d) - at)} are left")
        walk = known.get(tag)
        if walk is not None and (end := walk(d, at, left)) != at + size:
            # kio goes on after the value, wherever its size says that it ends: from there on we would look elsewhere.
            raise LyingCount(f"tagged field {tag} claims {size} bytes and its value has {end - at}")
        at += size
    return at
