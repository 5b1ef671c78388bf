"""Compile kio's schemas into Python functions: a writer per class, and a converter into the one shape.

Runs of fixed-size fields become one `struct` call, which makes the result several times faster than a walk over the
schema. The generated source is kept on the function (`__source__`) so that a failing field can be read.
"""

import dataclasses
import struct
import typing
from collections.abc import Callable
from typing import Any

from .message import Message

FIXED = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
    "float64": "d", "bool": "?", "error_code": "h", "timedelta_i32": "i", "timedelta_i64": "q", "datetime_i64": "q",
}  # fmt: skip
ZERO_UUID = bytes(16)


class EncodeError(Exception):
    """A value does not fit the field it was given for: a bug of the caller."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str  # in kio
    plain: str  # in the one shape
    kind: str  # kafka type, or "entity"
    array: bool
    nullable: bool
    tag: int | None
    default: Any
    entity: type | None


def plain_name(name: str, kafka_type: str) -> str:
    return f"{name}_ms" if kafka_type.startswith(("timedelta", "datetime")) else name


def entity_in(hint: Any) -> type | None:
    if isinstance(hint, type) and (issubclass(hint, Message) or dataclasses.is_dataclass(hint)):
        return hint
    return next((found for argument in typing.get_args(hint) if (found := entity_in(argument))), None)


def schema_fields(schema: type) -> list[FieldInfo]:
    hints = typing.get_type_hints(schema)
    found = []
    for item in dataclasses.fields(schema):
        hint = hints[item.name]
        arguments = typing.get_args(hint)
        entity = entity_in(hint)
        kind = "entity" if entity else item.metadata["kafka_type"]
        array = typing.get_origin(hint) is tuple or any(typing.get_origin(a) is tuple for a in arguments)
        nullable = type(None) in arguments
        tag = item.metadata.get("tag")
        found.append(
            FieldInfo(item.name, plain_name(item.name, kind), kind, array, nullable, tag, item.default, entity)
        )
    return found


def compile_writer(schema: type) -> Callable[[Any, bytearray], None]:
    """`write(message, out)`: append the message in this schema's version to `out`."""
    return _Writer().build(schema)


class _Writer:
    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"uvarint": uvarint, "EncodeError": EncodeError, "put_uuid": _put_uuid}
        self.lines: list[str] = []
        self.count = 0

    def build(self, schema: type) -> Callable[[Any, bytearray], None]:
        name = self.entity(schema)
        source = "\n".join(self.lines)
        exec(compile(source, f"<writer of {schema.__module__}>", "exec"), self.scope)
        write: Callable[[Any, bytearray], None] = self.scope[name]
        return write

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def packer(self, codes: str) -> str:
        name = f"pack_{codes.replace('?', 'z')}"
        self.scope[name] = struct.Struct(">" + codes).pack
        return name

    def entity(self, schema: type) -> str:
        flexible: bool = schema.__flexible__  # type: ignore[attr-defined]
        fields = schema_fields(schema)
        body: list[str] = []
        run: list[FieldInfo] = []

        def flush_run() -> None:
            if run:
                pack = self.packer("".join(FIXED[f.kind] for f in run))
                body.append(f"out += {pack}({', '.join('m.' + f.plain for f in run)})")
                run.clear()

        for info in fields:
            if info.tag is not None:
                continue
            if info.kind in FIXED and not info.array:
                run.append(info)
                continue
            flush_run()
            body += self.value(info, f"m.{info.plain}", flexible, info.nullable)
        flush_run()
        if flexible:
            body += self.tagged([f for f in fields if f.tag is not None])
        name = self.fresh("write")
        self.lines += [f"def {name}(m, out):", *("    " + line for line in body or ["pass"])]
        return name

    def tagged(self, fields: list[FieldInfo]) -> list[str]:
        if not fields:
            return ["out.append(0)"]
        body = ["tags = []"]
        for info in sorted(fields, key=lambda f: f.tag or 0):
            default = self.fresh("default")
            self.scope[default] = _plain_default(info)
            body.append(f"if (v := m.{info.plain}) is not None and not {default}(v):")
            inner = self.value(dataclasses.replace(info, tag=None), "v", True, False)
            body += ["    tag_out, out = out, bytearray()", *("    " + line for line in inner)]
            body += [f"    tags.append(({info.tag}, out)); out = tag_out"]
        body.append("out += uvarint(len(tags))")
        body.append("for tag, data in tags:")
        body.append("    out += uvarint(tag); out += uvarint(len(data)); out += data")
        return body

    def value(self, info: FieldInfo, expression: str, flexible: bool, nullable: bool) -> list[str]:
        if info.array:
            return self.array(info, expression, flexible)
        if info.kind == "entity":
            assert info.entity is not None
            write = self.entity(info.entity)
            if not nullable:
                return [f"{write}({expression}, out)"]
            return [
                f"if (e := {expression}) is None: out += b'\\xff'",
                f"else: out += b'\\x01'; {write}(e, out)",
            ]
        return self.scalar(info.kind, expression, flexible, nullable, info.plain)

    def scalar(self, kind: str, expression: str, flexible: bool, nullable: bool, label: str) -> list[str]:
        if kind in FIXED:
            return [f"out += {self.packer(FIXED[kind])}({expression})"]
        if kind == "uuid":
            return [f"put_uuid(out, {expression})"]
        encode = ".encode()" if kind == "string" else ""
        length_code = "h" if kind == "string" else "i"
        null = "out.append(0)" if flexible else f"out += {self.packer(length_code)}(-1)"
        if not nullable:
            null = f"raise EncodeError('{label} may not be null in this version')"
        length = "uvarint(len(b) + 1)" if flexible else f"{self.packer(length_code)}(len(b))"
        return [
            f"if (s := {expression}) is None: {null}",
            "else:",
            f"    b = s{encode}",
            f"    out += {length}",
            "    out += b",
        ]

    def array(self, info: FieldInfo, expression: str, flexible: bool) -> list[str]:
        null = "out.append(0)" if flexible else f"out += {self.packer('i')}(-1)"
        if not info.nullable:
            null = f"raise EncodeError('{info.plain} may not be null in this version')"
        length = "uvarint(len(a) + 1)" if flexible else f"{self.packer('i')}(len(a))"
        item = dataclasses.replace(info, array=False, nullable=False)
        if info.kind == "entity":
            assert info.entity is not None
            write = self.entity(info.entity)
            loop = [f"    for e in a: {write}(e, out)"]
        elif info.kind in FIXED:
            self.scope["pack"] = struct.pack
            loop = [f"    out += pack(f'>{{len(a)}}{FIXED[info.kind]}', *a)"]
        else:
            loop = ["    for e in a:", *("        " + x for x in self.value(item, "e", flexible, False))]
        return [f"if (a := {expression}) is None: {null}", "else:", f"    out += {length}", *loop]


def _put_uuid(out: bytearray, value: Any) -> None:
    out += ZERO_UUID if value is None else value.bytes


def _plain_default(info: FieldInfo) -> Callable[[Any], bool]:
    """Whether a value equals the default of a tagged field, in which case the tag is left out."""
    if info.array:
        return lambda value: info.default is not None and len(value) == 0
    if info.kind == "entity" and info.entity is not None:
        fields = schema_fields(info.entity)
        checks = [(f.plain, _plain_default(f)) for f in fields]
        return lambda value: all(check(getattr(value, name)) for name, check in checks)
    default = info.default
    if default is dataclasses.MISSING:
        zero: Any = {"string": "", "bytes": b"", "records": b"", "bool": False}.get(info.kind, 0)
        return lambda value: bool(value == zero)
    if default is None:
        return lambda value: value is None
    if info.kind.startswith(("timedelta", "datetime")):
        plain = to_milliseconds(default)
        return lambda value: bool(value == plain)
    return lambda value: bool(value == default)


def compile_converter(schema: type, shape: type) -> Callable[[Any], Any]:
    """`convert(kio_message)` into the one shape."""
    scope: dict[str, Any] = {"ms": to_milliseconds}
    lines: list[str] = []
    name = _converter(schema, shape, scope, lines)
    exec(compile("\n".join(lines), f"<converter of {schema.__module__}>", "exec"), scope)
    convert: Callable[[Any], Any] = scope[name]
    return convert


def _converter(schema: type, shape: type, scope: dict[str, Any], lines: list[str]) -> str:
    hints = typing.get_type_hints(shape)
    arguments = []
    for info in schema_fields(schema):
        source = f"m.{info.name}"
        if info.kind == "entity":
            inner_shape = entity_in(hints[info.plain])
            assert info.entity is not None and inner_shape is not None
            inner = _converter(info.entity, inner_shape, scope, lines)
            if info.array:
                text = f"tuple(map({inner}, {source}))"
                text = f"None if {source} is None else {text}" if info.nullable else text
            else:
                text = f"None if {source} is None else {inner}({source})" if info.nullable else f"{inner}({source})"
        elif info.kind.startswith(("timedelta", "datetime")):
            text = f"ms({source})"
        elif info.kind == "error_code":
            text = f"int({source})" if not info.array else f"tuple(map(int, {source}))"
        elif info.array and not info.nullable:
            text = (
                f"tuple({source})"  # of what is a tuple it is the same one, and of null, which kio lets pass, an error
            )
        else:
            text = source
        arguments.append(f"{info.plain}={text}")
    name = f"convert{len(scope)}"
    scope[f"shape_{name}"] = shape
    scope[name] = None
    lines += [f"def {name}(m):", f"    return shape_{name}({', '.join(arguments)})"]
    return name


def to_milliseconds(value: Any) -> int:
    if value is None:
        return -1
    if hasattr(value, "total_seconds"):
        seconds: float = value.total_seconds()
    else:
        seconds = value.timestamp()
    return round(seconds * 1000)


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes([value]) for value in range(0x80)]
