"""Write `src/twofold/wire/messages/*.py` from kio's schemas.

kio has one class per message and version. A handler wants one shape per message: the union of the fields of all
versions, with plain types (int milliseconds instead of timedelta, int instead of an error enum). This script writes
those classes; `wire/codec.py` converts between them and the bytes of each version.

Run `python tools/generate_messages.py` after an upgrade of kio; a test fails when the result differs.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.util
import pkgutil
import sys
import types
import typing
import uuid
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import twofold.wire  # noqa: F401, I001  (first: it imports kio the cheap way)
from kio.schema.index import api_key_map
from twofold.wire.apis import KEYS
from twofold.wire.schema import own_versions, schema_of

OUT = Path(__file__).parent.parent / "src" / "twofold" / "wire" / "messages"
LEFT_OUT = ("share", "streams", "telemetry", "delegation_token", "envelope", "raft_voter", "controller_registration")

PLAIN = {
    "int8": "int", "int16": "int", "int32": "int", "int64": "int", "uint8": "int", "uint16": "int", "uint32": "int",
    "uint64": "int", "float64": "float", "string": "str", "bytes": "bytes", "records": "bytes | bytearray | memoryview",
    "uuid": "UUID | None", "bool": "bool", "error_code": "int", "timedelta_i32": "int", "timedelta_i64": "int",
    "datetime_i64": "int",
}  # fmt: skip
ZERO = {"int": "0", "float": "0.0", "str": '""', "bytes": 'b""', "bool": "False", "UUID | None": "None"}


NOT_GIVEN = object()


@dataclass
class Member:
    name: str
    kind: str  # a key of PLAIN, or "entity"
    array: bool
    nullable: bool
    default: object = NOT_GIVEN
    versions: set[int] = field(default_factory=set)
    entity: Entity | None = None


@dataclass
class Entity:
    name: str
    members: dict[str, Member] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)


def plain_name(name: str, kafka_type: str) -> str:
    return f"{name}_ms" if kafka_type.startswith(("timedelta", "datetime")) else name


def entity_in(hint: object) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    for argument in typing.get_args(hint):
        found = entity_in(argument)
        if found:
            return found
    return None


def is_nullable(hint: object) -> bool:
    return isinstance(hint, types.UnionType | typing._UnionGenericAlias) and type(None) in typing.get_args(hint)  # type: ignore[attr-defined]


def is_array(hint: object) -> bool:
    return typing.get_origin(hint) is tuple or any(typing.get_origin(a) is tuple for a in typing.get_args(hint))


def merge(entity: Entity, cls: type, version: int) -> None:
    entity.versions.add(version)
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        inner = entity_in(hint)
        kafka_type = "entity" if inner else item.metadata["kafka_type"]
        name = plain_name(item.name, kafka_type)
        nullable = is_nullable(hint) and (kafka_type != "uuid" or is_array(hint))
        member = entity.members.get(name)
        if member is None:
            member = entity.members[name] = Member(name, kafka_type, is_array(hint), nullable)
        member.nullable = member.nullable or nullable
        member.versions.add(version)
        if item.default is not dataclasses.MISSING:
            member.default = item.default
        if inner:
            member.entity = member.entity or Entity(inner.__name__)
            member.entity.name = inner.__name__
            merge(member.entity, inner, version)


def default_text(member: Member, required: bool) -> str | None:
    value = member.default
    if value is not NOT_GIVEN:
        if value is None:
            return "None"
        if member.kind == "entity":
            return None if member.array else f"{member.entity.name}()"  # type: ignore[union-attr]
        if isinstance(value, datetime.timedelta):
            return str(round(value.total_seconds() * 1000))
        if isinstance(value, datetime.datetime):
            return str(round(value.timestamp() * 1000))
        if isinstance(value, uuid.UUID):
            return f'UUID("{value}")'
        if isinstance(value, tuple):
            return "()"
        if member.kind == "bool":
            return repr(bool(value))
        return str(int(value)) if isinstance(value, int) else repr(value).replace("'", '"')
    if member.name == "throttle_time_ms":
        return "0"
    if required:
        return None
    if member.nullable:
        return "None"
    if member.array:
        return "()"
    if member.kind == "entity":
        return "None"
    if member.kind == "records":
        return "None"
    return ZERO[PLAIN[member.kind]]


def annotation(member: Member) -> str:
    inner = member.entity.name if member.entity else PLAIN[member.kind]
    if member.array:
        return f"Sequence[{inner}]" + (" | None" if member.nullable else "")
    if member.nullable and not inner.endswith("None") and member.kind != "datetime_i64":
        return f"{inner} | None"
    return inner


def parameter(entity: Entity, member: Member) -> tuple[str, str, str | None]:
    """Name, annotation and default."""
    required = member.versions == entity.versions and member.default is NOT_GIVEN
    hint = annotation(member)
    default = default_text(member, required)
    if default is None and not required:
        default = "()" if member.array else "None"
    if member.kind == "datetime_i64" and (default == "None" or (default is None and member.nullable)):
        default = "-1"
    if default == "None" and "None" not in hint:
        hint = f"{hint} | None"
    return member.name, hint, default


def wrapped(head: str, body: str, tail: str) -> list[str]:
    """As the formatter would break it."""
    if len(head + body + tail) <= 120:
        return [head + body + tail]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    if len(indent + body) <= 120 and head.lstrip().startswith("def"):
        return [head, indent + body, " " * (len(indent) - 4) + tail]
    items = body.rstrip(",").split(", ")
    return [head, *(f"{indent}{item}," for item in items), " " * (len(indent) - 4) + tail]


def render(entity: Entity, doc: str, done: dict[str, str]) -> None:
    if entity.name in done:
        return
    for member in entity.members.values():
        if member.entity:
            render(member.entity, "", done)
    parameters = [parameter(entity, member) for member in entity.members.values()]
    lines = [f"class {entity.name}(Message):"]
    if doc:
        lines += [f'    """{doc}"""', ""]
    names = list(entity.members)
    slots = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
    lines += wrapped("    __slots__ = (", slots, ")")
    if names:
        lines += [f"    {name}: {hint}" for name, hint, _ in parameters]
        given = ", ".join(f"{name}: {hint}" + (f" = {value}" if value else "") for name, hint, value in parameters)
        lines += ["", *wrapped("    def __init__(", f"self, *, {given}", ") -> None:")]
        lines += [f"        self.{name} = {name}" for name in names]
    done[entity.name] = "\n".join(lines)


def load(api: str, kind: str) -> dict[int, type]:
    own = {version: schema_of(api, version, kind) for version in own_versions(api)}
    if importlib.util.find_spec(f"kio.schema.{api}") is None:
        return own
    found = {}
    package = importlib.import_module(f"kio.schema.{api}")
    for info in pkgutil.iter_modules(package.__path__):
        name = f"kio.schema.{api}.{info.name}.{kind}"
        if importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        (cls,) = (
            c for c in vars(module).values()
            if isinstance(c, type) and c.__module__ == name and getattr(c, "__type__", None) is not None
            and c.__type__.name == kind
        )  # fmt: skip
        found[int(info.name[1:])] = cls
    return dict(sorted((found | own).items()))


def rename_clashes(entity: Entity, taken: set[str]) -> None:
    for member in entity.members.values():
        if member.entity:
            if member.entity.name in taken:
                member.entity.name += "Result"
            rename_clashes(member.entity, taken)


def nested_names(entity: Entity) -> set[str]:
    names = {entity.name}
    for member in entity.members.values():
        if member.entity:
            names |= nested_names(member.entity)
    return names


def module_text(key: int, api: str) -> str:
    done: dict[str, str] = {}
    taken: set[str] = set()
    spans = []
    for kind in ("request", "response"):
        versions = load(api, kind)
        newest = max(versions)
        root = Entity(versions[newest].__name__)
        for version, cls in versions.items():
            merge(root, cls, version)
        if kind == "response":
            rename_clashes(root, taken)
        taken = nested_names(root)
        spans.append(f"{min(versions)}-{newest}")
        render(root, f"API key {key}, versions {min(versions)}-{newest}.", done)
    body = "\n\n\n".join(done.values())
    imports = []
    if "Sequence[" in body:
        imports.append("from collections.abc import Sequence")
    if "UUID" in body:
        imports.append("from uuid import UUID")
    imports += [""] * bool(imports) + ["from twofold.wire.message import Message"]
    head = f'"""Written by tools/generate_messages.py from kio\'s schemas; do not edit. API key {key}."""\n\n'
    return head + "\n".join(imports) + "\n\n\n" + body + "\n"


def generate() -> dict[str, str]:
    texts = {}
    for key, api in [*api_key_map.items(), (KEYS["TxnHeartbeat"], "txn_heartbeat")]:
        if not any(word in api for word in LEFT_OUT):
            texts[f"{api}.py"] = module_text(key, api)
    texts["__init__.py"] = (
        '"""One dataclass per message: the union of the fields of all its versions. Written by a tool."""\n'
    )
    return texts


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, text in generate().items():
        (OUT / name).write_text(text)


if __name__ == "__main__":
    main()
